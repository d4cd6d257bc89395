//! The interpreter: the program's operations, one after the other, over one step.

use crate::attention::Attention;
use crate::backend::{CpuBackend, Scratch};
use crate::experts::{self, Experts, Stack};
use crate::grid::Grid;
use crate::kernels::{BLOCK, Scoring};
use crate::linear::{self, Product};
use crate::memory::Memory;
use crate::pool::Panicked;
use crate::route::{self, Rule};
use crate::sample::{Wanted, sample};
use crate::stages::{Linear, Work};
use crate::weights::Held;
use std::ops::Range;
use tombolo_collective::Silent;
use tombolo_model::{
    Activation, BackendError, BufferId, ExpertMatrix, Op, Pass, RopeId, RopeStyle, Rows, Step, StepOutput, Token,
    WeightId,
};

/// Fewer values than this are not worth handing to another thread.
pub(crate) const GRAIN_VALUES: usize = 8192;

/// What one step means, worked out once.
pub(crate) struct Rowset {
    pub(crate) tokens: Vec<u32>,
    /// Rows that want logits.
    logits: Vec<usize>,
    wanted: Vec<Wanted>,
}

/// Why an operation stopped.
pub(crate) enum Stop {
    Panicked(Panicked),
    Silent(Silent),
}

impl From<Panicked> for Stop {
    fn from(panicked: Panicked) -> Self {
        Self::Panicked(panicked)
    }
}

impl From<Silent> for Stop {
    fn from(silent: Silent) -> Self {
        Self::Silent(silent)
    }
}

impl CpuBackend {
    /// Runs a step that has been checked.
    pub(crate) fn run(&mut self, step: &Step) -> Result<StepOutput, BackendError> {
        let rowset = self.rowset(step)?;
        self.turns(step);
        let mut output = StepOutput::default();
        let stages = std::mem::take(match step.pass {
            Pass::Trunk => &mut self.stages,
            Pass::Draft { .. } => &mut self.draft,
        });
        let last = step.rows.iter().map(|row| row.position as usize).max().unwrap_or(0);
        let mut needed = stages.iter().filter(|stage| stage.from <= last);
        let result = needed.try_for_each(|stage| match &stage.work {
            Work::Linears { x, products } => self.linears(*x, products, &rowset).map_err(|s| self.error(s, "linear")),
            Work::One(op) => self.operation(op, step, &rowset, &mut output).map_err(|stop| self.error(stop, op.name())),
        });
        match step.pass {
            Pass::Trunk => self.stages = stages,
            Pass::Draft { .. } => self.draft = stages,
        }
        result.map(|()| output)
    }

    fn error(&self, stop: Stop, what: &str) -> BackendError {
        match stop {
            Stop::Panicked(panicked) => self.device_error(format!("{what} stopped: {}", panicked.0)),
            Stop::Silent(Silent { rank, silent, waited_ms }) => {
                BackendError::RankSilent { rank, silent, waited_ms, what: what.to_string() }
            }
        }
    }

    fn rowset(&self, step: &Step) -> Result<Rowset, BackendError> {
        let token = |token: Token| match token {
            Token::Host(token) => Some(token),
            Token::Prev(index) => self.last_tokens.get(index as usize).copied(),
        };
        let tokens: Option<Vec<u32>> = step.rows.iter().map(|row| token(row.token)).collect();
        // A draft is drawn by the chance that the row which may confirm it will have.
        let ahead = u32::from(step.pass != Pass::Trunk);
        let wanted = step
            .rows
            .iter()
            .filter_map(|row| row.sample.map(|sampling| Wanted { sampling, position: row.position + ahead }));
        Ok(Rowset {
            tokens: tokens.ok_or_else(|| self.device_error("a token of a step that failed is asked for"))?,
            logits: (0..step.rows.len()).filter(|&i| step.rows[i].sample.is_some()).collect(),
            wanted: wanted.collect(),
        })
    }

