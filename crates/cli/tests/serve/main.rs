//! `tombolo serve`, over real sockets, on the demo model.
#![allow(missing_docs)]

mod api;
mod bench;
mod client;
mod crowd;
mod hostile;
mod life;
mod wire;
