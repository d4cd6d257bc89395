//! The program builder: the forward pass, written once for every architecture.

mod draft;
mod experts;
mod mla;
mod weights;

use crate::config::{FeedForward, GroupedQuery};
use crate::shard::Split;
use crate::{
    Activation, Block, Buffer, BufferId, Config, Element, GroupId, KvGroup, MAX_RANKS, ModelError, Op, Program, RopeId,
    Routes, Rows, Shard, Slice, Values, WeightId,
};
use mla::LatentPart;
use std::collections::HashSet;
use tombolo_gguf::Gguf;

impl Program {
    /// Builds one rank's forward pass. Reads no weights, only the file's header.
    ///
    /// # Errors
    /// A missing or misshapen tensor, a type that cannot be computed with, a split that would cut a block or a head.
    pub fn build(gguf: &Gguf, config: &Config, shard: Shard) -> Result<Program, ModelError> {
        if shard.size == 0 || shard.size > MAX_RANKS {
            return Err(ModelError::BadSize { size: shard.size, most: MAX_RANKS });
        }
        assert!(shard.rank < shard.size);
        Self::try_build(gguf, config, shard).map_err(|error| match error {
            // What helps is not how this one tensor could be cut, but how the model can.
            ModelError::IllegalSplit { tensor, ty, size, .. } => {
                ModelError::IllegalSplit { tensor, ty, size, legal: Self::legal_sizes(gguf, config) }
            }
            other => other,
        })
    }

    fn try_build(gguf: &Gguf, config: &Config, shard: Shard) -> Result<Program, ModelError> {
        let mut b = Builder::new(gguf, config, shard);
        b.forward()?;
        b.refuse_extra_tensors()?;
        Ok(b.program)
    }

    /// The tensor-parallel sizes that this model can be split into.
    pub fn legal_sizes(gguf: &Gguf, config: &Config) -> Vec<usize> {
        (1..=MAX_RANKS).filter(|&size| Self::try_build(gguf, config, Shard { rank: 0, size }).is_ok()).collect()
    }
}

struct Builder<'a> {
    gguf: &'a Gguf,
    config: &'a Config,
    used: HashSet<String>,
    program: Program,
}

/// Buffers that every block uses anew.
struct Parts {
    residual: BufferId,
    normed: BufferId,
    partial: BufferId,
    attention: AttentionKind,
    dense: Option<DensePart>,
    experts: Option<ExpertPart>,
}

enum AttentionKind {
    Grouped(AttentionPart),
    Latent(LatentPart),
}

struct AttentionPart {
    q: BufferId,
    k: BufferId,
    v: BufferId,
    out: BufferId,
    /// By reach: the cache, the rotation, and how many layers have been built.
    reaches: Vec<(GroupId, RopeId, usize)>,
}

/// What makes logits.
#[derive(Clone, Copy)]
struct Head {
    picked: BufferId,
    weight: WeightId,
    logits: BufferId,
}

struct DensePart {
    /// How gate and up are cut, and how down is.
    splits: [Split; 2],
    gate: BufferId,
    up: BufferId,
    out: BufferId,
}

struct ExpertPart {
    logits: BufferId,
    routes: Routes,
    shared: Option<DensePart>,
}

impl<'a> Builder<'a> {
    fn new(gguf: &'a Gguf, config: &'a Config, shard: Shard) -> Self {
        let program = Program {
            shard,
            vocabulary: config.vocabulary,
            vocabulary_start: 0,
            buffers: Vec::new(),
            weights: Vec::new(),
            groups: Vec::new(),
            ropes: Vec::new(),
            ops: Vec::new(),
            draft: Vec::new(),
        };
        Self { gguf, config, used: HashSet::from(["rope_freqs.weight".to_string()]), program }
    }

    /// Pre-norm transformer: per layer attention and feed-forward, each added to the residual stream after an
    /// all-reduce that also computes the norm which the next one starts from.
    fn forward(&mut self) -> Result<(), ModelError> {
        let c = self.config;
        let mut parts = self.parts()?;
        let table = self.matrix("token_embd", c.vocabulary, c.hidden, Split::Replicate)?;
        self.push(Op::Embed { table, scale: c.embedding_scale, out: parts.residual });
        let weight = self.norm(0, "attn_norm", c.hidden)?;
        self.push(Op::RmsNorm { x: parts.residual, weight, out: parts.normed, eps: c.rms_eps });
        // What drafts tokens goes on from the last norm's result.
        let last = match c.draft {
            Some(_) => self.buffer("hidden", Rows::Batch, c.hidden),
            None => parts.normed,
        };
        for layer in 0..c.layers() {
            let (next, out) = match layer + 1 < c.layers() {
                true => (format!("blk.{}.attn_norm", layer + 1), parts.normed),
                false => ("output_norm".to_string(), last),
            };
            self.transformer_block(layer, c.blocks[layer], &mut parts, &next, out)?;
        }
        let head = self.head(last)?;
        if let Some(block) = c.draft {
            self.draft(block, &mut parts, last, head)?;
        }
        Ok(())
    }

