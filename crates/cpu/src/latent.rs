//! Multi-head latent attention over the paged cache of latents.
//!
//! Queries go through the key matrices and results through the value matrices ("absorbed"), so that the latents are read
//! as they lie, once for all heads and rows of a task. Every row folds in its positions in ascending order, by blocks
//! counted from the first that it sees: its result depends neither on the batch nor on how heads are shared out.

use crate::attention::runs;
use crate::grid::Grid;
use crate::kernels::{BLOCK, Heads, Kernels, Scoring};
use crate::pool::{Panicked, Pool};
use crate::row_cache::RowCache;
use std::cell::RefCell;
use std::ops::Range;
use tombolo_model::{BLOCK_TOKENS, Step};

/// Most pairs of row and head of a task: their queries and sums stay in a core's own cache.
const TASK_PAIRS: usize = 128;

struct Scratch {
    heads: Heads,
    valid: Vec<Range<usize>>,
    query: Vec<f32>,
    rows: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { heads: Heads::new(), valid: Vec::new(), query: Vec::new(), rows: Vec::new() })
    };
}

/// One operation.
pub(crate) struct LatentAttention<'a> {
    pub(crate) cache: &'a RowCache,
    /// Which KV group.
    pub(crate) group: usize,
    pub(crate) layer: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Values of a latent: the first of a cached row.
    pub(crate) latent: usize,
    pub(crate) scale: f32,
    /// `[heads, latent, nope]`.
    pub(crate) keys: &'a [f32],
    /// `[heads, value, latent]`.
    pub(crate) values: &'a [f32],
    /// `[rows, heads, nope + rope]`.
    pub(crate) q: &'a [f32],
    /// `[rows, top_k]` and `top_k`: what rows at positions from there on see.
    pub(crate) selected: Option<(&'a [u32], usize)>,
    /// `[rows, heads * value]`.
    pub(crate) out: Grid<'a, f32>,
}

/// Neighbouring rows of one sequence, and some heads.
struct Task {
    rows: Range<usize>,
    heads: Range<usize>,
}