    /// Cosines and sines of every row's position, the same in all layers.
    fn turns(&mut self, step: &Step) {
        self.scratch.turns.resize_with(self.program.ropes.len(), Vec::new);
        for (turns, rope) in self.scratch.turns.iter_mut().zip(&self.program.ropes) {
            turns.clear();
            for row in &step.rows {
                turns.extend(rope.frequencies.iter().map(|f| {
                    let (sin, cos) = (row.position as f32 * f).sin_cos();
                    [cos * rope.magnitude, sin * rope.magnitude]
                }));
            }
        }
    }

    fn width(&self, buffer: BufferId) -> usize {
        self.program.buffer(buffer).width
    }

    /// The rows of a buffer that this step uses.
    pub(crate) fn used(&self, buffer: BufferId, rowset: &Rowset) -> Range<usize> {
        let buffer = self.program.buffer(buffer);
        let rows = match buffer.rows {
            Rows::Batch => rowset.tokens.len(),
            Rows::Logits => rowset.logits.len(),
        };
        0..rows * buffer.width
    }

    fn linears(&mut self, x: BufferId, products: &[Linear], rowset: &Rowset) -> Result<(), Stop> {
        let used = self.used(x, rowset);
        if used.is_empty() {
            return Ok(());
        }
        let cols = self.width(x);
        let rows = used.len() / cols;
        let mut outs: Vec<Memory<f32>> = products.iter().map(|p| take(&mut self.buffers, p.out)).collect();
        let grids: Vec<Grid<f32>> =
            products.iter().zip(&mut outs).map(|(p, out)| Grid::new(out, self.program.buffer(p.out).width)).collect();
        let weighted = products.iter().zip(&grids);
        let jobs: Vec<Product> = weighted.map(|(p, out)| Product::whole(&self.held[p.weight.index()], out)).collect();
        let Scratch { quantized, .. } = &mut self.scratch;
        let x = &self.buffers[x.index()][used];
        let mut result = linear::run(&mut self.pool, self.kernels, x, cols, &jobs, quantized);
        for (p, out) in products.iter().zip(&grids) {
            let Some(bias) = p.bias.and_then(|bias| self.held[bias.index()].vector.as_ref()) else { continue };
            let add = self.kernels.add;
            let add_all = |part: Range<usize>| {
                for row in part {
                    // SAFETY: every row is in one task's range.
                    add(unsafe { out.rows(row..row + 1) }, bias);
                }
            };
            result = result.and_then(|()| self.pool.split(rows, GRAIN_VALUES / bias.len(), &add_all));
        }
        drop(jobs);
        drop(grids);
        for (p, memory) in products.iter().zip(outs) {
            self.buffers[p.out.index()] = memory;
        }
        Ok(result?)
    }

