//! The engine: ranks as worker threads, the pool of KV blocks, and the loop that turns a prompt into tokens.
//!
//! It speaks to devices only through [`tombolo_model::Backend`] and opens no file. Only the waits for a rank's answer and for
//! a mask look at a clock, and how long steps take is measured where they are run.
#![forbid(unsafe_code)]

mod blocks;
mod cache;
mod draw;
mod engine;
mod error;
mod masks;
mod ngram;
mod request;
mod runner;
mod schedule;
mod workers;

pub use blocks::BlockPool;
pub use engine::{Context, Engine, Shape};
pub use error::EngineError;
pub use masks::{MASK_LIMIT, MASKS_LEFT_MAX};
pub use request::{Event, Extra, Interrupt, Logprobs, Mask, MaskFault, Penalties, Reason, Request, RequestId, Tally};
pub use runner::{Phase, Runner};
pub use schedule::{Drafts, Figures, Refused, Scheduler, Settings};
