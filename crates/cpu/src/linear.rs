//! Matrix products: several weights that multiply the same activations are one job.
//!
//! A [`Product`] may take part of a weight's rows and a choice of the activations' rows: that is an expert of a
//! mixture, whose matrices lie one after the other in one tensor and which sees the tokens that were routed to it. All
//! experts of a layer are one job: one `Product` each, with the same `weight`.
//!
//! A job is cut into tasks of neighbouring weight rows times a block of activation rows, so that weights are read once
//! per block and stay in the nearest cache meanwhile. How it is cut, and which rows go together, changes no bit of the
//! result.

use crate::grid::Grid;
use crate::kernels::{ActBlock, ActRow, Kernels, Kind, Panel, QUANT, TILE};
use crate::pool::{Panicked, Pool};
use crate::weights::{Held, Rows, Tiles};
use std::cell::RefCell;
use std::ops::Range;

/// Most activation rows of a task: with their columns about as much as a core's own cache holds.
const TASK_ROWS: usize = 96;
/// From so many rows on, bringing weights to a common form first pays.
const BLOCK_ROWS: usize = 5;
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

/// One product of a job: `out[to] = weight[weight_rows] · x[from]`, for every row of `x` or for chosen ones.
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a Held,
    /// Which rows of the weight; the first of them gives column 0 of `out`.
    pub(crate) weight_rows: Range<usize>,
    pub(crate) rows: Picked<'a>,
    /// Products may share an output as long as they share none of its cells.
    pub(crate) out: &'a Grid<'a, f32>,
}

/// Which rows of the activations a product takes, and which rows of its output they become.
#[derive(Clone, Copy)]
pub(crate) enum Picked<'a> {
    /// Each row becomes the row of the same number.
    All,
    /// Pairs `[from, to]`; no `to` twice.
    Pairs(&'a [[u32; 2]]),
}

impl<'a> Product<'a> {
    /// A whole weight times all rows.
    pub(crate) fn whole(weight: &'a Held, out: &'a Grid<'a, f32>) -> Self {
        Self { weight, weight_rows: 0..weight.count(), rows: Picked::All, out }
    }

    fn len(&self, rows: usize) -> usize {
        match self.rows {
            Picked::All => rows,
            Picked::Pairs(pairs) => pairs.len(),
        }
    }

    /// Row of `x` and row of `out` of the product's `i`-th row.
    fn pair(&self, i: usize) -> [usize; 2] {
        match self.rows {
            Picked::All => [i, i],
            Picked::Pairs(pairs) => pairs[i].map(|row| row as usize),
        }
    }
}

struct Task {
    product: usize,
    weight_rows: Range<usize>,
    rows: Range<usize>,
}

#[derive(Default)]
struct Scratch {
    /// Four decoded weight rows.
    decoded: Vec<f32>,
    products: Vec<[f32; 4]>,
    panel: Panel,
    sums: Vec<[f32; TILE]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs `products` over the rows of `x`, `cols` values each.
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
    let tasks = tasks(products, x.len() / cols, pool.threads());
    let quantized = &*quantized;
    pool.run(tasks.len(), &|i| {
        let task = &tasks[i];
        let product = &products[task.product];
        SCRATCH.with_borrow_mut(|scratch| match (&product.weight.tiles, &product.weight.rows) {
            (Some(tiles), _) if task.rows.len() < BLOCK_ROWS => {
                tile_task::<BLOCK_ROWS>(kernels, tiles, quantized, cols, task, product, scratch);
            }
            (Some(tiles), _) => tile_task::<TASK_ROWS>(kernels, tiles, quantized, cols, task, product, scratch),
            (None, Some(weight)) => row_task(kernels, weight, x, cols, task, product, scratch),
            (None, None) => unreachable!("a weight of a product is loaded in one form or the other"),
        });
    })
}

