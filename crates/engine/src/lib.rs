//! The engine: ranks as worker threads, the pool of KV blocks, and the loop that turns a prompt into tokens.
//!
//! It speaks to devices only through [`tombolo_model::Backend`] and opens no file. Only the wait for a rank's answer looks at a
//! clock.
#![forbid(unsafe_code)]

mod blocks;
mod error;
mod generate;
mod speculate;
mod workers;

pub use blocks::BlockPool;
pub use error::EngineError;
pub use generate::{Context, Engine, Finish, Shape};
pub use speculate::Speculation;
