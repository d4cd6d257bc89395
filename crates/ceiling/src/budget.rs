//! What one rank must do in a step, read off its program: bytes of weights and caches, operations that wait for each
//! other, collectives, arithmetic.

use serde::Serialize;
use std::collections::BTreeMap;
use tombolo_model::{BufferId, ExpertMatrix, Flow, GroupId, KvType, Op, Program, WeightId};

/// What a step is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Sequences.
    pub sequences: usize,
    /// Rows of each: 1 in plain decoding, more where drafts are checked or a prompt is read.
    pub rows_each: usize,
    /// Positions that every row sees.
    pub context: usize,
    /// How caches are kept.
    pub kv: KvType,
    /// Experts are shared out whole, though they could be cut.
    pub experts_whole: bool,
}

impl Load {
    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.sequences * self.rows_each
    }
}

/// One rank's work in one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Budget {
    /// Weights that are read, in bytes: every matrix once, of experts those that some row chose.
    pub weight_bytes: f64,
    /// Keys and values that attention reads, in bytes.
    pub kv_bytes: f64,
    /// Keys that the indexer reads, in bytes.
    pub index_bytes: f64,
    /// Operations of the longest chain that each needs what the one before computed, all-reduces not among them: what
    /// is left when everything is fused that can be.
    pub dependent_ops: usize,
    /// Kernels that an engine launches which fuses nothing but the all-reduce with its norm: those that read weights or
    /// caches, and the rest.
    pub kernels: (usize, usize),
    /// All-reduces of the residual stream.
    pub all_reduces: usize,
    /// Bytes of one of them, in 16-bit values.
    pub all_reduce_bytes: usize,
    /// Products and sums of all matrices and of attention.
    pub flops: f64,
}

impl Budget {
    /// Reads it off a program.
    pub fn of(program: &Program, load: &Load) -> Self {
        let mut reader = Reader { program, load, experts: 0, busiest: BTreeMap::new(), budget: Budget::default() };
        program.ops.iter().for_each(|op| reader.op(op));
        reader.budget.dependent_ops = dependent_ops(program);
        reader.budget.kernels = kernels(program);
        reader.budget
    }
}

struct Reader<'a> {
    program: &'a Program,
    load: &'a Load,
    /// Of the layer at hand.
    experts: usize,
    /// Experts that the busiest rank must read, by all that it depends on.
    busiest: BTreeMap<(usize, usize, usize), f64>,
    budget: Budget,
}

