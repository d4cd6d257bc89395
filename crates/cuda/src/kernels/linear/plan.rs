//! How a product is cut up: pure arithmetic over shapes and what a device has. No launches here.

use super::layout::{GROUP, group_bytes};
use tombolo_gguf::TensorType;

/// The decode kernels: rows of x, neighbouring rows of W that a warp takes at once (`ROWS` of linear_decode.cu), name.
/// The widest first; of two for the same rows of x, the second is for cards with little shared memory.
const KERNELS: [(usize, usize, &str); 5] = [
    (8, 2, "linear_decode_r8"),
    (4, 2, "linear_decode_r4"),
    (2, 2, "linear_decode_r2"),
    (1, 4, "linear_decode_r1"),
    (1, 2, "linear_decode_r1_narrow"),
];
/// Most warps of a block: what the registers of the kernels for many rows of x allow.
const MOST_WARPS: usize = 12;
/// Shared memory that the driver keeps of each block, and that the decode kernel has besides what it is launched with.
const RESERVED: usize = 1024 + 1024;
/// Ring slots of a warp beyond which more do not help.
const MOST_SLOTS: usize = 32;
/// For the sums of a round.
const SUMS_BYTES: usize = 24 * 1024;

/// Shape of a product.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// In-features.
    pub cols: usize,
    /// Rows of all weights together; of a gate-up pair counted once.
    pub virtual_rows: usize,
    /// Type and rows of each weight.
    pub parts: &'a [(TensorType, usize)],
    /// Gate and up.
    pub paired: bool,
}

/// One launch of the decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecodePlan {
    pub kernel: &'static str,
    /// Rows of x that it takes.
    pub rows: usize,
    pub blocks: usize,
    pub warps: usize,
    pub slots: usize,
    pub slot_bytes: usize,
    pub round_rows: usize,
    pub smem: usize,
}

/// Plans `rows` rows of x, or as many of them as fit (8 at most), for `sms` multiprocessors with `most` bytes of shared
/// memory a block. Aims at half of a multiprocessor's shared memory, so that the next kernel's blocks fit beside. None
/// where even one row and one warp need more than there is.
pub(super) fn decode_plan(shape: &Shape<'_>, rows: usize, sms: usize, most: usize) -> Option<DecodePlan> {
    let half = ((most + 1024) / 2).saturating_sub(RESERVED);
    let whole = most.saturating_sub(RESERVED - 1024);
    let useful = KERNELS.into_iter().filter(|&(r, ..)| r == 1 || r / 2 < rows);
    let groups = shape.cols.div_ceil(GROUP);
    let mut plans = useful.clone().map(|kernel| plan_with(shape, kernel, warps_for(groups), sms, half));
    plans.find(|plan| plan.smem <= whole).or_else(|| {
        // Very wide rows on a small card: fewer warps, which go over the rows several times.
        let last = KERNELS[KERNELS.len() - 1];
        let mut fewer = (1..warps_for(groups)).rev().map(|warps| plan_with(shape, last, warps, sms, half));
        fewer.find(|plan| plan.smem <= whole)
    })
}

fn plan_with(
    shape: &Shape<'_>,
    kernel: (usize, usize, &'static str),
    warps: usize,
    sms: usize,
    aim: usize,
) -> DecodePlan {
    let (r, at_once, name) = kernel;
    let groups = shape.cols.div_ceil(GROUP);
    let blocks = sms.min(shape.virtual_rows.div_ceil(at_once)).max(1);
    let step = warps / groups.min(warps) * at_once;
    let per_block = shape.virtual_rows.div_ceil(blocks);

    let pair = if shape.paired { 2 } else { 1 };
    let sums_of_row = 4 * r * groups * pair;
    let most_rows = (SUMS_BYTES / sums_of_row / step).max(1) * step;
    let round_rows = per_block.next_multiple_of(step).min(most_rows);

    let lanes = if groups == 1 { shape.cols.div_ceil(64) } else { 32 };
    let chunk = shape.parts.iter().map(|&(ty, _)| group_bytes(ty, lanes)).max().unwrap_or(16);
    let slot_bytes = at_once * chunk;
    let fixed = 32 + 64 * r + (GROUP + 512) * r * groups + round_rows * sums_of_row;
    let fit = aim.saturating_sub(fixed + 16) / (warps * (slot_bytes + 8));
    let useful = (per_block.div_ceil(step) + 1) * shape.parts.len();
    let slots = fit.min(useful).clamp(2, MOST_SLOTS);
    let smem = warps * slots * slot_bytes + (8 * warps * slots).next_multiple_of(16) + fixed;
    DecodePlan { kernel: name, rows: r, blocks, warps, slots, slot_bytes, round_rows, smem }
}

/// Warps of a block whose columns are `groups` groups: each has one group, and as many rows are worked on at once as
/// there are warps for every group.
fn warps_for(groups: usize) -> usize {
    match groups {
        0..=8 => 8 / groups.max(1) * groups.max(1),
        _ => groups.min(MOST_WARPS),
    }
}

/// A tile of the kernel for many rows and float weights: `m` rows of x by `n` rows of W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub kernel: &'static str,
    pub m: usize,
    pub n: usize,
    pub threads: u32,
}

