//! Launches `add_norm`: the all-reduce of a lone rank.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};
use crate::kernels::rms_norm::block_for;

/// What `add_norm` reads and writes, `[rows, width]` f32 each, the weight `[width]`.
#[derive(Clone, Copy, Debug)]
pub struct AddNorm {
    /// Added to the residual.
    pub partial: DevicePtr,
    /// Read and written.
    pub residual: DevicePtr,
    /// Of the norm.
    pub weight: DevicePtr,
    /// Normed.
    pub out: DevicePtr,
    /// Of the norm.
    pub eps: f32,
}

/// Queues it for `rows` rows.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The addresses must hold what [`AddNorm`] says.
pub unsafe fn add_norm(
    stream: &Stream,
    kernels: &Kernels,
    a: &AddNorm,
    rows: usize,
    width: usize,
) -> Result<(), CudaError> {
    let args = Args::new().ptr(a.partial).ptr(a.residual).ptr(a.weight).ptr(a.out).u32(width as u32).f32(a.eps);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("add_norm"), &Launch::new(rows as u32, block_for(width)), &args) }
}