    fn operation(&mut self, op: &Op, step: &Step, rowset: &Rowset, output: &mut StepOutput) -> Result<(), Stop> {
        match *op {
            Op::Embed { table, scale, out } => self.embed(table, scale, out, rowset)?,
            Op::PreviousRows { x, out } => {
                let Pass::Draft { hidden } = &step.pass else { unreachable!("only drafts look back") };
                let rows = hidden.iter().map(|&row| row as usize);
                self.copy_rows(x, out, rows);
            }
            Op::Concat { first, second, out } => self.concat(first, second, out, rowset),
            Op::RmsNorm { x, weight, out, eps } => {
                if x != out {
                    self.copy(x, out, rowset);
                }
                self.norm(weight, out, eps, rowset)?;
            }
            Op::Linear { x, weight, bias, out } => self.linears(x, &[Linear { weight, bias, out }], rowset)?,
            Op::LayerNorm { x, weight, bias, out, eps } => {
                if x != out {
                    self.copy(x, out, rowset);
                }
                self.layer_norm(weight, bias, out, eps, rowset)?;
            }
            Op::Rope { x, head_dim, start, rope } => self.rope(x, head_dim, start, rope, rowset)?,
            Op::KvWrite { k, v, group, layer } => {
                let (k, v) = (&self.buffers[k.index()], &self.buffers[v.index()]);
                let kv = self.kv[group.index()].heads_mut();
                let width = kv.heads() * kv.dim();
                for (i, row) in step.rows.iter().enumerate() {
                    let position = row.position as usize;
                    let table = &step.sequences[row.sequence as usize].tables[group.index()];
                    let (k, v) = (&k[i * width..][..width], &v[i * width..][..width]);
                    kv.write(self.kernels, layer, table[position / BLOCK] as usize, position % BLOCK, k, v);
                }
            }
            Op::Attention { q, out, group, layer, heads, scale, window, softcap, sinks } => {
                let mut memory = take(&mut self.buffers, out);
                let attention = Attention {
                    kv: self.kv[group.index()].heads(),
                    group: group.index(),
                    layer,
                    heads,
                    scoring: Scoring { scale, softcap },
                    window,
                    sinks: vector(&self.held, sinks),
                    q: &self.buffers[q.index()],
                    out: Grid::new(&mut memory, self.program.buffer(out).width),
                };
                let result = attention.run(&mut self.pool, self.kernels, step);
                self.buffers[out.index()] = memory;
                result?;
            }
            Op::LatentWrite { latent, key, group, layer } => self.write_rows(&[latent, key], group, layer, step),
            Op::IndexWrite { key, group, layer } => self.write_rows(&[key], group, layer, step),
            Op::Select { .. } => self.select(op, step)?,
            Op::LatentAttention { .. } => self.latent_attention(op, step)?,
            Op::GatedActivation { activation, gate, up, out } => self.activate(activation, [gate, up], out, rowset)?,
            Op::Route { .. } => self.route(op, rowset)?,
            Op::Experts { .. } => self.experts(op, rowset)?,
            Op::AllReduceAddNorm { partial, residual, post_norm, weight, out, eps } => {
                let post_norm = post_norm.map(|weight| (weight, eps));
                self.all_reduce_add(partial, residual, post_norm, rowset)?;
                self.copy(residual, out, rowset);
                self.norm(weight, out, eps, rowset)?;
            }
            Op::Softcap { x, cap } => {
                let used = self.used(x, rowset);
                let grid = Grid::new(&mut self.buffers[x.index()][used.clone()], 1);
                let softcap = self.kernels.softcap;
                // SAFETY: every value is in one task's range.
                self.pool.split(used.len(), GRAIN_VALUES, &|part| softcap(unsafe { grid.rows(part) }, cap))?;
            }
            Op::GatherRows { x, out } => self.copy_rows(x, out, rowset.logits.iter().copied()),
            Op::Sample { logits } => {
                let used = self.used(logits, rowset);
                let logits = &self.buffers[logits.index()][used];
                let Self { pool, kernels, program, comm, .. } = self;
                output.tokens = sample(pool, kernels, program, comm, logits, &rowset.wanted)?;
                if step.full_logits {
                    output.logits = logits.to_vec();
                }
            }
        }
        Ok(())
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: BufferId, rowset: &Rowset) -> Result<(), Stop> {
        let width = self.width(out);
        let held = &self.held[table.index()];
        let kernels = self.kernels;
        let grid = Grid::new(&mut self.buffers[out.index()], width);
        let table = held.rows.as_ref().ok_or_else(|| Panicked("the embedding is not loaded as rows".into()))?;
        self.pool.split(rowset.tokens.len(), GRAIN_VALUES / width, &|rows| {
            for row in rows {
                // SAFETY: every row is in one task's range.
                let out = unsafe { grid.rows(row..row + 1) };
                table.decode(kernels, rowset.tokens[row] as usize, out);
                if scale != 1.0 {
                    out.iter_mut().for_each(|x| *x *= scale);
                }
            }
        })?;
        Ok(())
    }

    fn copy(&mut self, from: BufferId, to: BufferId, rowset: &Rowset) {
        let used = self.used(to, rowset);
        let mut memory = take(&mut self.buffers, to);
        memory[used.clone()].copy_from_slice(&self.buffers[from.index()][used]);
        self.buffers[to.index()] = memory;
    }

    /// `to` becomes the `rows` of `from`.
    fn copy_rows(&mut self, from: BufferId, to: BufferId, rows: impl Iterator<Item = usize>) {
        let width = self.width(from);
        let mut memory = take(&mut self.buffers, to);
        for (to, from_row) in memory.chunks_exact_mut(width).zip(rows) {
            to.copy_from_slice(&self.buffers[from.index()][from_row * width..][..width]);
        }
        self.buffers[to.index()] = memory;
    }

