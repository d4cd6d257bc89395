//! A model's shape, read from its metadata and checked: nothing after this trusts the file.

use crate::{ModelError, RopeStyle, limits};
use tombolo_gguf::{Gguf, Metadata, Value};

/// The architectures that the program builder knows, by their name in `general.architecture`.
pub const ARCHITECTURES: [&str; 2] = ["llama", "qwen3"];

/// A model's shape. All architectures share it: what differs between them is data here, never another forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, or the architecture.
    pub name: String,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// Longest context that the model was trained for.
    pub context: usize,
    /// Of every RMSNorm.
    pub rms_eps: f32,
    /// Queries and keys are normed per head before the rotation.
    pub qk_norm: bool,
    /// How rotations pair values.
    pub rope_style: RopeStyle,
    /// Radians per position, one per pair.
    pub rope_frequencies: Vec<f32>,
    /// The output projection is the embedding table.
    pub tied: bool,
}

impl Config {
    /// Reads and checks the shape.
    ///
    /// # Errors
    /// An architecture or feature that is not supported, a missing key, or a value that makes no model.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let meta = gguf.metadata();
        let architecture =
            meta.str("general.architecture").ok_or_else(|| missing_or_bad(meta, "general.architecture", "a name"))?;
        let (rope_style, qk_norm) = match architecture {
            "llama" => (RopeStyle::Interleaved, false),
            "qwen3" => (RopeStyle::HalfSplit, true),
            other => {
                return Err(ModelError::UnknownArchitecture {
                    architecture: other.to_string(),
                    known: ARCHITECTURES.join(", "),
                });
            }
        };
        let keys = Keys { meta, architecture };
        keys.refuse_unsupported()?;
        let hidden = keys.count("embedding_length", limits::WIDTH)?;
        let heads = keys.count("attention.head_count", limits::HEADS)?;
        let kv_heads = keys.count_or("attention.head_count_kv", limits::HEADS, heads)?;
        let head_dim = keys.count_or("attention.key_length", limits::HEAD_DIM, hidden / heads)?;
        let rotated = keys.count_or("rope.dimension_count", limits::HEAD_DIM, head_dim)?;
        let config = Self {
            name: meta.str("general.name").unwrap_or(architecture).to_string(),
            architecture: architecture.to_string(),
            layers: keys.count("block_count", limits::LAYERS)?,
            hidden,
            feed_forward: keys.count("feed_forward_length", limits::WIDTH)?,
            heads,
            kv_heads,
            head_dim,
            vocabulary: vocabulary(gguf)?,
            context: keys.count("context_length", limits::CONTEXT)?,
            rms_eps: keys.float("attention.layer_norm_rms_epsilon")?,
            qk_norm,
            rope_style,
            rope_frequencies: rope_frequencies(gguf, &keys, rotated)?,
            tied: gguf.tensor("output.weight").is_none(),
        };
        config.check(&keys, rotated)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys, rotated: usize) -> Result<(), ModelError> {
        let wrong = |key: &str, why: String| Err(ModelError::BadValue { key: keys.name(key), why });
        if self.kv_heads > self.heads || !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(
                "attention.head_count_kv",
                format!("{} query heads cannot share {} KV heads", self.heads, self.kv_heads),
            );
        }
        if !(1..=limits::HEAD_DIM).contains(&self.head_dim) {
            return wrong(
                "attention.key_length",
                format!("{} values per head, 1 to {} allowed", self.head_dim, limits::HEAD_DIM),
            );
        }
        if rotated == 0 || rotated > self.head_dim || !rotated.is_multiple_of(2) {
            return wrong("rope.dimension_count", format!("{rotated} of {} values per head", self.head_dim));
        }
        let value_length = keys.count_or("attention.value_length", limits::HEAD_DIM, self.head_dim)?;
        if value_length != self.head_dim {
            return wrong("attention.value_length", format!("{value_length}, but keys have {}", self.head_dim));
        }
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return wrong("attention.layer_norm_rms_epsilon", self.rms_eps.to_string());
        }
        Ok(())
    }
}

/// Rows of the embedding table.
fn vocabulary(gguf: &Gguf) -> Result<usize, ModelError> {
    let name = "token_embd.weight";
    let info = gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.into() })?;
    let rows = info.dims.get(1).copied().unwrap_or(0);
    match usize::try_from(rows) {
        Ok(rows) if rows > 0 && rows <= limits::VOCABULARY => Ok(rows),
        _ => Err(ModelError::BadValue {
            key: name.into(),
            why: format!("{rows} rows, 1 to {} allowed", limits::VOCABULARY),
        }),
    }
}

