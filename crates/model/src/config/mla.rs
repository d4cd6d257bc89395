//! Multi-head latent attention and its indexer: the shapes, read from metadata.
//!
//! Keys and defaults as llama.cpp's `deepseek2` and `glm-dsa` files have them.

use super::keys::Keys;
use super::{Family, GroupedQuery, Reach, rope};
use crate::{ModelError, limits};
use tombolo_gguf::{Gguf, Value};

/// Multi-head latent attention (DeepSeek-V2): keys and values of all heads are made of one latent per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Width that queries are squeezed through. `None`: they are projected in one.
    pub query_rank: Option<usize>,
    /// Values of a latent.
    pub rank: usize,
    /// Values of a query head that meet the latent.
    pub nope: usize,
    /// Values of a query head that are rotated: they meet a key that all heads share.
    pub rope: usize,
    /// Values of a head's value.
    pub value: usize,
    /// Of the norms of squeezed queries and latents.
    pub eps: f32,
    /// What chooses the positions that attention sees. `None`: it sees all.
    pub indexer: Option<Indexer>,
}

/// The lightning indexer of sparse attention (DeepSeek-V3.2).
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// Query heads; there is one key head.
    pub heads: usize,
    /// Values per head, of which the first are rotated as in attention.
    pub head_dim: usize,
    /// Positions that are chosen.
    pub top_k: usize,
    /// Of the norm of its keys.
    pub eps: f32,
    /// Layers that choose; the others see what the last one before them chose. One entry more for the block that drafts
    /// tokens: it chooses, or sees everything.
    pub full: Vec<bool>,
}

/// Context from which on files without [`Indexer::full`] share choices between layers, as GLM-5.2 does.
const SHARING_CONTEXT: usize = 1 << 20;

/// Attention of a latent architecture; all layers are alike.
pub(super) fn latent(
    gguf: &Gguf,
    keys: &Keys,
    family: &Family,
    layers: usize,
) -> Result<(GroupedQuery, Latent), ModelError> {
    let heads = keys.count("attention.head_count", limits::HEADS)?;
    let rank = keys.count("attention.kv_lora_rank", limits::HEAD_DIM)?;
    // Older files give the sizes of heads where newer ones give those of the latent.
    let (key, value) = match keys.has("attention.key_length_mla") {
        true => ("attention.key_length_mla", "attention.value_length_mla"),
        false => ("attention.key_length", "attention.value_length"),
    };
    let head_dim = keys.count(key, limits::HEAD_DIM)?;
    let value = keys.count(value, limits::HEAD_DIM)?;
    let rotated = rope::rotated(keys, head_dim)?;
    if !keys.has("rope.dimension_count") || rotated == head_dim {
        return keys.bad("rope.dimension_count", format!("{rotated} of {head_dim} values per head"));
    }
    let mut rope = rope::scaled(gguf, keys, family.rope, rotated)?;
    let scale = scale(keys, head_dim)?;
    if rope::is_yarn(keys) {
        // YaRN's magnitude and its correction for latent attention are each other's inverse here: both of them are in
        // the factor on the scores.
        rope.magnitude = 1.0;
    }
    let indexer = match family.indexer {
        true => Some(indexer(gguf, keys, rotated, layers)?),
        false => None,
    };
    let latent = Latent {
        query_rank: keys.count_if_any("attention.q_lora_rank", limits::WIDTH)?,
        rank,
        nope: head_dim - rotated,
        rope: rotated,
        value,
        eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        indexer,
    };
    let attention = GroupedQuery {
        heads,
        kv_heads: 1,
        head_dim,
        qk_norm: false,
        qkv_bias: false,
        output_bias: false,
        sinks: false,
        scale,
        softcap: None,
        reaches: vec![Reach { name: "latent", window: None, rope }],
    };
    Ok((attention, latent))
}

/// `(1 + m · ln factor)² / √(values per head)` with YaRN, where `m` is 0.1 times DeepSeek's `mscale_all_dim`.
fn scale(keys: &Keys, head_dim: usize) -> Result<f32, ModelError> {
    let plain = 1.0 / (head_dim as f32).sqrt();
    if !rope::is_yarn(keys) {
        return Ok(keys.positive_if_any("attention.scale")?.unwrap_or(plain));
    }
    let factor = keys.positive_or("rope.scaling.factor", 1.0)?;
    let multiplier = keys.positive_if_any("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    let magnitude = if factor > 1.0 { 1.0 + multiplier * factor.ln() } else { 1.0 };
    Ok(plain * magnitude * magnitude)
}

fn indexer(gguf: &Gguf, keys: &Keys, rotated: usize, layers: usize) -> Result<Indexer, ModelError> {
    let key = "attention.indexer.key_length";
    let head_dim = keys.count(key, limits::HEAD_DIM)?;
    if head_dim < rotated {
        return keys.bad(key, format!("{head_dim}, of which {rotated} are rotated"));
    }
    let mut full = full(keys, layers)?;
    full.push(gguf.tensor(&format!("blk.{layers}.indexer.attn_k.weight")).is_some());
    let indexer = Indexer {
        heads: keys.count("attention.indexer.head_count", limits::HEADS)?,
        head_dim,
        top_k: keys.count("attention.indexer.top_k", limits::CONTEXT)?,
        eps: keys.positive_or("attention.layer_norm_epsilon", 1e-6)?,
        full,
    };
    if indexer.full[0] { Ok(indexer) } else { keys.bad("attention.indexer.types", "the first layer must choose") }
}

/// Which layers choose: by the file's flags, for the trunk or for all blocks; else by the context that it was made for.
fn full(keys: &Keys, layers: usize) -> Result<Vec<bool>, ModelError> {
    let name = keys.name("attention.indexer.types");
    let given = match keys.meta.get(&name) {
        None => {
            let shares = keys.count("context_length", limits::CONTEXT)? >= SHARING_CONTEXT;
            return Ok((0..layers).map(|layer| !shares || layer.saturating_sub(2) % 4 == 0).collect());
        }
        Some(Value::Array(array)) => array.len().clamp(layers, limits::LAYERS),
        Some(_) => layers,
    };
    match keys.meta.bool_per_layer(&name, given) {
        Ok(Some(flags)) => Ok(flags[..layers].to_vec()),
        _ => Err(keys.missing_or_wrong(&name, "one flag per layer")),
    }
}
