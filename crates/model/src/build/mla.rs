//! Multi-head latent attention and its indexer.
//!
//! Heads are shared out over the ranks; what all heads need of a token (its latent, its place in the index) every rank
//! computes and keeps for itself.

use super::Builder;
use crate::config::{Indexer, Latent};
use crate::shard::Split;
use crate::{BufferId, Element, GroupId, KvGroup, ModelError, Op, RopeId, Rows, Values, WeightId};

pub(super) struct LatentPart {
    /// Squeezed queries.
    squeezed: Option<BufferId>,
    q: BufferId,
    latent: BufferId,
    key: BufferId,
    out: BufferId,
    group: GroupId,
    rope: RopeId,
    index: Option<IndexPart>,
}

struct IndexPart {
    q: BufferId,
    key: BufferId,
    weights: BufferId,
    selected: BufferId,
    group: GroupId,
    /// Layers with an index that have been built.
    layers: usize,
}

impl Builder<'_> {
    pub(super) fn latent_part(&mut self, latent: &Latent) -> Result<LatentPart, ModelError> {
        let a = &self.config.attention;
        let squeezed = latent.query_rank.map(|rank| self.buffer("squeezed q", Rows::Batch, rank));
        // An uneven share of heads is refused with the first matrix that has a unit per head.
        let (_, heads) = self.program.shard.part(a.heads);
        let rope = RopeId(self.program.ropes.len() as u32);
        self.program.ropes.push(a.reaches[0].rope.clone());
        let group = GroupId(self.program.groups.len() as u32);
        self.program.groups.push(KvGroup {
            name: "latent",
            layers: self.config.layers_run(),
            kv_heads: 1,
            head_dim: latent.rank + latent.rope,
            values: Values::OfKey(latent.rank),
            window: None,
        });
        let index = latent.indexer.as_ref().map(|indexer| self.index_part(indexer));
        Ok(LatentPart {
            squeezed,
            q: self.buffer("q", Rows::Batch, heads * a.head_dim),
            latent: self.buffer("latent", Rows::Batch, latent.rank),
            key: self.buffer("shared key", Rows::Batch, latent.rope),
            out: self.buffer("attended", Rows::Batch, heads * latent.value),
            group,
            rope,
            index,
        })
    }

    fn index_part(&mut self, indexer: &Indexer) -> IndexPart {
        let group = GroupId(self.program.groups.len() as u32);
        self.program.groups.push(KvGroup {
            name: "index",
            layers: indexer.full.iter().take(self.config.layers_run()).filter(|full| **full).count(),
            kv_heads: 1,
            head_dim: indexer.head_dim,
            values: Values::None,
            window: None,
        });
        IndexPart {
            q: self.buffer("index q", Rows::Batch, indexer.heads * indexer.head_dim),
            key: self.buffer("index key", Rows::Batch, indexer.head_dim),
            weights: self.buffer("index weights", Rows::Batch, indexer.heads),
            selected: self.buffer_of("selected", Element::U32, Rows::Batch, indexer.top_k),
            group,
            layers: 0,
        }
    }

    pub(super) fn latent_attention(
        &mut self,
        layer: usize,
        part: &mut LatentPart,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let c = self.config;
        let Some(latent) = &c.latent else { unreachable!("latent attention in a model without") };
        let &LatentPart { q, key, group, rope, .. } = &*part;
        let head_dim = c.attention.head_dim;
        let rows = c.attention.heads * head_dim;
        let by_head = Split::Rows { unit: head_dim };
        // All that is made of the normed residual, then all that is made of the squeezed query.
        let from = match (part.squeezed, latent.query_rank) {
            (Some(squeezed), Some(rank)) => {
                let weight = self.block(layer, "attn_q_a", rank, c.hidden, Split::Replicate)?;
                self.push(Op::Linear { x, weight, bias: None, out: squeezed });
                Some((squeezed, rank))
            }
            _ => {
                let weight = self.block(layer, "attn_q", rows, c.hidden, by_head)?;
                self.push(Op::Linear { x, weight, bias: None, out: q });
                None
            }
        };
        let all = latent.rank + latent.rope;
        for (first, rows, out) in [(0, latent.rank, part.latent), (latent.rank, latent.rope, key)] {
            let weight = self.rows_of(layer, "attn_kv_a_mqa", [first, rows, all], c.hidden)?;
            self.push(Op::Linear { x, weight, bias: None, out });
        }
        let chooses = latent.indexer.as_ref().filter(|indexer| indexer.full[layer]);
        if let (Some(indexer), Some(index)) = (chooses, &part.index) {
            self.index_write(layer, indexer, index, rope, x)?;
        }
        let weight = self.norm(layer, "attn_kv_a_norm", latent.rank)?;
        self.push(Op::RmsNorm { x: part.latent, weight, out: part.latent, eps: latent.eps });
        self.push(Op::Rope { x: key, head_dim: latent.rope, start: 0, rope });
        self.push(Op::LatentWrite { latent: part.latent, key, group, layer });
        if let Some((squeezed, rank)) = from {
            let weight = self.norm(layer, "attn_q_a_norm", rank)?;
            self.push(Op::RmsNorm { x: squeezed, weight, out: squeezed, eps: latent.eps });
            let weight = self.block(layer, "attn_q_b", rows, rank, by_head)?;
            self.push(Op::Linear { x: squeezed, weight, bias: None, out: q });
        }
        self.push(Op::Rope { x: q, head_dim, start: latent.nope, rope });
        if let (Some(indexer), Some(index)) = (chooses, &mut part.index) {
            // Without a squeezed query there is nothing to ask the index with.
            let from =
                from.ok_or_else(|| ModelError::MissingTensor { tensor: format!("blk.{layer}.attn_q_a.weight") })?;
            self.select(layer, indexer, index, rope, from)?;
            index.layers += 1;
        }
        // The block that drafts tokens does not share a choice: it would be that of another pass.
        let shares = layer < c.layers();
        let selected = part.index.as_ref().filter(|_| shares || chooses.is_some()).map(|index| index.selected);
        self.attend(layer, latent, part, selected)?;
        let cols = c.attention.heads * latent.value;
        let weight = self.block(layer, "attn_output", c.hidden, cols, Split::Cols { unit: latent.value })?;
        self.push(Op::Linear { x: part.out, weight, bias: None, out });
        Ok(())
    }

    /// Keys are always kept: a later token may choose among all positions.
    fn index_write(
        &mut self,
        layer: usize,
        indexer: &Indexer,
        index: &IndexPart,
        rope: RopeId,
        x: BufferId,
    ) -> Result<(), ModelError> {
        let hidden = self.config.hidden;
        let &IndexPart { key, weights, group, layers, .. } = index;
        let weight = self.index_tensor(layer, "indexer.attn_k", indexer.head_dim, hidden, indexer.top_k)?;
        self.push(Op::Linear { x, weight, bias: None, out: key });
        let weight = self.index_tensor(layer, "indexer.proj", indexer.heads, hidden, indexer.top_k)?;
        self.push(Op::Linear { x, weight, bias: None, out: weights });
        let weight = self.norm(layer, "indexer.k_norm", indexer.head_dim)?;
        let bias = self.bias(layer, "indexer.k_norm", 1, indexer.head_dim, Split::Replicate, true)?;
        let Some(bias) = bias else { unreachable!("a bias that must be") };
        self.push(Op::LayerNorm { x: key, weight, bias, out: key, eps: indexer.eps });
        self.push(Op::Rope { x: key, head_dim: indexer.head_dim, start: 0, rope });
        self.push(Op::IndexWrite { key, group, layer: layers });
        Ok(())
    }

    fn select(
        &mut self,
        layer: usize,
        indexer: &Indexer,
        index: &IndexPart,
        rope: RopeId,
        (squeezed, rank): (BufferId, usize),
    ) -> Result<(), ModelError> {
        let &IndexPart { q, weights, selected, group, layers, .. } = index;
        let &Indexer { heads, head_dim, top_k, .. } = indexer;
        let weight = self.index_tensor(layer, "indexer.attn_q_b", heads * head_dim, rank, top_k)?;
        self.push(Op::Linear { x: squeezed, weight, bias: None, out: q });
        self.push(Op::Rope { x: q, head_dim, start: 0, rope });
        self.push(Op::Select { q, weights, heads, group, layer: layers, out: selected });
        Ok(())
    }

    fn attend(
        &mut self,
        layer: usize,
        latent: &Latent,
        part: &LatentPart,
        selected: Option<BufferId>,
    ) -> Result<(), ModelError> {
        let &LatentPart { q, out, group, .. } = part;
        let (keys, values, keys_transposed) = self.key_and_value_matrices(layer, latent)?;
        let a = &self.config.attention;
        let heads = self.program.buffer(q).width / a.head_dim;
        let scale = a.scale;
        let op = Op::LatentAttention { q, keys, keys_transposed, values, selected, out, group, layer, heads, scale };
        self.push(op);
        Ok(())
    }

    /// What makes keys and values of latents: of their own, or, in older files, rows of one matrix.
    fn key_and_value_matrices(
        &mut self,
        layer: usize,
        latent: &Latent,
    ) -> Result<(WeightId, WeightId, bool), ModelError> {
        let &Latent { rank, nope, value, .. } = latent;
        let [key, both] = ["attn_k_b", "attn_kv_b"].map(|name| format!("blk.{layer}.{name}.weight"));
        if self.gguf.tensor(&key).is_none() && self.gguf.tensor(&both).is_some() {
            let rows = nope + value;
            let keys = self.head_matrices(&both, [nope, rank], Some((0, rows)))?;
            let values = self.head_matrices(&both, [value, rank], Some((nope, rows)))?;
            return Ok((keys, values, true));
        }
        let keys = self.head_matrices(&key, [rank, nope], None)?;
        let values = self.head_matrices(&format!("blk.{layer}.attn_v_b.weight"), [value, rank], None)?;
        Ok((keys, values, false))
    }

    /// A matrix of the indexer; where it is missing, there is something that the user can do.
    fn index_tensor(
        &mut self,
        layer: usize,
        name: &str,
        rows: usize,
        cols: usize,
        top_k: usize,
    ) -> Result<WeightId, ModelError> {
        self.block(layer, name, rows, cols, Split::Replicate).map_err(|error| match error {
            ModelError::MissingTensor { tensor } => ModelError::MissingIndexer { tensor, top_k },
            other => other,
        })
    }
}
