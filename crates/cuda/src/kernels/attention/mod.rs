//! Launches attention over the paged cache: the fused decode kernel, and for other rows the preparation and the kernel
//! over tiles of rows.
//!
//! One layer's cache: `[blocks][2: keys, values][kv_heads][BLOCK_TOKENS][head_dim]` of the cache's element type.

use crate::driver::{Args, ByValue, CudaError, DevicePtr, Kernels, Launch, Stream};
use tombolo_model::{BLOCK_TOKENS, KvGroup, RopeStyle};

/// Element type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// 16 bits.
    F16,
    /// 32 bits: for gates.
    F32,
}

impl CacheType {
    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            CacheType::F16 => 2,
            CacheType::F32 => 4,
        }
    }

    fn name(self) -> &'static str {
        match self {
            CacheType::F16 => "F16",
            CacheType::F32 => "F32",
        }
    }
}

/// Largest head that there is a kernel for.
pub const MOST_HEAD_DIM: usize = 256;

/// Whether there are kernels for this head size.
pub fn supports(head_dim: usize) -> bool {
    head_dim.is_multiple_of(8) && (8..=MOST_HEAD_DIM).contains(&head_dim)
}

/// Bytes of one layer's cache of `blocks` blocks.
pub fn layer_bytes(group: &KvGroup, blocks: usize, cache: CacheType) -> usize {
    blocks * BLOCK_TOKENS * group.values_per_token() * cache.bytes()
}

/// Values per head of q, k and v, and how many heads: what decides which kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads on this rank.
    pub heads: usize,
    /// KV heads on this rank.
    pub kv_heads: usize,
    /// Values per head; see [`supports`].
    pub head_dim: usize,
    /// Element type of the cache.
    pub cache: CacheType,
}

impl Shape {
    /// Largest head of the smallest kernel that takes this one.
    fn kernel_dim(&self) -> usize {
        self.head_dim.max(64).next_power_of_two()
    }

    /// Query vectors that a block of [`attention_decode`] holds. While blocks are few, one: quicker, and what the heads
    /// that share a KV head read twice comes from L2 (8B shape, one row, 128 and 2,048 tokens: 444 against 407 and 424
    /// against 370 tokens a second on an H200).
    fn decode_slots(&self, rows: usize) -> usize {
        let per_kv = self.heads / self.kv_heads;
        match self.cache {
            CacheType::F16 if self.head_dim <= 128 && (per_kv == 1 || rows * self.heads <= FEW_BLOCKS) => 1,
            CacheType::F16 if self.head_dim <= 128 && per_kv > 4 => 8,
            _ => 4,
        }
    }

    fn rows_slots(&self) -> usize {
        if self.cache == CacheType::F16 && self.head_dim <= 128 { 8 } else { 4 }
    }

    fn groups(&self, slots: usize) -> usize {
        self.kv_heads * (self.heads / self.kv_heads).div_ceil(slots)
    }

    /// Most rows of one sequence that a tile of [`attention_rows`] may have.
    pub fn tile_rows(&self) -> usize {
        (self.rows_slots() / (self.heads / self.kv_heads)).max(1)
    }

    /// Into how many parts [`attention_decode`] may split a context, which is also how many blocks a head is launched
    /// with: as many as are resident at once, two on a multiprocessor, since the product after it starts to stage its
    /// weights when the last of them has started. A short context leaves most of them without work, and they are launched
    /// all the same: with 32 blocks instead of 256, that product's blocks gather on the multiprocessors that are free
    /// sooner (8B shape on an H200: 475 against 517 tokens a second).
    pub fn splits(&self, rows: usize, multiprocessors: usize) -> usize {
        let blocks = rows * self.groups(self.decode_slots(rows));
        (2 * multiprocessors / blocks).clamp(1, 64)
    }

    /// Bytes of [`Attention::parts`].
    pub fn parts_bytes(&self, rows: usize, splits: usize) -> usize {
        rows * self.heads * splits * (self.head_dim + 2) * 4
    }

