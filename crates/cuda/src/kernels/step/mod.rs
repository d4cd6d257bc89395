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
    // The first of its step: nothing to overlap with.
    let launch = Launch { pdl: false, ..Launch::new((words.div_ceil(256) as u32).clamp(1, 64), 256) };
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("take_input"), &launch, &args) }
}

/// What `give_output` reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The step's input block (its head).
    pub step: DevicePtr,
    /// `[logits rows]` f32; above 0: the host draws.
    pub inverse_temperatures: DevicePtr,
    /// `[logits rows]` greedy tokens.
    pub tokens: DevicePtr,
    /// `[logits rows]` summaries.
    pub summaries: DevicePtr,
    /// Bytes of one row's summaries, a multiple of 16.
    pub summary_bytes: usize,
    /// Pinned blocks: tokens, then at `tokens_bytes` the summaries.
    pub blocks: [DevicePtr; 2],
    /// A multiple of 16.
    pub tokens_bytes: usize,
    /// The device's count of steps.
    pub count: DevicePtr,
}

/// Queues it for `rows` logits rows; also for none, so that the step is counted.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// As for [`take_input`].
pub unsafe fn give_output(stream: &Stream, kernels: &Kernels, o: &Output, rows: usize) -> Result<(), CudaError> {
    let args = Args::new().ptr(o.step).ptr(o.inverse_temperatures).ptr(o.tokens).ptr(o.summaries);
    let args = args.u32((o.summary_bytes / 16) as u32).ptr(o.blocks[0]).ptr(o.blocks[1]);
    let args = args.u32((o.tokens_bytes / 16) as u32).ptr(o.count);
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("give_output"), &Launch::new(rows.max(1) as u32, 128), &args) }
}
