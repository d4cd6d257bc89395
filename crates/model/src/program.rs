//! A program: the straight list of operations of one forward pass over named buffers. It is what backends run, and
//! what the memory plan, the byte counts and the profile's rows are read off.

use crate::Shard;
use tombolo_gguf::TensorType;

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

/// Activations: `[rows, width]`, row-major, f32 as far as the program is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds.
    pub name: &'static str,
    /// Its rows.
    pub rows: Rows,
    /// Values a row.
    pub width: usize,
}

/// Which part of a tensor `[cols, rows]` (GGUF order: `cols` is contiguous, the in-features) a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// All of it.
    Whole,
    /// Rows `start .. start + len` (out-features): one contiguous range of bytes.
    Rows {
        /// First row.
        start: usize,
        /// Number of rows.
        len: usize,
    },
    /// Columns `start .. start + len` (in-features) of every row: a strided copy, on block boundaries.
    Cols {
        /// First column.
        start: usize,
        /// Number of columns.
        len: usize,
    },
}

/// A weight as this rank holds it: `rows` out-features of `cols` in-features each. A vector has one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Name of the tensor in the file.
    pub tensor: String,
    /// Its type.
    pub ty: TensorType,
    /// Out-features held here.
    pub rows: usize,
    /// In-features held here.
    pub cols: usize,
    /// In-features of the whole tensor.
    pub file_cols: usize,
    /// The part of the tensor that this is.
    pub slice: Slice,
}

impl Weight {
    /// Bytes of one row as held here.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Bytes held here.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Where this rank's bytes lie in the tensor's: for every run of contiguous bytes its offset and length, in order.
    /// One run for whole tensors and row slices, one per row for column slices.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let of = |cols: usize| cols / self.ty.block_len() * self.ty.block_bytes();
        let (start, stride, len, count) = match self.slice {
            Slice::Whole => (0, 0, self.bytes(), 1),
            Slice::Rows { start, .. } => (start * of(self.file_cols), 0, self.bytes(), 1),
            Slice::Cols { start, .. } => (of(start), of(self.file_cols), self.row_bytes(), self.rows),
        };
        (0..count).map(move |i| (start + i * stride, len))
    }

    /// Copies this rank's bytes out of the whole tensor's.
    pub fn gather(&self, tensor: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.reserve_exact(self.bytes());
        for (offset, len) in self.runs() {
            out.extend_from_slice(&tensor[offset..offset + len]);
        }
    }
}

/// A kind of KV cache with its own shape and block tables. Grouped-query attention is the only kind so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// What it holds.
    pub name: &'static str,
    /// Layers that write to it; `layer` in an operation counts from 0 within the group.
    pub layers: usize,
    /// KV heads on this rank.
    pub kv_heads: usize,
    /// Values per head, for keys and for values.
    pub head_dim: usize,
}

impl KvGroup {
    /// Values that one token takes in one layer: keys and values.
    pub fn values_per_token(&self) -> usize {
        2 * self.kv_heads * self.head_dim
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

/// Rotary position embedding: pair `j` turns by `position * frequencies[j]` radians.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which values make a pair.
    pub style: RopeStyle,
    /// One per pair; twice as many values of each head are turned, the rest stay.
    pub frequencies: Vec<f32>,
}

/// One operation. Buffers are `[rows, width]`; weights `[out-features, in-features]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[row] = table[token(row)]`.
    Embed {
        /// `[vocabulary, hidden]`, whole on every rank.
        table: WeightId,
        /// `[rows, hidden]`.
        out: BufferId,
    },
    /// `out = x / sqrt(mean(x²) + eps) ⊙ weight`, over every `weight.cols` neighbouring values of a row
    /// (Zhang and Sennrich 2019). `out` may be `x`.
    RmsNorm {
        /// Input.
        x: BufferId,
        /// `[1, width of the normed part]`.
        weight: WeightId,
        /// Output.
        out: BufferId,
        /// Added to the mean square.
        eps: f32,
    },
    /// `out[row] = weight · x[row]`.
    Linear {
        /// Input.
        x: BufferId,
        /// `[out width, x width]`.
        weight: WeightId,
        /// Output.
        out: BufferId,
    },
    /// Rotates every head of `x` in place by its row's position (Su et al. 2021).
    Rope {
        /// `[rows, heads * head_dim]`.
        x: BufferId,
        /// Values per head.
        head_dim: usize,
        /// Frequencies and pairing.
        rope: RopeId,
    },
    /// Stores keys and values of every row at its position in its sequence's blocks.
    KvWrite {
        /// `[rows, kv_heads * head_dim]`.
        k: BufferId,
        /// `[rows, kv_heads * head_dim]`.
        v: BufferId,
        /// The cache.
        group: GroupId,
        /// Layer within the group.
        layer: usize,
    },
    /// Causal attention of every row over the positions `0 ..= position` of its own sequence:
    /// `softmax(q·k * scale) · v`; query head `h` reads KV head `h / (heads / kv_heads)`.
    Attention {
        /// `[rows, heads * head_dim]`.
        q: BufferId,
        /// Same shape.
        out: BufferId,
        /// The cache.
        group: GroupId,
        /// Layer within the group.
        layer: usize,
        /// Query heads on this rank.
        heads: usize,
        /// Factor on the scores.
        scale: f32,
    },
    /// `out = gate / (1 + exp(-gate)) ⊙ up` (SwiGLU, Shazeer 2020).
    SiluMul {
        /// Gate.
        gate: BufferId,
        /// Up.
        up: BufferId,
        /// Output.
        out: BufferId,
    },
    /// `residual += Σ over ranks of partial` (rank 0 first, f32, rounded once); then `out = rms_norm(residual) ⊙ weight`.
    AllReduceAddNorm {
        /// This rank's share of the sum, `[rows, hidden]`.
        partial: BufferId,
        /// The residual stream; the same bits on every rank afterwards.
        residual: BufferId,
        /// Of the norm, `[1, hidden]`.
        weight: WeightId,
        /// Normed, `[rows, hidden]`.
        out: BufferId,
        /// Of the norm.
        eps: f32,
    },
    /// Keeps the rows that want logits: from a [`Rows::Batch`] buffer to a [`Rows::Logits`] buffer.
    GatherRows {
        /// From.
        x: BufferId,
        /// To.
        out: BufferId,
    },
    /// Draws a token per logits row: candidates of every rank's vocabulary shard are gathered, then drawn from by the
    /// law of [`crate::draw`], the same on every rank.
    Sample {
        /// `[logits rows, vocabulary shard]`.
        logits: BufferId,
    },
}

impl Op {
    /// Name of the operation, as profiles and errors print it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::SiluMul { .. } => "silu_mul",
            Op::AllReduceAddNorm { .. } => "all_reduce_add_norm",
            Op::GatherRows { .. } => "gather_rows",
            Op::Sample { .. } => "sample",
        }
    }
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

    /// Bytes of all weights on this rank.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(Weight::bytes).sum()
    }

    /// Weight bytes that one decoded token reads: every matrix that is multiplied with, and one row of the embedding.
    pub fn weight_bytes_per_token(&self) -> usize {
        let read = |op: &Op| match *op {
            Op::Embed { table, .. } => self.weight(table).row_bytes(),
            Op::RmsNorm { weight, .. } | Op::Linear { weight, .. } | Op::AllReduceAddNorm { weight, .. } => {
                self.weight(weight).bytes()
            }
            _ => 0,
        };
        self.ops.iter().map(read).sum()
    }
}
