//! Products with a matrix of one head, inside of a task: the weights stay as the file has them.
//!
//! A whole job over many matrices is `linear.rs`; the kernels, and so the bits, are the same.

use crate::attention::TASK_ROWS;
use crate::kernels::{ActBlock, ActRow, Kernels, Panel, QUANT, TILE};
use crate::linear::multiply_tiles;
use crate::weights::{Held, Rows, Tiles};

/// Room of one thread.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Weight rows as floats.
    decoded: Vec<f32>,
    quants: Vec<i8>,
    blocks: Vec<ActBlock>,
    panel: Panel,
    sums: Vec<[f32; TILE]>,
}

/// `matrix · x` for at most [`TASK_ROWS`] `x`: hands `put` the number of an `x`, of the first of some neighbouring matrix
/// rows, and their results.
pub(crate) fn multiply(
    kernels: &Kernels,
    matrix: &Held,
    x: &[&[f32]],
    scratch: &mut Scratch,
    put: impl FnMut(usize, usize, &[f32]),
) {
    match (&matrix.tiles, &matrix.rows) {
        (Some(tiles), _) => in_integers(kernels, tiles, x, scratch, put),
        (None, Some(rows)) => in_floats(kernels, rows, x, scratch, put),
        (None, None) => unreachable!("a matrix of a head is loaded in one form or the other"),
    }
}

fn in_integers(
    kernels: &Kernels,
    tiles: &Tiles,
    x: &[&[f32]],
    scratch: &mut Scratch,
    mut put: impl FnMut(usize, usize, &[f32]),
) {
    let (n, cols) = (x.len(), x.first().map_or(0, |x| x.len()));
    let subs = cols / QUANT;
    let Scratch { quants, blocks, panel, sums, .. } = scratch;
    quants.resize(TASK_ROWS * cols, 0);
    blocks.resize(TASK_ROWS * subs, ActBlock::default());
    sums.resize(2 * TASK_ROWS, [0.0; TILE]);
    let room = quants.chunks_exact_mut(cols).zip(blocks.chunks_exact_mut(subs));
    let mut acts = [ActRow { quants: &[], blocks: &[] }; TASK_ROWS];
    for ((act, x), (quants, blocks)) in acts.iter_mut().zip(x).zip(room) {
        (kernels.quantize)(x, quants, blocks);
        *act = ActRow { quants, blocks };
    }
    let count = tiles.rows.div_ceil(TILE);
    for first in (0..count).step_by(2) {
        let pair = [tiles.tile(first), if first + 1 < count { tiles.tile(first + 1) } else { &[] }];
        let pair = &pair[..(count - first).min(2)];
        multiply_tiles(kernels, tiles.kind, pair, &acts[..n], panel, &mut sums[..pair.len() * n]);
        for (t, sums) in sums.chunks_exact(n).take(pair.len()).enumerate() {
            let start = (first + t) * TILE;
            let held = (tiles.rows - start).min(TILE);
            sums.iter().enumerate().for_each(|(i, sums)| put(i, start, &sums[..held]));
        }
    }
}

fn in_floats(
    kernels: &Kernels,
    rows: &Rows,
    x: &[&[f32]],
    scratch: &mut Scratch,
    mut put: impl FnMut(usize, usize, &[f32]),
) {
    let (n, cols) = (x.len(), x.first().map_or(0, |x| x.len()));
    let mut out = [[0f32; 4]; TASK_ROWS];
    for first in (0..rows.count).step_by(4) {
        let held = (rows.count - first).min(4);
        scratch.decoded.clear();
        scratch.decoded.resize(4 * cols, 0.0);
        for (i, decoded) in scratch.decoded.chunks_exact_mut(cols).take(held).enumerate() {
            rows.decode(kernels, first + i, decoded);
        }
        (kernels.products)(&scratch.decoded, x, &mut out[..n]);
        out[..n].iter().enumerate().for_each(|(i, sums)| put(i, first, &sums[..held]));
    }
}

/// `matrixᵀ · x`: row by row of the matrix, each times its value of `x`, into `out[x · stride ..]`, which holds zeros. Its
/// blocks lie along the results, so that there is nothing to sum up in integers.
pub(crate) fn multiply_turned(
    kernels: &Kernels,
    matrix: &Held,
    x: &[&[f32]],
    scratch: &mut Scratch,
    out: &mut [f32],
    stride: usize,
) {
    let Some(rows) = &matrix.rows else { unreachable!("a matrix that is turned over is loaded as rows") };
    let decoded = &mut scratch.decoded;
    decoded.clear();
    decoded.resize(rows.cols(), 0.0);
    for row in 0..rows.count {
        rows.decode(kernels, row, decoded);
        for (x, out) in x.iter().zip(out.chunks_mut(stride)) {
            (kernels.add_scaled)(&mut out[..decoded.len()], decoded, x[row]);
        }
    }
}
