//! Reading an architecture's keys: each value is checked for its type and range before anything uses it, and what would
//! change the result without being computed is refused.

use crate::{ModelError, limits};
use tombolo_gguf::{Metadata, Value};

/// The keys of one architecture: names are given without its prefix.
pub(super) struct Keys<'a> {
    pub(super) meta: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.meta.get(&self.name(key)).is_some()
    }

    /// An error about a key's value.
    pub(super) fn bad<T>(&self, key: &str, why: impl Into<String>) -> Result<T, ModelError> {
        Err(ModelError::BadValue { key: self.name(key), why: why.into() })
    }

    /// A number from 1 to `most`. An array must have one equal entry per layer.
    pub(super) fn count(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let name = self.name(key);
        let value = match self.meta.get(&name) {
            Some(Value::Array(_)) => self.uniform(key)?,
            _ => self.meta.u64(&name).ok_or_else(|| self.missing_or_wrong(&name, "a whole number"))?,
        };
        match usize::try_from(value) {
            Ok(value) if value > 0 && value <= most => Ok(value),
            _ => self.bad(key, format!("{value}, 1 to {most} allowed")),
        }
    }

    /// The only value in an array of one per layer.
    fn uniform(&self, key: &str) -> Result<u64, ModelError> {
        let name = self.name(key);
        let layers = if key == "block_count" { None } else { self.meta.u64(&self.name("block_count")) };
        let values = self.meta.i64s(&name).unwrap_or_default();
        match (layers, values.first().map(|&v| u64::try_from(v))) {
            (Some(layers), Some(Ok(first))) if values.len() as u64 == layers => {
                if values.iter().all(|v| *v == values[0]) {
                    Ok(first)
                } else {
                    Err(ModelError::UnsupportedFeature { key: name, value: "an array that varies by layer".into() })
                }
            }
            _ => Err(self.missing_or_wrong(&name, "a whole number, or one per layer,")),
        }
    }

    pub(super) fn count_or(&self, key: &str, most: usize, default: usize) -> Result<usize, ModelError> {
        if self.has(key) { self.count(key, most) } else { Ok(default) }
    }

    /// `None` where the key is missing or 0.
    pub(super) fn count_if_any(&self, key: &str, most: usize) -> Result<Option<usize>, ModelError> {
        let zero = self.meta.u64(&self.name(key)) == Some(0);
        if zero || !self.has(key) { Ok(None) } else { self.count(key, most).map(Some) }
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let name = self.name(key);
        let value = self.meta.f32(&name).ok_or_else(|| self.missing_or_wrong(&name, "a number"))?;
        if value.is_finite() && value > 0.0 { Ok(value) } else { self.bad(key, value.to_string()) }
    }

    pub(super) fn positive_or(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        if self.has(key) { self.positive(key) } else { Ok(default) }
    }

    /// `None` where the key is missing or 0.
    pub(super) fn positive_if_any(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let zero = self.meta.f32(&self.name(key)) == Some(0.0);
        if zero || !self.has(key) { Ok(None) } else { self.positive(key).map(Some) }
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        let name = self.name(key);
        match self.meta.get(&name) {
            None => Ok(default),
            Some(_) => self.meta.bool(&name).ok_or_else(|| self.missing_or_wrong(&name, "true or false")),
        }
    }

    /// Why a key cannot be read as what it should be.
    pub(super) fn missing_or_wrong(&self, name: &str, wanted: &'static str) -> ModelError {
        missing_or_wrong(self.meta, name, wanted)
    }

    /// What would change the result and is not computed is refused, never ignored.
    pub(super) fn refuse_unsupported(&self, computed: &[&str]) -> Result<(), ModelError> {
        for (key, harmless) in UNSUPPORTED.iter().filter(|(key, _)| !computed.contains(key)) {
            let name = self.name(key);
            let Some(value) = self.meta.get(&name) else { continue };
            let is_harmless = match harmless {
                Harmless::Number(number) => self.meta.f32(&name) == Some(*number),
                Harmless::Bool(flag) => self.meta.bool(&name) == Some(*flag),
            };
            if !is_harmless {
                return Err(ModelError::UnsupportedFeature { key: name, value: shown(value) });
            }
        }
        Ok(())
    }

    /// Refuses a window in an architecture whose layers have none, unless it is as long as the context: then it hides
    /// nothing.
    pub(super) fn refuse_window(&self) -> Result<(), ModelError> {
        let key = "attention.sliding_window";
        match (self.count_if_any(key, usize::MAX)?, self.count("context_length", limits::CONTEXT)?) {
            (Some(size), context) if size < context => {
                Err(ModelError::UnsupportedFeature { key: self.name(key), value: size.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// The value of a key that leaves the forward pass as it is.
enum Harmless {
    Number(f32),
    Bool(bool),
}

/// Keys of an architecture that ask for something which the program does not compute, unless they have this value.
const UNSUPPORTED: &[(&str, Harmless)] = &[
    ("rope.scaling.alpha", Harmless::Number(0.0)),
    ("rope.scaling.yarn_log_multiplier", Harmless::Number(0.0)),
    ("rope.scaling.yarn_ext_factor", Harmless::Number(1.0)),
    ("rope.scaling.yarn_attn_factor", Harmless::Number(1.0)),
    ("expert_shared_count", Harmless::Number(0.0)),
    ("expert_shared_feed_forward_length", Harmless::Number(0.0)),
    ("expert_group_scale", Harmless::Number(0.0)),
    ("experts_per_group", Harmless::Number(0.0)),
    ("moe_every_n_layers", Harmless::Number(1.0)),
    ("interleave_moe_layer_step", Harmless::Number(1.0)),
    ("router_logit_softcapping", Harmless::Number(0.0)),
    ("nextn_predict_layers", Harmless::Number(0.0)),
    ("attention.causal", Harmless::Bool(true)),
    ("attention.clamp_kqv", Harmless::Number(0.0)),
    ("attention.max_alibi_bias", Harmless::Number(0.0)),
    ("attention.output_scale", Harmless::Number(1.0)),
    ("attention.temperature_scale", Harmless::Number(0.0)),
    ("logit_scale", Harmless::Number(1.0)),
    ("residual_scale", Harmless::Number(1.0)),
    ("embedding_scale", Harmless::Number(1.0)),
    ("use_parallel_residual", Harmless::Bool(false)),
    ("pooling_type", Harmless::Number(0.0)),
];

/// Why a key cannot be read as what it should be.
pub(super) fn missing_or_wrong(meta: &Metadata, key: &str, wanted: &'static str) -> ModelError {
    match meta.get(key) {
        None => ModelError::MissingKey { key: key.into() },
        Some(value) => ModelError::WrongType { key: key.into(), found: shown(value), wanted },
    }
}

/// A value in an error line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{}'", brief(text)),
        Value::Array(array) => format!("an array of {}", array.len()),
        other => format!("{other:?}"),
    }
}

/// Text from a file, safe and short enough for a line.
pub(super) fn brief(text: &str) -> String {
    text.escape_debug().take(40).collect()
}
