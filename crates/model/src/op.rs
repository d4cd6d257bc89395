//! The operations that a program is made of, each with its formula. Who runs them how is the backends' business.

use crate::{BufferId, GroupId, RopeId, WeightId};

/// What makes a gated unit of `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `gate / (1 + exp(-gate)) · up` (SwiGLU, Shazeer 2020).
    Silu,
    /// `gelu(gate) · up` with `gelu(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016).
    GeluTanh,
    /// `g / (1 + exp(-alpha · g)) · (u + 1)` with `g = min(gate, limit)`, `u` = `up` within `± limit` (gpt-oss).
    ClampedSwiglu {
        /// Steepness of the gate.
        alpha: f32,
        /// Where both are cut.
        limit: f32,
    },
}

/// How a router's logits become the weights of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts, then the choice.
    Softmax,
    /// A sigmoid of each, then the choice.
    Sigmoid,
    /// The choice by logits, then softmax over the chosen.
    SoftmaxSelected,
}

/// Experts chosen from some groups of neighbours only (DeepSeek-V3): a group's score is the sum of its two best, or, where experts
/// are scored by softmax, its best (DeepSeek-V2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equal size.
    pub count: usize,
    /// Groups that experts are chosen from.
    pub used: usize,
}

/// What a router chose for every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes {
    /// `[rows, top_k]` of u32: experts, the best first.
    pub experts: BufferId,
    /// `[rows, top_k]`: the weight of each.
    pub weights: BufferId,
}

/// A stack of matrices, one per expert, and their biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMatrix {
    /// `[experts, out-features, in-features]`.
    pub weight: WeightId,
    /// `[experts, out-features, 1]`.
    pub bias: Option<WeightId>,
}

