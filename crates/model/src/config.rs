//! A model's shape, read from its metadata and checked: nothing after this trusts the file.

mod families;
mod keys;
mod mla;
mod rope;

use crate::{Activation, ExpertGroups, Gating, ModelError, Rope, limits};
use families::{FAMILIES, Family};
use keys::{Keys, brief};
pub use mla::{Indexer, Latent};
use tombolo_gguf::{Array, Gguf, Value};

/// The architectures that the program builder knows, by their name in `general.architecture`.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// A model's shape. All architectures share it: what differs between them is data here, never another forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, or the architecture.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// Longest context that the model was trained for.
    pub context: usize,
    /// Of every RMSNorm.
    pub rms_eps: f32,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// The output projection is the embedding table.
    pub tied: bool,
    /// Logits become `cap · tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Attention, as far as all layers share it.
    pub attention: GroupedQuery,
    /// What makes it latent attention: heads, scale and rotation are above, with one KV head of latents.
    pub latent: Option<Latent>,
    /// Where a block has norms besides the one at its start.
    pub norms: Norms,
    /// Of dense feed-forward parts and of experts.
    pub activation: Activation,
    /// Width of dense feed-forward parts.
    pub feed_forward: usize,
    /// Experts, as far as all layers share them.
    pub experts: Option<Experts>,
    /// What differs from block to block.
    pub blocks: Vec<Block>,
    /// Blocks after those, which predict further tokens: the file may have them.
    pub draft_layers: usize,
    /// The first of those, where the file has it and it is to be run ([`Program::draft`](crate::Program::draft)).
    pub draft: Option<Block>,
}

/// Grouped-query attention (Ainslie et al. 2023).
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedQuery {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Queries and keys are normed per head before the rotation.
    pub qk_norm: bool,
    /// q, k and v must have biases.
    pub qkv_bias: bool,
    /// The output projection must have one.
    pub output_bias: bool,
    /// Every query head has a sink.
    pub sinks: bool,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Kinds of layers, by how far they see; each has a KV group of its own.
    pub reaches: Vec<Reach>,
}

/// How far back a layer sees, and by which rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Of its KV group.
    pub name: &'static str,
    /// Positions that are seen, the own one included. `None`: all.
    pub window: Option<usize>,
    /// Rotation of queries and keys.
    pub rope: Rope,
}

/// One block's choice among what its model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Into [`GroupedQuery::reaches`].
    pub reach: usize,
    /// What follows attention.
    pub feed_forward: FeedForward,
}

/// Kind of a block's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One gated unit.
    Dense,
    /// Some of many, chosen by a router.
    Experts,
}

/// Routed experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many.
    pub count: usize,
    /// Chosen for each token.
    pub used: usize,
    /// Width of one.
    pub width: usize,
    /// How the router's logits become weights.
    pub gating: Gating,
    /// The weights of the chosen are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Limits the choice.
    pub groups: Option<ExpertGroups>,
    /// Every expert and the router must have biases.
    pub bias: bool,
    /// The choice must have one.
    pub choice_bias: bool,
    /// Width of the expert that all tokens use.
    pub shared: Option<usize>,
}

/// Names of the tensors of a block's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// Of what attention adds to the residual stream.
    pub after_attention: Option<&'static str>,
    /// Of what goes into the second half.
    pub before_feed_forward: &'static str,
    /// Of what the second half adds.
    pub after_feed_forward: Option<&'static str>,
}

/// Which layers have a window: all of `period` neighbours but the last.
#[derive(Clone, Copy, Debug)]
struct Windows {
    period: usize,
    /// Base of their rotation, where the file does not say and it is not that of the others.
    theta: Option<f32>,
}

/// Factor on attention scores, where the file does not say.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// `1/√(values per head)`.
    HeadDim,
    /// The same, but `1/√(hidden / heads)` in the model of 62 layers (27B), for which no key says so.
    Gemma3,
}

