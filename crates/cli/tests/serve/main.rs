//! `tombolo serve`, over real sockets, on the demo model.
#![allow(missing_docs)]

mod api;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod life;
mod structured;
mod wire;
