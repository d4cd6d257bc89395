//! From the names of an architecture's tensors to weights: fused tensors are taken apart, biases go where their sums
//! are made. What is computed with them is not decided here.

use super::Builder;
use crate::config::Experts;
use crate::shard::{Split, Wanted, weight};
use crate::{ExpertMatrix, ModelError, Shard, Weight, WeightId};

impl Builder<'_> {
    /// A matrix of no block.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        split: Split,
    ) -> Result<WeightId, ModelError> {
        let name = format!("{name}.weight");
        let found = self.find(&Wanted { name: &name, count: 1, rows, cols, part: None, split })?;
        Ok(self.hold(found))
    }

    /// A matrix of a block.
    pub(super) fn block(
        &mut self,
        layer: usize,
        name: &str,
        rows: usize,
        cols: usize,
        split: Split,
    ) -> Result<WeightId, ModelError> {
        self.matrix(&format!("blk.{layer}.{name}"), rows, cols, split)
    }

    pub(super) fn norm(&mut self, layer: usize, name: &str, width: usize) -> Result<WeightId, ModelError> {
        self.block(layer, name, 1, width, Split::Replicate)
    }

    pub(super) fn norm_if_any(&mut self, layer: usize, name: Option<&str>) -> Result<Option<WeightId>, ModelError> {
        name.map(|name| self.norm(layer, name, self.config.hidden)).transpose()
    }

    /// The matrices of q, k and v, from tensors of their own or from one that holds all three.
    pub(super) fn projections(&mut self, layer: usize) -> Result<[Weight; 3], ModelError> {
        let a = &self.config.attention;
        let (q_rows, kv_rows, unit) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.head_dim);
        let all = q_rows + 2 * kv_rows;
        let fused = format!("blk.{layer}.attn_qkv.weight");
        let is_fused = self.gguf.tensor(&fused).is_some();
        let mut find = |name: &str, rows: usize, first: usize, split: Split| {
            let own = format!("blk.{layer}.{name}.weight");
            let (name, part) = if is_fused { (&fused, Some((first, all))) } else { (&own, None) };
            self.find(&Wanted { name, count: 1, rows, cols: self.config.hidden, part, split })
        };
        let by_kv_head = Split::RowsReplicated { unit };
        Ok([
            find("attn_q", q_rows, 0, Split::Rows { unit })?,
            find("attn_k", kv_rows, q_rows, by_kv_head)?,
            find("attn_v", kv_rows, q_rows + kv_rows, by_kv_head)?,
        ])
    }

    /// The bias of a projection: the same part of the tensor beside its matrix.
    pub(super) fn projection_bias(&mut self, of: &Weight, must: bool) -> Result<Option<WeightId>, ModelError> {
        let name = of.tensor.replace(".weight", ".bias");
        if self.gguf.tensor(&name).is_none() && !must {
            return Ok(None);
        }
        let whole = Wanted { name: &name, count: 1, rows: of.file_rows, cols: 1, part: None, split: Split::Replicate };
        let found = self.find(&whole)?;
        Ok(Some(self.hold(Weight { rows: of.rows, slice: of.slice, ..found })))
    }

    /// A bias for every row of `count` matrices.
    pub(super) fn bias(
        &mut self,
        layer: usize,
        name: &str,
        count: usize,
        rows: usize,
        split: Split,
        must: bool,
    ) -> Result<Option<WeightId>, ModelError> {
        let name = format!("blk.{layer}.{name}.bias");
        if self.gguf.tensor(&name).is_none() && !must {
            return Ok(None);
        }
        let found = self.find(&Wanted { name: &name, count, rows, cols: 1, part: None, split })?;
        Ok(Some(self.hold(found)))
    }

    /// The bias of a sum that the ranks have parts of: rank 0 adds it.
    pub(super) fn bias_of_sum(&mut self, layer: usize, name: &str, must: bool) -> Result<Option<WeightId>, ModelError> {
        self.bias_on_rank_0(layer, name, 1, must)
    }

    fn bias_on_rank_0(
        &mut self,
        layer: usize,
        name: &str,
        count: usize,
        must: bool,
    ) -> Result<Option<WeightId>, ModelError> {
        let held = self.program.weights.len();
        let bias = self.bias(layer, name, count, self.config.hidden, Split::Replicate, must)?;
        if self.program.shard.rank == 0 {
            return Ok(bias);
        }
        self.program.weights.truncate(held);
        Ok(None)
    }

    /// One value per query head.
    pub(super) fn sinks(&mut self, layer: usize) -> Result<WeightId, ModelError> {
        let name = format!("blk.{layer}.attn_sinks.weight");
        let (rows, split) = (self.config.attention.heads, Split::Rows { unit: 1 });
        let found = self.find(&Wanted { name: &name, count: 1, rows, cols: 1, part: None, split })?;
        Ok(self.hold(found))
    }

    /// Gates and ups of all experts, from tensors of their own or from one in which the ups follow the gates.
    pub(super) fn expert_inputs(
        &mut self,
        layer: usize,
        e: &Experts,
        whole: bool,
    ) -> Result<[ExpertMatrix; 2], ModelError> {
        let fused = format!("blk.{layer}.ffn_gate_up_exps.weight");
        let is_fused = self.gguf.tensor(&fused).is_some();
        let split = if whole { Split::Matrices } else { Split::Rows { unit: 1 } };
        let (count, rows, cols) = (e.count, e.width, self.config.hidden);
        let mut matrices = Vec::with_capacity(2);
        for (name, first) in [("ffn_gate_exps", 0), ("ffn_up_exps", rows)] {
            let own = format!("blk.{layer}.{name}.weight");
            let (tensor, part) = if is_fused { (&fused, Some((first, 2 * rows))) } else { (&own, None) };
            let found = self.find(&Wanted { name: tensor, count, rows, cols, part, split })?;
            let weight = self.hold(found);
            let bias = self.bias(layer, name, count, rows, split, e.bias)?;
            matrices.push(ExpertMatrix { weight, bias });
        }
        Ok([matrices[0], matrices[1]])
    }

    /// What brings all experts' results back to the width of the residual stream.
    pub(super) fn expert_output(&mut self, layer: usize, e: &Experts, whole: bool) -> Result<ExpertMatrix, ModelError> {
        let name = format!("blk.{layer}.ffn_down_exps.weight");
        let split = if whole { Split::Matrices } else { Split::Cols { unit: 1 } };
        let rows = self.config.hidden;
        let found = self.find(&Wanted { name: &name, count: e.count, rows, cols: e.width, part: None, split })?;
        let weight = self.hold(found);
        let bias = match whole {
            true => self.bias(layer, "ffn_down_exps", e.count, rows, split, e.bias)?,
            false => self.bias_on_rank_0(layer, "ffn_down_exps", e.count, e.bias)?,
        };
        Ok(ExpertMatrix { weight, bias })
    }

    /// Whether a layer's experts are shared out whole, because cutting each of them would cut a block.
    pub(super) fn experts_stay_whole(&self, layer: usize, e: &Experts) -> Result<bool, ModelError> {
        let name = format!("blk.{layer}.ffn_down_exps.weight");
        let (rows, cols, split) = (self.config.hidden, e.width, Split::Cols { unit: 1 });
        let wanted = Wanted { name: &name, count: e.count, rows, cols, part: None, split };
        match weight(self.gguf, &wanted, self.shard()) {
            Err(ModelError::IllegalSplit { .. }) => Ok(true),
            other => other.map(|_| false),
        }
    }

    /// A matrix for every query head of this rank, which may be a part of a larger one's rows.
    pub(super) fn head_matrices(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        part: Option<(usize, usize)>,
    ) -> Result<WeightId, ModelError> {
        let (count, split) = (self.config.attention.heads, Split::Matrices);
        let found = self.find(&Wanted { name, count, rows, cols, part, split })?;
        Ok(self.hold(found))
    }

    /// Some rows of a matrix that every rank holds.
    pub(super) fn rows_of(
        &mut self,
        layer: usize,
        name: &str,
        [first, rows, all]: [usize; 3],
        cols: usize,
    ) -> Result<WeightId, ModelError> {
        let name = format!("blk.{layer}.{name}.weight");
        let part = Some((first, all));
        let found = self.find(&Wanted { name: &name, count: 1, rows, cols, part, split: Split::Replicate })?;
        Ok(self.hold(found))
    }

    /// Rows that this rank will hold of a matrix of a block.
    pub(super) fn held_rows(&self, layer: usize, name: &str, rows: usize, split: Split) -> Result<usize, ModelError> {
        let name = format!("blk.{layer}.{name}.weight");
        let wanted = Wanted { name: &name, count: 1, rows, cols: self.config.hidden, part: None, split };
        Ok(weight(self.gguf, &wanted, self.shard())?.rows)
    }

    /// A tensor of the file, cut for this rank; it counts as used.
    fn find(&mut self, wanted: &Wanted) -> Result<Weight, ModelError> {
        let found = weight(self.gguf, wanted, self.shard())?;
        self.used.insert(wanted.name.to_string());
        Ok(found)
    }

    /// Puts a weight on the program's list. The embedding cut the same way is held once.
    pub(super) fn hold(&mut self, weight: Weight) -> WeightId {
        let weights = &mut self.program.weights;
        let is_embedding = weight.tensor == "token_embd.weight";
        let same = is_embedding.then(|| weights.iter().position(|w| *w == weight)).flatten();
        let index = same.unwrap_or_else(|| {
            weights.push(weight);
            weights.len() - 1
        });
        WeightId(index as u32)
    }

    fn shard(&self) -> Shard {
        self.program.shard
    }
}