/// `theta^(-2j / dims)`, divided by the file's `rope_freqs.weight` where it has one (Llama 3.1).
fn rope_frequencies(gguf: &Gguf, keys: &Keys, rotated: usize) -> Result<Vec<f32>, ModelError> {
    let theta = match keys.meta.get(&keys.name("rope.freq_base")) {
        None => 10_000.0,
        Some(_) => keys.float("rope.freq_base")?,
    };
    if !(theta.is_finite() && theta > 0.0) {
        return Err(ModelError::BadValue { key: keys.name("rope.freq_base"), why: theta.to_string() });
    }
    let mut frequencies: Vec<f32> =
        (0..rotated / 2).map(|j| 1.0 / theta.powf(2.0 * j as f32 / rotated as f32)).collect();
    let name = "rope_freqs.weight";
    if let Some(info) = gguf.tensor(name) {
        let bytes = gguf.bytes(info);
        if info.ty != tombolo_gguf::TensorType::F32 || bytes.len() != 4 * frequencies.len() {
            return Err(ModelError::BadValue {
                key: name.into(),
                why: format!("wants {} F32 values", frequencies.len()),
            });
        }
        for (frequency, factor) in frequencies.iter_mut().zip(bytes.as_chunks::<4>().0) {
            let factor = f32::from_le_bytes(*factor);
            if !(factor.is_finite() && factor > 0.0) {
                return Err(ModelError::BadValue { key: name.into(), why: format!("factor {factor}") });
            }
            *frequency /= factor;
        }
    }
    Ok(frequencies)
}

struct Keys<'a> {
    meta: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn count(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let key = self.name(key);
        let value = self.meta.u64(&key).ok_or_else(|| self.missing_or_bad(&key, "a whole number"))?;
        match usize::try_from(value) {
            Ok(value) if value > 0 && value <= most => Ok(value),
            _ => Err(ModelError::BadValue { key, why: format!("{value}, 1 to {most} allowed") }),
        }
    }

    fn count_or(&self, key: &str, most: usize, default: usize) -> Result<usize, ModelError> {
        if self.meta.get(&self.name(key)).is_none() { Ok(default) } else { self.count(key, most) }
    }

    fn float(&self, key: &str) -> Result<f32, ModelError> {
        let key = self.name(key);
        self.meta.f32(&key).ok_or_else(|| self.missing_or_bad(&key, "a number"))
    }

    fn missing_or_bad(&self, key: &str, wanted: &str) -> ModelError {
        missing_or_bad(self.meta, key, wanted)
    }

    /// What would change the result and is not computed is refused, never ignored.
    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        for (key, harmless) in UNSUPPORTED {
            let name = self.name(key);
            let Some(value) = self.meta.get(&name) else { continue };
            let is_harmless = match harmless {
                Harmless::Text(text) => self.meta.str(&name) == Some(*text),
                Harmless::Number(number) => self.meta.f32(&name) == Some(*number),
                Harmless::Bool(flag) => self.meta.bool(&name) == Some(*flag),
            };
            if !is_harmless {
                return Err(ModelError::UnsupportedFeature { key: name, value: shown(value) });
            }
        }
        // A window as long as the context hides nothing.
        let window = self.name("attention.sliding_window");
        match (self.meta.u64(&window), self.meta.u64(&self.name("context_length"))) {
            (Some(size), Some(context)) if size > 0 && size < context => {
                Err(ModelError::UnsupportedFeature { key: window, value: size.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// The value of a key that leaves the plain forward pass as it is.
enum Harmless {
    Text(&'static str),
    Number(f32),
    Bool(bool),
}

/// Keys of an architecture that ask for something which the program does not compute, unless they have this value.
const UNSUPPORTED: &[(&str, Harmless)] = &[
    ("rope.scaling.type", Harmless::Text("none")),
    ("rope.scaling.factor", Harmless::Number(1.0)),
    ("rope.scale_linear", Harmless::Number(1.0)),
    ("expert_count", Harmless::Number(0.0)),
    ("attention.causal", Harmless::Bool(true)),
    ("attention.scale", Harmless::Number(0.0)),
    ("attention.clamp_kqv", Harmless::Number(0.0)),
    ("attention.max_alibi_bias", Harmless::Number(0.0)),
    ("attn_logit_softcapping", Harmless::Number(0.0)),
    ("final_logit_softcapping", Harmless::Number(0.0)),
    ("logit_scale", Harmless::Number(1.0)),
    ("residual_scale", Harmless::Number(1.0)),
    ("embedding_scale", Harmless::Number(1.0)),
    ("use_parallel_residual", Harmless::Bool(false)),
    ("pooling_type", Harmless::Number(0.0)),
];

/// Why a key cannot be read as what it should be.
fn missing_or_bad(meta: &Metadata, key: &str, wanted: &str) -> ModelError {
    match meta.get(key) {
        None => ModelError::MissingKey { key: key.into() },
        Some(value) => {
            ModelError::BadValue { key: key.into(), why: format!("{}, where {wanted} is wanted", shown(value)) }
        }
    }
}

/// A value in an error line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{}'", text.escape_debug().take(40).collect::<String>()),
        Value::Array(_) => "an array".into(),
        other => format!("{other:?}"),
    }
}
