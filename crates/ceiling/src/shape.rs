//! Models without a file: named ones, and those that a Hugging Face `config.json` describes, as the header of the GGUF
//! file that a recipe would make of them.

use serde_json::Value;
use tombolo_gguf::TensorType;
use tombolo_model::dummy::{Blueprint, DeepSeek, Dense, Family, Glm, QwenMoe};

/// Which types a conversion gives to which tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// As people write it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    ty: TensorType,
    /// Routed experts.
    experts: TensorType,
    /// Output, and every other attn_v and ffn_down, of models without latent attention.
    large: TensorType,
}

/// All recipes.
pub const RECIPES: [Recipe; 5] = [
    Recipe {
        name: "ud-q4_k_xl",
        about: "experts Q4_K, all other matrices Q8_0, norms and routers F32",
        ty: TensorType::Q8_0,
        experts: TensorType::Q4_K,
        large: TensorType::Q8_0,
    },
    Recipe {
        name: "q4_k_m",
        about: "Q4_K, output and half of attn_v and ffn_down Q6_K",
        ty: TensorType::Q4_K,
        experts: TensorType::Q4_K,
        large: TensorType::Q6_K,
    },
    Recipe {
        name: "q8_0",
        about: "all matrices Q8_0",
        ty: TensorType::Q8_0,
        experts: TensorType::Q8_0,
        large: TensorType::Q8_0,
    },
    Recipe {
        name: "bf16",
        about: "all matrices BF16",
        ty: TensorType::BF16,
        experts: TensorType::BF16,
        large: TensorType::BF16,
    },
    Recipe {
        name: "bf16-q4",
        about: "experts in 4.5 bits (Q4_K; NVFP4 has as many bytes), all other matrices BF16",
        ty: TensorType::BF16,
        experts: TensorType::Q4_K,
        large: TensorType::BF16,
    },
];

/// Why there is no such model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ShapeError {
    #[error("is not JSON: {why}")]
    NotJson { why: String },
    #[error("has no '{key}', or no whole number there from 1 to {most}")]
    BadCount { key: &'static str, most: u64 },
    #[error("model_type '{model_type}' is not known; known are: {known}")]
    UnknownType { model_type: String, known: String },
}

/// A named model.
pub struct Named {
    /// As people write it.
    pub name: &'static str,
    /// Its usual recipe.
    pub recipe: &'static str,
    shape: Shape,
}

#[derive(Clone, Copy)]
enum Shape {
    Dense(Dense),
    QwenMoe(QwenMoe),
    Glm(Glm),
    DeepSeek(DeepSeek),
}

/// All named models. GLM-5.2 is GLM-5 whose layers share the indexer's choices, as its longer context tells the reader.
pub const NAMED: [Named; 7] = [
    Named { name: "GLM-5", recipe: "ud-q4_k_xl", shape: Shape::Glm(Glm::GLM_5) },
    Named { name: "GLM-5.2", recipe: "ud-q4_k_xl", shape: Shape::Glm(Glm { context: 1 << 20, ..Glm::GLM_5 }) },
    Named { name: "DeepSeek-V3", recipe: "ud-q4_k_xl", shape: Shape::DeepSeek(DeepSeek::V3) },
    Named { name: "Kimi-K2", recipe: "ud-q4_k_xl", shape: Shape::DeepSeek(DeepSeek::KIMI_K2) },
    Named { name: "Qwen3-235B", recipe: "q4_k_m", shape: Shape::QwenMoe(QWEN3_235B) },
    Named { name: "Qwen3-30B-A3B", recipe: "q4_k_m", shape: Shape::QwenMoe(QwenMoe::QWEN3_30B_A3B) },
    Named { name: "Llama-70B", recipe: "q4_k_m", shape: Shape::Dense(LLAMA_70B) },
];

const QWEN3_235B: QwenMoe =
    QwenMoe { hidden: 4096, layers: 94, heads: 64, expert_feed_forward: 1536, ..QwenMoe::QWEN3_30B_A3B };

const LLAMA_70B: Dense =
    Dense { hidden: 8192, layers: 80, heads: 64, feed_forward: 28672, context: 131_072, ..Dense::LLAMA_8B };

/// The recipe of that name.
pub fn recipe(name: &str) -> Option<Recipe> {
    RECIPES.into_iter().find(|r| r.name.eq_ignore_ascii_case(name))
}

/// The named model of that name, however it is written: `glm5`, `Llama 70B`, `deepseek-ai/DeepSeek-V3`.
pub fn named(name: &str) -> Option<&'static Named> {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let wanted = plain(name.rsplit('/').next().unwrap_or(name));
    NAMED.iter().find(|n| plain(n.name) == wanted)
}

impl Named {
    /// Its header by a recipe.
    pub fn blueprint(&self, recipe: Recipe) -> Blueprint {
        self.shape.blueprint(self.name, recipe)
    }
}

/// The header of the model that a `config.json` describes.
///
/// # Errors
/// Text that is not JSON, a kind of model that is not known, a count that is missing or makes no model.
pub fn from_config(text: &str, name: &str, recipe: Recipe) -> Result<Blueprint, ShapeError> {
    let json: Value = serde_json::from_str(text).map_err(|e| ShapeError::NotJson { why: e.to_string() })?;
    let c = HfConfig(&json);
    let model_type = json.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let shape = match model_type {
        "llama" | "mistral" => Shape::Dense(c.dense(Family::Llama)?),
        "qwen3" => Shape::Dense(c.dense(Family::Qwen3)?),
        "qwen3_moe" => Shape::QwenMoe(c.qwen_moe()?),
        "glm_moe_dsa" => Shape::Glm(c.latent(true)?),
        "deepseek_v3" | "kimi_k2" => Shape::DeepSeek(DeepSeek(c.latent(false)?)),
        other => {
            let known = "llama, mistral, qwen3, qwen3_moe, deepseek_v3, kimi_k2, glm_moe_dsa".into();
            return Err(ShapeError::UnknownType { model_type: other.chars().take(40).collect(), known });
        }
    };
    Ok(shape.blueprint(name, recipe))
}

