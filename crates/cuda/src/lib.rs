//! The backend for NVIDIA GPUs, and the only crate that touches the driver.
//!
//! `driver` holds the driver API as owned values; `kernels` one folder per operation, the CUDA source beside its launch
//! wrapper; above them the weights' layouts, the memory plan, fusing, capture and the rank that runs steps.

pub mod driver;
pub mod kernels;

pub use driver::{DeviceInfo, NoGpu};