    /// Attention and feed-forward of one block, and the norm after it, of the name `next`.
    fn transformer_block(
        &mut self,
        layer: usize,
        block: Block,
        parts: &mut Parts,
        next: &str,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let c = self.config;
        let (residual, normed, partial, eps) = (parts.residual, parts.normed, parts.partial, c.rms_eps);
        match &mut parts.attention {
            AttentionKind::Grouped(part) => self.attention(layer, block.reach, part, normed, partial)?,
            AttentionKind::Latent(part) => self.latent_attention(layer, part, normed, partial)?,
        }
        let post_norm = self.norm_if_any(layer, c.norms.after_attention)?;
        let weight = self.norm(layer, c.norms.before_feed_forward, c.hidden)?;
        self.push(Op::AllReduceAddNorm { partial, residual, post_norm, weight, out: normed, eps });
        match (block.feed_forward, &parts.dense, &parts.experts) {
            (FeedForward::Experts, _, Some(part)) => self.experts(layer, part, normed, partial)?,
            (_, Some(part), _) => self.dense(layer, part, normed, partial)?,
            _ => unreachable!("parts are made for every kind of block"),
        }
        let post_norm = self.norm_if_any(layer, c.norms.after_feed_forward)?;
        let weight = self.matrix(next, 1, c.hidden, Split::Replicate)?;
        self.push(Op::AllReduceAddNorm { partial, residual, post_norm, weight, out, eps });
        Ok(())
    }

    fn parts(&mut self) -> Result<Parts, ModelError> {
        let c = self.config;
        let residual = self.buffer("residual", Rows::Batch, c.hidden);
        let normed = self.buffer("normed", Rows::Batch, c.hidden);
        let partial = self.buffer("partial", Rows::Batch, c.hidden);
        let attention = match &c.latent {
            Some(latent) => AttentionKind::Latent(self.latent_part(latent)?),
            None => AttentionKind::Grouped(self.attention_part()?),
        };
        let kind_of = |layer: usize| c.block(layer).feed_forward;
        let first = |kind| (0..c.layers_run()).find(|&layer| kind_of(layer) == kind);
        let dense = match first(FeedForward::Dense) {
            Some(layer) => {
                let layers = (layer..c.layers_run()).filter(|&l| kind_of(l) == FeedForward::Dense);
                let splits = self.gated_splits(layers, "ffn_down", c.feed_forward);
                let width = self.held_rows(layer, "ffn_gate", c.feed_forward, splits[0])?;
                Some(self.dense_part(width, splits))
            }
            None => None,
        };
        let experts = match (first(FeedForward::Experts), &c.experts) {
            (Some(layer), Some(experts)) => Some(self.expert_part(layer, experts)?),
            _ => None,
        };
        Ok(Parts { residual, normed, partial, attention, dense, experts })
    }

    fn attention_part(&mut self) -> Result<AttentionPart, ModelError> {
        let a = &self.config.attention;
        // The widths that the weights' own slices will have: found through the same rule.
        let [q_rows, k_rows, _] = self.projections(0)?.map(|w| w.rows);
        let mut reaches = Vec::new();
        for (i, reach) in a.reaches.iter().enumerate() {
            let group = GroupId(self.program.groups.len() as u32);
            self.program.groups.push(KvGroup {
                name: reach.name,
                layers: (0..self.config.layers_run()).filter(|&l| self.config.block(l).reach == i).count(),
                kv_heads: k_rows / a.head_dim,
                head_dim: a.head_dim,
                values: Values::Own,
                window: reach.window,
            });
            // Layers of different reach may turn alike.
            let ropes = &mut self.program.ropes;
            let same = ropes.iter().position(|rope| *rope == reach.rope);
            let rope = same.unwrap_or_else(|| {
                ropes.push(reach.rope.clone());
                ropes.len() - 1
            });
            reaches.push((group, RopeId(rope as u32), 0));
        }
        Ok(AttentionPart {
            q: self.buffer("q", Rows::Batch, q_rows),
            k: self.buffer("k", Rows::Batch, k_rows),
            v: self.buffer("v", Rows::Batch, k_rows),
            out: self.buffer("attended", Rows::Batch, q_rows),
            reaches,
        })
    }

    fn dense_part(&mut self, width: usize, splits: [Split; 2]) -> DensePart {
        DensePart {
            splits,
            gate: self.buffer("gate", Rows::Batch, width),
            up: self.buffer("up", Rows::Batch, width),
            out: self.buffer("activated", Rows::Batch, width),
        }
    }

