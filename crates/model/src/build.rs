//! The program builder: the forward pass, written once for every architecture.

use crate::shard::{Split, weight};
use crate::{
    Buffer, BufferId, Config, GroupId, KvGroup, MAX_RANKS, ModelError, Op, Program, Rope, RopeId, Rows, Shard, Slice,
    Weight, WeightId,
};
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
        };
        Self { gguf, config, used: HashSet::from(["rope_freqs.weight".to_string()]), program }
    }

    /// Pre-norm transformer: per layer attention and feed-forward, each added to the residual stream after an
    /// all-reduce that also computes the norm which the next one starts from.
    fn forward(&mut self) -> Result<(), ModelError> {
        let c = self.config;
        let eps = c.rms_eps;
        let residual = self.buffer("residual", Rows::Batch, c.hidden);
        let normed = self.buffer("normed", Rows::Batch, c.hidden);
        let partial = self.buffer("partial", Rows::Batch, c.hidden);
        let attention = self.attention_part()?;
        let feed_forward = self.feed_forward_part()?;

        let table = self.weight("token_embd.weight", c.vocabulary, c.hidden, Split::Replicate)?;
        self.push(Op::Embed { table, out: residual });
        let first = self.norm_weight(0, "attn_norm", c.hidden)?;
        self.push(Op::RmsNorm { x: residual, weight: first, out: normed, eps });
        for layer in 0..c.layers {
            self.attention(layer, &attention, normed, partial)?;
            let weight = self.norm_weight(layer, "ffn_norm", c.hidden)?;
            self.push(Op::AllReduceAddNorm { partial, residual, weight, out: normed, eps });
            self.feed_forward(layer, &feed_forward, normed, partial)?;
            let weight = if layer + 1 < c.layers {
                self.norm_weight(layer + 1, "attn_norm", c.hidden)?
            } else {
                self.weight("output_norm.weight", 1, c.hidden, Split::Replicate)?
            };
            self.push(Op::AllReduceAddNorm { partial, residual, weight, out: normed, eps });
        }
        self.head(normed)
    }

    fn attention_part(&mut self) -> Result<AttentionPart, ModelError> {
        let c = self.config;
        // The widths that the weights' own slices will have: found through the same rule.
        let q_rows = self.held_rows("attn_q", c.heads * c.head_dim, Split::Rows { unit: c.head_dim })?;
        let kv_rows = self.held_rows("attn_k", c.kv_heads * c.head_dim, Split::RowsReplicated { unit: c.head_dim })?;
        let group = GroupId(self.program.groups.len() as u32);
        self.program.groups.push(KvGroup {
            name: "kv",
            layers: c.layers,
            kv_heads: kv_rows / c.head_dim,
            head_dim: c.head_dim,
        });
        let rope = RopeId(self.program.ropes.len() as u32);
        self.program.ropes.push(Rope { style: c.rope_style, frequencies: c.rope_frequencies.clone() });
        Ok(AttentionPart {
            q: self.buffer("q", Rows::Batch, q_rows),
            k: self.buffer("k", Rows::Batch, kv_rows),
            v: self.buffer("v", Rows::Batch, kv_rows),
            out: self.buffer("attended", Rows::Batch, q_rows),
            group,
            rope,
        })
    }

    fn feed_forward_part(&mut self) -> Result<FeedForwardPart, ModelError> {
        let width = self.held_rows("ffn_gate", self.config.feed_forward, Split::Rows { unit: 1 })?;
        Ok(FeedForwardPart {
            gate: self.buffer("gate", Rows::Batch, width),
            up: self.buffer("up", Rows::Batch, width),
            out: self.buffer("activated", Rows::Batch, width),
        })
    }

    fn attention(&mut self, layer: usize, a: &AttentionPart, x: BufferId, out: BufferId) -> Result<(), ModelError> {
        let c = self.config;
        let (q_rows, kv_rows, head_dim) = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.head_dim);
        let by_head = Split::Rows { unit: head_dim };
        let by_kv_head = Split::RowsReplicated { unit: head_dim };
        let wq = self.block_weight(layer, "attn_q", q_rows, c.hidden, by_head)?;
        let wk = self.block_weight(layer, "attn_k", kv_rows, c.hidden, by_kv_head)?;
        let wv = self.block_weight(layer, "attn_v", kv_rows, c.hidden, by_kv_head)?;
        self.push(Op::Linear { x, weight: wq, out: a.q });
        self.push(Op::Linear { x, weight: wk, out: a.k });
        self.push(Op::Linear { x, weight: wv, out: a.v });
        if c.qk_norm {
            for (name, x) in [("attn_q_norm", a.q), ("attn_k_norm", a.k)] {
                let weight = self.norm_weight(layer, name, head_dim)?;
                self.push(Op::RmsNorm { x, weight, out: x, eps: c.rms_eps });
            }
        }
        self.push(Op::Rope { x: a.q, head_dim, rope: a.rope });
        self.push(Op::Rope { x: a.k, head_dim, rope: a.rope });
        self.push(Op::KvWrite { k: a.k, v: a.v, group: a.group, layer });
        let heads = self.program.buffer(a.q).width / head_dim;
        let scale = 1.0 / (head_dim as f32).sqrt();
        self.push(Op::Attention { q: a.q, out: a.out, group: a.group, layer, heads, scale });
        let wo = self.block_weight(layer, "attn_output", c.hidden, q_rows, Split::Cols { unit: head_dim })?;
        self.push(Op::Linear { x: a.out, weight: wo, out });
        Ok(())
    }

    fn feed_forward(
        &mut self,
        layer: usize,
        f: &FeedForwardPart,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let (hidden, width) = (self.config.hidden, self.config.feed_forward);
        let gate = self.block_weight(layer, "ffn_gate", width, hidden, Split::Rows { unit: 1 })?;
        let up = self.block_weight(layer, "ffn_up", width, hidden, Split::Rows { unit: 1 })?;
        let down = self.block_weight(layer, "ffn_down", hidden, width, Split::Cols { unit: 1 })?;
        self.push(Op::Linear { x, weight: gate, out: f.gate });
        self.push(Op::Linear { x, weight: up, out: f.up });
        self.push(Op::SiluMul { gate: f.gate, up: f.up, out: f.out });
        self.push(Op::Linear { x: f.out, weight: down, out });
        Ok(())
    }

    fn head(&mut self, normed: BufferId) -> Result<(), ModelError> {
        let c = self.config;
        let picked = self.buffer("picked", Rows::Logits, c.hidden);
        self.push(Op::GatherRows { x: normed, out: picked });
        let name = if c.tied { "token_embd.weight" } else { "output.weight" };
        let weight = self.weight(name, c.vocabulary, c.hidden, Split::RowsUneven)?;
        let held = self.program.weight(weight);
        let (slice, width) = (held.slice, held.rows);
        if let Slice::Rows { start, .. } = slice {
            self.program.vocabulary_start = start;
        }
        let logits = self.buffer("logits", Rows::Logits, width);
        self.push(Op::Linear { x: picked, weight, out: logits });
        self.push(Op::Sample { logits });
        Ok(())
    }

    /// Rows that this rank will hold of a matrix of layer 0.
    fn held_rows(&self, name: &str, rows: usize, split: Split) -> Result<usize, ModelError> {
        let name = format!("blk.0.{name}.weight");
        Ok(weight(self.gguf, &name, rows, self.config.hidden, split, self.program.shard)?.rows)
    }

    fn buffer(&mut self, name: &'static str, rows: Rows, width: usize) -> BufferId {
        self.program.buffers.push(Buffer { name, rows, width });
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    fn norm_weight(&mut self, layer: usize, name: &str, width: usize) -> Result<WeightId, ModelError> {
        self.block_weight(layer, name, 1, width, Split::Replicate)
    }

    fn block_weight(
        &mut self,
        layer: usize,
        name: &str,
        rows: usize,
        cols: usize,
        split: Split,
    ) -> Result<WeightId, ModelError> {
        self.weight(&format!("blk.{layer}.{name}.weight"), rows, cols, split)
    }

    /// A weight of the file; the same tensor cut the same way is held once.
    fn weight(&mut self, name: &str, rows: usize, cols: usize, split: Split) -> Result<WeightId, ModelError> {
        let weight: Weight = weight(self.gguf, name, rows, cols, split, self.program.shard)?;
        self.used.insert(name.to_string());
        let weights = &mut self.program.weights;
        let shared = (name == "token_embd.weight").then(|| weights.iter().position(|w| *w == weight)).flatten();
        let index = shared.unwrap_or_else(|| {
            weights.push(weight);
            weights.len() - 1
        });
        Ok(WeightId(index as u32))
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// A tensor that the pass above does not use (a bias, say) would be ignored silently: refused instead.
    fn refuse_extra_tensors(&self) -> Result<(), ModelError> {
        match self.gguf.tensors().iter().find(|t| !self.used.contains(&t.name)) {
            Some(extra) => Err(ModelError::ExtraTensor { tensor: extra.name.clone() }),
            None => Ok(()),
        }
    }
}

struct AttentionPart {
    q: BufferId,
    k: BufferId,
    v: BufferId,
    out: BufferId,
    group: GroupId,
    rope: RopeId,
}

struct FeedForwardPart {
    gate: BufferId,
    up: BufferId,
    out: BufferId,
}
