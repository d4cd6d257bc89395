//! How long a schedule takes on a machine's links: a simulation of its hops, event by event, and NCCL's own model of its
//! rings beside it. What a hop costs is in `data/links.toml`, what others measured in `data/rows.toml`.
//!
//! Here: nothing of models or steps.

pub mod calibrate;
mod fabric;
mod nccl;
mod params;
pub mod rows;
mod simulate;

pub use fabric::{Fabric, FabricError, Wire, assumed_access, peer_access};
pub use nccl::{Nccl, nccl_us};
pub use params::{Cost, Params, Source};
pub use simulate::{Simulated, Style, simulate};
