//! The block that drafts tokens: DeepSeek-V3's multi-token prediction, as GLM-4.5 and GLM-5 have it.
//!
//! `u = eh_proj · [enorm(embedding of the next token) | hnorm(hidden)]`, one transformer block over `u`, and its last
//! norm's result `g` makes the logits of the token after the next. `g` takes the hidden state's place, so that the pass
//! can go on from itself.

use super::{Builder, Head, Parts};
use crate::config::Block;
use crate::shard::Split;
use crate::{BufferId, ModelError, Op, Rows};

impl Builder<'_> {
    /// Its pass, over the trunk's own buffers; `hidden` is kept from step to step.
    pub(super) fn draft(
        &mut self,
        block: Block,
        parts: &mut Parts,
        hidden: BufferId,
        head: Head,
    ) -> Result<(), ModelError> {
        let trunk = self.program.ops.len();
        self.draft_ops(block, parts, hidden, head).map_err(|error| match error {
            ModelError::MissingTensor { tensor } | ModelError::MissingIndexer { tensor, .. } => {
                ModelError::MissingDraft { tensor }
            }
            other => other,
        })?;
        self.program.draft = self.program.ops.split_off(trunk);
        Ok(())
    }

    fn draft_ops(&mut self, block: Block, parts: &mut Parts, hidden: BufferId, head: Head) -> Result<(), ModelError> {
        let c = self.config;
        let (layer, eps) = (c.layers(), c.rms_eps);
        let name = |part: &str| format!("nextn.{part}");
        let own = |part: &str| format!("blk.{layer}.nextn.{part}");
        let previous = self.buffer("previous", Rows::Batch, c.hidden);
        let both = self.buffer("embedding and previous", Rows::Batch, 2 * c.hidden);
        // Where a file repeats the model's embedding and head for this block, they are its own.
        let of = |b: &Self, part: &str, model: &str| {
            let own = own(part);
            if b.gguf.tensor(&format!("{own}.weight")).is_some() { own } else { model.to_string() }
        };
        let table = of(self, "embed_tokens", "token_embd");
        let table = self.matrix(&table, c.vocabulary, c.hidden, Split::Replicate)?;
        self.push(Op::Embed { table, scale: c.embedding_scale, out: parts.residual });
        let weight = self.norm(layer, &name("enorm"), c.hidden)?;
        self.push(Op::RmsNorm { x: parts.residual, weight, out: parts.normed, eps });
        self.push(Op::PreviousRows { x: hidden, out: previous });
        let weight = self.norm(layer, &name("hnorm"), c.hidden)?;
        self.push(Op::RmsNorm { x: previous, weight, out: previous, eps });
        self.push(Op::Concat { first: parts.normed, second: previous, out: both });
        // Small beside the block's experts, and every rank needs all of what it makes.
        let weight = self.block(layer, &name("eh_proj"), c.hidden, 2 * c.hidden, Split::Replicate)?;
        self.push(Op::Linear { x: both, weight, bias: None, out: parts.residual });
        let weight = self.norm(layer, "attn_norm", c.hidden)?;
        self.push(Op::RmsNorm { x: parts.residual, weight, out: parts.normed, eps });
        let last = of(self, "shared_head_norm", "output_norm");
        self.transformer_block(layer, block, parts, &last, hidden)?;
        self.push(Op::GatherRows { x: hidden, out: head.picked });
        let own_head = own("shared_head_head");
        let weight = match self.gguf.tensor(&format!("{own_head}.weight")) {
            Some(_) => self.matrix(&own_head, c.vocabulary, c.hidden, Split::RowsUneven)?,
            None => head.weight,
        };
        self.draw(Head { weight, ..head });
        Ok(())
    }
}