fn tasks(products: &[Product], rows: usize, threads: usize) -> Vec<Task> {
    let bytes: usize = products.iter().map(|p| p.weight_rows.len() * p.weight.bytes_per_row()).sum();
    let task_bytes = (bytes / (threads * TASKS_PER_THREAD)).max(TASK_BYTES_MIN);
    let mut tasks = Vec::new();
    let most = products.iter().map(|p| p.len(rows)).max().unwrap_or(0);
    for first in (0..most).step_by(TASK_ROWS) {
        for (product, p) in products.iter().enumerate() {
            let rows = first..(first + TASK_ROWS).min(p.len(rows));
            if rows.is_empty() {
                continue;
            }
            // Whole tiles, in pairs.
            let step = (task_bytes / p.weight.bytes_per_row().max(1)).next_multiple_of(2 * TILE).max(2 * TILE);
            let mut start = p.weight_rows.start;
            while start < p.weight_rows.end {
                let end = (start / TILE * TILE + step).min(p.weight_rows.end);
                tasks.push(Task { product, weight_rows: start..end, rows: rows.clone() });
                start = end;
            }
        }
    }
    tasks
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

/// A task of at most `MAX` rows: what a small one needs is smaller.
fn tile_task<const MAX: usize>(
    kernels: &Kernels,
    tiles: &Tiles,
    x: &Quantized,
    cols: usize,
    task: &Task,
    product: &Product,
    scratch: &mut Scratch,
) {
    let blocks = cols / QUANT;
    let empty = ActRow { quants: &[], blocks: &[] };
    let mut acts = [empty; MAX];
    let mut to = [0; MAX];
    let n = task.rows.len();
    for (i, row) in task.rows.clone().enumerate() {
        let [from, into] = product.pair(row);
        acts[i] = ActRow { quants: &x.quants[from * cols..][..cols], blocks: &x.blocks[from * blocks..][..blocks] };
        to[i] = into;
    }
    let (acts, to) = (&acts[..n], &to[..n]);
    let Scratch { panel, sums, .. } = scratch;
    sums.resize(sums.len().max(2 * MAX), [0.0; TILE]);
    let last = task.weight_rows.end.div_ceil(TILE);
    for first in (task.weight_rows.start / TILE..last).step_by(2) {
        let pair = [tiles.tile(first), if first + 1 < last { tiles.tile(first + 1) } else { &[] }];
        let pair = &pair[..(last - first).min(2)];
        multiply_tiles(kernels, tiles.kind, pair, acts, panel, &mut sums[..pair.len() * n]);
        for (t, sums) in sums.chunks_exact(n).take(pair.len()).enumerate() {
            // The task's part of the tile.
            let tile_start = (first + t) * TILE;
            let start = tile_start.max(task.weight_rows.start);
            let held = (tile_start + TILE).min(task.weight_rows.end) - start;
            for (sums, &row) in sums.iter().zip(to) {
                // SAFETY: tasks share no pair of weight row and output row.
                let out = unsafe { product.out.cells(row, start - product.weight_rows.start, held) };
                out.copy_from_slice(&sums[start - tile_start..][..held]);
            }
        }
    }
}

/// One or two tiles times any number of activations: `out[tile · activations + activation]`, in the quicker of two ways
/// that give the same bits.
pub(crate) fn multiply_tiles(
    kernels: &Kernels,
    kind: Kind,
    tiles: &[&[u8]],
    acts: &[ActRow],
    panel: &mut Panel,
    out: &mut [[f32; TILE]],
) {
    if acts.len() < BLOCK_ROWS {
        for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
            (kernels.tile)(kind, tile, acts, out);
        }
    } else {
        (kernels.block)(kind, tiles, acts, panel, out);
    }
}

fn row_task(
    kernels: &Kernels,
    weight: &Rows,
    x: &[f32],
    cols: usize,
    task: &Task,
    product: &Product,
    scratch: &mut Scratch,
) {
    let rows: Vec<&[f32]> = task.rows.clone().map(|row| &x[product.pair(row)[0] * cols..][..cols]).collect();
    let Scratch { decoded, products, .. } = scratch;
    products.resize(rows.len(), [0.0; 4]);
    for first in task.weight_rows.clone().step_by(4) {
        let held = (task.weight_rows.end - first).min(4);
        decoded.clear();
        decoded.resize(4 * cols, 0.0);
        for (i, decoded) in decoded.chunks_exact_mut(cols).take(held).enumerate() {
            weight.decode(kernels, first + i, decoded);
        }
        (kernels.products)(decoded, &rows, products);
        let col = first - product.weight_rows.start;
        for (sums, row) in products.iter().zip(task.rows.clone()) {
            // SAFETY: tasks share no pair of weight row and output row.
            unsafe { product.out.cells(product.pair(row)[1], col, held) }.copy_from_slice(&sums[..held]);
        }
    }
}