    /// Bytes of [`Attention::tickets`].
    pub fn tickets_bytes(&self, rows: usize) -> usize {
        rows * self.groups(self.decode_slots(rows)) * 4
    }
}

/// What an attention kernel works on. Rows of q, k, v and out are `*_stride` f32 values apart.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Heads.
    pub shape: Shape,
    /// Queries, as the product left them. [`rope_kv_write`] changes them in place.
    pub q: DevicePtr,
    /// Keys, as the product left them.
    pub k: DevicePtr,
    /// Values.
    pub v: DevicePtr,
    /// `[rows, heads * head_dim]`.
    pub out: DevicePtr,
    /// Strides of q, k, v and out, in values.
    pub strides: [usize; 4],
    /// This layer's cache.
    pub layer: DevicePtr,
    /// `[rows]` u32 positions, `u32::MAX`: padding.
    pub positions: DevicePtr,
    /// `[rows]` u32: the sequence of every row.
    pub sequences: DevicePtr,
    /// `[sequences, table_len]` u32 block numbers.
    pub tables: DevicePtr,
    /// Entries of a table.
    pub table_len: usize,
    /// `[tiles, 2]` u32: first row, number of rows; for [`attention_rows`].
    pub tiles: DevicePtr,
    /// `[pairs]` f32 radians per position.
    pub frequencies: DevicePtr,
    /// Pairs turned in every head.
    pub pairs: usize,
    /// Which values make a pair.
    pub style: RopeStyle,
    /// `[head_dim]` f32 weights of the norms of queries and keys, or null.
    pub norms: [DevicePtr; 2],
    /// Of those norms.
    pub eps: f32,
    /// Factor on the scores.
    pub scale: f32,
    /// Scratch of [`attention_decode`]: [`Shape::parts_bytes`].
    pub parts: DevicePtr,
    /// Scratch of [`attention_decode`]: [`Shape::tickets_bytes`], zeroed once.
    pub tickets: DevicePtr,
    /// Positions, sequences and tables may be read before the kernel before has ended. Only where whatever wrote them
    /// let no kernel of the stream start before its own end.
    pub early: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    q: DevicePtr,
    k: DevicePtr,
    v: DevicePtr,
    out: DevicePtr,
    cache: DevicePtr,
    positions: DevicePtr,
    sequences: DevicePtr,
    tables: DevicePtr,
    tiles: DevicePtr,
    norms: [DevicePtr; 2],
    parts: DevicePtr,
    tickets: DevicePtr,
    frequencies: DevicePtr,
    pairs: u32,
    half_split: u32,
    strides: [u32; 4],
    rows: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    table_len: u32,
    splits: u32,
    scale: f32,
    eps: f32,
    early: u32,
    reserved: u32,
}

// SAFETY: `repr(C)`; 14 addresses and 16 values of 32 bits leave no gap.
unsafe impl ByValue for KernelArgs {}

impl Attention {
    fn args(&self, rows: usize, splits: usize) -> Args {
        let s = &self.shape;
        assert!(supports(s.head_dim) && s.heads.is_multiple_of(s.kv_heads) && 2 * self.pairs <= s.head_dim);
        Args::new().value(&KernelArgs {
            q: self.q,
            k: self.k,
            v: self.v,
            out: self.out,
            cache: self.layer,
            positions: self.positions,
            sequences: self.sequences,
            tables: self.tables,
            tiles: self.tiles,
            norms: self.norms,
            parts: self.parts,
            tickets: self.tickets,
            frequencies: self.frequencies,
            pairs: self.pairs as u32,
            half_split: u32::from(self.style == RopeStyle::HalfSplit),
            strides: self.strides.map(|s| s as u32),
            rows: rows as u32,
            heads: s.heads as u32,
            kv_heads: s.kv_heads as u32,
            head_dim: s.head_dim as u32,
            table_len: self.table_len as u32,
            splits: splits as u32,
            scale: self.scale,
            eps: self.eps,
            early: u32::from(self.early),
            reserved: 0,
        })
    }
}

