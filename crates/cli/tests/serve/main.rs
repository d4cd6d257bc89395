//! `tombolo serve`, over real sockets, on the demo model.
#![allow(missing_docs)]

mod api;
mod bench;
mod bounds;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod hostile;
mod life;
mod logs;
mod structured;
mod wire;
