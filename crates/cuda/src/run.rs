//! From nodes to launches: the one place where a node meets addresses. Used to record graphs and to run eagerly.

use crate::collective::Collective;
use crate::driver::{CudaError, DevicePtr, Kernels, Stream};
use crate::fuse::{AddNorm, Attention, Epilogue, Linear, Node};
use crate::input::InputLayout;
use crate::kernels::all_reduce::{self, Wire};
use crate::kernels::{add_norm, attention, embed, gather_rows, linear, rms_norm, sample, silu_mul, step};
use crate::plan::{Form, Plan, attention_shape};
use tombolo_model::{Arith, BufferId, Capacity, Program, Rows, Step, WeightId};

/// Recorded decode steps of up to so many rows take norms along into the products.
pub(crate) const FEW_ROWS: usize = 8;

/// Most nodes of a list, as far as errors can tell them apart.
pub(crate) const LIST_KINDS: u32 = 1 << 16;

/// What to launch, and the kind of its first node: what an error of node `i` names is `first_kind + i`.
#[derive(Clone, Copy)]
pub(crate) struct List<'a> {
    pub(crate) nodes: &'a [Node],
    pub(crate) first_kind: u32,
}

/// How many rows a step has, and where its input lies.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) layout: InputLayout,
    /// Every row is a sequence of its own and wants logits.
    pub(crate) decode: bool,
    /// Attention tiles, where not.
    pub(crate) tiles: usize,
}

impl Shape {
    /// Of a recorded decode step.
    pub(crate) fn bucket(rows: usize, program: &Program, capacity: &Capacity) -> Self {
        let layout = InputLayout::new(rows, rows, rows, capacity.table_len(), program.groups.len());
        Self { layout, decode: true, tiles: 0 }
    }

    /// Of exactly this step.
    pub(crate) fn exact(step: &Step, program: &Program) -> Self {
        Self { layout: InputLayout::of(step, program), decode: false, tiles: 0 }
    }
}

/// Everything that launches need to know.
pub(crate) struct Runner<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a Kernels,
    pub(crate) program: &'a Program,
    pub(crate) plan: &'a Plan,
    /// Of the arena.
    pub(crate) start: DevicePtr,
    pub(crate) arith: Arith,
    /// A row's bits do not depend on the rows beside it.
    pub(crate) same_bits: bool,
    pub(crate) collective: &'a Collective,
    pub(crate) inputs: [DevicePtr; 2],
    pub(crate) outputs: [DevicePtr; 2],
    pub(crate) tokens_bytes: usize,
}

/// What the all-reduce sends.
pub(crate) fn wire(arith: Arith) -> Wire {
    match arith {
        Arith::F32 => Wire::F32,
        Arith::Production => Wire::Bf16,
    }
}

