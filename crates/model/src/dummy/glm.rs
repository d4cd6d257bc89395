//! `glm-dsa` (GLM-5): latent attention with an indexer, and routed experts beside a shared one. Names, shapes and types
//! are those of the published conversions: experts in one type, norms, router and the indexer's head weights in F32, all
//! other matrices in another type.

use super::Blueprint;
use tombolo_gguf::TensorType;

/// A `glm-dsa` model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glm {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Transformer blocks, without the one that drafts.
    pub layers: u64,
    /// Leading blocks with a dense feed-forward part.
    pub dense_layers: u64,
    /// One block more, which drafts the token after the next (multi-token prediction).
    pub drafts: bool,
    /// Query heads.
    pub heads: u64,
    /// Rank of the queries' factors.
    pub q_rank: u64,
    /// Values of a latent.
    pub kv_rank: u64,
    /// Values of a head without rotation.
    pub nope: u64,
    /// Values that are rotated.
    pub rope: u64,
    /// Values of a head's result.
    pub value: u64,
    /// Heads of the indexer.
    pub index_heads: u64,
    /// Values of each.
    pub index_dim: u64,
    /// Positions that the indexer chooses.
    pub top_k: u64,
    /// Width of a dense feed-forward part.
    pub feed_forward: u64,
    /// Routed experts of a block.
    pub experts: u64,
    /// Experts of a token.
    pub used: u64,
    /// Width of an expert.
    pub expert_feed_forward: u64,
    /// Tokens.
    pub vocabulary: u64,
    /// Context that it declares.
    pub context: u32,
    /// Type of the routed experts.
    pub expert_ty: TensorType,
    /// Type of the other matrices.
    pub ty: TensorType,
}

impl Glm {
    /// GLM-5, 754 billion parameters: attention, shared and dense parts in Q8_0, experts in Q4_K.
    pub const GLM_5: Self = Self {
        hidden: 6144,
        layers: 78,
        dense_layers: 3,
        drafts: true,
        heads: 64,
        q_rank: 2048,
        kv_rank: 512,
        nope: 192,
        rope: 64,
        value: 256,
        index_heads: 32,
        index_dim: 128,
        top_k: 2048,
        feed_forward: 12288,
        experts: 256,
        used: 8,
        expert_feed_forward: 2048,
        vocabulary: 154_880,
        context: 202_752,
        expert_ty: TensorType::Q4_K,
        ty: TensorType::Q8_0,
    };

    /// What one of eight ranks holds of [`Glm::GLM_5`], as a model of its own.
    pub const GLM_5_RANK_OF_8: Self = Self {
        drafts: false,
        heads: 8,
        feed_forward: 1536,
        expert_feed_forward: 256,
        vocabulary: 19_360,
        ..Self::GLM_5
    };

    /// The model's header.
    pub fn blueprint(&self) -> Blueprint {
        let mut b = Blueprint::default();
        self.metadata(&mut b);
        b.tensor("token_embd.weight", &[self.hidden, self.vocabulary], self.ty);
        b.tensor("output_norm.weight", &[self.hidden], TensorType::F32);
        b.tensor("output.weight", &[self.hidden, self.vocabulary], self.ty);
        for layer in 0..self.layers + u64::from(self.drafts) {
            self.attention(&mut b, layer);
            if layer < self.dense_layers {
                self.feed_forward(&mut b, layer, "", self.feed_forward);
            } else {
                self.experts(&mut b, layer);
            }
        }
        if self.drafts {
            let name = |part: &str| format!("blk.{}.nextn.{part}.weight", self.layers);
            b.tensor(name("eh_proj"), &[2 * self.hidden, self.hidden], self.ty);
            for part in ["enorm", "hnorm", "shared_head_norm"] {
                b.tensor(name(part), &[self.hidden], TensorType::F32);
            }
        }
        b
    }

