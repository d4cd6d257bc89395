//! Launches `gather_rows`.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};

/// Queues `out[i] = x[rows[i]]` for `count` rows of `width` f32 values, as far as the step at `step` has logits rows.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// `rows` must hold `count` row numbers inside `x`, and `out` have room for `count` rows.
pub unsafe fn gather_rows(
    stream: &Stream,
    kernels: &Kernels,
    (step, rows, x, out): (DevicePtr, DevicePtr, DevicePtr, DevicePtr),
    (count, width): (usize, usize),
) -> Result<(), CudaError> {
    let args = Args::new().ptr(step).ptr(rows).ptr(x).ptr(out).u32(width as u32);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("gather_rows"), &Launch::new(count as u32, 256), &args) }
}
