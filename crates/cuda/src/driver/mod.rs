//! The driver layer: CUDA's driver API as values with owners and errors with names.
//!
//! Nothing here knows about models. Everything above launches kernels through [`Stream::launch`] and never calls the
//! driver itself. Handles are `Send`; whoever uses them from another thread calls [`Device::make_current`] first.

mod args;
mod buffer;
mod device;
mod error;
mod event;
mod graph;
mod launch;
mod library;
mod module;
pub mod nccl;
mod peer;
mod pinned;
mod stream;

pub use args::{Args, ByValue};
pub use buffer::{Arena, ArenaPlan, DevicePtr, Slot};
pub use device::{Device, DeviceInfo};
pub use error::{CudaError, NoGpu};
pub use event::Event;
pub use graph::Graph;
pub use launch::Launch;
pub use library::{Library, NEEDED_DRIVER};
pub use module::{Kernel, Kernels};
pub use peer::{PeerAccess, enable_peer};
pub use pinned::Pinned;
pub use stream::Stream;