    fn attention(
        &mut self,
        layer: usize,
        reach: usize,
        part: &mut AttentionPart,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let c = self.config;
        let &GroupedQuery { head_dim, scale, softcap, .. } = &c.attention;
        let AttentionPart { q, k, v, .. } = *part;
        let (group, rope, in_group) = part.reaches[reach];
        part.reaches[reach].2 += 1;
        for (weight, out) in self.projections(layer)?.into_iter().zip([q, k, v]) {
            let bias = self.projection_bias(&weight, c.attention.qkv_bias)?;
            let weight = self.hold(weight);
            self.push(Op::Linear { x, weight, bias, out });
        }
        if c.attention.qk_norm {
            for (name, x) in [("attn_q_norm", q), ("attn_k_norm", k)] {
                let weight = self.norm(layer, name, head_dim)?;
                self.push(Op::RmsNorm { x, weight, out: x, eps: c.rms_eps });
            }
        }
        self.push(Op::Rope { x: q, head_dim, start: 0, rope });
        self.push(Op::Rope { x: k, head_dim, start: 0, rope });
        self.push(Op::KvWrite { k, v, group, layer: in_group });
        let heads = self.program.buffer(q).width / head_dim;
        let window = c.attention.reaches[reach].window;
        let sinks = if c.attention.sinks { Some(self.sinks(layer)?) } else { None };
        self.push(Op::Attention { q, out: part.out, group, layer: in_group, heads, scale, window, softcap, sinks });
        let cols = c.attention.heads * head_dim;
        let wo = self.block(layer, "attn_output", c.hidden, cols, Split::Cols { unit: head_dim })?;
        let bias = self.bias_of_sum(layer, "attn_output", c.attention.output_bias)?;
        self.push(Op::Linear { x: part.out, weight: wo, bias, out });
        Ok(())
    }

    fn dense(&mut self, layer: usize, part: &DensePart, x: BufferId, out: BufferId) -> Result<(), ModelError> {
        self.gated(layer, ["ffn_gate", "ffn_up", "ffn_down"], self.config.feed_forward, part, x, out)
    }

    /// A gated unit of any width.
    fn gated(
        &mut self,
        layer: usize,
        [gate, up, down]: [&str; 3],
        width: usize,
        part: &DensePart,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let [rows, cols] = part.splits;
        for (name, out) in [(gate, part.gate), (up, part.up)] {
            let weight = self.block(layer, name, width, hidden, rows)?;
            let bias = self.bias(layer, name, 1, width, rows, false)?;
            self.push(Op::Linear { x, weight, bias, out });
        }
        let activation: Activation = self.config.activation;
        self.push(Op::GatedActivation { activation, gate: part.gate, up: part.up, out: part.out });
        let down_weight = self.block(layer, down, hidden, width, cols)?;
        let bias = self.bias_of_sum(layer, down, false)?;
        self.push(Op::Linear { x: part.out, weight: down_weight, bias, out });
        Ok(())
    }

    /// From what the last norm gave to a token drawn.
    fn head(&mut self, normed: BufferId) -> Result<Head, ModelError> {
        let c = self.config;
        let picked = self.buffer("picked", Rows::Logits, c.hidden);
        self.push(Op::GatherRows { x: normed, out: picked });
        let name = if c.tied { "token_embd" } else { "output" };
        let weight = self.matrix(name, c.vocabulary, c.hidden, Split::RowsUneven)?;
        let held = self.program.weight(weight);
        let (slice, width) = (held.slice, held.rows);
        if let Slice::Rows { start, .. } = slice {
            self.program.vocabulary_start = start;
        }
        let logits = self.buffer("logits", Rows::Logits, width);
        let head = Head { picked, weight, logits };
        self.draw(head);
        Ok(head)
    }

    fn draw(&mut self, Head { picked, weight, logits }: Head) {
        self.push(Op::Linear { x: picked, weight, bias: None, out: logits });
        if let Some(cap) = self.config.logit_softcap {
            self.push(Op::Softcap { x: logits, cap });
        }
        self.push(Op::Sample { logits });
    }

    fn buffer(&mut self, name: &'static str, rows: Rows, width: usize) -> BufferId {
        self.buffer_of(name, Element::F32, rows, width)
    }

    fn buffer_of(&mut self, name: &'static str, element: Element, rows: Rows, width: usize) -> BufferId {
        self.program.buffers.push(Buffer { name, element, rows, width });
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// A tensor that the pass above does not use would be ignored silently: refused instead.
    fn refuse_extra_tensors(&self) -> Result<(), ModelError> {
        let is_extra = |name: &str| !self.used.contains(name) && !self.config.may_ignore(name);
        match self.gguf.tensors().iter().find(|t| is_extra(&t.name)) {
            Some(extra) => Err(ModelError::ExtraTensor { tensor: extra.name.clone() }),
            None => Ok(()),
        }
    }
}