impl Reader<'_> {
    fn op(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, .. } => {
                self.budget.weight_bytes += (self.program.weight(table).row_bytes() * self.load.rows()) as f64
            }
            Op::RmsNorm { weight, .. } => self.matrix(weight, 0),
            Op::LayerNorm { weight, bias, .. } => [weight, bias].into_iter().for_each(|w| self.matrix(w, 0)),
            Op::Linear { x, weight, bias, .. } => {
                let logits = self.program.buffer(x).rows == tombolo_model::Rows::Logits;
                let rows = if logits { self.load.sequences } else { self.load.rows() };
                self.matrix(weight, rows);
                bias.into_iter().for_each(|w| self.matrix(w, 0));
            }
            Op::Attention { group, window, sinks, heads, .. } => {
                let seen = window.map_or(self.load.context, |w| w.min(self.load.context));
                self.budget.kv_bytes += self.cache(group, seen);
                let width = heads * self.program.groups[group.index()].head_dim;
                self.budget.flops += 4.0 * (self.load.rows() * width * seen) as f64;
                sinks.into_iter().for_each(|w| self.matrix(w, 0));
            }
            // Until there is more to see than is chosen, nothing is looked for.
            Op::Select { group, out, heads, .. } if self.load.context > self.program.buffer(out).width => {
                self.budget.index_bytes += self.cache(group, self.load.context);
                let width = heads * self.program.groups[group.index()].head_dim;
                self.budget.flops += 2.0 * (self.load.rows() * width * self.load.context) as f64;
            }
            Op::LatentAttention { keys, values, selected, group, heads, .. } => {
                let rows = self.load.rows();
                [keys, values].into_iter().for_each(|w| self.matrix(w, rows));
                let chosen = selected.map_or(usize::MAX, |s| self.program.buffer(s).width);
                let seen = self.load.context.min(chosen);
                self.budget.kv_bytes += self.cache(group, seen);
                let width = heads * self.program.groups[group.index()].head_dim;
                self.budget.flops += 4.0 * (rows * width * seen) as f64;
            }
            Op::Route { logits, bias, .. } => {
                self.experts = self.program.buffer(logits).width;
                bias.into_iter().for_each(|w| self.matrix(w, 0));
            }
            Op::Experts { routes, gate, up, down, .. } => self.experts(routes.experts, [gate, up, down]),
            Op::AllReduceAddNorm { partial, weight, post_norm, .. } => {
                self.matrix(weight, 0);
                post_norm.into_iter().for_each(|w| self.matrix(w, 0));
                self.budget.all_reduces += 1;
                self.budget.all_reduce_bytes = 2 * self.load.rows() * self.program.buffer(partial).width;
            }
            _ => {}
        }
    }

    /// A weight that is read whole, and multiplied with `rows` rows.
    fn matrix(&mut self, id: WeightId, rows: usize) {
        let weight = self.program.weight(id);
        self.budget.weight_bytes += weight.bytes() as f64;
        self.budget.flops += 2.0 * (rows * weight.count * weight.rows * weight.cols) as f64;
    }

    /// A cache's bytes up to `seen` positions of every sequence, in one layer. Rows of one sequence read it once.
    fn cache(&self, group: GroupId, seen: usize) -> f64 {
        let values = self.program.groups[group.index()].values_per_token();
        (self.load.kv.bytes(values) * seen * self.load.sequences) as f64
    }

    fn experts(&mut self, chosen: BufferId, matrices: [ExpertMatrix; 3]) {
        let (top_k, rows, all) = (self.program.buffer(chosen).width, self.load.rows(), self.experts);
        let size = self.program.shard.size;
        let held = self.program.weight(matrices[0].weight).count;
        let whole = held < all;
        // Where experts are cut, every rank reads its part of all that are chosen; where they are whole, the ranks wait
        // for the one that has most of them.
        let mut read =
            |held: usize| *self.busiest.entry((rows, top_k, held)).or_insert_with(|| busiest(all, held, top_k, rows));
        let experts = if whole { read(held) } else { distinct(all, top_k, rows) };
        let forced = if self.load.experts_whole && !whole && size > 1 {
            // Its own experts whole, `size` times as wide as the parts that the program has.
            read(all / size) * size as f64
        } else {
            experts
        };
        let mine = if whole { held as f64 / all as f64 } else { 1.0 };
        for matrix in matrices {
            let weight = self.program.weight(matrix.weight);
            let bias = matrix.bias.map_or(0, |bias| self.program.weight(bias).matrix_bytes());
            self.budget.weight_bytes += forced * (weight.matrix_bytes() + bias) as f64;
            self.budget.flops += 2.0 * (rows * top_k * weight.rows * weight.cols) as f64 * mine;
        }
    }
}

/// Experts of `all` that some of `rows` rows choose, where each chooses `top_k` at random: `all (1 − (1 − k/all)^rows)`.
pub fn distinct(all: usize, top_k: usize, rows: usize) -> f64 {
    let all = all as f64;
    all * (1.0 - (1.0 - top_k as f64 / all).powi(rows as i32))
}

/// Draws of the average of [`busiest`].
const DRAWS: usize = 200;
/// From so many rows on every expert is chosen anyhow.
const ROWS_DRAWN_MAX: usize = 64;

