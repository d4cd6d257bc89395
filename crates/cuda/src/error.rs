//! Why a model could not be loaded onto GPUs, and how the driver's errors look to those who run steps.

use crate::driver::{CudaError, Device, NoGpu};
use tombolo_model::{BackendError, ModelError};

/// Why a model was not loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    #[error(transparent)]
    Device(#[from] CudaError),
    #[error("--tensor-parallel-size {tp} needs {tp} devices, one a rank; {named} are named")]
    Devices { tp: usize, named: usize },
    #[error(transparent)]
    Program(#[from] crate::fuse::Unfusable),
    #[error("{device}: out of memory: {wanted_mib} MiB wanted for {what}, {free_mib} MiB free")]
    OutOfMemory { device: String, what: String, wanted_mib: u64, free_mib: u64 },
    #[error(transparent)]
    Connect(#[from] crate::collective::ConnectError),
    #[error("{what}")]
    Unsupported { what: String },
    #[error("the thread that loaded rank {rank} died")]
    RankDied { rank: usize },
}

/// `GPU 0 (NVIDIA H200)`, as errors and descriptions name a device.
pub fn device_name(device: &Device) -> String {
    format!("GPU {} ({})", device.ordinal(), device.info.name)
}

/// A driver error while a step runs.
pub(crate) fn step_error(device: &Device, error: CudaError) -> BackendError {
    BackendError::Device { device: device_name(device), message: error.to_string() }
}
