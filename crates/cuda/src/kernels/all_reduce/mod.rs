//! Launches the all-reduce kernels: alone, with the residual add, with the residual add and the norm.
//!
//! Messages larger than a slot go in several calls; every rank cuts them alike.

use crate::collective::Link;
use crate::driver::{Args, ByValue, CudaError, DevicePtr, Kernels, Launch, Stream};

/// What travels between the ranks. The sum is f32 in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Each partial value rounded to bf16.
    Bf16,
    /// As they are: for gates.
    F32,
}

impl Wire {
    /// Values in one line of 16 bytes.
    pub const fn values_per_line(self) -> usize {
        match self {
            Wire::Bf16 => 4,
            Wire::F32 => 2,
        }
    }

    /// Bytes of a value on the wire, flags not counted.
    pub const fn bytes(self) -> usize {
        8 / self.values_per_line()
    }

    fn suffix(self) -> &'static str {
        match self {
            Wire::Bf16 => "bf16",
            Wire::F32 => "f32",
        }
    }
}

/// What is done with the sum. All `[rows, width]` f32, `width` a multiple of 4; the norm's weight `[width]`.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// `out = sum`. `out` may be the partial.
    Store {
        /// Output.
        out: DevicePtr,
    },
    /// `residual_out = residual_in + sum`; the two may be the same.
    Add {
        /// Input.
        residual_in: DevicePtr,
        /// Output.
        residual_out: DevicePtr,
    },
    /// As `Add`, and `out = rms_norm(residual_out) * weight`.
    AddNorm {
        /// Input.
        residual_in: DevicePtr,
        /// Output; may be `residual_in`.
        residual_out: DevicePtr,
        /// Of the norm.
        weight: DevicePtr,
        /// Normed.
        out: DevicePtr,
        /// Added to the mean square.
        eps: f32,
    },
}

#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    partial: DevicePtr,
    residual_in: DevicePtr,
    residual_out: DevicePtr,
    out: DevicePtr,
    weight: DevicePtr,
    rows: u32,
    width: u32,
    eps: f32,
    kind: u32,
}

// SAFETY: `repr(C)`; five addresses and four 32-bit values leave no gap.
unsafe impl ByValue for KernelArgs {}

/// Threads of a block: small blocks on many multiprocessors answer soonest.
const BLOCK: u32 = 256;
const WARPS: usize = BLOCK as usize / 32;
/// All blocks must be resident at once.
const MOST_BLOCKS: usize = 128;
/// Blocks of a cluster that every device with clusters can run.
const MOST_CLUSTER: usize = 8;
/// Tiles of a row whose sums a cluster's shared memory has room for: as in the kernel.
const MOST_TILES: usize = 512;

/// Queues an all-reduce of `partial`, `[rows, width]`. `kind` is what an error will name.
///
/// # Errors
/// The driver's. A silent rank is found later, in the collective's error word.
///
/// # Panics
/// When `width` is no multiple of 4 or one row does not fit a slot.
///
/// # Safety
/// The addresses must hold what [`Then`] says; every rank of the link's group must queue the same call.
#[allow(clippy::too_many_arguments)]
pub unsafe fn all_reduce(
    stream: &Stream,
    kernels: &Kernels,
    link: &Link,
    wire: Wire,
    partial: DevicePtr,
    then: &Then,
    (rows, width): (usize, usize),
    kind: u32,
) -> Result<(), CudaError> {
    assert!(width.is_multiple_of(4), "width {width}");
    let lines_per_row = width / wire.values_per_line();
    let rows_per_call = link.slot_lines() / lines_per_row;
    assert!(rows_per_call > 0, "a row of {width} values does not fit a slot of {} lines", link.slot_lines());
    let tiles_per_row = lines_per_row.div_ceil(32);
    // Clusters came with compute capability 9.0; a kernel compiled by the driver from PTX for 8.0 has none.
    let clustered = kernels
        .find(&kernel_name(then, wire, link.ranks(), true))
        .filter(|_| matches!(then, Then::AddNorm { .. }) && tiles_per_row <= MOST_TILES);
    let kernel = clustered.unwrap_or_else(|| kernels.get(&kernel_name(then, wire, link.ranks(), false)));
    for first in (0..rows).step_by(rows_per_call) {
        let rows = rows_per_call.min(rows - first);
        let args = Args::new().value(link).value(&kernel_args(partial, then, first, rows, width, kind));
        let launch = match clustered {
            Some(_) => cluster_launch(rows, tiles_per_row),
            None => plain_launch(rows * tiles_per_row, stream.device().info.multiprocessors as usize),
        };
        // SAFETY: the arguments are the kernel's, offset by whole rows; the rest is the caller's.
        unsafe { stream.launch(kernel, &launch, &args) }?;
    }
    Ok(())
}

/// One tile a warp, as long as all blocks can be resident at once: one for each of `multiprocessors` always can.
fn plain_launch(tiles: usize, multiprocessors: usize) -> Launch {
    Launch::new(tiles.div_ceil(WARPS).min(MOST_BLOCKS.min(multiprocessors)).max(1) as u32, BLOCK)
}

/// One cluster a row, of as many blocks as it has tiles for, fewer where there are many rows.
fn cluster_launch(rows: usize, tiles_per_row: usize) -> Launch {
    let blocks = tiles_per_row.div_ceil(WARPS).min(MOST_CLUSTER).min((MOST_BLOCKS / rows).max(1));
    Launch { cluster: blocks as u32, ..Launch::new((rows * blocks) as u32, BLOCK) }
}

fn kernel_name(then: &Then, wire: Wire, ranks: usize, clustered: bool) -> String {
    let what = match then {
        Then::Store { .. } => "all_reduce",
        Then::Add { .. } => "all_reduce_add",
        Then::AddNorm { .. } if clustered => "all_reduce_add_norm_cluster",
        Then::AddNorm { .. } => "all_reduce_add_norm",
    };
    format!("{what}_{}_{}", wire.suffix(), if ranks <= 2 { 2 } else { 8 })
}

fn kernel_args(partial: DevicePtr, then: &Then, first: usize, rows: usize, width: usize, kind: u32) -> KernelArgs {
    let at = |p: DevicePtr| p.offset(first * width * 4);
    let none = DevicePtr::NULL;
    let (residual_in, residual_out, weight, out, eps) = match *then {
        Then::Store { out } => (none, none, none, at(out), 0.0),
        Then::Add { residual_in, residual_out } => (at(residual_in), at(residual_out), none, none, 0.0),
        Then::AddNorm { residual_in, residual_out, weight, out, eps } => {
            (at(residual_in), at(residual_out), weight, at(out), eps)
        }
    };
    KernelArgs {
        partial: at(partial),
        residual_in,
        residual_out,
        out,
        weight,
        rows: rows as u32,
        width: width as u32,
        eps,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_fill_the_device_but_stay_resident() {
        assert_eq!(plain_launch(48, 132).grid.0, 6);
        assert_eq!(plain_launch(1 << 20, 132).grid.0, 128);
        assert_eq!(plain_launch(1 << 20, 24).grid.0, 24);
        assert_eq!(plain_launch(48, 24).grid.0, 6);
        let one = cluster_launch(1, 48);
        assert_eq!((one.grid.0, one.cluster), (6, 6));
        let many = cluster_launch(64, 64);
        assert_eq!((many.grid.0, many.cluster), (128, 2));
        let wide = cluster_launch(1, 512);
        assert_eq!((wide.grid.0, wide.cluster), (8, 8));
        let tall = cluster_launch(1000, 32);
        assert_eq!((tall.grid.0, tall.cluster), (1000, 1));
    }
}
