//! Products with weights: `y = W x`, the one operation that moves nearly all bytes of a step.
//!
//! [`linear`] chooses the kernel: `linear_decode` for few rows and quantized weights, `linear_prefill` for more,
//! `linear_f32` for f32 arithmetic and for decode with float weights. [`layout`] says how weights lie. What a kernel's
//! time is bound by stands at the head of its source.

pub mod layout;
mod plan;

use crate::driver::{Args, ByValue, CudaError, DevicePtr, Kernels, Launch, Stream};
use plan::{Shape, decode_plan, prefill_tile};
use tombolo_gguf::TensorType;

/// Most weights of one launch.
pub const MOST_WEIGHTS: usize = 3;
/// Most rows of x that the decode kernel is used for, 8 at a time: it reads the weights once per launch, and three times
/// (14 ms for an 8B model's layers on an H200) is still quicker than the prefill kernel's 17 to 22.
pub const MOST_DECODE_ROWS: usize = 24;

/// One weight matrix and where its product goes.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// `rows` rows in the layout of [`layout::repack_row`].
    pub data: DevicePtr,
    /// Out-features.
    pub rows: usize,
    /// Type in the file.
    pub ty: TensorType,
    /// `[rows of x, rows]` f32.
    pub out: DevicePtr,
    /// Values from one row of `out` to the next.
    pub out_stride: usize,
}

/// What is done with a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Every part's product is stored.
    Store,
    /// Every part's product is added to what its `out` holds.
    Add,
    /// Parts 0 and 1 are gate and up, equally long: `silu(gate) * up` is stored where part 0's product would go.
    SiluMul,
}

/// One launch: up to three weights with the same input.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// One to three weights, of any types.
    pub parts: &'a [Part],
    /// `[rows, cols]` f32, aligned to 16 bytes.
    pub x: DevicePtr,
    /// Values from one row of `x` to the next: a multiple of 4.
    pub x_stride: usize,
    /// Rows of x.
    pub rows: usize,
    /// In-features.
    pub cols: usize,
    /// Weight vector (`[cols]` f32) and epsilon of an RMS norm that `x` still needs.
    pub norm: Option<(DevicePtr, f32)>,
    /// What is done with the products.
    pub epilogue: Epilogue,
    /// f32 throughout: slow, for gates.
    pub exact: bool,
    /// [`scratch_bytes`] of memory that nothing else uses meanwhile; untouched for up to [`MOST_DECODE_ROWS`] rows.
    pub scratch: DevicePtr,
}

/// Scratch that [`linear`] needs for at most `rows` rows of at most `widest` in-features.
pub fn scratch_bytes(rows: usize, widest: usize) -> usize {
    if rows <= MOST_DECODE_ROWS { 0 } else { 2 * rows * widest.next_multiple_of(64) }
}

/// Whether [`linear`] can multiply weights of these types and rows, `cols` wide (`paired`: with [`Epilogue::SiluMul`]),
/// on a device of `multiprocessors` with `shared_memory` bytes a block.
pub fn fits(
    parts: &[(TensorType, usize)],
    cols: usize,
    paired: bool,
    multiprocessors: usize,
    shared_memory: usize,
) -> bool {
    let rows: usize = parts.iter().map(|part| part.1).sum();
    let virtual_rows = if paired { rows / 2 } else { rows };
    let shape = Shape { cols, virtual_rows, parts, paired };
    let has_floats = parts.iter().any(|(ty, _)| ty.block_len() == 1);
    // Float weights take a kernel whose needs do not grow with the shape.
    has_floats || decode_plan(&shape, 1, multiprocessors, shared_memory).is_some()
}

/// A weight as the kernels take it: `Weight` of `args.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawWeight {
    data: u64,
    out: u64,
    rows: u32,
    ty: u32,
    row_bytes: u32,
    out_stride: u32,
}

/// `Args` of `args.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawArgs {
    weights: [RawWeight; MOST_WEIGHTS],
    x: u64,
    norm: u64,
    eps: f32,
    cols: u32,
    x_rows: u32,
    x_stride: u32,
    weight_count: u32,
    epilogue: u32,
    slots: u32,
    slot_bytes: u32,
    round_rows: u32,
    pad: u32,
}

// SAFETY: `repr(C)`; addresses stand before pairs of 32-bit values, so there is no gap.
unsafe impl ByValue for RawArgs {}

