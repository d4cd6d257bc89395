//! Routed experts: the router, who holds which part of them, and the expert that all tokens use beside them.

use super::{Builder, DensePart, ExpertPart};
use crate::config::Experts;
use crate::shard::Split;
use crate::{BufferId, Element, ModelError, Op, Routes, Rows};

const SHARED: [&str; 3] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];

impl Builder<'_> {
    pub(super) fn expert_part(&mut self, layer: usize, experts: &Experts) -> Result<ExpertPart, ModelError> {
        Ok(ExpertPart {
            logits: self.buffer("router logits", Rows::Batch, experts.count),
            routes: Routes {
                experts: self.buffer_of("experts", Element::U32, Rows::Batch, experts.used),
                weights: self.buffer("expert weights", Rows::Batch, experts.used),
            },
            shared: self.shared_part(layer, experts)?,
        })
    }

    fn shared_part(&mut self, layer: usize, experts: &Experts) -> Result<Option<DensePart>, ModelError> {
        let Some(width) = experts.shared else { return Ok(None) };
        let splits = self.gated_splits(layer..self.config.layers_run(), SHARED[2], width);
        let width = self.held_rows(layer, SHARED[0], width, splits[0])?;
        Ok(Some(self.dense_part(width, splits)))
    }

    /// How the gated units of some layers are cut: evenly; where that would cut a block in any of them, and the model
    /// has experts, so that most of it is elsewhere, into parts of as many whole blocks as may be.
    pub(super) fn gated_splits(&self, layers: impl Iterator<Item = usize>, down: &str, width: usize) -> [Split; 2] {
        let blocks = layers.filter_map(|layer| self.gguf.tensor(&format!("blk.{layer}.{down}.weight")));
        let unit = blocks.map(|tensor| tensor.ty.block_len()).max().unwrap_or(1);
        let size = self.program.shard.size;
        let even = width.is_multiple_of(size) && (width / size).is_multiple_of(unit);
        if even || self.config.experts.is_none() {
            [Split::Rows { unit: 1 }, Split::Cols { unit: 1 }]
        } else {
            [Split::RowsNear { unit }, Split::ColsUneven { unit }]
        }
    }

    /// A router, the experts that it chooses, and the one beside them.
    pub(super) fn experts(
        &mut self,
        layer: usize,
        part: &ExpertPart,
        x: BufferId,
        out: BufferId,
    ) -> Result<(), ModelError> {
        let Some(e) = self.config.experts else { unreachable!("a block of experts in a model without") };
        if let (Some(width), Some(shared)) = (e.shared, &part.shared) {
            self.gated(layer, SHARED, width, shared, x, out)?;
        }
        let router = self.block(layer, "ffn_gate_inp", e.count, self.config.hidden, Split::Replicate)?;
        let bias = self.bias(layer, "ffn_gate_inp", 1, e.count, Split::Replicate, e.bias)?;
        self.push(Op::Linear { x, weight: router, bias, out: part.logits });
        let bias = self.bias(layer, "exp_probs_b", 1, e.count, Split::Replicate, e.choice_bias)?;
        self.push(Op::Route {
            logits: part.logits,
            gating: e.gating,
            bias,
            groups: e.groups,
            top_k: e.used,
            normalise: e.normalise,
            scale: e.scale,
            out: part.routes,
        });
        let whole = self.experts_stay_whole(layer, &e)?;
        let [gate, up] = self.expert_inputs(layer, &e, whole)?;
        let down = self.expert_output(layer, &e, whole)?;
        let activation = self.config.activation;
        let accumulate = part.shared.is_some();
        self.push(Op::Experts { x, routes: part.routes, gate, up, down, activation, out, accumulate });
        Ok(())
    }
}
