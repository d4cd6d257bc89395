//! Launches `rms_norm`.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};

/// Queues `out = norm(x) * weight` for `groups` groups of `width` neighbouring values; `out` may be `x`.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// `x` and `out` must hold `groups * width` f32 values, `weight` must hold `width`.
pub unsafe fn rms_norm(
    stream: &Stream,
    kernels: &Kernels,
    (x, weight, out): (DevicePtr, DevicePtr, DevicePtr),
    (groups, width): (usize, usize),
    eps: f32,
) -> Result<(), CudaError> {
    let args = Args::new().ptr(x).ptr(weight).ptr(out).u32(width as u32).f32(eps);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("rms_norm"), &Launch::new(groups as u32, block_for(width)), &args) }
}

/// Whole warps, about four values a thread.
pub(crate) fn block_for(width: usize) -> u32 {
    (width.div_ceil(4).next_multiple_of(32) as u32).clamp(32, 1024)
}
