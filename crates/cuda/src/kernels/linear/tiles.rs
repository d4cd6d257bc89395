//! Which tiles a product of many rows is cut into: pure arithmetic over shapes and what a device has. No launches here.

use super::plan::Shape;
use tombolo_gguf::TensorType;

/// Columns that a tile takes at once (`CHUNK` of tile_types.cuh).
const CHUNK: usize = 256;
/// Bytes of a chunk of 8 rows of x (`X_BYTES` of linear_tiles.cu).
const X_BYTES: usize = 2560;
/// Rows of x to which scratch is rounded up: the most of any tile.
const MOST_TILE_ROWS: usize = 64;
/// Slots beyond which the kernel does not look ahead.
const MOST_SLOTS: usize = 4;
/// Shared memory that the driver keeps of each block.
const RESERVED: usize = 1024;

/// A kernel that computes tiles of `n` rows of W by `m` rows of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    /// In linear_tiles.cu.
    pub kernel: &'static str,
    /// Rows of W.
    pub n: usize,
    /// Rows of x.
    pub m: usize,
    /// Of a block.
    pub threads: u32,
    /// Groups of warps that share the columns: with more than one, they are summed in another order.
    pub shares: usize,
    /// How much longer a product takes than with the largest tile where both fill the card.
    slower: f32,
}

const fn tile(kernel: &'static str, n: usize, m: usize, threads: u32, shares: usize, slower: f32) -> Tile {
    Tile { kernel, n, m, threads, shares, slower }
}

/// All of them. `slower` is from gate and up of an 8B model with 512 rows of x on an H200, where every tile fills the card:
/// 549, 922, 595, 747, 936 and 1,541 us.
pub const TILES: [Tile; 7] = [
    tile("linear_tiles_64x64", 64, 64, 256, 1, 1.0),
    tile("linear_tiles_64x16", 64, 16, 128, 1, 1.68),
    tile("linear_tiles_32x64_split", 32, 64, 256, 2, 1.08),
    tile("linear_tiles_32x32_split", 32, 32, 256, 2, 1.36),
    tile("linear_tiles_32x16_split", 32, 16, 256, 4, 1.7),
    tile("linear_tiles_32x8_split", 32, 8, 256, 4, 2.8),
    tile("linear_tiles_32x8", 32, 8, 64, 1, 2.8),
];

/// How much longer a block takes alone on its multiprocessor than its part of two that share one. With 1.65 to 2 the tile
/// chosen was the quickest, or took up to 8 % longer than it, for all of an 8B model's products with 4 to 512 rows of x (H200).
const ALONE: f32 = 1.8;

/// One launch of a tile kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TilePlan {
    /// The kernel.
    pub tile: Tile,
    /// Tiles along x.
    pub across: usize,
    /// Tiles along the rows of W.
    pub down: usize,
    /// Slots in shared memory: a chunk for every share.
    pub slots: usize,
    /// Bytes of one.
    pub slot_bytes: usize,
}

impl TilePlan {
    /// Bytes of shared memory of a block.
    pub fn smem(&self) -> usize {
        self.slots * self.slot_bytes
    }

    /// Tiles of 8 rows in a chunk of x in scratch.
    pub fn x_tiles(&self) -> usize {
        self.across * self.tile.m / 8
    }
}

/// Scratch for `rows` rows of x, `cols` wide.
pub(super) fn x_bytes(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(MOST_TILE_ROWS) / 8 * cols.div_ceil(CHUNK) * X_BYTES
}

/// Bytes of a row's chunk in shared memory: an odd number of 16 bytes, and 4 beside for Q6_K.
fn chunk_bytes(ty: TensorType) -> usize {
    match ty {
        TensorType::Q8_0 => 272,
        TensorType::Q6_K => 208 + 4,
        TensorType::Q4_1 => 176,
        _ => 144,
    }
}

