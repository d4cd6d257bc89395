//! Rotations: base frequencies, and what stretches them to a longer context.

use super::keys::Keys;
use crate::{ModelError, Rope, RopeStyle, limits};
use tombolo_gguf::{Gguf, TensorType};

/// What an architecture says about its rotations that the metadata do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeRule {
    pub(super) style: RopeStyle,
    /// Where YaRN's ramp begins and ends is rounded to whole pairs.
    pub(super) whole_ramp: bool,
}

/// Base of the frequencies, where the file does not say.
pub(super) const THETA: f32 = 10_000.0;

/// Values per head that are turned.
pub(super) fn rotated(keys: &Keys, head_dim: usize) -> Result<usize, ModelError> {
    let key = "rope.dimension_count";
    let rotated = keys.count_or(key, limits::HEAD_DIM, head_dim)?;
    if rotated > head_dim || !rotated.is_multiple_of(2) {
        return keys.bad(key, format!("{rotated} of {head_dim} values per head"));
    }
    Ok(rotated)
}

/// `theta^(-2j / rotated)`, as they are.
pub(super) fn plain(rule: RopeRule, theta: f32, rotated: usize) -> Rope {
    let frequencies = (0..rotated / 2).map(|j| 1.0 / theta.powf(2.0 * j as f32 / rotated as f32)).collect();
    Rope { style: rule.style, frequencies, magnitude: 1.0 }
}

/// The rotation of the layers that see everything: scaled as the metadata and `rope_freqs.weight` (Llama 3.1) say.
pub(super) fn scaled(gguf: &Gguf, keys: &Keys, rule: RopeRule, rotated: usize) -> Result<Rope, ModelError> {
    let theta = keys.positive_or("rope.freq_base", THETA)?;
    let mut rope = plain(rule, theta, rotated);
    divide_by_file(gguf, &mut rope.frequencies)?;
    let factor = match keys.positive_if_any("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.positive_if_any("rope.scale_linear")?.unwrap_or(1.0),
    };
    let kind = "rope.scaling.type";
    let name = keys.name(kind);
    let text = match keys.meta.get(&name) {
        None => "linear",
        Some(_) => keys.meta.str(&name).ok_or_else(|| keys.missing_or_wrong(&name, "a name"))?,
    };
    match text {
        "none" => {}
        "linear" => rope.frequencies.iter_mut().for_each(|f| *f /= factor),
        "yarn" => yarn(keys, rule, theta, rotated, factor, &mut rope)?,
        other => {
            let value = format!("'{}'", super::keys::brief(other));
            return Err(ModelError::UnsupportedFeature { key: name, value });
        }
    }
    rope.magnitude *= keys.positive_or("rope.scaling.attn_factor", 1.0)?;
    Ok(rope)
}

/// Whether the context was stretched by YaRN.
pub(super) fn is_yarn(keys: &Keys) -> bool {
    keys.meta.str(&keys.name("rope.scaling.type")) == Some("yarn")
}

/// Pairs that turn often within the trained context stay, those that never turn once are slowed by `factor`, the others
/// in between (YaRN, Peng et al. 2023, section 3.2 and equation 22 for the magnitude).
fn yarn(
    keys: &Keys,
    rule: RopeRule,
    theta: f32,
    rotated: usize,
    factor: f32,
    rope: &mut Rope,
) -> Result<(), ModelError> {
    let context = keys.count("context_length", limits::CONTEXT)?;
    let trained = keys.count_or("rope.scaling.original_context_length", limits::CONTEXT, context)?;
    let fast = keys.positive_or("rope.scaling.yarn_beta_fast", 32.0)?;
    let slow = keys.positive_or("rope.scaling.yarn_beta_slow", 1.0)?;
    let (theta, dims) = (f64::from(theta), rotated as f64);
    if theta <= 1.0 {
        return keys.bad("rope.freq_base", format!("{theta}, where YaRN wants more than 1"));
    }
    // The pair that turns so many times within the trained context.
    let pair = |turns: f32| {
        let per_radian = trained as f64 / (f64::from(turns) * std::f64::consts::TAU);
        dims * per_radian.ln() / (2.0 * theta.ln())
    };
    let (low, high) = (pair(fast), pair(slow));
    let (low, high) = if rule.whole_ramp { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min(dims - 1.0));
    for (j, frequency) in rope.frequencies.iter_mut().enumerate() {
        let keep = 1.0 - ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let base = f64::from(*frequency);
        *frequency = (base / f64::from(factor) * (1.0 - keep) + base * keep) as f32;
    }
    rope.magnitude = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
    Ok(())
}

/// Divides by the file's own factors, where it has them.
fn divide_by_file(gguf: &Gguf, frequencies: &mut [f32]) -> Result<(), ModelError> {
    let name = "rope_freqs.weight";
    let Some(info) = gguf.tensor(name) else { return Ok(()) };
    let bad = |why: String| Err(ModelError::BadValue { key: name.into(), why });
    let bytes = gguf.bytes(info);
    if info.ty != TensorType::F32 || bytes.len() != 4 * frequencies.len() {
        return bad(format!("wants {} F32 values", frequencies.len()));
    }
    for (frequency, factor) in frequencies.iter_mut().zip(bytes.as_chunks::<4>().0) {
        let factor = f32::from_le_bytes(*factor);
        if !(factor.is_finite() && factor > 0.0) {
            return bad(format!("factor {factor}"));
        }
        *frequency /= factor;
    }
    Ok(())
}
