//! What flows between operations: which buffers and caches each reads and writes. Dependences are read off this.

use crate::{BufferId, GroupId, Op};

/// Something that operations hand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// Activations.
    Buffer(BufferId),
    /// A cache.
    Group(GroupId),
}

impl Op {
    /// What must have been written before. What is changed in place is read too.
    pub fn reads(&self) -> Vec<Flow> {
        let buffers: Vec<BufferId> = match *self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::Linear { x, .. } | Op::LayerNorm { x, .. } => vec![x],
            Op::Rope { x, .. } | Op::GatherRows { x, .. } | Op::Softcap { x, .. } => vec![x],
            Op::PreviousRows { x, .. } => vec![x],
            Op::Concat { first, second, .. } => vec![first, second],
            Op::KvWrite { k, v, .. } => vec![k, v],
            Op::LatentWrite { latent, key, .. } => vec![latent, key],
            Op::IndexWrite { key, .. } => vec![key],
            Op::Attention { q, .. } => vec![q],
            Op::Select { q, weights, .. } => vec![q, weights],
            Op::LatentAttention { q, selected, .. } => selected.into_iter().chain([q]).collect(),
            Op::GatedActivation { gate, up, .. } => vec![gate, up],
            Op::Route { logits, .. } => vec![logits],
            Op::Experts { x, routes, out, accumulate, .. } => {
                let sum = accumulate.then_some(out);
                [x, routes.experts, routes.weights].into_iter().chain(sum).collect()
            }
            Op::AllReduceAddNorm { partial, residual, .. } => vec![partial, residual],
            Op::Sample { logits } => vec![logits],
        };
        let cache = match *self {
            Op::Attention { group, .. } | Op::Select { group, .. } | Op::LatentAttention { group, .. } => Some(group),
            _ => None,
        };
        buffers.into_iter().map(Flow::Buffer).chain(cache.map(Flow::Group)).collect()
    }

    /// What it writes, in place or anew.
    pub fn writes(&self) -> Vec<Flow> {
        match *self {
            Op::Embed { out, .. }
            | Op::PreviousRows { out, .. }
            | Op::Concat { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::Attention { out, .. }
            | Op::Select { out, .. }
            | Op::LatentAttention { out, .. }
            | Op::GatedActivation { out, .. }
            | Op::Experts { out, .. }
            | Op::GatherRows { out, .. } => vec![Flow::Buffer(out)],
            Op::Rope { x, .. } | Op::Softcap { x, .. } => vec![Flow::Buffer(x)],
            Op::Route { out, .. } => vec![Flow::Buffer(out.experts), Flow::Buffer(out.weights)],
            Op::AllReduceAddNorm { residual, out, .. } => vec![Flow::Buffer(residual), Flow::Buffer(out)],
            Op::KvWrite { group, .. } | Op::LatentWrite { group, .. } | Op::IndexWrite { group, .. } => {
                vec![Flow::Group(group)]
            }
            Op::Sample { .. } => vec![],
        }
    }
}