impl Config {
    /// Reads and checks the shape.
    ///
    /// # Errors
    /// An architecture or feature that is not supported, a missing key, or a value that makes no model.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let meta = gguf.metadata();
        let key = "general.architecture";
        let architecture = meta.str(key).ok_or_else(|| keys::missing_or_wrong(meta, key, "a name"))?;
        let family = Family::of(architecture).ok_or_else(|| unknown(architecture))?;
        let keys = Keys { meta, architecture };
        keys.refuse_unsupported(family.computes)?;
        let (layers, draft_layers) = layers(gguf, &keys)?;
        let hidden = keys.count("embedding_length", limits::WIDTH)?;
        let context = keys.count("context_length", limits::CONTEXT)?;
        let experts = experts(gguf, &keys, family)?;
        let feed_forward = match &experts {
            Some(experts) => keys.count_or("feed_forward_length", limits::WIDTH, experts.width)?,
            None => keys.count("feed_forward_length", limits::WIDTH)?,
        };
        let (attention, latent, reach_of) = match family.latent {
            true => {
                let (attention, latent) = mla::latent(gguf, &keys, family, layers)?;
                (attention, Some(latent), vec![0; layers])
            }
            false => {
                let (attention, reach_of) = attention(gguf, &keys, family, hidden, layers)?;
                (attention, None, reach_of)
            }
        };
        let dense = match experts {
            Some(_) => keys.count_if_any("leading_dense_block_count", layers)?.unwrap_or(0),
            None => layers,
        };
        let feed_forward_of = |layer: usize| if layer < dense { FeedForward::Dense } else { FeedForward::Experts };
        // Files without the block are common: what converts models may leave it out.
        let has_draft = draft_layers > 0 && gguf.tensor(&format!("blk.{layers}.nextn.eh_proj.weight")).is_some();
        Ok(Self {
            name: meta.str("general.name").unwrap_or(architecture).to_string(),
            architecture: architecture.to_string(),
            hidden,
            vocabulary: vocabulary(gguf)?,
            context,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            embedding_scale: if family.scaled_embedding { (hidden as f32).sqrt() } else { 1.0 },
            tied: gguf.tensor("output.weight").is_none(),
            logit_softcap: keys.positive_if_any("final_logit_softcapping")?,
            attention,
            latent,
            norms: family.norms,
            activation: family.activation,
            feed_forward,
            experts,
            blocks: (0..layers)
                .map(|layer| Block { reach: reach_of[layer], feed_forward: feed_forward_of(layer) })
                .collect(),
            draft_layers,
            draft: has_draft.then(|| Block { reach: 0, feed_forward: feed_forward_of(layers) }),
        })
    }

    /// Makes attention see everything, as if there were no indexer; whether there was one.
    pub fn force_dense_attention(&mut self) -> bool {
        self.latent.as_mut().is_some_and(|latent| latent.indexer.take().is_some())
    }

    /// Leaves out the block that drafts tokens: neither loaded nor run.
    pub fn without_draft(self) -> Self {
        Self { draft: None, ..self }
    }

    /// Whether a tensor that the forward pass does not use changes nothing by being left out: blocks that predict
    /// further tokens, and indexers of layers that do not choose.
    pub(crate) fn may_ignore(&self, tensor: &str) -> bool {
        let Some((layer, part)) = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return false;
        };
        let drafts = self.layers()..self.layers() + self.draft_layers;
        layer.parse().is_ok_and(|layer: usize| drafts.contains(&layer))
            || (self.latent.is_some() && part.starts_with("indexer."))
    }

    /// Those, and the block that drafts tokens.
    pub fn layers_run(&self) -> usize {
        self.layers() + usize::from(self.draft.is_some())
    }

    /// A block, that one included.
    ///
    /// # Panics
    /// There is no such block.
    pub fn block(&self, layer: usize) -> Block {
        *self.blocks.get(layer).or(self.draft.as_ref()).expect("a block of the model")
    }

    /// Transformer blocks of the forward pass.
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }
}

/// Blocks of the forward pass, and blocks after them that predict further tokens.
fn layers(gguf: &Gguf, keys: &Keys) -> Result<(usize, usize), ModelError> {
    let blocks = keys.count("block_count", limits::LAYERS)?;
    let key = "nextn_predict_layers";
    let draft = keys.count_if_any(key, limits::LAYERS)?.unwrap_or(0);
    let layers = match blocks.checked_sub(draft) {
        Some(layers) if layers > 0 => layers,
        _ => return keys.bad(key, format!("{draft} of {blocks} blocks")),
    };
    // A block that is there and drafts nothing is one of the model's own: leaving it out would be another model.
    for block in layers..blocks {
        let of = |start: &str| gguf.tensors().iter().any(|tensor| tensor.name.starts_with(start));
        if of(&format!("blk.{block}.")) && !of(&format!("blk.{block}.nextn.")) {
            return keys.bad(key, format!("block {block} has no tensors 'nextn.*': it does not draft tokens"));
        }
    }
    Ok((layers, draft))
}