/// The same, of the rank with most of them, where every rank holds `held` whole experts: a mean over draws from a fixed
/// seed. For 8 of 256 over 8 ranks and one row it is 2.6.
pub fn busiest(all: usize, held: usize, top_k: usize, rows: usize) -> f64 {
    if held == 0 || all == 0 || rows > ROWS_DRAWN_MAX {
        return held as f64;
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut sum = 0;
    for _ in 0..DRAWS {
        let mut chosen = vec![false; all];
        for _ in 0..rows {
            let mut row = Vec::with_capacity(top_k);
            while row.len() < top_k.min(all) {
                let expert = random(all);
                if !row.contains(&expert) {
                    row.push(expert);
                }
            }
            row.into_iter().for_each(|expert| chosen[expert] = true);
        }
        sum += chosen.chunks(held).map(|rank| rank.iter().filter(|c| **c).count()).max().unwrap_or(0);
    }
    sum as f64 / DRAWS as f64
}

/// Whether an operation reads weights or caches that count; how many waits it has inside.
fn weight_of(op: &Op) -> usize {
    match op {
        Op::Linear { .. } | Op::Attention { .. } | Op::Select { .. } | Op::LatentAttention { .. } => 1,
        // Gate and up, then down.
        Op::Experts { .. } => 2,
        _ => 0,
    }
}

/// The longest chain of operations that each needs what the one before has computed.
fn dependent_ops(program: &Program) -> usize {
    let mut depth: BTreeMap<Flow, usize> = BTreeMap::new();
    let mut longest = 0;
    for op in &program.ops {
        let mut before = op.reads().iter().filter_map(|flow| depth.get(flow)).copied().max().unwrap_or(0);
        if let Op::Experts { out, accumulate: true, .. } = *op {
            // Added to in its last stage only.
            let sum = depth.get(&Flow::Buffer(out)).copied().unwrap_or(0);
            let others = op.reads().into_iter().filter(|f| *f != Flow::Buffer(out));
            let others = others.filter_map(|f| depth.get(&f).copied()).max().unwrap_or(0);
            before = others.max(sum.saturating_sub(2));
        }
        let after = before + weight_of(op);
        for flow in op.writes() {
            // A cache has what all layers wrote: the latest counts.
            let found = depth.entry(flow).or_insert(0);
            *found = if matches!(flow, Flow::Group(_)) { after.max(*found) } else { after };
        }
        longest = longest.max(after);
    }
    longest
}

/// Kernels that read weights or caches, and others; rows of one tensor are one kernel's.
fn kernels(program: &Program) -> (usize, usize) {
    let (mut heavy, mut light) = (0, 0);
    let mut last: Option<(&str, BufferId)> = None;
    for op in &program.ops {
        let linear = match *op {
            Op::Linear { weight, x, .. } => Some((program.weight(weight).tensor.as_str(), x)),
            _ => None,
        };
        if linear.is_some() && linear == last {
            continue;
        }
        last = linear;
        match op {
            Op::AllReduceAddNorm { .. } | Op::Sample { .. } => {}
            _ if weight_of(op) > 0 => heavy += weight_of(op),
            _ => light += 1,
        }
    }
    (heavy, light)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_counted_as_probability_has_it() {
        // 256 (1 − (31/32)^B): 1: 8, 2: 15.8, 4: 30.5, 8: 57, 16: 102, 32: 163, 64: 222, 128: 252.
        for (rows, experts) in [(1, 8.0), (2, 15.8), (4, 30.5), (8, 57.0), (16, 102.0), (32, 163.0), (64, 222.0)] {
            assert!((distinct(256, 8, rows) - experts).abs() < 0.7, "{rows} rows: {}", distinct(256, 8, rows));
        }
        let busy = busiest(256, 32, 8, 1);
        assert!((2.4..2.8).contains(&busy), "{busy}");
        assert_eq!(busiest(256, 256, 8, 1), 8.0);
        assert_eq!(busiest(256, 32, 8, 512), 32.0);
    }
}