impl Linear<'_> {
    fn raw(&self) -> RawArgs {
        let mut weights = [RawWeight::default(); MOST_WEIGHTS];
        for (raw, part) in weights.iter_mut().zip(self.parts) {
            *raw = RawWeight {
                data: part.data.0,
                out: part.out.0,
                rows: part.rows as u32,
                ty: part.ty.id(),
                row_bytes: layout::row_bytes(part.ty, self.cols) as u32,
                out_stride: part.out_stride as u32,
            };
        }
        let (norm, eps) = self.norm.map_or((0, 0.0), |(weight, eps)| (weight.0, eps));
        RawArgs {
            weights,
            x: self.x.0,
            norm,
            eps,
            cols: self.cols as u32,
            x_rows: self.rows as u32,
            x_stride: self.x_stride as u32,
            weight_count: self.parts.len() as u32,
            epilogue: self.epilogue as u32,
            ..RawArgs::default()
        }
    }

    /// The launch for rows `first .. first + count` of x alone.
    fn rows_from(raw: &RawArgs, first: usize, count: usize) -> RawArgs {
        let mut part = *raw;
        part.x += (4 * first * raw.x_stride as usize) as u64;
        part.x_rows = count as u32;
        for w in &mut part.weights {
            w.out += (4 * first * w.out_stride as usize) as u64;
        }
        part
    }

    /// Rows of the launch's work: with [`Epilogue::SiluMul`] a pair counts once.
    fn virtual_rows(&self) -> usize {
        match self.epilogue {
            Epilogue::SiluMul => self.parts[0].rows,
            _ => self.parts.iter().map(|p| p.rows).sum(),
        }
    }

    fn check(&self) {
        assert!((1..=MOST_WEIGHTS).contains(&self.parts.len()) && self.rows > 0 && self.cols > 0);
        assert!(self.x.0.is_multiple_of(16) && self.x_stride.is_multiple_of(4) && self.x_stride >= self.cols);
        if self.epilogue == Epilogue::SiluMul {
            assert!(self.parts.len() == 2 && self.parts[0].rows == self.parts[1].rows);
        }
        for part in self.parts {
            assert!(layout::is_supported(part.ty) && self.cols.is_multiple_of(part.ty.block_len()));
            assert!(part.data.0.is_multiple_of(16));
        }
    }

    fn has_floats(&self) -> bool {
        self.parts.iter().any(|p| p.ty.block_len() == 1)
    }
}

/// Queues the products.
///
/// # Errors
/// The driver's.
///
/// # Panics
/// When shapes or alignments are not as [`Linear`] says, or nothing [`fits`]: a fault of the caller.
///
/// # Safety
/// Every address must hold what [`Linear`] says, and no `out` may overlap `x` or another `out`.
pub unsafe fn linear(stream: &Stream, kernels: &Kernels, l: &Linear<'_>) -> Result<(), CudaError> {
    l.check();
    let mixed_pair = l.epilogue == Epilogue::SiluMul && l.parts[0].ty != l.parts[1].ty;
    if l.exact || (l.rows <= MOST_DECODE_ROWS && l.has_floats()) || (l.rows > MOST_DECODE_ROWS && mixed_pair) {
        // SAFETY: the caller's word.
        unsafe { exact(stream, kernels, l) }
    } else if l.rows <= MOST_DECODE_ROWS {
        // SAFETY: the caller's word.
        unsafe { decode(stream, kernels, l) }
    } else {
        // SAFETY: the caller's word.
        unsafe { prefill(stream, kernels, l) }
    }
}

/// # Safety
/// As [`linear`].
unsafe fn exact(stream: &Stream, kernels: &Kernels, l: &Linear<'_>) -> Result<(), CudaError> {
    let blocks = (l.virtual_rows().div_ceil(8)).min(8 * stream.device().info.multiprocessors as usize);
    let launch = Launch { grid: (blocks as u32, l.rows.div_ceil(8) as u32, 1), ..Launch::new(1, 256) };
    // SAFETY: the struct is the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("linear_f32"), &launch, &Args::new().value(&l.raw())) }
}

/// # Safety
/// As [`linear`].
unsafe fn decode(stream: &Stream, kernels: &Kernels, l: &Linear<'_>) -> Result<(), CudaError> {
    let info = &stream.device().info;
    let groups: Vec<(TensorType, usize)> = l.parts.iter().map(|p| (p.ty, p.rows)).collect();
    let shape =
        Shape { cols: l.cols, virtual_rows: l.virtual_rows(), parts: &groups, paired: l.epilogue == Epilogue::SiluMul };
    let raw = l.raw();
    let mut first = 0;
    while first < l.rows {
        let plan = decode_plan(&shape, l.rows - first, info.multiprocessors as usize, info.shared_memory as usize)
            .expect("shapes that `fits` refuses are not launched");
        let count = plan.rows.min(l.rows - first);
        let mut part = Linear::rows_from(&raw, first, count);
        (part.slots, part.slot_bytes, part.round_rows) =
            (plan.slots as u32, plan.slot_bytes as u32, plan.round_rows as u32);
        let launch = Launch::new(plan.blocks as u32, 32 * plan.warps as u32).smem(plan.smem as u32);
        // SAFETY: the struct is the kernel's; the rest is the caller's.
        unsafe { stream.launch(kernels.get(plan.kernel), &launch, &Args::new().value(&part)) }?;
        first += count;
    }
    Ok(())
}

/// # Safety
/// As [`linear`].
unsafe fn prefill(stream: &Stream, kernels: &Kernels, l: &Linear<'_>) -> Result<(), CudaError> {
    let args = Args::new().value(&l.raw()).ptr(l.scratch);
    // SAFETY: the struct is the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get("linear_prefill_x"), &Launch::new(l.rows as u32, 256), &args) }?;
    let tile = prefill_tile(l.rows, l.virtual_rows(), stream.device().info.multiprocessors as usize);
    let tiles: usize = match l.epilogue {
        Epilogue::SiluMul => l.parts[0].rows.div_ceil(tile.n / 2),
        _ => l.parts.iter().map(|p| p.rows.div_ceil(tile.n)).sum(),
    };
    let grid = (tiles as u32, l.rows.div_ceil(tile.m) as u32, 1);
    let launch = Launch { grid, ..Launch::new(1, tile.threads) }.smem(tile.smem() as u32);
    // SAFETY: as above; both halves of a tile fit the card's shared memory.
    unsafe { stream.launch(kernels.get(tile.kernel), &launch, &args) }
}
