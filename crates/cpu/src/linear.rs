//! Matrix products: several weights that multiply the same activations are one job.
//!
//! A job is cut into tasks of neighbouring weight rows times a block of activation rows, so that weights are read once
//! per block and stay in the nearest cache meanwhile. How it is cut changes no bit of the result.

use crate::grid::Grid;
use crate::kernels::{ActBlock, ActRow, Kernels, QUANT, ROWS_MAX, TILE};
use crate::pool::{Panicked, Pool};
use crate::weights::{Held, Rows, Tiles};
use std::cell::RefCell;
use std::ops::Range;

/// Most activation rows of a task: with their columns about as much as a core's own cache holds.
const TASK_ROWS: usize = 128;
/// Least weight bytes of a task, so that taking tasks costs little.
const TASK_BYTES_MIN: usize = 16 << 10;
/// Tasks per thread, so that a thread that is held up does not hold up the job.
const TASKS_PER_THREAD: usize = 6;

/// Room for quantized activations.
#[derive(Default)]
pub(crate) struct Quantized {
    quants: Vec<i8>,
    blocks: Vec<ActBlock>,
}

/// One product of a job: `out[row] = weight · x[row]` for some rows.
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a Held,
    /// Of `x`, and of `out`.
    pub(crate) rows: Range<usize>,
    pub(crate) out: &'a Grid<'a, f32>,
}

struct Task {
    product: usize,
    weight_rows: Range<usize>,
    rows: Range<usize>,
}

thread_local! {
    /// One decoded weight row.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Runs `products` over rows of `x`, `cols` values each. Products may share an output if they share no row.
pub(crate) fn run(
    pool: &mut Pool,
    kernels: &Kernels,
    x: &[f32],
    cols: usize,
    products: &[Product],
    quantized: &mut Quantized,
) -> Result<(), Panicked> {
    if products.iter().any(|p| p.weight.tiles.is_some()) {
        quantize(pool, kernels, x, cols, quantized)?;
    }
    let bytes: usize = products.iter().map(|p| weight_rows(p.weight) * bytes_per_row(p.weight)).sum();
    let task_bytes = (bytes / (pool.threads() * TASKS_PER_THREAD)).max(TASK_BYTES_MIN);
    let mut tasks = Vec::new();
    let most = products.iter().map(|p| p.rows.len()).max().unwrap_or(0);
    for first in (0..most).step_by(TASK_ROWS) {
        for (product, p) in products.iter().enumerate().filter(|(_, p)| first < p.rows.len()) {
            let rows = p.rows.start + first..(p.rows.start + first + TASK_ROWS).min(p.rows.end);
            let all = weight_rows(p.weight);
            // Whole tiles.
            let step = (task_bytes / bytes_per_row(p.weight).max(1)).next_multiple_of(TILE).max(TILE);
            tasks.extend((0..all).step_by(step).map(|start| Task {
                product,
                weight_rows: start..(start + step).min(all),
                rows: rows.clone(),
            }));
        }
    }
    let quantized = &*quantized;
    pool.run(tasks.len(), &|i| {
        let task = &tasks[i];
        let product = &products[task.product];
        match (&product.weight.tiles, &product.weight.rows) {
            (Some(tiles), _) => tile_task(kernels, tiles, quantized, cols, task, product.out),
            (None, Some(weight)) => row_task(kernels, weight, x, cols, task, product.out),
            (None, None) => unreachable!("a weight of a product is loaded in one form or the other"),
        }
    })
}

fn weight_rows(weight: &Held) -> usize {
    weight.tiles.as_ref().map(|t| t.rows).or(weight.rows.as_ref().map(|r| r.count)).unwrap_or(0)
}

fn bytes_per_row(weight: &Held) -> usize {
    let rows = || weight.rows.as_ref().map_or(0, |r| r.row(0).len());
    weight.tiles.as_ref().map_or_else(rows, |t| t.tile_bytes() / TILE)
}

fn quantize(
    pool: &mut Pool,
    kernels: &Kernels,
    x: &[f32],
    cols: usize,
    quantized: &mut Quantized,
) -> Result<(), Panicked> {
    let rows = x.len() / cols;
    let blocks = cols / QUANT;
    quantized.quants.resize(rows * cols, 0);
    quantized.blocks.resize(rows * blocks, ActBlock::default());
    let quants = Grid::new(&mut quantized.quants, cols);
    let blocks = Grid::new(&mut quantized.blocks, blocks);
    pool.split(rows, 4, &|rows| {
        for row in rows {
            // SAFETY: every row is in one task's range.
            let (quants, blocks) = unsafe { (quants.rows(row..row + 1), blocks.rows(row..row + 1)) };
            (kernels.quantize)(&x[row * cols..][..cols], quants, blocks);
        }
    })
}

fn tile_task(kernels: &Kernels, tiles: &Tiles, x: &Quantized, cols: usize, task: &Task, out: &Grid<f32>) {
    let blocks = cols / QUANT;
    let act =
        |row: usize| ActRow { quants: &x.quants[row * cols..][..cols], blocks: &x.blocks[row * blocks..][..blocks] };
    let mut sums = [[0f32; TILE]; ROWS_MAX];
    for tile in task.weight_rows.start / TILE..task.weight_rows.end.div_ceil(TILE) {
        let bytes = tiles.tile(tile);
        let held = TILE.min(tiles.rows - tile * TILE);
        for first in task.rows.clone().step_by(ROWS_MAX) {
            let n = ROWS_MAX.min(task.rows.end - first);
            let acts: [ActRow; ROWS_MAX] = std::array::from_fn(|i| act(first + i.min(n - 1)));
            (kernels.tile)(tiles.kind, bytes, &acts[..n], &mut sums);
            for (i, sums) in sums.iter().enumerate().take(n) {
                // SAFETY: tasks share no pair of weight row and activation row.
                unsafe { out.cells(first + i, tile * TILE, held) }.copy_from_slice(&sums[..held]);
            }
        }
    }
}

fn row_task(kernels: &Kernels, weight: &Rows, x: &[f32], cols: usize, task: &Task, out: &Grid<f32>) {
    let x = |row: usize| &x[row * cols..][..cols];
    DECODED.with_borrow_mut(|decoded| {
        decoded.resize(cols, 0.0);
        for weight_row in task.weight_rows.clone() {
            weight.decode(kernels, weight_row, decoded);
            let mut row = task.rows.start;
            while row < task.rows.end {
                let n = if task.rows.end - row >= 4 { 4 } else { 1 };
                let sums = match n {
                    4 => (kernels.dot4)(decoded, [x(row), x(row + 1), x(row + 2), x(row + 3)]),
                    _ => [(kernels.dot)(decoded, x(row)), 0.0, 0.0, 0.0],
                };
                for (i, &sum) in sums.iter().enumerate().take(n) {
                    // SAFETY: tasks share no pair of weight row and activation row.
                    unsafe { out.cells(row + i, weight_row, 1)[0] = sum };
                }
                row += n;
            }
        }
    });
}
