//! Multi-head latent attention over the paged cache of latents.
//!
//! Queries go through the key matrices and results through the value matrices ("absorbed"), so that the latents are read
//! as they lie, once for all heads and rows of a task. Every row folds in its positions in ascending order, by blocks
//! counted from the first that it sees: its result depends neither on the batch nor on how heads are shared out.

use crate::attention::{TASK_ROWS, runs};
use crate::grid::Grid;
use crate::heads::{self, multiply, multiply_turned};
use crate::kernels::{BLOCK, Heads, Kernels, Scoring};
use crate::pool::{Panicked, Pool};
use crate::row_cache::RowCache;
use crate::weights::Held;
use std::cell::RefCell;
use std::ops::Range;
use tombolo_model::{BLOCK_TOKENS, Step};

/// Most pairs of row and head of a task: their queries and sums stay in a core's own cache.
const TASK_PAIRS: usize = 128;

#[derive(Default)]
struct Scratch {
    heads: Heads,
    valid: Vec<Range<usize>>,
    query: Vec<f32>,
    rows: Vec<f32>,
    products: heads::Scratch,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One operation.
pub(crate) struct LatentAttention<'a> {
    pub(crate) cache: &'a RowCache,
    /// Which KV group.
    pub(crate) group: usize,
    pub(crate) layer: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Values of a query head: those without rotation, and as many rotated ones as a cached row has behind its latent.
    pub(crate) head_dim: usize,
    /// Values of a latent: the first of a cached row.
    pub(crate) latent: usize,
    pub(crate) scale: f32,
    /// Per head `[latent, nope]`.
    pub(crate) keys: &'a [Held],
    /// They are `[nope, latent]` instead.
    pub(crate) keys_transposed: bool,
    /// Per head `[value, latent]`.
    pub(crate) values: &'a [Held],
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
        let Scratch { heads: state, query, products, .. } = scratch;
        let (latent, width, part) = (self.latent, self.cache.width(), task.heads.len());
        let nope = self.head_dim - (width - latent);
        state.clear(width);
        query.clear();
        query.resize(task.rows.len() * part * width, 0.0);
        for (h, head) in task.heads.clone().enumerate() {
            let q = |row: usize| &self.q[(row * self.heads + head) * self.head_dim..][..self.head_dim];
            let mut unturned: [&[f32]; TASK_ROWS] = [&[]; TASK_ROWS];
            unturned.iter_mut().zip(task.rows.clone()).for_each(|(x, row)| *x = &q(row)[..nope]);
            let unturned = &unturned[..task.rows.len()];
            let (first, stride) = (h * width, part * width);
            if self.keys_transposed {
                multiply_turned(kernels, &self.keys[head], unturned, products, &mut query[first..], stride);
            } else {
                multiply(kernels, &self.keys[head], unturned, products, |i, row, values| {
                    query[first + i * stride + row..][..values.len()].copy_from_slice(values);
                });
            }
            for (i, row) in task.rows.clone().enumerate() {
                query[first + i * stride + latent..][..width - latent].copy_from_slice(&q(row)[nope..]);
            }
        }
        for query in query.chunks_exact(width) {
            state.push(query, None);
        }
    }

    /// Results through the value matrices.
    fn expand(&self, kernels: &Kernels, task: &Task, scratch: &mut Scratch) {
        let Scratch { heads: state, products, .. } = scratch;
        let (latent, width, part) = (self.latent, self.cache.width(), task.heads.len());
        for (out, (_, sum)) in state.out.chunks_exact_mut(width).zip(&state.state) {
            out[..latent].iter_mut().for_each(|x| *x /= sum);
        }
        for (h, head) in task.heads.clone().enumerate() {
            let mut mixed: [&[f32]; TASK_ROWS] = [&[]; TASK_ROWS];
            for (i, x) in mixed.iter_mut().take(task.rows.len()).enumerate() {
                *x = &state.out[(i * part + h) * width..][..latent];
            }
            let (matrix, mixed) = (&self.values[head], &mixed[..task.rows.len()]);
            let first = head * matrix.count();
            multiply(kernels, matrix, mixed, products, |i, row, results| {
                // SAFETY: tasks share no pair of row and head.
                let out = unsafe { self.out.cells(task.rows.start + i, first + row, results.len()) };
                out.copy_from_slice(results);
            });
        }
    }
}
