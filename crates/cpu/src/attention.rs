//! Attention over the paged cache.
//!
//! Query heads that share a KV head, of neighbouring rows of one sequence, walk through the sequence's blocks together.
//! Every row folds in the blocks in ascending order whatever company it has: its result does not depend on the batch.

use crate::grid::Grid;
use crate::kernels::{BLOCK, Heads, Kernels, Scoring};
use crate::kv::Kv;
use crate::pool::{Panicked, Pool};
use std::cell::RefCell;
use std::ops::Range;
use tombolo_model::{Row, Step};

/// Most rows of a sequence that walk together.
const TASK_ROWS: usize = 16;

struct Scratch {
    heads: Heads,
    valid: Vec<Range<usize>>,
    wide: [Vec<f32>; 2],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { heads: Heads::new(), valid: Vec::new(), wide: [Vec::new(), Vec::new()] })
    };
}

/// One attention operation.
pub(crate) struct Attention<'a> {
    pub(crate) kv: &'a Kv,
    /// Which KV group.
    pub(crate) group: usize,
    pub(crate) layer: usize,
    /// Query heads.
    pub(crate) heads: usize,
    pub(crate) scoring: Scoring,
    /// Only the last so many positions are seen.
    pub(crate) window: Option<usize>,
    /// Per head, a score more that has no value.
    pub(crate) sinks: Option<&'a [f32]>,
    /// `[rows, heads * dim]`.
    pub(crate) q: &'a [f32],
    /// Same shape.
    pub(crate) out: Grid<'a, f32>,
}

struct Task {
    rows: Range<usize>,
    heads: Range<usize>,
}

impl Attention<'_> {
    pub(crate) fn run(&self, pool: &mut Pool, kernels: &Kernels, step: &Step) -> Result<(), Panicked> {
        let shared = self.heads / self.kv.heads();
        let runs = runs(step);
        // Heads that share a KV head read it together, unless that leaves threads without work.
        let part = if runs.len() * self.kv.heads() < pool.threads() { 1 } else { shared };
        let mut tasks = Vec::with_capacity(runs.len() * self.heads / part);
        // The last rows of a sequence have the most to read: taken first, no thread is left with them at the end.
        for rows in runs.into_iter().rev() {
            let parts = (0..self.heads).step_by(part);
            tasks.extend(parts.map(|first| Task { rows: rows.clone(), heads: first..first + part }));
        }
        pool.run(tasks.len(), &|i| {
            SCRATCH.with_borrow_mut(|scratch| self.task(kernels, step, &tasks[i], shared, scratch));
        })
    }

    fn task(&self, kernels: &Kernels, step: &Step, task: &Task, shared: usize, scratch: &mut Scratch) {
        let Scratch { heads, valid, wide } = scratch;
        let dim = self.kv.dim();
        heads.clear(dim);
        for row in task.rows.clone() {
            for head in task.heads.clone() {
                heads.push(&self.q[(row * self.heads + head) * dim..][..dim], self.sinks.map(|sinks| sinks[head]));
            }
        }
        let sequence = step.rows[task.rows.start].sequence as usize;
        let table = &step.sequences[sequence].tables[self.group];
        // The positions that a row sees.
        let seen = |row: &Row| {
            let end = row.position as usize + 1;
            self.window.map_or(0, |window| end.saturating_sub(window))..end
        };
        let (first, end) = (seen(&step.rows[task.rows.start]).start, seen(&step.rows[task.rows.end - 1]).end);
        for (b, &block) in table.iter().enumerate().take(end.div_ceil(BLOCK)).skip(first / BLOCK) {
            valid.clear();
            for row in &step.rows[task.rows.clone()] {
                let within = |position: usize| position.saturating_sub(b * BLOCK).min(BLOCK);
                let seen = seen(row);
                let valid_here = within(seen.start)..within(seen.end);
                valid.extend(task.heads.clone().map(|_| valid_here.clone()));
            }
            let (k, v) = self.kv.read(kernels, self.layer, block as usize, task.heads.start / shared, wide);
            (kernels.attend)(heads, valid, k, v, self.scoring);
        }
        let mut i = 0;
        for row in task.rows.clone() {
            for head in task.heads.clone() {
                // SAFETY: tasks share no pair of row and head.
                let out = unsafe { self.out.cells(row, head * dim, dim) };
                let sum = heads.state[i].1;
                out.iter_mut().zip(&heads.out[i * dim..]).for_each(|(out, x)| *out = x / sum);
                i += 1;
            }
        }
    }
}

/// Neighbouring rows of one sequence, at most [`TASK_ROWS`] in a run.
fn runs(step: &Step) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (i, row) in step.rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.len() < TASK_ROWS && step.rows[run.start].sequence == row.sequence => run.end = i + 1,
            _ => runs.push(i..i + 1),
        }
    }
    runs
}