/// Threads of a block.
const BLOCK: u32 = 256;
/// Blocks of one head each that a device has room for beside the products: twice as many as multiprocessors.
const FEW_BLOCKS: usize = 256;

/// Queues everything between the projections and the attended values, for rows that are each a sequence of its own:
/// norms, rotation, store, attention. `splits` as [`Shape::splits`] says, the same as the scratch was sized for.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The addresses must hold what [`Attention`] says for `rows` rows, and every block number must lie in the cache.
pub unsafe fn attention_decode(
    stream: &Stream,
    kernels: &Kernels,
    a: &Attention,
    rows: usize,
    splits: usize,
) -> Result<(), CudaError> {
    let slots = a.shape.decode_slots(rows);
    let name = format!("attention_decode_{}_{slots}_{}", a.shape.cache.name(), a.shape.kernel_dim());
    let grid = (splits as u32, a.shape.groups(slots) as u32, rows as u32);
    let launch = Launch { grid, ..Launch::new(1, BLOCK) };
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get(&name), &launch, &a.args(rows, splits)) }
}

/// Queues norms and rotation of q (in place) and k, and the store of k and v, for any rows.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// As for [`attention_decode`].
pub unsafe fn rope_kv_write(stream: &Stream, kernels: &Kernels, a: &Attention, rows: usize) -> Result<(), CudaError> {
    let name = format!("rope_kv_write_{}", a.shape.cache.name());
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get(&name), &Launch::new(rows as u32, BLOCK), &a.args(rows, 1)) }
}

/// Queues attention of any rows after their [`rope_kv_write`]. `tiles` tiles of [`Shape::tile_rows`] rows at most.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// As for [`attention_decode`]; the tiles must cover the rows.
pub unsafe fn attention_rows(
    stream: &Stream,
    kernels: &Kernels,
    a: &Attention,
    rows: usize,
    tiles: usize,
) -> Result<(), CudaError> {
    let slots = a.shape.rows_slots();
    let name = format!("attention_rows_{}_{slots}_{}", a.shape.cache.name(), a.shape.kernel_dim());
    let launch = Launch { grid: (1, a.shape.groups(slots) as u32, tiles as u32), ..Launch::new(1, BLOCK) };
    // SAFETY: the arguments are the kernel's; the rest is the caller's.
    unsafe { stream.launch(kernels.get(&name), &launch, &a.args(rows, 1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_a_kernel_that_exists() {
        let source = include_str!("attention.cu");
        for cache in [CacheType::F16, CacheType::F32] {
            for head_dim in (8..=MOST_HEAD_DIM).step_by(8) {
                for per_kv in [1, 2, 3, 4, 5, 8, 16] {
                    let s = Shape { heads: 2 * per_kv, kv_heads: 2, head_dim, cache };
                    let lanes = s.kernel_dim() / 8;
                    let decode = [1, 64].map(|rows| ("DECODE", s.decode_slots(rows)));
                    for (kind, slots) in decode.into_iter().chain([("ROWS", s.rows_slots())]) {
                        let line = format!("{kind}({}, {slots}, {lanes}, {})", cache.name(), s.kernel_dim());
                        assert!(source.contains(&line), "{line}");
                        assert!(s.kernel_dim() >= head_dim);
                    }
                    assert!(s.tile_rows() * per_kv <= s.rows_slots().max(per_kv));
                }
            }
        }
    }

    #[test]
    fn few_rows_are_split_until_the_device_is_full() {
        let s = Shape { heads: 32, kv_heads: 8, head_dim: 128, cache: CacheType::F16 };
        assert_eq!(s.splits(1, 132), 8);
        assert_eq!(s.splits(64, 132), 1);
        assert!(s.splits(3, 132) * 3 * s.groups(s.decode_slots(3)) <= 2 * 132);
    }
}