    fn attention(&self, b: &mut Blueprint, layer: u64) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let norm = TensorType::F32;
        b.tensor(name("attn_norm"), &[self.hidden], norm);
        b.tensor(name("attn_q_a"), &[self.hidden, self.q_rank], self.ty);
        b.tensor(name("attn_q_a_norm"), &[self.q_rank], norm);
        b.tensor(name("attn_q_b"), &[self.q_rank, self.heads * (self.nope + self.rope)], self.ty);
        b.tensor(name("attn_kv_a_mqa"), &[self.hidden, self.kv_rank + self.rope], self.ty);
        b.tensor(name("attn_kv_a_norm"), &[self.kv_rank], norm);
        b.tensor(name("attn_k_b"), &[self.nope, self.kv_rank, self.heads], self.ty);
        b.tensor(name("attn_v_b"), &[self.kv_rank, self.value, self.heads], self.ty);
        b.tensor(name("attn_output"), &[self.heads * self.value, self.hidden], self.ty);
        b.tensor(name("indexer.attn_q_b"), &[self.q_rank, self.index_heads * self.index_dim], self.ty);
        b.tensor(name("indexer.attn_k"), &[self.hidden, self.index_dim], self.ty);
        b.tensor(name("indexer.k_norm"), &[self.index_dim], norm);
        b.tensor(format!("blk.{layer}.indexer.k_norm.bias"), &[self.index_dim], norm);
        b.tensor(name("indexer.proj"), &[self.hidden, self.index_heads], TensorType::F32);
        b.tensor(name("ffn_norm"), &[self.hidden], norm);
    }

    /// A gated feed-forward part; `kind` is the end of its tensors' names.
    fn feed_forward(&self, b: &mut Blueprint, layer: u64, kind: &str, width: u64) {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{kind}.weight");
        b.tensor(name("gate"), &[self.hidden, width], self.ty);
        b.tensor(name("up"), &[self.hidden, width], self.ty);
        b.tensor(name("down"), &[width, self.hidden], self.ty);
    }

    fn experts(&self, b: &mut Blueprint, layer: u64) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (wide, count) = (self.expert_feed_forward, self.experts);
        b.tensor(name("ffn_gate_inp"), &[self.hidden, count], TensorType::F32);
        b.tensor(format!("blk.{layer}.exp_probs_b.bias"), &[count], TensorType::F32);
        b.tensor(name("ffn_gate_exps"), &[self.hidden, wide, count], self.expert_ty);
        b.tensor(name("ffn_up_exps"), &[self.hidden, wide, count], self.expert_ty);
        b.tensor(name("ffn_down_exps"), &[wide, self.hidden, count], self.expert_ty);
        self.feed_forward(b, layer, "_shexp", wide);
    }

    fn metadata(&self, b: &mut Blueprint) {
        b.key("general.architecture", "glm-dsa");
        b.key("general.name", format!("synthetic glm-dsa, {} layers of {}", self.layers, self.hidden));
        let counts = [
            ("block_count", self.layers + u64::from(self.drafts)),
            ("nextn_predict_layers", u64::from(self.drafts)),
            ("context_length", u64::from(self.context)),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("vocab_size", self.vocabulary),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", 1),
            ("attention.key_length", self.kv_rank + self.rope),
            ("attention.value_length", self.kv_rank),
            ("attention.key_length_mla", self.nope + self.rope),
            ("attention.value_length_mla", self.value),
            ("attention.q_lora_rank", self.q_rank),
            ("attention.kv_lora_rank", self.kv_rank),
            ("rope.dimension_count", self.rope),
            ("attention.indexer.head_count", self.index_heads),
            ("attention.indexer.key_length", self.index_dim),
            ("attention.indexer.top_k", self.top_k),
            ("expert_count", self.experts),
            ("expert_used_count", self.used),
            ("expert_shared_count", 1),
            ("expert_feed_forward_length", self.expert_feed_forward),
            ("leading_dense_block_count", self.dense_layers),
            ("expert_gating_func", 2),
            ("expert_group_count", 1),
            ("expert_group_used_count", 1),
        ];
        for (key, count) in counts {
            b.key(&format!("glm-dsa.{key}"), count as u32);
        }
        b.key("glm-dsa.attention.layer_norm_rms_epsilon", 1e-5f32);
        b.key("glm-dsa.rope.freq_base", 1_000_000f32);
        b.key("glm-dsa.expert_weights_norm", true);
        b.key("glm-dsa.expert_weights_scale", 2.5f32);
    }
}