/// Why an architecture is refused: by name where its name is near to one that runs.
fn unknown(architecture: &str) -> ModelError {
    match families::RELATIVES.iter().find(|(name, _)| *name == architecture) {
        Some((_, why)) => ModelError::OtherArchitecture { architecture: brief(architecture), why },
        None => ModelError::UnknownArchitecture {
            architecture: brief(architecture),
            known: architectures().collect::<Vec<_>>().join(", "),
        },
    }
}

/// Attention, and which of its reaches each layer has.
fn attention(
    gguf: &Gguf,
    keys: &Keys,
    family: &Family,
    hidden: usize,
    layers: usize,
) -> Result<(GroupedQuery, Vec<usize>), ModelError> {
    let heads = keys.count("attention.head_count", limits::HEADS)?;
    let kv_heads = keys.count_or("attention.head_count_kv", limits::HEADS, heads)?;
    if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
        return keys.bad("attention.head_count_kv", format!("{heads} query heads cannot share {kv_heads} KV heads"));
    }
    if !keys.has("attention.key_length") && !hidden.is_multiple_of(heads) {
        return keys.bad("attention.head_count", format!("{heads} heads do not divide a width of {hidden}"));
    }
    let head_dim = keys.count_or("attention.key_length", limits::HEAD_DIM, hidden / heads)?;
    if !(1..=limits::HEAD_DIM).contains(&head_dim) {
        return keys
            .bad("attention.key_length", format!("{head_dim} values per head, 1 to {} allowed", limits::HEAD_DIM));
    }
    let value_length = keys.count_or("attention.value_length", limits::HEAD_DIM, head_dim)?;
    if value_length != head_dim {
        return keys.bad("attention.value_length", format!("{value_length}, but keys have {head_dim}"));
    }
    let (reaches, reach_of) = reaches(gguf, keys, family, head_dim, layers)?;
    let square = match family.scale {
        Scale::Gemma3 if layers == 62 => hidden / heads,
        _ => head_dim,
    };
    let scale = keys.positive_if_any("attention.scale")?;
    let attention = GroupedQuery {
        heads,
        kv_heads,
        head_dim,
        qk_norm: family.qk_norm.unwrap_or_else(|| gguf.tensor("blk.0.attn_q_norm.weight").is_some()),
        qkv_bias: family.qkv_bias,
        output_bias: family.expert_bias,
        sinks: family.sinks,
        scale: scale.unwrap_or(1.0 / (square as f32).sqrt()),
        softcap: keys.positive_if_any("attn_logit_softcapping")?,
        reaches,
    };
    Ok((attention, reach_of))
}

/// The kinds of layers by how far they see, those that a model has no layer of left out.
fn reaches(
    gguf: &Gguf,
    keys: &Keys,
    family: &Family,
    head_dim: usize,
    layers: usize,
) -> Result<(Vec<Reach>, Vec<usize>), ModelError> {
    let rotated = rope::rotated(keys, head_dim)?;
    let rope = rope::scaled(gguf, keys, family.rope, rotated)?;
    let all = Reach { name: "kv", window: None, rope };
    let key = "attention.sliding_window";
    let Some(windows) = family.windows else {
        keys.refuse_window()?;
        return Ok((vec![all], vec![0; layers]));
    };
    let Some(window) = keys.count_if_any(key, limits::CONTEXT)? else {
        return Ok((vec![all], vec![0; layers]));
    };
    let base = "rope.freq_base_swa";
    let rope = match windows.theta {
        Some(theta) => rope::plain(family.rope, keys.positive_or(base, theta)?, rotated),
        None if keys.has(base) && keys.positive(base)? != keys.positive_or("rope.freq_base", rope::THETA)? => {
            // Whether it is stretched like the other is not known.
            let value = keys.positive(base)?.to_string();
            return Err(ModelError::UnsupportedFeature { key: keys.name(base), value });
        }
        None => all.rope.clone(),
    };
    let near = Reach { name: "window", window: Some(window), rope };
    let windowed = windowed(keys, windows.period, layers)?;
    Ok(match (windowed.contains(&false), windowed.contains(&true)) {
        (true, true) => (vec![all, near], windowed.into_iter().map(usize::from).collect()),
        (true, false) => (vec![all], vec![0; layers]),
        (false, _) => (vec![near], vec![0; layers]),
    })
}

