//! The architectures: what each name in `general.architecture` means beyond what a file's metadata say.
//!
//! Data only. To add one, add a row; what it computes that no other does goes into the builder, for all of them.

use super::rope::RopeRule;
use super::{Norms, Scale, Windows};
use crate::{Activation, Gating, RopeStyle};

/// An architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) rope: RopeRule,
    /// Queries and keys are normed per head. `None`: where the file has the weights.
    pub(super) qk_norm: Option<bool>,
    /// Biases of q, k and v: must be there. Elsewhere they are used where a file has them.
    pub(super) qkv_bias: bool,
    /// The same of the experts, their router, and the attention's output.
    pub(super) expert_bias: bool,
    /// Every head has a sink.
    pub(super) sinks: bool,
    pub(super) scale: Scale,
    pub(super) norms: Norms,
    pub(super) activation: Activation,
    /// Embeddings are multiplied by the square root of their width.
    pub(super) scaled_embedding: bool,
    /// Layers with a window, where the architecture has them.
    pub(super) windows: Option<Windows>,
    /// `None`: it has no experts.
    pub(super) experts: Option<ExpertRule>,
    /// Attention over latents.
    pub(super) latent: bool,
    /// An indexer chooses what they are attended to.
    pub(super) indexer: bool,
    /// Keys that are computed here and in few other architectures: elsewhere they are refused.
    pub(super) computes: &'static [&'static str],
}

/// What an architecture's experts are, where the file does not say.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertRule {
    pub(super) gating: Gating,
    /// The weights of the chosen are normalised.
    pub(super) normalise: bool,
    /// There is no model without experts.
    pub(super) always: bool,
    /// Choices have a bias.
    pub(super) choice_bias: bool,
    /// There may be an expert that all tokens use.
    pub(super) shared: bool,
}

const INTERLEAVED: RopeRule = RopeRule { style: RopeStyle::Interleaved, whole_ramp: true };
const HALF_SPLIT: RopeRule = RopeRule { style: RopeStyle::HalfSplit, whole_ramp: true };

/// A pre-norm transformer with SwiGLU, as llama files have it; experts as Mixtral has them.
const LLAMA: Family = Family {
    name: "llama",
    rope: INTERLEAVED,
    qk_norm: Some(false),
    qkv_bias: false,
    expert_bias: false,
    sinks: false,
    scale: Scale::HeadDim,
    norms: Norms { after_attention: None, before_feed_forward: "ffn_norm", after_feed_forward: None },
    activation: Activation::Silu,
    scaled_embedding: false,
    windows: None,
    experts: Some(SOFTMAX),
    latent: false,
    indexer: false,
    computes: &[],
};

const SOFTMAX: ExpertRule =
    ExpertRule { gating: Gating::Softmax, normalise: true, always: false, choice_bias: false, shared: false };

/// As DeepSeek-V3 has them, and GLM after it.
const SIGMOID: ExpertRule =
    ExpertRule { gating: Gating::Sigmoid, normalise: false, always: true, choice_bias: true, shared: true };

/// DeepSeek-V2 without what came later.
const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    experts: Some(ExpertRule { normalise: false, always: true, shared: true, ..SOFTMAX }),
    latent: true,
    computes: &["expert_shared_count", "nextn_predict_layers", "rope.scaling.yarn_log_multiplier"],
    ..LLAMA
};

/// Architectures whose names or files look like those of others that run, and why they are not the same.
pub(super) const RELATIVES: [(&str, &str); 7] = [
    ("glm5next", "GLM-5.3-Flash mixes linear attention with sparse attention, which GLM-5 does not"),
    ("glm5-next", "GLM-5.3-Flash mixes linear attention with sparse attention, which GLM-5 does not"),
    ("deepseek32", "DeepSeek-V3.2 files are not computed here; glm-dsa and deepseek2 files are"),
    ("deepseek4", "DeepSeek-V4 attends otherwise than V3 does; deepseek2 files are computed"),
    ("kimi-linear", "Kimi-Linear mixes linear attention with latent attention; Kimi-K2's deepseek2 files are computed"),
    ("glm4", "dense GLM-4 has norms after attention and feed-forward; glm4moe files are computed"),
    ("deepseek", "the first DeepSeek MoE has no latent attention; deepseek2 files are computed"),
];

/// All architectures that the program builder knows.
pub(super) const FAMILIES: [Family; 9] = [
    LLAMA,
    Family { name: "qwen2", rope: HALF_SPLIT, qkv_bias: true, experts: None, ..LLAMA },
    Family { name: "qwen3", rope: HALF_SPLIT, qk_norm: Some(true), experts: None, ..LLAMA },
    Family {
        name: "qwen3moe",
        rope: HALF_SPLIT,
        qk_norm: Some(true),
        experts: Some(ExpertRule { always: true, ..SOFTMAX }),
        ..LLAMA
    },
    Family {
        name: "gemma3",
        rope: HALF_SPLIT,
        qk_norm: Some(true),
        scale: Scale::Gemma3,
        norms: Norms {
            after_attention: Some("post_attention_norm"),
            before_feed_forward: "ffn_norm",
            after_feed_forward: Some("post_ffw_norm"),
        },
        activation: Activation::GeluTanh,
        scaled_embedding: true,
        windows: Some(Windows { period: 6, theta: Some(10_000.0) }),
        experts: None,
        ..LLAMA
    },
    Family {
        name: "gpt-oss",
        rope: RopeRule { style: RopeStyle::HalfSplit, whole_ramp: false },
        qkv_bias: true,
        expert_bias: true,
        sinks: true,
        norms: Norms { before_feed_forward: "post_attention_norm", ..LLAMA.norms },
        activation: Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
        windows: Some(Windows { period: 2, theta: None }),
        experts: Some(ExpertRule { gating: Gating::SoftmaxSelected, normalise: false, always: true, ..SOFTMAX }),
        ..LLAMA
    },
    DEEPSEEK2,
    Family { name: "glm-dsa", experts: Some(SIGMOID), indexer: true, ..DEEPSEEK2 },
    Family {
        name: "glm4moe",
        rope: HALF_SPLIT,
        qk_norm: None,
        qkv_bias: true,
        norms: Norms { before_feed_forward: "post_attention_norm", ..LLAMA.norms },
        experts: Some(SIGMOID),
        computes: &["expert_shared_count", "nextn_predict_layers"],
        ..LLAMA
    },
];

impl Family {
    /// By the name in a file.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }
}
