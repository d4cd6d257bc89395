//! The ceiling: the least time that a step of a model can take on a machine, term by term, and what an observed step
//! loses against it. Read off the model's `Program`, the machine's links and a few measured constants, each with its
//! source; nothing is run.
//!
//! Here: figures. What they look like on a screen is the command's business; what a machine is, `topology`'s.
#![forbid(unsafe_code)]

pub mod advice;
pub mod budget;
pub mod compare;
mod constants;
pub mod links;
pub mod outside;
pub mod placement;
pub mod reduce;
pub mod shape;
pub mod step;

pub use constants::{Constants, Figure};
