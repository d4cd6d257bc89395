//! Dense models: grouped-query attention and a gated feed-forward part.

use super::Blueprint;
use tombolo_gguf::TensorType;

/// The dense families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `llama`.
    Llama,
    /// `qwen3`.
    Qwen3,
}

/// A dense model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Architecture.
    pub family: Family,
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
    /// Width of the feed-forward part.
    pub feed_forward: u64,
    /// Tokens.
    pub vocabulary: u64,
    /// Context that it declares.
    pub context: u32,
    /// No output matrix: the embedding serves as one.
    pub tied: bool,
    /// Type of the matrices.
    pub ty: TensorType,
    /// Type of the output matrix and of every other block's attn_v and ffn_down.
    pub large_ty: TensorType,
}

impl Dense {
    /// Llama-3-8B's shape.
    pub const LLAMA_8B: Self = Self {
        family: Family::Llama,
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 14336,
        vocabulary: 128_256,
        context: 8192,
        tied: false,
        ty: TensorType::Q4_K,
        large_ty: TensorType::Q6_K,
    };

    /// Llama-3.2-1B's shape, with an output matrix of its own.
    pub const LLAMA_1B: Self = Self { hidden: 2048, layers: 16, head_dim: 64, feed_forward: 8192, ..Self::LLAMA_8B };

    /// Qwen3-8B's shape.
    pub const QWEN3_8B: Self =
        Self { family: Family::Qwen3, layers: 36, feed_forward: 12288, vocabulary: 151_936, ..Self::LLAMA_8B };

    /// Qwen3-1.7B's shape, with an output matrix of its own.
    pub const QWEN3_1B: Self = Self { hidden: 2048, layers: 28, heads: 16, feed_forward: 6144, ..Self::QWEN3_8B };

    /// A megabyte.
    pub const TINY: Self = Self {
        hidden: 256,
        layers: 2,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        feed_forward: 512,
        vocabulary: 512,
        ..Self::LLAMA_8B
    };

    /// The model's header.
    pub fn blueprint(&self) -> Blueprint {
        let mut b = Blueprint::default();
        self.metadata(&mut b);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        b.tensor("token_embd.weight", &[self.hidden, self.vocabulary], self.ty);
        b.tensor("output_norm.weight", &[self.hidden], TensorType::F32);
        if !self.tied {
            b.tensor("output.weight", &[self.hidden, self.vocabulary], self.large_ty);
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let large = if layer % 2 == 1 { self.large_ty } else { self.ty };
            b.tensor(name("attn_norm"), &[self.hidden], TensorType::F32);
            b.tensor(name("attn_q"), &[self.hidden, q], self.ty);
            b.tensor(name("attn_k"), &[self.hidden, kv], self.ty);
            b.tensor(name("attn_v"), &[self.hidden, kv], large);
            if self.family == Family::Qwen3 {
                b.tensor(name("attn_q_norm"), &[self.head_dim], TensorType::F32);
                b.tensor(name("attn_k_norm"), &[self.head_dim], TensorType::F32);
            }
            b.tensor(name("attn_output"), &[q, self.hidden], self.ty);
            b.tensor(name("ffn_norm"), &[self.hidden], TensorType::F32);
            b.tensor(name("ffn_gate"), &[self.hidden, self.feed_forward], self.ty);
            b.tensor(name("ffn_up"), &[self.hidden, self.feed_forward], self.ty);
            b.tensor(name("ffn_down"), &[self.feed_forward, self.hidden], large);
        }
        b
    }

    fn metadata(&self, b: &mut Blueprint) {
        let (arch, eps, theta) = match self.family {
            Family::Llama => ("llama", 1e-5f32, 500_000f32),
            Family::Qwen3 => ("qwen3", 1e-6, 1_000_000.0),
        };
        b.key("general.architecture", arch);
        b.key("general.name", format!("synthetic {arch}, {} layers of {}", self.layers, self.hidden));
        let counts = [
            ("block_count", self.layers),
            ("context_length", u64::from(self.context)),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("vocab_size", self.vocabulary),
        ];
        for (key, count) in counts {
            b.key(&format!("{arch}.{key}"), count as u32);
        }
        b.key(&format!("{arch}.attention.layer_norm_rms_epsilon"), eps);
        b.key(&format!("{arch}.rope.freq_base"), theta);
    }
}