/// Which layers have a window: by the file's flags or period, else by the architecture's period.
fn windowed(keys: &Keys, period: usize, layers: usize) -> Result<Vec<bool>, ModelError> {
    let key = "attention.sliding_window_pattern";
    let name = keys.name(key);
    if let Some(Value::Array(Array::Bool(flags))) = keys.meta.get(&name) {
        return if flags.len() == layers {
            Ok(flags.clone())
        } else {
            Err(keys.missing_or_wrong(&name, "a period, or one flag per layer,"))
        };
    }
    let period = keys.count_or(key, layers.max(period), period)?;
    Ok((0..layers).map(|layer| layer % period < period - 1).collect())
}

fn experts(gguf: &Gguf, keys: &Keys, family: &Family) -> Result<Option<Experts>, ModelError> {
    let key = "expert_count";
    let found = match family.experts {
        Some(rule) if rule.always => Some(keys.count(key, limits::EXPERTS)?),
        _ => keys.count_if_any(key, limits::EXPERTS)?,
    };
    let Some(count) = found else { return Ok(None) };
    let Some(rule) = family.experts else {
        return Err(ModelError::UnsupportedFeature { key: keys.name(key), value: count.to_string() });
    };
    let used = keys.count("expert_used_count", limits::EXPERTS_USED)?;
    if used > count {
        return keys.bad("expert_used_count", format!("{used} of {count} experts"));
    }
    let width = match keys.has("expert_feed_forward_length") {
        true => keys.count("expert_feed_forward_length", limits::WIDTH)?,
        false => keys.count("feed_forward_length", limits::WIDTH)?,
    };
    let gating = match keys.count_if_any("expert_gating_func", usize::MAX)? {
        // A bias for the choice alone came with sigmoids (DeepSeek-V3).
        None if gguf.tensors().iter().any(|t| t.name.ends_with(".exp_probs_b.bias")) => Gating::Sigmoid,
        None => rule.gating,
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SoftmaxSelected,
        Some(other) => {
            let key = keys.name("expert_gating_func");
            return Err(ModelError::UnsupportedFeature { key, value: other.to_string() });
        }
    };
    let shared = if rule.shared { keys.count_if_any("expert_shared_count", limits::EXPERTS_USED)? } else { None };
    Ok(Some(Experts {
        count,
        used,
        width,
        gating,
        normalise: keys.flag_or("expert_weights_norm", rule.normalise)?,
        scale: keys.positive_if_any("expert_weights_scale")?.unwrap_or(1.0),
        groups: groups(keys, count, used)?,
        bias: family.expert_bias,
        choice_bias: rule.choice_bias,
        shared: shared.map(|count| count * width),
    }))
}

fn groups(keys: &Keys, experts: usize, used: usize) -> Result<Option<ExpertGroups>, ModelError> {
    let key = "expert_group_count";
    let Some(count) = keys.count_if_any(key, limits::EXPERTS)?.filter(|&count| count > 1) else { return Ok(None) };
    if !experts.is_multiple_of(count) || experts / count < 2 {
        return keys.bad(key, format!("{experts} experts in {count} groups"));
    }
    let key = "expert_group_used_count";
    let groups = ExpertGroups { count, used: keys.count(key, count)? };
    if groups.used * (experts / count) < used {
        return keys.bad(key, format!("{} groups have fewer than {used} experts", groups.used));
    }
    Ok(Some(groups))
}

/// Rows of the embedding table: as many as the file's tokenizer has tokens, where it has one.
fn vocabulary(gguf: &Gguf) -> Result<usize, ModelError> {
    let name = "token_embd.weight";
    let info = gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.into() })?;
    let rows = info.dims.get(1).copied().unwrap_or(0);
    let bad = |why: String| Err(ModelError::BadValue { key: name.into(), why });
    match usize::try_from(rows) {
        Ok(rows) if rows > 0 && rows <= limits::VOCABULARY => {
            match gguf.metadata().strings("tokenizer.ggml.tokens").map(<[_]>::len) {
                Some(tokens) if tokens != rows => bad(format!("{rows} rows, but the vocabulary has {tokens} tokens")),
                _ => Ok(rows),
            }
        }
        _ => bad(format!("{rows} rows, 1 to {} allowed", limits::VOCABULARY)),
    }
}
