//! Launches `embed`: rows of the embedding table, decoded.

use crate::driver::{Args, CudaError, DevicePtr, Kernels, Launch, Stream};

/// What `embed` reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    /// The step's input block (its head).
    pub step: DevicePtr,
    /// `[rows]` tokens, some of them references to `previous`.
    pub tokens: DevicePtr,
    /// `[logits rows]` tokens that the step before drew.
    pub previous: DevicePtr,
    /// The table, in the layout of linear weights.
    pub table: DevicePtr,
    /// The table's GGUF type id.
    pub ty: u32,
    /// Bytes from one table row to the next.
    pub row_bytes: u32,
    /// Values a row.
    pub cols: u32,
    /// `[rows, cols]` f32.
    pub out: DevicePtr,
}

/// Queues it for `rows` rows.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The addresses must hold what [`Embed`] says for `rows` rows, and every token must be inside the table.
pub unsafe fn embed(stream: &Stream, kernels: &Kernels, e: &Embed, rows: usize) -> Result<(), CudaError> {
    let args = Args::new().ptr(e.step).ptr(e.tokens).ptr(e.previous).ptr(e.table);
    let args = args.u32(e.ty).u32(e.row_bytes).u32(e.cols).ptr(e.out);
    // Not before the kernel before it has ended: later kernels read the step's input without waiting for it.
    let launch = Launch { pdl: false, ..Launch::new(rows as u32, 256) };
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("embed"), &launch, &args) }
}
