//! The memory plan: what lies where in a rank's arena, decided before anything is allocated. It never grows.

use crate::driver::{ArenaPlan, DevicePtr, Slot};
use crate::input::InputLayout;
use crate::kernels::attention::{self, CacheType};
use crate::kernels::{linear, sample};
use tombolo_model::{Arith, Capacity, GroupId, Op, Program, Rows, WeightId};

/// Rows of the decode steps that are recorded as graphs.
pub const BUCKETS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// How a weight lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A norm's: f32 values.
    Vector,
    /// A product's or the embedding's: rows in the layout of linear weights.
    Matrix {
        /// Bytes from row to row.
        row_bytes: usize,
    },
}

/// Everything that a rank keeps on its device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The arena as a whole.
    pub arena: ArenaPlan,
    /// By weight.
    pub weights: Vec<(Slot, Form)>,
    /// By buffer.
    pub buffers: Vec<Slot>,
    /// By KV group, then layer.
    pub caches: Vec<Vec<Slot>>,
    /// By rotation: its frequencies.
    pub ropes: Vec<Slot>,
    /// The step's input block.
    pub input: Slot,
    /// Count of steps, u32.
    pub count: Slot,
    /// Tokens drawn by the last step, for the next one.
    pub tokens: Slot,
    /// Summaries of every rank.
    pub summaries: Slot,
    /// What kernels use between themselves.
    pub scratch: Scratch,
    /// Length of the longest input block.
    pub input_bytes: usize,
}

/// Scratch memory of the kernels that need some.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// Of products with many rows.
    pub linear: Slot,
    /// Of split attention: partial sums.
    pub parts: Slot,
    /// Of split attention: counters, zero between launches.
    pub tickets: Slot,
    /// Of sampling.
    pub sample: Slot,
}

impl Plan {
    /// Lays out a rank's memory.
    pub fn new(program: &Program, capacity: &Capacity, arith: Arith, multiprocessors: usize) -> Self {
        let mut arena = ArenaPlan::default();
        let weights = plan_weights(program, &mut arena);
        let caches = program
            .groups
            .iter()
            .map(|g| {
                let bytes = attention::layer_bytes(g, capacity.blocks, cache_type(arith));
                (0..g.layers).map(|_| arena.add("KV cache", bytes)).collect()
            })
            .collect();
        // A graph runs whole buckets: there is room for its padding.
        let capacity = &padded(capacity);
        let rows = |rows| match rows {
            Rows::Batch => capacity.rows,
            Rows::Logits => capacity.sequences,
        };
        let buffers = program.buffers.iter().map(|b| arena.add("activations", 4 * b.width * rows(b.rows))).collect();
        let ropes = program.ropes.iter().map(|r| arena.add("activations", 4 * r.frequencies.len())).collect();
        let input_bytes = longest_input(program, capacity);
        let summary_bytes = program.shard.size * sample::SUMMARY_BYTES;
        let input = arena.add("step", input_bytes);
        let count = arena.add("step", 4);
        let tokens = arena.add("step", 4 * capacity.sequences);
        let summaries = arena.add("step", capacity.sequences * summary_bytes);
        let scratch = plan_scratch(program, capacity, arith, multiprocessors, &mut arena);
        Self { arena, weights, buffers, caches, ropes, input, count, tokens, summaries, scratch, input_bytes }
    }

    /// One line: the bytes of every part.
    pub fn describe(&self) -> String {
        let part = |&(name, bytes): &(&str, usize)| format!("{name} {}", mebibytes(bytes));
        let parts: Vec<String> = self.arena.parts().iter().map(part).collect();
        format!("{} ({})", mebibytes(self.arena.bytes()), parts.join(", "))
    }
}

/// The smallest bucket with room for `rows` rows.
pub fn bucket_for(rows: usize) -> Option<usize> {
    BUCKETS.into_iter().find(|&b| b >= rows)
}

/// Capacity with its rows rounded up to whole buckets.
fn padded(capacity: &Capacity) -> Capacity {
    let most = BUCKETS[BUCKETS.len() - 1];
    let logits = capacity.logits.max(capacity.sequences);
    let bucket = bucket_for(logits.min(most)).unwrap_or(most);
    let sequences = logits.max(bucket);
    Capacity { rows: capacity.rows.max(bucket), sequences, logits: sequences, ..*capacity }
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn plan_weights(program: &Program, arena: &mut ArenaPlan) -> Vec<(Slot, Form)> {
    let mut is_vector = vec![false; program.weights.len()];
    for op in &program.ops {
        if let Op::RmsNorm { weight, .. } | Op::AllReduceAddNorm { weight, .. } = op {
            is_vector[weight.index()] = true;
        }
    }
    let place = |(weight, is_vector): (&tombolo_model::Weight, bool)| {
        if is_vector {
            return (arena.add("weights", 4 * weight.cols), Form::Vector);
        }
        let row_bytes = linear::layout::row_bytes(weight.ty, weight.cols);
        (arena.add("weights", row_bytes * weight.rows), Form::Matrix { row_bytes })
    };
    program.weights.iter().zip(is_vector).map(place).collect()
}

/// Of the padded capacity: no step's block and no bucket's is longer.
fn longest_input(program: &Program, capacity: &Capacity) -> usize {
    let (rows, sequences) = (capacity.rows, capacity.sequences);
    InputLayout::new(rows, sequences, sequences, capacity.table_len(), program.groups.len()).bytes
}

fn plan_scratch(program: &Program, capacity: &Capacity, arith: Arith, sms: usize, arena: &mut ArenaPlan) -> Scratch {
    let (mut parts, mut tickets) = (0, 0);
    for op in &program.ops {
        let Op::Attention { group, heads, .. } = *op else { continue };
        let shape = attention_shape(program, group, heads, arith);
        for rows in BUCKETS.into_iter().filter(|&b| b <= capacity.sequences) {
            let splits = shape.splits(rows, sms);
            parts = parts.max(shape.parts_bytes(rows, splits));
            tickets = tickets.max(shape.tickets_bytes(rows));
        }
    }
    let multiplied = program.ops.iter().filter_map(|op| match op {
        Op::Linear { x, .. } => Some(program.buffer(*x).width),
        _ => None,
    });
    let widest = multiplied.max().unwrap_or(0);
    let logits = program.buffers.iter().filter(|b| b.rows == Rows::Logits).map(|b| b.width).max().unwrap_or(0);
    Scratch {
        linear: arena.add("scratch", linear::scratch_bytes(capacity.rows, widest)),
        parts: arena.add("scratch", parts),
        tickets: arena.add("scratch", tickets),
        sample: arena.add("scratch", sample::scratch_bytes(capacity.sequences.min(sample::MOST_ROWS), logits)),
    }
}

/// Element type of the cache.
pub fn cache_type(arith: Arith) -> CacheType {
    match arith {
        Arith::F32 => CacheType::F32,
        Arith::Production => CacheType::F16,
    }
}

/// Heads of an attention operation.
pub fn attention_shape(program: &Program, group: GroupId, heads: usize, arith: Arith) -> attention::Shape {
    let group = &program.groups[group.index()];
    attention::Shape { heads, kv_heads: group.kv_heads, head_dim: group.head_dim, cache: cache_type(arith) }
}

/// Addresses of a weight on the device.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Where it starts.
    pub at: DevicePtr,
    /// How it lies.
    pub form: Form,
}

impl Plan {
    /// Where a weight lies, given the arena's start.
    pub fn weight(&self, start: DevicePtr, id: WeightId) -> Placed {
        let (slot, form) = self.weights[id.index()];
        Placed { at: start.offset(slot.offset), form }
    }
}
