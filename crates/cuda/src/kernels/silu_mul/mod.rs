//! Launches `silu_mul`.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};

/// Queues `out = silu(gate) * up` over `count` f32 values.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// All three must hold `count` f32 values.
pub unsafe fn silu_mul(
    stream: &Stream,
    kernels: &Kernels,
    (gate, up, out): (DevicePtr, DevicePtr, DevicePtr),
    count: usize,
) -> Result<(), CudaError> {
    let most = u64::from(stream.device().info.multiprocessors) * 8;
    let blocks = (count as u64).div_ceil(256).clamp(1, most) as u32;
    let args = Args::new().ptr(gate).ptr(up).ptr(out).u64(count as u64);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("silu_mul"), &Launch::new(blocks, 256), &args) }
}