/// `tile` for `rows` rows of x on a device with `most` bytes of shared memory a block. Aims at half of a
/// multiprocessor's, so that two blocks run beside each other. None where it does not fit.
pub fn plan_with(tile: Tile, shape: &Shape<'_>, rows: usize, most: usize) -> Option<TilePlan> {
    let per_tile = if shape.paired { tile.n / 2 } else { tile.n };
    let parts = if shape.paired { &shape.parts[..1] } else { shape.parts };
    let down = parts.iter().map(|&(_, rows)| rows.div_ceil(per_tile)).sum();
    let widest = shape.parts.iter().map(|&(ty, _)| chunk_bytes(ty)).max()?;
    let slot_bytes = tile.shares * ((tile.n * widest).next_multiple_of(128) + tile.m / 8 * X_BYTES);
    let (half, whole) = ((most + RESERVED) / 2 - RESERVED, most);
    let fit = |room: usize| (room / slot_bytes).min(MOST_SLOTS);
    let slots = if fit(half) >= 2 { fit(half) } else { fit(whole) };
    (slots >= 2).then_some(TilePlan { tile, across: rows.div_ceil(tile.m), down, slots, slot_bytes })
}

/// The tile for `rows` rows of x on `sms` multiprocessors: the one whose fullest multiprocessor has least to do. Where
/// bits must not depend on the number of rows (`same_bits`), the columns are never split.
pub(super) fn tile_plan(shape: &Shape<'_>, rows: usize, sms: usize, most: usize, same_bits: bool) -> Option<TilePlan> {
    let fitting = TILES.into_iter().filter(|t| t.shares == 1 || !same_bits);
    let plans = fitting.filter_map(|tile| plan_with(tile, shape, rows, most));
    let cost = |p: &TilePlan| {
        let rounds = (p.across * p.down).div_ceil(sms) as f32;
        rounds.max(ALONE) * (p.tile.n * p.tile.m) as f32 * p.tile.slower
    };
    plans.min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H200: (usize, usize) = (132, 227 * 1024);
    const GEFORCE: (usize, usize) = (84, 99 * 1024);

    #[test]
    fn tiles_fill_the_card() {
        let parts = [(TensorType::Q4_K, 4096)];
        let shape = Shape { cols: 4096, virtual_rows: 4096, parts: &parts, paired: false };
        let kernel = |rows| tile_plan(&shape, rows, H200.0, H200.1, false).unwrap().tile.kernel;
        assert_eq!(kernel(8), "linear_tiles_32x8_split");
        assert_eq!(kernel(64), "linear_tiles_32x32_split");
        assert_eq!(kernel(2048), "linear_tiles_64x64");
        let same = |rows| tile_plan(&shape, rows, H200.0, H200.1, true).unwrap().tile;
        assert!((1..600).all(|rows| same(rows).shares == 1));
    }

    proptest! {
        #[test]
        fn every_product_has_a_tile_that_fits_and_covers(
            rows in 1usize..200_000, x_rows in 1usize..=2048, geforce: bool, paired: bool, same_bits: bool, which in 0usize..5,
        ) {
            let ty = [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K][which];
            let (sms, most) = if geforce { GEFORCE } else { H200 };
            let parts = vec![(ty, rows); if paired { 2 } else { 1 }];
            let shape = Shape { cols: 4096, virtual_rows: rows, parts: &parts, paired };
            let plan = tile_plan(&shape, x_rows, sms, most, same_bits).unwrap();
            prop_assert!(plan.smem() <= most && (2..=MOST_SLOTS).contains(&plan.slots), "{plan:?}");
            let rows_of_w = plan.down * plan.tile.n / if paired { 2 } else { 1 };
            prop_assert!(rows_of_w >= rows && plan.across * plan.tile.m >= x_rows);
            prop_assert!(plan.x_tiles() * X_BYTES * 16 <= x_bytes(x_rows, 4096), "{plan:?}");
            // What the shares of a block leave for each other fits where the chunks were.
            prop_assert!((plan.tile.shares - 1) * 4 * plan.tile.n * plan.tile.m <= plan.smem(), "{plan:?}");
        }
    }
}