impl LatentAttention<'_> {
    pub(crate) fn run(&self, pool: &mut Pool, kernels: &Kernels, step: &Step) -> Result<(), Panicked> {
        let runs = runs(step);
        // Heads share what is read of the cache, unless that leaves threads without work.
        let parts = pool.threads().div_ceil(runs.len()).min(self.heads);
        let most = self.heads.div_ceil(parts);
        // The last rows of a sequence have the most to read: taken first, no thread is left with them at the end.
        let tasks = runs.into_iter().rev().flat_map(|rows| {
            let heads = most.min(TASK_PAIRS / rows.len());
            let parts = (0..self.heads).step_by(heads);
            parts.map(move |first| Task { rows: rows.clone(), heads: first..(first + heads).min(self.heads) })
        });
        let tasks: Vec<Task> = tasks.collect();
        pool.run(tasks.len(), &|i| {
            SCRATCH.with_borrow_mut(|scratch| self.task(kernels, step, &tasks[i], scratch));
        })
    }

    fn task(&self, kernels: &Kernels, step: &Step, task: &Task, scratch: &mut Scratch) {
        self.absorb(kernels, task, scratch);
        scratch.rows.resize(BLOCK * self.cache.width(), 0.0);
        let position = |row: usize| step.rows[row].position as usize;
        // Positions ascend: those that see everything come first.
        let dense = match self.selected {
            Some((_, top_k)) => task.rows.clone().take_while(|&row| position(row) < top_k).count(),
            None => task.rows.len(),
        };
        let table = &step.sequences[step.rows[task.rows.start].sequence as usize].tables[self.group];
        if dense > 0 {
            let last = task.rows.start + dense - 1;
            for (b, &block) in table.iter().enumerate().take(position(last) / BLOCK_TOKENS + 1) {
                self.cache.read(kernels, self.layer, block, 0, &mut scratch.rows);
                scratch.valid.clear();
                for row in task.rows.start..=last {
                    let seen = (position(row) + 1).saturating_sub(b * BLOCK_TOKENS).min(BLOCK_TOKENS);
                    scratch.valid.extend(task.heads.clone().map(|_| 0..seen));
                }
                self.fold_in(kernels, 0, scratch);
            }
        }
        for (i, row) in task.rows.clone().enumerate().skip(dense) {
            let Some((selected, top_k)) = self.selected else { break };
            for positions in selected[row * top_k..][..top_k].chunks(BLOCK) {
                for (to, &position) in scratch.rows.chunks_exact_mut(self.cache.width()).zip(positions) {
                    let position = position as usize;
                    let block = table[position / BLOCK_TOKENS];
                    self.cache.read(kernels, self.layer, block, position % BLOCK_TOKENS, to);
                }
                scratch.valid.clear();
                scratch.valid.extend(task.heads.clone().map(|_| 0..positions.len()));
                self.fold_in(kernels, i * task.heads.len(), scratch);
            }
        }
        self.expand(kernels, task, scratch);
    }

    /// Folds the positions that were read into the pairs of row and head from `first` on.
    fn fold_in(&self, kernels: &Kernels, first: usize, scratch: &mut Scratch) {
        let Scratch { heads, valid, rows, .. } = scratch;
        let scoring = Scoring { scale: self.scale, softcap: None };
        (kernels.attend_latent)(heads, first, valid, rows, self.latent, scoring);
    }

    /// Queries as they meet the cache: `[keys[h] · nope | rope]`.
    fn absorb(&self, kernels: &Kernels, task: &Task, scratch: &mut Scratch) {
        let Scratch { heads: state, query, .. } = scratch;
        let (latent, width, part) = (self.latent, self.cache.width(), task.heads.len());
        let nope = self.keys.len() / (self.heads * latent);
        let head_dim = nope + width - latent;
        state.clear(width);
        query.clear();
        query.resize(task.rows.len() * part * width, 0.0);
        for (h, head) in task.heads.clone().enumerate() {
            let matrix = &self.keys[head * latent * nope..][..latent * nope];
            let q = |row: usize| &self.q[(row * self.heads + head) * head_dim..][..head_dim];
            let at = |row: usize| ((row - task.rows.start) * part + h) * width;
            multiply(kernels, matrix, nope, task.rows.clone().map(|row| &q(row)[..nope]), |i, row, value| {
                query[at(task.rows.start + i) + row] = value;
            });
            for row in task.rows.clone() {
                query[at(row) + latent..][..width - latent].copy_from_slice(&q(row)[nope..]);
            }
        }
        for query in query.chunks_exact(width) {
            state.push(query, None);
        }
    }

    /// Results through the value matrices.
    fn expand(&self, kernels: &Kernels, task: &Task, scratch: &mut Scratch) {
        let Scratch { heads: state, .. } = scratch;
        let (latent, width, part) = (self.latent, self.cache.width(), task.heads.len());
        let value = self.values.len() / (self.heads * latent);
        for (out, (_, sum)) in state.out.chunks_exact_mut(width).zip(&state.state) {
            out[..latent].iter_mut().for_each(|x| *x /= sum);
        }
        for (h, head) in task.heads.clone().enumerate() {
            let matrix = &self.values[head * value * latent..][..value * latent];
            let mixed = (0..task.rows.len()).map(|i| &state.out[(i * part + h) * width..][..latent]);
            multiply(kernels, matrix, latent, mixed, |i, row, result| {
                // SAFETY: tasks share no pair of row and head.
                unsafe { self.out.cells(task.rows.start + i, head * value + row, 1)[0] = result };
            });
        }
    }
}

/// Rows that [`multiply`] takes at once: those of a task.
const ROWS: usize = crate::attention::TASK_ROWS;

/// `matrix · x` for some `x` of `cols` values: gives every result with the numbers of its `x` and of its matrix row.
fn multiply<'a>(
    kernels: &Kernels,
    matrix: &[f32],
    cols: usize,
    x: impl Iterator<Item = &'a [f32]>,
    mut put: impl FnMut(usize, usize, f32),
) {
    let mut all: [&[f32]; ROWS] = [&[]; ROWS];
    let mut n = 0;
    for (place, x) in all.iter_mut().zip(x) {
        *place = x;
        n += 1;
    }
    let mut out = [[0f32; 4]; ROWS];
    for (first, four) in matrix.chunks(4 * cols).enumerate() {
        let held = four.len() / cols;
        if held == 4 {
            (kernels.products)(four, &all[..n], &mut out[..n]);
        } else {
            let padded = [four, &vec![0.0; (4 - held) * cols]].concat();
            (kernels.products)(&padded, &all[..n], &mut out[..n]);
        }
        for (i, out) in out[..n].iter().enumerate() {
            out[..held].iter().enumerate().for_each(|(r, &value)| put(i, 4 * first + r, value));
        }
    }
}
