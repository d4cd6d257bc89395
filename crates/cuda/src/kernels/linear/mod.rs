//! Products with weights: `y = W x`, the one operation that moves nearly all bytes of a step.
//!
//! [`way`] chooses the kernel: `linear_decode` for few rows and quantized weights, `linear_tiles` for more,
//! `linear_prefill` for many rows and float weights, `linear_f32` for f32 arithmetic and for few rows and float weights.
//! [`layout`] says how weights lie. What a kernel's time is bound by stands at the head of its source.

pub mod layout;
mod plan;
pub mod tiles;

use crate::driver::{Args, ByValue, CudaError, DeviceInfo, DevicePtr, Kernels, Launch, Stream};
use layout::GROUP;
pub use plan::Shape;
use plan::{decode_plan, prefill_tile};
use tiles::{TilePlan, tile_plan};
use tombolo_gguf::TensorType;

/// Most weights of one launch.
pub const MOST_WEIGHTS: usize = 3;
/// Most rows of x that the decode kernel is used for. An 8B model's layer on an H200: with 4 rows 91 us, tiles 83; with 8
/// 142 and 85.
pub const MOST_DECODE_ROWS: usize = 2;
/// Most rows of x for which float weights are multiplied in f32: above, the matrix units are quicker.
const MOST_EXACT_ROWS: usize = 24;

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
    /// A row of x gives the same bits whatever the number of rows.
    pub same_bits: bool,
    /// [`scratch_bytes`] of memory that nothing else uses meanwhile, aligned to 16 bytes.
    pub scratch: DevicePtr,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// f32 arithmetic.
    Exact,
    /// Weights from memory to every row of x, 8 rows at a time.
    Decode,
    /// Exact products of bytes on the matrix units.
    Tiles(TilePlan),
    /// Decoded to bf16, on the matrix units.
    Floats,
}

/// Scratch that [`linear`] needs for at most `rows` rows of at most `widest` in-features.
pub fn scratch_bytes(rows: usize, widest: usize) -> usize {
    (2 * rows * widest.next_multiple_of(64)).max(tiles::x_bytes(rows, widest))
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

    /// Type and rows of every part.
    pub fn groups(&self) -> Vec<(TensorType, usize)> {
        self.parts.iter().map(|p| (p.ty, p.rows)).collect()
    }

    /// What plans are made of; `groups` is [`Self::groups`].
    pub fn shape<'a>(&self, groups: &'a [(TensorType, usize)]) -> Shape<'a> {
        let paired = self.epilogue == Epilogue::SiluMul;
        Shape { cols: self.cols, virtual_rows: self.virtual_rows(), parts: groups, paired }
    }

    fn has_floats(&self) -> bool {
        self.parts.iter().any(|p| p.ty.block_len() == 1)
    }
}

/// The way that [`linear`] takes on a device.
pub fn way(info: &DeviceInfo, l: &Linear<'_>) -> Way {
    let (sms, most) = (info.multiprocessors as usize, info.shared_memory as usize);
    let mixed_pair = l.epilogue == Epilogue::SiluMul && l.parts[0].ty != l.parts[1].ty;
    if l.exact {
        return Way::Exact;
    }
    if l.has_floats() {
        // No kernel for many rows takes a gate and an up of different types.
        let many = l.same_bits || l.rows > MOST_EXACT_ROWS;
        return if many && !mixed_pair { Way::Floats } else { Way::Exact };
    }
    if mixed_pair || (l.rows <= MOST_DECODE_ROWS && !l.same_bits) {
        return Way::Decode;
    }
    let groups = l.groups();
    tile_plan(&l.shape(&groups), l.rows, sms, most, l.same_bits).map_or(Way::Decode, Way::Tiles)
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
    let floats = l.parts.iter().filter(|p| p.ty.block_len() == 1).count();
    if floats > 0 && floats < l.parts.len() && l.epilogue != Epilogue::SiluMul {
        // No kernel for many rows takes both.
        for part in l.parts {
            let alone = Linear { parts: std::slice::from_ref(part), ..*l };
            // SAFETY: the caller's word.
            unsafe { linear_by(stream, kernels, &alone, way(&stream.device().info, &alone)) }?;
        }
        return Ok(());
    }
    // SAFETY: the caller's word.
    unsafe { linear_by(stream, kernels, l, way(&stream.device().info, l)) }
}

/// [`linear`] by a way that need not be the one chosen: for measurements.
///
/// # Errors
/// The driver's.
///
/// # Panics
/// As [`linear`].
///
/// # Safety
/// As [`linear`]; the way must take these types.
pub unsafe fn linear_by(stream: &Stream, kernels: &Kernels, l: &Linear<'_>, way: Way) -> Result<(), CudaError> {
    // SAFETY: the caller's word.
    unsafe {
        match way {
            Way::Exact => exact(stream, kernels, l),
            Way::Decode => decode(stream, kernels, l),
            Way::Tiles(ref plan) => tiles(stream, kernels, l, plan),
            Way::Floats => prefill(stream, kernels, l),
        }
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
    let groups = l.groups();
    let shape = l.shape(&groups);
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
unsafe fn tiles(stream: &Stream, kernels: &Kernels, l: &Linear<'_>, plan: &TilePlan) -> Result<(), CudaError> {
    let mut raw = l.raw();
    (raw.slots, raw.slot_bytes, raw.round_rows) = (plan.slots as u32, plan.slot_bytes as u32, plan.x_tiles() as u32);
    let args = Args::new().value(&raw).ptr(l.scratch);
    let quantize = Launch { grid: (l.rows as u32, l.cols.div_ceil(GROUP) as u32, 1), ..Launch::new(1, 256) };
    // SAFETY: the struct is the kernel's, scratch is long enough; the rest is the caller's.
    unsafe { stream.launch(kernels.get("linear_tiles_x"), &quantize, &args) }?;
    let grid = (plan.across as u32, plan.down as u32, 1);
    let launch = Launch { grid, ..Launch::new(1, plan.tile.threads) }.smem(plan.smem() as u32);
    // SAFETY: as above; the slots fit the card's shared memory.
    unsafe { stream.launch(kernels.get(plan.tile.kernel), &launch, &args) }
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
