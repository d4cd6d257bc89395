//! `qwen3moe`: grouped-query attention, and routed experts in every block.

use super::Blueprint;
use tombolo_gguf::TensorType;

/// A `qwen3moe` model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QwenMoe {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Transformer blocks.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Values per head.
    pub head_dim: u64,
    /// Experts of a block.
    pub experts: u64,
    /// Experts of a token.
    pub used: u64,
    /// Width of an expert.
    pub expert_feed_forward: u64,
    /// Tokens.
    pub vocabulary: u64,
    /// Context that it declares.
    pub context: u32,
    /// Type of the matrices.
    pub ty: TensorType,
    /// Type of the output matrix and of every other block's attn_v and ffn_down_exps.
    pub large_ty: TensorType,
}

impl QwenMoe {
    /// Qwen3-30B-A3B's shape.
    pub const QWEN3_30B_A3B: Self = Self {
        hidden: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        experts: 128,
        used: 8,
        expert_feed_forward: 768,
        vocabulary: 151_936,
        context: 40_960,
        ty: TensorType::Q4_K,
        large_ty: TensorType::Q6_K,
    };

    /// The model's header.
    pub fn blueprint(&self) -> Blueprint {
        let mut b = Blueprint::default();
        self.metadata(&mut b);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        b.tensor("token_embd.weight", &[self.hidden, self.vocabulary], self.ty);
        b.tensor("output_norm.weight", &[self.hidden], TensorType::F32);
        b.tensor("output.weight", &[self.hidden, self.vocabulary], self.large_ty);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let large = if layer % 2 == 1 { self.large_ty } else { self.ty };
            let (wide, count) = (self.expert_feed_forward, self.experts);
            b.tensor(name("attn_norm"), &[self.hidden], TensorType::F32);
            b.tensor(name("attn_q"), &[self.hidden, q], self.ty);
            b.tensor(name("attn_k"), &[self.hidden, kv], self.ty);
            b.tensor(name("attn_v"), &[self.hidden, kv], large);
            b.tensor(name("attn_q_norm"), &[self.head_dim], TensorType::F32);
            b.tensor(name("attn_k_norm"), &[self.head_dim], TensorType::F32);
            b.tensor(name("attn_output"), &[q, self.hidden], self.ty);
            b.tensor(name("ffn_norm"), &[self.hidden], TensorType::F32);
            b.tensor(name("ffn_gate_inp"), &[self.hidden, count], TensorType::F32);
            b.tensor(name("ffn_gate_exps"), &[self.hidden, wide, count], self.ty);
            b.tensor(name("ffn_up_exps"), &[self.hidden, wide, count], self.ty);
            b.tensor(name("ffn_down_exps"), &[wide, self.hidden, count], large);
        }
        b
    }

    fn metadata(&self, b: &mut Blueprint) {
        b.key("general.architecture", "qwen3moe");
        b.key("general.name", format!("synthetic qwen3moe, {} layers of {}", self.layers, self.hidden));
        let counts = [
            ("block_count", self.layers),
            ("context_length", u64::from(self.context)),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.expert_feed_forward * self.used),
            ("expert_feed_forward_length", self.expert_feed_forward),
            ("expert_count", self.experts),
            ("expert_used_count", self.used),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("vocab_size", self.vocabulary),
        ];
        for (key, count) in counts {
            b.key(&format!("qwen3moe.{key}"), count as u32);
        }
        b.key("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f32);
        b.key("qwen3moe.rope.freq_base", 1_000_000f32);
    }
}
