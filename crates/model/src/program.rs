//! A program: the straight list of operations of one forward pass over named buffers. It is what backends run, and
//! what the memory plan, the byte counts and the profile's rows are read off.

use crate::{ExpertMatrix, Op, Shard, Weight};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index into the program's list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
index!(
    /// Into [`Program::buffers`].
    BufferId
);
index!(
    /// Into [`Program::weights`].
    WeightId
);
index!(
    /// Into [`Program::groups`].
    GroupId
);
index!(
    /// Into [`Program::ropes`].
    RopeId
);

/// How many rows a buffer has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One per row of the step.
    Batch,
    /// One per row that wants logits.
    Logits,
}

/// What a buffer's values are, four bytes each as far as the program is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Activations.
    F32,
    /// Numbers of experts or positions.
    U32,
}

/// Values that operations hand on: `[rows, width]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds.
    pub name: &'static str,
    /// Kind of value.
    pub element: Element,
    /// Its rows.
    pub rows: Rows,
    /// Values a row.
    pub width: usize,
}

/// What a cache holds beside its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Values as wide as the keys.
    Own,
    /// The first so many values of the key are the value: latent attention stores nothing twice.
    OfKey(usize),
    /// Nothing: its keys are only looked for.
    None,
}

/// A kind of KV cache with its own shape and block tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// What it holds.
    pub name: &'static str,
    /// Layers that write to it; `layer` in an operation counts from 0 within the group.
    pub layers: usize,
    /// KV heads on this rank.
    pub kv_heads: usize,
    /// Values of a key, per head.
    pub head_dim: usize,
    /// What there is beside keys.
    pub values: Values,
    /// Positions that are still read: what lies farther back may be dropped. `None`: all.
    pub window: Option<usize>,
}

impl KvGroup {
    /// Values that one token takes in one layer: keys and values.
    pub fn values_per_token(&self) -> usize {
        let parts = if self.values == Values::Own { 2 } else { 1 };
        parts * self.kv_heads * self.head_dim
    }
}

/// Which values a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Pairs `(2j, 2j + 1)`: llama files.
    Interleaved,
    /// Pairs `(j, j + dims / 2)`: qwen files.
    HalfSplit,
}

/// Rotary position embedding: pair `j` turns by `position * frequencies[j]` radians and grows by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which values make a pair.
    pub style: RopeStyle,
    /// One per pair; twice as many values of each head are turned, the rest stay.
    pub frequencies: Vec<f32>,
    /// Factor on what is turned: 1 unless the context was stretched by YaRN.
    pub magnitude: f32,
}

/// One forward pass of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Which of how many ranks this is for.
    pub shard: Shard,
    /// Tokens of the vocabulary in the whole model.
    pub vocabulary: usize,
    /// First token of this rank's vocabulary shard; the shard's length is the width of the logits buffer.
    pub vocabulary_start: usize,
    /// Activations.
    pub buffers: Vec<Buffer>,
    /// Weights, in the order of first use; the same list for the same model and shard.
    pub weights: Vec<Weight>,
    /// KV caches.
    pub groups: Vec<KvGroup>,
    /// Rotations.
    pub ropes: Vec<Rope>,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The pass of the block that drafts tokens (DeepSeek-V3's multi-token prediction): from a row's hidden state, as
    /// the pass before left it, and the token after it to the logits of the one after that. Empty where there is none.
    pub draft: Vec<Op>,
}

impl Program {
    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// A weight.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// The operations of both passes.
    pub fn all_ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().chain(&self.draft)
    }

    /// Bytes of all weights on this rank.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(Weight::bytes).sum()
    }

    /// Weight bytes that one decoded token reads: every matrix that is multiplied with, and one row of the embedding.
    pub fn weight_bytes_per_token(&self) -> usize {
        self.weight_bytes_read(&self.ops)
    }

    /// Weight bytes that these operations read for one row.
    pub fn weight_bytes_read(&self, ops: &[Op]) -> usize {
        let expert = |m: ExpertMatrix, top_k: usize| {
            let bias = m.bias.map_or(0, |bias| self.weight(bias).matrix_bytes());
            top_k * (self.weight(m.weight).matrix_bytes() + bias)
        };
        let all = |id: WeightId| self.weight(id).bytes();
        let read = |op: &Op| match *op {
            Op::Embed { table, .. } => self.weight(table).row_bytes(),
            Op::RmsNorm { weight, .. } => all(weight),
            Op::LayerNorm { weight, bias, .. } => all(weight) + all(bias),
            Op::LatentAttention { keys, values, .. } => all(keys) + all(values),
            Op::Linear { weight, bias, .. } => all(weight) + bias.map_or(0, all),
            Op::AllReduceAddNorm { weight, post_norm, .. } => all(weight) + post_norm.map_or(0, all),
            Op::Attention { sinks, .. } => sinks.map_or(0, all),
            Op::Route { bias, .. } => bias.map_or(0, all),
            Op::Experts { routes, gate, up, down, .. } => {
                let top_k = self.buffer(routes.experts).width;
                [gate, up, down].into_iter().map(|m| expert(m, top_k)).sum()
            }
            _ => 0,
        };
        ops.iter().map(read).sum()
    }
}