/// One operation. Buffers are `[rows, width]`; weights `[out-features, in-features]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[row] = table[token(row)] · scale`.
    Embed {
        /// `[vocabulary, hidden]`, whole on every rank.
        table: WeightId,
        /// Factor on every value.
        scale: f32,
        /// `[rows, hidden]`.
        out: BufferId,
    },
    /// `out[row] = x[r]`, `r` being the row of the step before that the step's row goes on from
    /// ([`Pass::Draft`](crate::Pass)).
    PreviousRows {
        /// Kept from the step before.
        x: BufferId,
        /// Same width.
        out: BufferId,
    },
    /// `out[row] = [first[row] | second[row]]`.
    Concat {
        /// The left part.
        first: BufferId,
        /// The right part.
        second: BufferId,
        /// As wide as both.
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
    /// `out[row] = weight · x[row] + bias`.
    Linear {
        /// Input.
        x: BufferId,
        /// `[out width, x width]`.
        weight: WeightId,
        /// `[out width, 1]`. The bias of a partial sum is on rank 0 alone.
        bias: Option<WeightId>,
        /// Output.
        out: BufferId,
    },
    /// `out = (x − mean(x)) / sqrt(var(x) + eps) ⊙ weight + bias` over every row (Ba et al. 2016). `out` may be `x`.
    LayerNorm {
        /// Input.
        x: BufferId,
        /// `[1, width]`.
        weight: WeightId,
        /// `[width, 1]`.
        bias: WeightId,
        /// Output.
        out: BufferId,
        /// Added to the variance.
        eps: f32,
    },
    /// Rotates every head of `x` in place by its row's position (Su et al. 2021).
    Rope {
        /// `[rows, heads * head_dim]`.
        x: BufferId,
        /// Values per head.
        head_dim: usize,
        /// The first value of a head that is turned.
        start: usize,
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
    /// Causal attention of every row over the positions of its own sequence up to its own: `Σ p·v` with
    /// `p = softmax(q·k * scale)`; query head `h` reads KV head `h / (heads / kv_heads)`.
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
        /// Only the last so many positions are seen, the row's own included.
        window: Option<usize>,
        /// Scores become `cap · tanh(score / cap)` (Gemma Team 2024).
        softcap: Option<f32>,
        /// `[heads, 1]`: a score more in the softmax of every head, which has no value (gpt-oss).
        sinks: Option<WeightId>,
    },
    /// Stores what latent attention keeps of every row, `[latent | key]`, at its position in its sequence's blocks.
    LatentWrite {
        /// `[rows, values]`: what keys and values of all heads are made of, normed.
        latent: BufferId,
        /// `[rows, head_dim − values]`: the part of the keys that all heads share, rotated.
        key: BufferId,
        /// The cache, of [`Values::OfKey`](crate::Values).
        group: GroupId,
        /// Layer within the group.
        layer: usize,
    },
    /// Stores the key by which every row's position will be looked for.
    IndexWrite {
        /// `[rows, head_dim]`.
        key: BufferId,
        /// The cache, of [`Values::None`](crate::Values).
        group: GroupId,
        /// Layer within the group.
        layer: usize,
    },
    /// Chooses, for every row at a position from `top_k` on, the `top_k` positions `s` up to its own with the largest
    /// `Σ over heads h of weights[h] · max(0, q[h]·key[s])`; of equals the lower ones (DeepSeek-V3.2, lightning
    /// indexer). Rows before see everything: nothing is written for them.
    Select {
        /// `[rows, heads * head_dim]`.
        q: BufferId,
        /// `[rows, heads]`; may be negative.
        weights: BufferId,
        /// Heads, the same on every rank.
        heads: usize,
        /// The cache, of [`Values::None`](crate::Values).
        group: GroupId,
        /// Layer within the group.
        layer: usize,
        /// `[rows, top_k]` of u32: positions, ascending.
        out: BufferId,
    },
    /// Multi-head latent attention (DeepSeek-V2): causal attention of every row over the latents `c` and shared keys `r`
    /// of its sequence, `out[h] = Σ p·(values[h] c)` with `p = softmax((keys[h] c | r)·q[h] * scale)`. Whether latents
    /// are expanded or queries and results go through the matrices instead is the backend's choice: the results are
    /// equal but for rounding.
    LatentAttention {
        /// `[rows, heads * (nope + rope)]`, the last `rope` values of every head rotated.
        q: BufferId,
        /// Per head of this rank `[latent, nope]`, or `[nope, latent]`.
        keys: WeightId,
        /// The latter.
        keys_transposed: bool,
        /// Per head `[value, latent]`.
        values: WeightId,
        /// What [`Op::Select`] chose, where it did; none: everything is seen.
        selected: Option<BufferId>,
        /// `[rows, heads * value]`.
        out: BufferId,
        /// The cache, of [`Values::OfKey`](crate::Values).
        group: GroupId,
        /// Layer within the group.
        layer: usize,
        /// Query heads on this rank.
        heads: usize,
        /// Factor on the scores.
        scale: f32,
    },
    /// `out = activation(gate, up)`.
    GatedActivation {
        /// Which.
        activation: Activation,
        /// Gate.
        gate: BufferId,
        /// Up.
        up: BufferId,
        /// Output.
        out: BufferId,
    },
    /// Chooses `top_k` experts for every row; of equals the lower number comes first.
    Route {
        /// `[rows, experts]`.
        logits: BufferId,
        /// How they become weights.
        gating: Gating,
        /// `[experts, 1]`: added for the choice, not to the weights (DeepSeek-V3).
        bias: Option<WeightId>,
        /// Limits the choice.
        groups: Option<ExpertGroups>,
        /// Experts a row.
        top_k: usize,
        /// The weights of the chosen are divided by their sum.
        normalise: bool,
        /// Factor on the weights.
        scale: f32,
        /// What was chosen.
        out: Routes,
    },
    /// `out[row] = Σ over the row's experts e of weight · (down[e] · activation(gate[e] · x, up[e] · x))`, in the order
    /// of choice. Each product may have its expert's bias; that of `down` is on one rank alone. A rank may hold only
    /// some experts, whole: its sum is over those.
    Experts {
        /// `[rows, hidden]`.
        x: BufferId,
        /// Who computes what.
        routes: Routes,
        /// `[experts, width, hidden]`.
        gate: ExpertMatrix,
        /// `[experts, width, hidden]`.
        up: ExpertMatrix,
        /// `[experts, hidden, width]`.
        down: ExpertMatrix,
        /// Between them.
        activation: Activation,
        /// `[rows, hidden]`: this rank's part of the sum.
        out: BufferId,
        /// Added to what `out` holds (a shared expert's product), instead of replacing it.
        accumulate: bool,
    },
    /// `sum = Σ over ranks of partial` (rank 0 first, f32, rounded once), `residual += sum`, or, with a norm of its own,
    /// `residual += rms_norm(sum) ⊙ post_norm`; then `out = rms_norm(residual) ⊙ weight`.
    AllReduceAddNorm {
        /// This rank's share of the sum, `[rows, hidden]`.
        partial: BufferId,
        /// The residual stream; the same bits on every rank afterwards.
        residual: BufferId,
        /// Of the norm before the addition, `[1, hidden]`.
        post_norm: Option<WeightId>,
        /// Of the norm, `[1, hidden]`.
        weight: WeightId,
        /// Normed, `[rows, hidden]`.
        out: BufferId,
        /// Of both norms.
        eps: f32,
    },
    /// Keeps the rows that want logits: from a [`Rows::Batch`](crate::Rows) buffer to a [`Rows::Logits`](crate::Rows)
    /// buffer.
    GatherRows {
        /// From.
        x: BufferId,
        /// To.
        out: BufferId,
    },
    /// `x = cap · tanh(x / cap)`, in place (Gemma Team 2024).
    Softcap {
        /// Logits.
        x: BufferId,
        /// No result is farther from zero.
        cap: f32,
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
            Op::PreviousRows { .. } => "previous_rows",
            Op::Concat { .. } => "concat",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Rope { .. } => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::LatentWrite { .. } => "latent_write",
            Op::IndexWrite { .. } => "index_write",
            Op::Select { .. } => "select",
            Op::LatentAttention { .. } => "latent_attention",
            Op::GatedActivation { .. } => "gated_activation",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::AllReduceAddNorm { .. } => "all_reduce_add_norm",
            Op::GatherRows { .. } => "gather_rows",
            Op::Softcap { .. } => "softcap",
            Op::Sample { .. } => "sample",
        }
    }
}
