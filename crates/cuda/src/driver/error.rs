//! Why a driver call failed, and why there is no GPU to call: values, never panics.

use cudarc::driver::sys;
use std::ffi::CStr;

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed on GPU {device}: {meaning} ({code})")]
pub struct CudaError {
    /// The driver's function.
    pub call: &'static str,
    /// Ordinal of the device that it was called for.
    pub device: usize,
    /// The driver's number.
    pub code: u32,
    /// The driver's own words.
    pub meaning: String,
}

impl CudaError {
    /// Whether the device had no memory left for the call.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

/// Why this process cannot compute on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NoGpu {
    #[error("no GPU: libcuda.so.1 was not found, so no NVIDIA driver is installed")]
    NoLibrary,
    #[error("no GPU: the NVIDIA driver has no function '{symbol}'; driver 580 or newer is needed")]
    MissingSymbol { symbol: &'static str },
    #[error("no GPU: the NVIDIA driver supports CUDA {major}.{minor}; CUDA 13.0 (driver 580) or newer is needed")]
    DriverTooOld { major: u32, minor: u32 },
    #[error("no GPU: the NVIDIA driver does not start: {meaning}")]
    NotStarted { meaning: String },
    #[error("no GPU: the NVIDIA driver lists no device")]
    NoDevice,
    #[error("no GPU {ordinal}: the NVIDIA driver lists {count}, counted from 0")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error("no GPU: this build carries no GPU kernels; `cargo xtask kernels` makes them, then build again")]
    NoKernels,
    #[error(
        "no GPU: the GPU kernels of this build are older than their sources ({files}): run `cargo xtask kernels`, then build again"
    )]
    StaleKernels { files: &'static str },
    #[error("no GPU: {0}")]
    Failed(#[from] CudaError),
}

/// Turns the driver's result into ours.
pub(crate) fn check(call: &'static str, device: usize, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CudaError { call, device, code: result as u32, meaning: meaning(result) })
}

/// The driver's words for a result.
pub(crate) fn meaning(result: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the library is loaded (a result came from it); `text` is set to a static string or left null.
    let found = unsafe { sys::cuGetErrorString(result, &mut text) };
    if found != sys::CUresult::CUDA_SUCCESS || text.is_null() {
        return "unknown error".to_string();
    }
    // SAFETY: not null, and the driver's strings are static and end in a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// `cu!(device, cuFunction(arguments))`: calls the driver and names the call in the error. Needs an unsafe block.
macro_rules! cu {
    ($device:expr, $call:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::error::check(stringify!($call), $device, cudarc::driver::sys::$call($($argument),*))
    };
}
pub(crate) use cu;
