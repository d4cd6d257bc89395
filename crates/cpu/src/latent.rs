//! Multi-head latent attention over the paged cache of latents.
//!
//! Queries go through the key matrices and results through the value matrices ("absorbed"), so that the latents are read
//! as they lie, once for all heads of a task. Every row folds in its positions in ascending order, by blocks counted
//! from the first that it sees: its result depends neither on the batch nor on how heads are shared out.

use crate::grid::Grid;
use crate::kernels::{BLOCK, Heads, Kernels, Scoring};
use crate::pool::{Panicked, Pool};
use crate::row_cache::RowCache;
use std::cell::RefCell;
use std::ops::Range;
use tombolo_model::{BLOCK_TOKENS, Step};

struct Scratch {
    heads: Heads,
    query: Vec<f32>,
    rows: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { heads: Heads::new(), query: Vec::new(), rows: Vec::new() }) };
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

impl LatentAttention<'_> {
    pub(crate) fn run(&self, pool: &mut Pool, kernels: &Kernels, step: &Step) -> Result<(), Panicked> {
        // Heads share what is read of the cache, unless that leaves threads without work.
        let parts = pool.threads().div_ceil(step.rows.len()).min(self.heads);
        pool.run(step.rows.len() * parts, &|task| {
            // The last rows of a sequence have the most to read: taken first, no thread is left with them at the end.
            let (row, part) = (step.rows.len() - 1 - task / parts, task % parts);
            let at = |part: usize| part * self.heads / parts;
            SCRATCH.with_borrow_mut(|scratch| self.task(kernels, step, row, at(part)..at(part + 1), scratch));
        })
    }

    fn task(&self, kernels: &Kernels, step: &Step, row: usize, heads: Range<usize>, scratch: &mut Scratch) {
        let Scratch { heads: state, query, rows } = scratch;
        self.absorb(kernels, row, heads.clone(), state, query);
        let position = step.rows[row].position as usize;
        let table = &step.sequences[step.rows[row].sequence as usize].tables[self.group];
        let width = self.cache.width();
        rows.resize(BLOCK * width, 0.0);
        let scoring = Scoring { scale: self.scale, softcap: None };
        match self.selected.filter(|(_, top_k)| position >= *top_k) {
            None => {
                for (b, &block) in table.iter().enumerate().take(position / BLOCK_TOKENS + 1) {
                    let seen = (position + 1 - b * BLOCK_TOKENS).min(BLOCK_TOKENS);
                    self.cache.read(kernels, self.layer, block, 0, &mut rows[..seen * width]);
                    (kernels.attend_latent)(state, &rows[..seen * width], self.latent, scoring);
                }
            }
            Some((selected, top_k)) => {
                for positions in selected[row * top_k..][..top_k].chunks(BLOCK) {
                    for (to, &position) in rows.chunks_exact_mut(width).zip(positions) {
                        let position = position as usize;
                        let block = table[position / BLOCK_TOKENS];
                        self.cache.read(kernels, self.layer, block, position % BLOCK_TOKENS, to);
                    }
                    (kernels.attend_latent)(state, &rows[..positions.len() * width], self.latent, scoring);
                }
            }
        }
        self.expand(kernels, row, heads, state);
    }

    /// Queries as they meet the cache: `[keys[h] · nope | rope]`.
    fn absorb(&self, kernels: &Kernels, row: usize, heads: Range<usize>, state: &mut Heads, query: &mut Vec<f32>) {
        let width = self.cache.width();
        let nope = self.keys.len() / (self.heads * self.latent);
        let head_dim = nope + width - self.latent;
        state.clear(width);
        query.resize(width, 0.0);
        for head in heads {
            let q = &self.q[(row * self.heads + head) * head_dim..][..head_dim];
            let matrix = &self.keys[head * self.latent * nope..][..self.latent * nope];
            (kernels.dots)(&q[..nope], matrix, &mut query[..self.latent]);
            query[self.latent..].copy_from_slice(&q[nope..]);
            state.push(query, None);
        }
    }

    /// Results through the value matrices.
    fn expand(&self, kernels: &Kernels, row: usize, heads: Range<usize>, state: &mut Heads) {
        let (latent, width) = (self.latent, self.cache.width());
        let value = self.values.len() / (self.heads * latent);
        for (i, head) in heads.enumerate() {
            let sum = state.state[i].1;
            let mixed = &mut state.out[i * width..][..latent];
            mixed.iter_mut().for_each(|x| *x /= sum);
            let matrix = &self.values[head * value * latent..][..value * latent];
            // SAFETY: tasks share no pair of row and head.
            (kernels.dots)(mixed, matrix, unsafe { self.out.cells(row, head * value, value) });
        }
    }
}