    fn concat(&mut self, first: BufferId, second: BufferId, out: BufferId, rowset: &Rowset) {
        let (width, second_width) = (self.width(first), self.width(second));
        let used = self.used(out, rowset);
        let mut memory = take(&mut self.buffers, out);
        let (first, second) = (&self.buffers[first.index()], &self.buffers[second.index()]);
        let halves = first.chunks_exact(width).zip(second.chunks_exact(second_width));
        for (row, (first, second)) in memory[used.clone()].chunks_exact_mut(width + second_width).zip(halves) {
            row[..width].copy_from_slice(first);
            row[width..].copy_from_slice(second);
        }
        self.buffers[out.index()] = memory;
    }

    /// Norms every `weight.cols` neighbouring values of a buffer, in place.
    fn norm(&mut self, weight: WeightId, x: BufferId, eps: f32, rowset: &Rowset) -> Result<(), Stop> {
        let used = self.used(x, rowset);
        let vector = self.held[weight.index()].vector.as_ref();
        let weight = vector.ok_or_else(|| Panicked("a norm's weight is not loaded as a vector".into()))?;
        let grid = Grid::new(&mut self.buffers[x.index()][used.clone()], weight.len());
        let norm = self.kernels.rms_norm;
        self.pool.split(used.len() / weight.len(), GRAIN_VALUES / weight.len(), &|parts| {
            for part in parts {
                // SAFETY: every part is in one task's range.
                norm(unsafe { grid.rows(part..part + 1) }, weight, eps);
            }
        })?;
        Ok(())
    }

    fn rope(&mut self, x: BufferId, head_dim: usize, start: usize, rope: RopeId, rowset: &Rowset) -> Result<(), Stop> {
        let width = self.width(x);
        let turns = &self.scratch.turns[rope.index()];
        let pairs = self.program.ropes[rope.index()].frequencies.len();
        let turn = match self.program.ropes[rope.index()].style {
            RopeStyle::Interleaved => self.kernels.rope_interleaved,
            RopeStyle::HalfSplit => self.kernels.rope_half_split,
        };
        let grid = Grid::new(&mut self.buffers[x.index()], width);
        self.pool.split(rowset.tokens.len(), GRAIN_VALUES / width, &|rows| {
            for row in rows {
                let turns = &turns[row * pairs..][..pairs];
                // SAFETY: every row is in one task's range.
                for head in unsafe { grid.rows(row..row + 1) }.chunks_exact_mut(head_dim) {
                    turn(&mut head[start..start + 2 * pairs], turns);
                }
            }
        })?;
        Ok(())
    }

    fn activate(
        &mut self,
        activation: Activation,
        [gate, up]: [BufferId; 2],
        out: BufferId,
        rowset: &Rowset,
    ) -> Result<(), Stop> {
        let used = self.used(out, rowset);
        let mut memory = take(&mut self.buffers, out);
        let (gate, up) = (&self.buffers[gate.index()][used.clone()], &self.buffers[up.index()][used.clone()]);
        let grid = Grid::new(&mut memory[used.clone()], 1);
        let kernels = self.kernels;
        let result = self.pool.split(used.len(), GRAIN_VALUES, &|part| {
            // SAFETY: every value is in one task's range.
            let out = unsafe { grid.rows(part.clone()) };
            experts::activate(kernels, activation, &gate[part.clone()], &up[part], out);
        });
        self.buffers[out.index()] = memory;
        Ok(result?)
    }