impl Runner<'_> {
    /// Launches a whole step: takes its input, runs the nodes, gives its output.
    pub(crate) fn enqueue(&self, list: List<'_>, shape: &Shape) -> Result<(), CudaError> {
        let input = self.at(self.plan.input);
        let count = self.at(self.plan.count);
        // SAFETY: the input slot and both pinned blocks are as long as the longest layout.
        unsafe { step::take_input(self.stream, self.kernels, self.inputs, count, input, shape.layout.bytes) }?;
        for (node, kind) in list.nodes.iter().zip(list.first_kind..) {
            self.launch(node, kind, shape)?;
        }
        let output = step::Output {
            step: input,
            inverse_temperatures: input.offset(shape.layout.inverse_temperatures),
            tokens: self.at(self.plan.tokens),
            summaries: self.at(self.plan.summaries),
            summary_bytes: self.program.shard.size * sample::SUMMARY_BYTES,
            blocks: self.outputs,
            tokens_bytes: self.tokens_bytes,
            count,
        };
        // SAFETY: slots and pinned blocks have room for every logits row of the capacity.
        unsafe { step::give_output(self.stream, self.kernels, &output, shape.layout.logits) }
    }

    /// `kind` is what an error names.
    fn launch(&self, node: &Node, kind: u32, shape: &Shape) -> Result<(), CudaError> {
        let (stream, kernels, input) = (self.stream, self.kernels, self.at(self.plan.input));
        match *node {
            Node::Embed { table, out } => {
                let weight = self.program.weight(table);
                let Form::Matrix { row_bytes } = self.plan.weight(self.start, table).form else {
                    unreachable!("the embedding table is no norm")
                };
                let e = embed::Embed {
                    step: input,
                    tokens: input.offset(shape.layout.tokens),
                    previous: self.at(self.plan.tokens),
                    table: self.weight(table),
                    ty: weight.ty.id(),
                    row_bytes: row_bytes as u32,
                    cols: weight.cols as u32,
                    out: self.buffer(out),
                };
                // SAFETY: the plan gave every address its room; tokens were checked against the vocabulary.
                unsafe { embed::embed(stream, kernels, &e, shape.layout.rows) }
            }
            Node::RmsNorm { x, weight, out, eps } => {
                let width = self.program.weight(weight).cols;
                let groups = self.rows(x, shape) * (self.program.buffer(x).width / width);
                let addresses = (self.buffer(x), self.weight(weight), self.buffer(out));
                // SAFETY: the plan gave every address its room.
                unsafe { rms_norm::rms_norm(stream, kernels, addresses, (groups, width), eps) }
            }
            Node::Linear(ref linear) => self.linear(linear, shape),
            Node::Attention(ref attention) => self.attention(attention, shape),
            Node::SiluMul { gate, up, out } => {
                let count = self.rows(gate, shape) * self.program.buffer(gate).width;
                let addresses = (self.buffer(gate), self.buffer(up), self.buffer(out));
                // SAFETY: the plan gave every address its room.
                unsafe { silu_mul::silu_mul(stream, kernels, addresses, count) }
            }
            Node::AddNorm(ref add) => {
                let (a, width) = self.add_norm(add);
                // SAFETY: the plan gave every address its room.
                unsafe { add_norm::add_norm(stream, kernels, &a, shape.layout.rows, width) }
            }
            Node::AllReduceAddNorm(ref add) => self.all_reduce(add, shape, kind),
            Node::GatherRows { x, out } => {
                let rows = input.offset(shape.layout.logits_rows);
                let size = (shape.layout.logits, self.program.buffer(x).width);
                if size.0 == 0 {
                    return Ok(());
                }
                // SAFETY: the plan gave every address its room; the rows were checked.
                unsafe {
                    gather_rows::gather_rows(stream, kernels, (input, rows, self.buffer(x), self.buffer(out)), size)
                }
            }
            Node::Sample { logits } => self.sample(logits, shape, kind),
        }
    }

    fn linear(&self, l: &Linear, shape: &Shape) -> Result<(), CudaError> {
        let rows = self.rows(l.x, shape);
        if rows == 0 {
            return Ok(());
        }
        let then = match l.epilogue {
            Epilogue::Store => linear::Epilogue::Store,
            Epilogue::Add => linear::Epilogue::Add,
            Epilogue::SiluMul(_) => linear::Epilogue::SiluMul,
        };
        let parts: Vec<linear::Part> = l.parts.iter().map(|part| self.linear_part(l, *part)).collect();
        let width = self.program.buffer(l.x).width;
        let args = linear::Linear {
            parts: &parts,
            x: self.buffer(l.x),
            x_stride: width,
            rows,
            cols: width,
            norm: l.norm.map(|(weight, eps)| (self.weight(weight), eps)),
            epilogue: then,
            exact: self.arith == Arith::F32,
            same_bits: self.same_bits,
            scratch: self.at(self.plan.scratch.linear),
        };
        // SAFETY: the plan gave every address its room, and scratch for the most rows and the widest input.
        unsafe { linear::linear(self.stream, self.kernels, &args) }
    }

    fn linear_part(&self, l: &Linear, (id, out): (WeightId, BufferId)) -> linear::Part {
        let weight = self.program.weight(id);
        let out = if let Epilogue::SiluMul(out) = l.epilogue { out } else { out };
        linear::Part {
            data: self.weight(id),
            rows: weight.rows,
            ty: weight.ty,
            out: self.buffer(out),
            out_stride: self.program.buffer(out).width,
        }
    }

    fn attention(&self, a: &Attention, shape: &Shape) -> Result<(), CudaError> {
        let input = self.at(self.plan.input);
        let rope = &self.program.ropes[a.rope.index()];
        let width = |b: BufferId| self.program.buffer(b).width;
        let args = attention::Attention {
            shape: attention_shape(self.program, a.group, a.heads, self.arith),
            q: self.buffer(a.q),
            k: self.buffer(a.k),
            v: self.buffer(a.v),
            out: self.buffer(a.out),
            strides: [width(a.q), width(a.k), width(a.v), width(a.out)],
            layer: self.at(self.plan.caches[a.group.index()][a.layer]),
            positions: input.offset(shape.layout.positions),
            sequences: input.offset(shape.layout.sequence_of),
            tables: input.offset(shape.layout.tables[a.group.index()]),
            table_len: shape.layout.table_len,
            tiles: input.offset(shape.layout.tiles),
            frequencies: self.at(self.plan.ropes[a.rope.index()]),
            pairs: rope.frequencies.len(),
            style: rope.style,
            norms: a.norms.map_or([DevicePtr::NULL; 2], |(q, k, _)| [self.weight(q), self.weight(k)]),
            eps: a.norms.map_or(0.0, |n| n.2),
            scale: a.scale,
            parts: self.at(self.plan.scratch.parts),
            tickets: self.at(self.plan.scratch.tickets),
            // `embed` waits for the whole input before anything after it starts.
            early: true,
        };
        let rows = shape.layout.rows;
        if shape.decode {
            let sms = self.stream.device().info.multiprocessors as usize;
            let splits = args.shape.splits(rows, sms);
            // SAFETY: the plan sized scratch for every bucket; block numbers were checked against the capacity.
            return unsafe { attention::attention_decode(self.stream, self.kernels, &args, rows, splits) };
        }
        // SAFETY: as above; the tiles were written with the input.
        unsafe {
            attention::rope_kv_write(self.stream, self.kernels, &args, rows)?;
            attention::attention_rows(self.stream, self.kernels, &args, rows, shape.tiles)
        }
    }

    fn sample(&self, logits: BufferId, shape: &Shape, kind: u32) -> Result<(), CudaError> {
        let input = self.at(self.plan.input);
        let width = self.program.buffer(logits).width;
        let most = sample::MOST_ROWS;
        for first in (0..shape.layout.logits).step_by(most) {
            let s = sample::Sample {
                logits: self.buffer(logits).offset(4 * first * width),
                stride: width,
                shard: width,
                first: self.program.vocabulary_start,
                inverse_temperatures: input.offset(shape.layout.inverse_temperatures + 4 * first),
                scratch: self.at(self.plan.scratch.sample),
                summaries: self.at(self.plan.summaries).offset(first * self.program.shard.size * sample::SUMMARY_BYTES),
                tokens: self.at(self.plan.tokens).offset(4 * first),
            };
            let rows = most.min(shape.layout.logits - first);
            // SAFETY: the plan gave every address its room; every rank runs the same step.
            unsafe { sample::sample(self.stream, self.kernels, self.collective.link(), &s, rows, kind) }?;
        }
        Ok(())
    }

    fn all_reduce(&self, add: &AddNorm, shape: &Shape, kind: u32) -> Result<(), CudaError> {
        let (a, width) = self.add_norm(add);
        let then = all_reduce::Then::AddNorm {
            residual_in: a.residual,
            residual_out: a.residual,
            weight: a.weight,
            out: a.out,
            eps: a.eps,
        };
        let wire = wire(self.arith);
        let (link, size) = (self.collective.link(), (shape.layout.rows, width));
        // SAFETY: the plan gave every address its room; every rank runs the same step.
        unsafe { all_reduce::all_reduce(self.stream, self.kernels, link, wire, a.partial, &then, size, kind) }
    }

    fn add_norm(&self, a: &AddNorm) -> (add_norm::AddNorm, usize) {
        let addresses = add_norm::AddNorm {
            partial: self.buffer(a.partial),
            residual: self.buffer(a.residual),
            weight: self.weight(a.weight),
            out: self.buffer(a.out),
            eps: a.eps,
        };
        (addresses, self.program.buffer(a.partial).width)
    }

    fn rows(&self, buffer: BufferId, shape: &Shape) -> usize {
        match self.program.buffer(buffer).rows {
            Rows::Batch => shape.layout.rows,
            Rows::Logits => shape.layout.logits,
        }
    }

    fn buffer(&self, id: BufferId) -> DevicePtr {
        self.at(self.plan.buffers[id.index()])
    }

    fn weight(&self, id: WeightId) -> DevicePtr {
        self.plan.weight(self.start, id).at
    }

    fn at(&self, slot: crate::driver::Slot) -> DevicePtr {
        self.start.offset(slot.offset)
    }
}
