//! The `tombolo` binary: arguments in, one line out on errors. One file per command under `commands/`; what a command
//! does lives in the crates below.
#![forbid(unsafe_code)]

fn main() {}