    /// `residual += Σ over ranks of partial`, the sum normed first where it has a norm.
    fn all_reduce_add(
        &mut self,
        partial: BufferId,
        residual: BufferId,
        post_norm: Option<(WeightId, f32)>,
        rowset: &Rowset,
    ) -> Result<(), Stop> {
        let used = self.used(residual, rowset);
        let mut memory = take(&mut self.buffers, residual);
        let mut sum = &self.buffers[partial.index()][used.clone()];
        let mut result = Ok(());
        if self.comm.size() > 1 {
            self.scratch.sum.resize(used.len(), 0.0);
            result = self.comm.all_reduce(sum, &mut self.scratch.sum).map_err(Stop::from);
            sum = &self.scratch.sum;
        }
        match post_norm.and_then(|(weight, eps)| Some((self.held[weight.index()].vector.as_ref()?, eps))) {
            None => (self.kernels.add)(&mut memory[used], sum),
            Some((weight, eps)) => {
                let (grid, width) = (Grid::new(&mut memory[used.clone()], weight.len()), weight.len());
                let (norm, add) = (self.kernels.rms_norm, self.kernels.add);
                let added = self.pool.split(used.len() / width, GRAIN_VALUES / width, &|part| {
                    let mut normed = vec![0.0; width];
                    for row in part {
                        normed.copy_from_slice(&sum[row * width..][..width]);
                        norm(&mut normed, weight, eps);
                        // SAFETY: every row is in one task's range.
                        add(unsafe { grid.rows(row..row + 1) }, &normed);
                    }
                });
                result = result.and(added.map_err(Stop::from));
            }
        }
        self.buffers[residual.index()] = memory;
        result
    }

    fn route(&mut self, op: &Op, rowset: &Rowset) -> Result<(), Stop> {
        let &Op::Route { logits, gating, bias, groups, top_k, normalise, scale, out } = op else { return Ok(()) };
        let count = self.width(logits);
        let mut memory = [out.experts, out.weights].map(|out| take(&mut self.buffers, out));
        let [chosen, weights] = &mut memory;
        let chosen = Grid::new(bytemuck::cast_slice_mut::<f32, u32>(chosen), top_k);
        let weights = Grid::new(weights, top_k);
        let rule = Rule { gating, bias: vector(&self.held, bias), groups, normalise, scale };
        let logits = &self.buffers[logits.index()];
        let result = self.pool.split(rowset.tokens.len(), GRAIN_VALUES / 8 / count, &|rows| {
            let mut scratch = route::Scratch::default();
            for row in rows {
                // SAFETY: every row is in one task's range.
                let (chosen, weights) = unsafe { (chosen.rows(row..row + 1), weights.rows(row..row + 1)) };
                rule.route(&logits[row * count..][..count], &mut scratch, chosen, weights);
            }
        });
        for (out, memory) in [out.experts, out.weights].into_iter().zip(memory) {
            self.buffers[out.index()] = memory;
        }
        Ok(result?)
    }

    fn experts(&mut self, op: &Op, rowset: &Rowset) -> Result<(), Stop> {
        let &Op::Experts { x, routes, gate, up, down, activation, out, accumulate } = op else { return Ok(()) };
        let (used, used_routes) = (self.used(x, rowset), self.used(routes.experts, rowset));
        let mut memory = take(&mut self.buffers, out);
        let stack = |m: ExpertMatrix| Stack {
            matrices: &self.held[m.weight.index()].experts,
            bias: vector(&self.held, m.bias),
        };
        let experts = Experts {
            x: &self.buffers[x.index()][used.clone()],
            hidden: self.program.buffer(x).width,
            chosen: bytemuck::cast_slice(&self.buffers[routes.experts.index()][used_routes.clone()]),
            weights: &self.buffers[routes.weights.index()][used_routes],
            top_k: self.program.buffer(routes.experts).width,
            gate: stack(gate),
            up: stack(up),
            down: stack(down),
            width: self.program.weight(gate.weight).rows,
            first: self.program.weight(gate.weight).first,
            activation,
            accumulate,
        };
        let Scratch { quantized, experts: scratch, .. } = &mut self.scratch;
        let result = experts.run(&mut self.pool, self.kernels, quantized, scratch, &mut memory[used]);
        self.buffers[out.index()] = memory;
        Ok(result?)
    }
}

/// A weight that was loaded as a vector, if there is one.
pub(crate) fn vector(held: &[Held], id: Option<WeightId>) -> Option<&[f32]> {
    id.and_then(|id| held[id.index()].vector.as_deref())
}

/// Takes a buffer out of the list, so that the others can be read while it is written.
pub(crate) fn take(buffers: &mut [Memory<f32>], id: BufferId) -> Memory<f32> {
    std::mem::take(&mut buffers[id.index()])
}
