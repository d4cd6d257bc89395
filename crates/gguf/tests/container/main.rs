//! The file container: what is refused and how, that no bytes whatever make the reader panic, and that what the writer
//! writes comes back. Case numbers such as G07 are those of the project's list of hostile files.

mod counts;
mod fields;
mod files;
mod mutants;
mod raw;
mod robust;
mod round_trip;
mod splits;
mod tensors;
mod values;
