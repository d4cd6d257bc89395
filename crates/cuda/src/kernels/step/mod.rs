//! Launches the first and the last kernel of a step, which carry its input in and its samples out.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};

/// Queues the copy of `bytes` (a multiple of 16) from the pinned block whose turn it is.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// Both blocks and `to` must have `bytes` bytes at 16-byte alignment; `count` must be the device's count of steps.
pub unsafe fn take_input(
    stream: &Stream,
    kernels: &Kernels,
    blocks: [DevicePtr; 2],
    count: DevicePtr,
    to: DevicePtr,
    bytes: usize,
) -> Result<(), CudaError> {
    let words = bytes / 16;
    let args = Args::new().ptr(blocks[0]).ptr(blocks[1]).ptr(count).ptr(to).u32(words as u32);
    let launch = Launch::new((words.div_ceil(256) as u32).clamp(1, 64), 256);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("take_input"), &launch, &args) }
}

/// Queues the copy of `words` 32-bit words to the pinned block whose turn it is, and counts the step.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// As for [`take_input`].
pub unsafe fn give_output(
    stream: &Stream,
    kernels: &Kernels,
    from: DevicePtr,
    blocks: [DevicePtr; 2],
    count: DevicePtr,
    words: usize,
) -> Result<(), CudaError> {
    let args = Args::new().ptr(from).ptr(blocks[0]).ptr(blocks[1]).ptr(count).u32(words as u32);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("give_output"), &Launch::new(1, 1024), &args) }
}