impl Tile {
    /// Two halves of `m + n` rows of 72 bf16 values.
    pub(super) fn smem(&self) -> usize {
        2 * (self.m + self.n) * 72 * 2
    }
}

/// The tile for `rows` rows of x: a larger one decodes each weight less often, but fills its rows and all `sms` later.
/// Where one passes the next was measured on an H200 when quantized weights took this way (an 8B model's layers: 64 rows
/// 20.6 ms with 32 x 32, 25.8 with 64 x 64; 128 rows 29.7 with either, 33.6 with 128 x 128; 512 rows 61.6 and 49.4).
pub(super) fn prefill_tile(rows: usize, virtual_rows: usize, sms: usize) -> Tile {
    let large = Tile { kernel: "linear_prefill_128x128", m: 128, n: 128, threads: 256 };
    let middle = Tile { kernel: "linear_prefill_64x64", m: 64, n: 64, threads: 128 };
    let small = Tile { kernel: "linear_prefill_32x32", m: 32, n: 32, threads: 128 };
    let fits = |t: &Tile| rows >= t.m * 3 / 2 && rows.div_ceil(t.m) * virtual_rows.div_ceil(t.n) >= sms / 2;
    [large, middle].into_iter().find(fits).unwrap_or(small)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H200: (usize, usize) = (132, 227 * 1024);
    const GEFORCE: (usize, usize) = (84, 99 * 1024);

    fn shape(cols: usize, virtual_rows: usize, parts: &[(TensorType, usize)]) -> Shape<'_> {
        Shape { cols, virtual_rows, parts, paired: false }
    }

    #[test]
    fn decode_of_one_row_leaves_room_for_the_next_kernel() {
        for (cols, rows) in [(4096, 6144), (4096, 4096), (14336, 4096), (2048, 4096), (576, 192)] {
            let parts = [(TensorType::Q4_K, rows / 2), (TensorType::Q6_K, rows / 2)];
            let plan = decode_plan(&shape(cols, rows, &parts), 1, H200.0, H200.1).unwrap();
            assert_eq!((plan.kernel, plan.rows), ("linear_decode_r1", 1));
            assert!(2 * (plan.smem + RESERVED) <= H200.1 + 1024, "{cols}: {plan:?}");
            let step = plan.warps / cols.div_ceil(GROUP) * 4;
            assert_eq!(plan.round_rows, rows.div_ceil(plan.blocks).next_multiple_of(step));
        }
    }

    #[test]
    fn rows_that_do_not_fit_at_once_go_in_several_launches() {
        let parts = [(TensorType::Q6_K, 4096)];
        let plan = decode_plan(&shape(14336, 4096, &parts), 8, GEFORCE.0, GEFORCE.1).unwrap();
        assert!(plan.rows < 8 && plan.smem <= GEFORCE.1, "{plan:?}");
        let plan = decode_plan(&shape(4096, 4096, &parts), 3, H200.0, H200.1).unwrap();
        assert_eq!(plan.rows, 4);
    }

    #[test]
    fn what_fits_no_card_has_no_plan() {
        let parts = [(TensorType::Q6_K, 4096)];
        assert!(
            decode_plan(&shape(1 << 16, 4096, &parts), 1, GEFORCE.0, GEFORCE.1).is_some_and(|p| p.smem <= GEFORCE.1)
        );
        assert_eq!(decode_plan(&shape(1 << 17, 4096, &parts), 8, GEFORCE.0, GEFORCE.1), None);
    }

    proptest! {
        #[test]
        fn every_plan_fits_and_covers(
            blocks in 1usize..120, rows in 1usize..200_000, x_rows in 1usize..=8, geforce: bool, paired: bool, which in 0usize..5,
        ) {
            let ty = [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K][which];
            let (sms, most) = if geforce { GEFORCE } else { H200 };
            let parts = vec![(ty, rows); if paired { 2 } else { 1 }];
            let s = Shape { cols: 256 * blocks, virtual_rows: rows, parts: &parts, paired };
            let plan = decode_plan(&s, x_rows, sms, most).unwrap();
            prop_assert!(plan.smem + 1024 <= most, "{plan:?}");
            prop_assert!(plan.slots >= 2 && plan.warps <= MOST_WARPS && plan.slot_bytes.is_multiple_of(32));
            let groups = s.cols.div_ceil(GROUP).min(plan.warps);
            prop_assert_eq!(plan.round_rows % (plan.warps / groups * 2), 0);
            prop_assert!(plan.rows >= x_rows || plan.rows == plan.rows.next_power_of_two());
        }
    }

    #[test]
    fn tiles_grow_with_the_rows() {
        assert_eq!(prefill_tile(9, 4096, 132).m, 32);
        assert_eq!(prefill_tile(64, 28672, 132).m, 32);
        assert_eq!(prefill_tile(128, 28672, 132).m, 64);
        assert_eq!(prefill_tile(512, 4096, 132).m, 128);
        assert_eq!(prefill_tile(512, 192, 132).m, 32);
        assert!(prefill_tile(512, 4096, 132).smem() < 99 * 1024);
    }
}