impl Shape {
    fn blueprint(self, name: &str, r: Recipe) -> Blueprint {
        let mut b = match self {
            Shape::Dense(dense) => Dense { ty: r.ty, large_ty: r.large, ..dense }.blueprint(),
            Shape::QwenMoe(moe) => QwenMoe { ty: r.ty, large_ty: r.large, ..moe }.blueprint(),
            Shape::Glm(glm) => Glm { ty: r.ty, expert_ty: r.experts, ..glm }.blueprint(),
            Shape::DeepSeek(DeepSeek(glm)) => DeepSeek(Glm { ty: r.ty, expert_ty: r.experts, ..glm }).blueprint(),
        };
        for (tensor, dims, ty) in &mut b.tensors {
            // Converters fall back where a row is no whole number of blocks, and leave routers alone.
            let rows_fit = |ty: TensorType| dims[0].is_multiple_of(ty.block_len() as u64);
            if !rows_fit(*ty) {
                *ty = if rows_fit(TensorType::Q8_0) { TensorType::Q8_0 } else { TensorType::BF16 };
            }
            if tensor.ends_with("_exps.weight") && matches!(self, Shape::QwenMoe(_)) && *ty == r.ty {
                *ty = r.experts;
            }
        }
        for (key, value) in &mut b.metadata {
            if key == "general.name" {
                *value = format!("{name} ({})", r.name).into();
            }
        }
        b
    }
}

struct HfConfig<'a>(&'a Value);

impl HfConfig<'_> {
    fn count(&self, key: &'static str, most: u64) -> Result<u64, ShapeError> {
        let found = self.0.get(key).and_then(Value::as_u64).filter(|n| (1..=most).contains(n));
        found.ok_or(ShapeError::BadCount { key, most })
    }

    fn count_or(&self, key: &'static str, most: u64, default: u64) -> Result<u64, ShapeError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.count(key, most),
        }
    }

    fn hidden(&self) -> Result<u64, ShapeError> {
        self.count("hidden_size", 1 << 20)
    }

    fn heads(&self) -> Result<u64, ShapeError> {
        self.count("num_attention_heads", 1024)
    }

    fn head_dim(&self) -> Result<u64, ShapeError> {
        self.count_or("head_dim", 1024, (self.hidden()? / self.heads()?).max(1))
    }

    fn layers(&self) -> Result<u64, ShapeError> {
        self.count("num_hidden_layers", 512)
    }

    fn vocabulary(&self) -> Result<u64, ShapeError> {
        self.count("vocab_size", 1 << 22)
    }

    fn context(&self) -> Result<u32, ShapeError> {
        Ok(self.count("max_position_embeddings", 1 << 26)? as u32)
    }

    fn dense(&self, family: Family) -> Result<Dense, ShapeError> {
        Ok(Dense {
            family,
            hidden: self.hidden()?,
            layers: self.layers()?,
            heads: self.heads()?,
            kv_heads: self.count_or("num_key_value_heads", 1024, self.heads()?)?,
            head_dim: self.head_dim()?,
            feed_forward: self.count("intermediate_size", 1 << 20)?,
            vocabulary: self.vocabulary()?,
            context: self.context()?,
            tied: self.0.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            ..Dense::LLAMA_8B
        })
    }

    fn qwen_moe(&self) -> Result<QwenMoe, ShapeError> {
        Ok(QwenMoe {
            hidden: self.hidden()?,
            layers: self.layers()?,
            heads: self.heads()?,
            kv_heads: self.count_or("num_key_value_heads", 1024, self.heads()?)?,
            head_dim: self.head_dim()?,
            experts: self.count("num_experts", 4096)?,
            used: self.count("num_experts_per_tok", 256)?,
            expert_feed_forward: self.count("moe_intermediate_size", 1 << 20)?,
            vocabulary: self.vocabulary()?,
            context: self.context()?,
            ..QwenMoe::QWEN3_30B_A3B
        })
    }

    fn latent(&self, indexer: bool) -> Result<Glm, ShapeError> {
        let of_index = |key, most, default| if indexer { self.count(key, most) } else { Ok(default) };
        Ok(Glm {
            hidden: self.hidden()?,
            layers: self.layers()?,
            dense_layers: self.count_or("first_k_dense_replace", 512, 0)?,
            drafts: self.0.get("num_nextn_predict_layers").and_then(Value::as_u64).is_some_and(|n| n > 0),
            heads: self.heads()?,
            q_rank: self.count("q_lora_rank", 1 << 20)?,
            kv_rank: self.count("kv_lora_rank", 1024)?,
            nope: self.count("qk_nope_head_dim", 1024)?,
            rope: self.count("qk_rope_head_dim", 1024)?,
            value: self.count("v_head_dim", 1024)?,
            index_heads: of_index("index_n_heads", 1024, 1)?,
            index_dim: of_index("index_head_dim", 1024, 128)?,
            top_k: of_index("index_topk", 1 << 26, 1)?,
            feed_forward: self.count("intermediate_size", 1 << 20)?,
            experts: self.count("n_routed_experts", 4096)?,
            used: self.count("num_experts_per_tok", 256)?,
            expert_feed_forward: self.count("moe_intermediate_size", 1 << 20)?,
            vocabulary: self.vocabulary()?,
            context: self.context()?,
            ..Glm::GLM_5
        })
    }
}
