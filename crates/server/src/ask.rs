//! From what a client asks to what the engine is asked: ranges are checked here, and defaults filled in.

use crate::allowed::AllowedTokens;
use crate::answer::Style;
use crate::auth::Caller;
use crate::constraint::Constraint;
use crate::error::{ApiError, echo};
use crate::generating::Held;
use crate::limits;
use crate::model::Model;
use crate::ranges::{self, Range};
use crate::wire::Generation;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tombolo_engine::{Extra, Mask, Penalties, Request};
use tombolo_model::Sampling;
use tombolo_text::grammar::Reasoning;

/// Bytes that a token takes among log-probabilities that are kept.
const LOGPROB_BYTES: usize = 96;

/// What all answers of a request have in common.
pub(crate) struct Plan {
    pub(crate) n: usize,
    pub(crate) style: Style,
    sampling: Sampling,
    bias: Vec<(u32, f32)>,
    penalties: Penalties,
    min_tokens: usize,
    allowed: Option<AllowedTokens>,
    /// Tokens that end an answer, where the request does not want them to.
    late: Option<AllowedTokens>,
    constraint: Option<Constraint>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    stop: Arc<[u32]>,
    priority: i32,
    owner: u64,
    salt: u64,
    context: usize,
}

impl Plan {
    /// Checks a request. `logprobs`: of how many likeliest tokens to tell beside each that is drawn; `calls`: the tools
    /// that must be called.
    pub(crate) fn new(
        wanted: &Generation,
        model: &Model,
        caller: Caller,
        logprobs: Option<usize>,
        calls: Option<Constraint>,
    ) -> Result<Self, ApiError> {
        if wanted.use_beam_search == Some(true) {
            return Err(ApiError::unsupported("use_beam_search"));
        }
        let constraint = match (Constraint::of(wanted)?, calls) {
            (Some(constraint), Some(calls)) => {
                let message = format!("`{}` does not go together with tools that must be called", constraint.field);
                return Err(ApiError::field(&calls.field, message));
            }
            (constraint, calls) => constraint.or(calls),
        };
        let n = ranges::N.check(wanted.n.unwrap_or(1))? as usize;
        if wanted.best_of.is_some_and(|best_of| best_of != n as u64) {
            return Err(ApiError::field("best_of", "`best_of` other than `n` is not supported"));
        }
        let stop_ids = tokens("stop_token_ids", wanted.stop_token_ids.as_deref(), model)?;
        let goes_on = wanted.ignore_eos == Some(true);
        // What is complete under a constraint ends: nothing else could follow.
        let own_ends: Arc<[u32]> =
            if goes_on && constraint.is_none() { Arc::from([]) } else { Arc::from(model.ends()) };
        let late = (goes_on && constraint.is_some()).then(|| AllowedTokens::new(model.ends(), model.vocabulary));
        let ends: Arc<[u32]> = own_ends.iter().copied().chain(stop_ids.iter().copied()).collect();
        let allowed = match &wanted.allowed_token_ids {
            Some(ids) if ids.is_empty() => {
                return Err(ApiError::field("allowed_token_ids", "`allowed_token_ids` is empty"));
            }
            Some(ids) => Some(AllowedTokens::new(&tokens("allowed_token_ids", Some(ids), model)?, model.vocabulary)),
            None => None,
        };
        let min_tokens = usize::try_from(wanted.min_tokens.unwrap_or(0)).unwrap_or(usize::MAX);
        let style = Style {
            stops: stops(wanted)?,
            keeps_stop: wanted.include_stop_str_in_output == Some(true),
            min_tokens,
            shows_control: wanted.skip_special_tokens == Some(false),
            ends: ends.clone(),
            own_ends,
        };
        Ok(Self {
            n,
            style,
            sampling: sampling(wanted)?,
            bias: bias(wanted, model)?,
            penalties: penalties(wanted)?,
            min_tokens,
            allowed,
            late,
            constraint,
            logprobs,
            prompt_logprobs: top(&ranges::PROMPT_LOGPROBS, wanted.prompt_logprobs)?,
            stop: ends,
            priority: wanted.priority.unwrap_or(0),
            owner: caller.owner,
            salt: salt(caller, wanted.cache_salt.as_deref()),
            context: model.context,
        })
    }

    /// Tells of the prompt's tokens, too, as of those that are drawn.
    pub(crate) fn echo(&mut self, needs_no_answer: bool) {
        // An empty answer to a prompt is nothing to run; its log-probabilities are.
        let least = needs_no_answer.then_some(0);
        self.prompt_logprobs = self.prompt_logprobs.max(self.logprobs).or(least);
    }

    /// How answers are held to what the request asks for; `None`: they are free.
    pub(crate) fn held(&mut self, reasoning: Reasoning) -> Option<Held> {
        let constraint = self.constraint.take()?;
        Some(Held { constraint, reasoning, also: self.allowed.clone(), late: self.late.clone() })
    }

    pub(crate) fn tells_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// Refuses what would take too much memory to tell.
    pub(crate) fn check_bytes(&self, prompt_tokens: usize, max_tokens: usize, keeps: bool) -> Result<(), ApiError> {
        let drawn = if keeps { max_tokens.min(self.context).saturating_mul(self.n) } else { 0 };
        let of = |tokens: usize, top: Option<usize>| top.map_or(0, |top| tokens.saturating_mul(1 + top));
        let prompts = of(prompt_tokens.saturating_mul(self.n), self.prompt_logprobs);
        let bytes = prompts.saturating_add(of(drawn, self.logprobs)).saturating_mul(LOGPROB_BYTES);
        if bytes > limits::LOGPROBS_BYTES {
            let message = "the log-probabilities would be too many: ask for fewer tokens, or fewer likeliest ones";
            return Err(ApiError::field("logprobs", message));
        }
        Ok(())
    }

    /// What the engine is asked for the `index`th answer to a prompt.
    pub(crate) fn request(&self, prompt: Vec<u32>, max_tokens: usize, index: usize) -> Request {
        let mut sampling = self.sampling;
        // Seeds of one request's answers lie far apart; the first answer's is the request's.
        sampling.seed = sampling.seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Request {
            prompt,
            max_tokens,
            stop: self.stop.clone(),
            sampling,
            extra: self.extra(),
            priority: self.priority,
            owner: self.owner,
            salt: self.salt,
        }
    }

    /// Nothing, where nothing needs the logits on the host.
    fn extra(&self) -> Option<Box<Extra>> {
        let mask = self.allowed.clone().map(|allowed| Box::new(allowed) as Box<dyn Mask>);
        let holds_back = self.min_tokens > 0 && !self.stop.is_empty();
        let is_needed = holds_back
            || self.penalties != Penalties::default()
            || !self.bias.is_empty()
            || mask.is_some()
            || self.logprobs.is_some()
            || self.prompt_logprobs.is_some();
        is_needed.then(|| {
            Box::new(Extra {
                min_tokens: self.min_tokens,
                penalties: self.penalties,
                bias: self.bias.clone(),
                mask,
                logprobs: self.logprobs,
                prompt_logprobs: self.prompt_logprobs,
            })
        })
    }
}

/// Of how many likeliest tokens to tell.
pub(crate) fn top(range: &Range<u64>, count: Option<u64>) -> Result<Option<usize>, ApiError> {
    count.map(|count| range.check(count).map(|count| count as usize)).transpose()
}

/// Answers of at most so many tokens: what is asked for, as far as the context goes.
pub(crate) fn max_tokens(
    range: &Range<u64>,
    asked: Option<u64>,
    default: usize,
    prompt: usize,
    model: &Model,
) -> Result<usize, ApiError> {
    let asked = asked.map(|asked| range.check(asked)).transpose()?;
    let room = (model.context + 1).saturating_sub(prompt).max(1);
    Ok(asked.map_or(default, |asked| usize::try_from(asked).unwrap_or(usize::MAX)).min(room))
}

/// A number of a range.
fn within(range: &Range<f64>, value: Option<f64>, default: f64) -> Result<f32, ApiError> {
    range.check(value.unwrap_or(default)).map(|value| value as f32)
}

fn sampling(wanted: &Generation) -> Result<Sampling, ApiError> {
    // -1 and more than there are tokens are all of them.
    let top_k = ranges::TOP_K.check(wanted.top_k.unwrap_or(0))?;
    Ok(Sampling {
        temperature: within(&ranges::TEMPERATURE, wanted.temperature, 1.0)?,
        top_k: u32::try_from(top_k).unwrap_or(0),
        top_p: within(&ranges::TOP_P, wanted.top_p, 1.0)?,
        min_p: within(&ranges::MIN_P, wanted.min_p, 0.0)?,
        seed: wanted.seed.map_or_else(random, |seed| seed.0),
    })
}

/// Unlike any other; nothing secret hangs on it.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn penalties(wanted: &Generation) -> Result<Penalties, ApiError> {
    let repetition = within(&ranges::REPETITION, wanted.repetition_penalty, 1.0)?;
    let presence = within(&ranges::PRESENCE, wanted.presence_penalty, 0.0)?;
    let frequency = within(&ranges::FREQUENCY, wanted.frequency_penalty, 0.0)?;
    Ok(Penalties { repetition, presence, frequency })
}

fn bias(wanted: &Generation, model: &Model) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = &wanted.logit_bias else { return Ok(Vec::new()) };
    if map.len() > limits::BIASES {
        let message = format!("`logit_bias` has {} entries; at most {} are possible", map.len(), limits::BIASES);
        return Err(ApiError::field("logit_bias", message));
    }
    let entry = |(key, value): (&String, &serde_json::Value)| {
        // One spelling for each, so that none is biased twice.
        let is_token = |token: &u32| (*token as usize) < model.vocabulary && token.to_string() == *key;
        let token = key.parse::<u32>().ok().filter(is_token);
        let token = token.ok_or_else(|| {
            let message = format!("`logit_bias`: '{}' is no token of this model", echo(key));
            ApiError::field("logit_bias", message)
        })?;
        let value = value.as_f64().ok_or_else(|| ApiError::field("logit_bias", "`logit_bias`: biases are numbers"))?;
        within(&ranges::BIAS, Some(value), 0.0).map(|bias| (token, bias))
    };
    map.iter().map(entry).collect()
}

fn stops(wanted: &Generation) -> Result<Vec<String>, ApiError> {
    let stops = wanted.stop.as_ref().map_or(&[][..], |stops| &stops.0);
    if stops.len() > limits::STOPS {
        return Err(ApiError::field(
            "stop",
            format!("`stop` has {} strings; at most {} are possible", stops.len(), limits::STOPS),
        ));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::field("stop", "`stop`: a stop string is empty"));
    }
    if stops.iter().any(|stop| stop.len() > limits::STOP_BYTES) {
        return Err(ApiError::field("stop", format!("`stop`: a stop string has at most {} bytes", limits::STOP_BYTES)));
    }
    Ok(stops.to_vec())
}

/// Token ids that the model has.
fn tokens(field: &str, ids: Option<&[u32]>, model: &Model) -> Result<Vec<u32>, ApiError> {
    let ids = ids.unwrap_or_default();
    if ids.len() > limits::TOKEN_IDS {
        return Err(ApiError::field(field, format!("`{field}` has more than {} tokens", limits::TOKEN_IDS)));
    }
    match ids.iter().find(|&&id| id as usize >= model.vocabulary) {
        Some(id) => Err(ApiError::field(field, format!("`{field}`: {id} is no token of this model"))),
        None => Ok(ids.to_vec()),
    }
}

/// What separates cached work: keys, where there are several, and what the request says.
fn salt(caller: Caller, salt: Option<&str>) -> u64 {
    let Some(salt) = salt else { return caller.salt };
    let mut hash = Sha256::new();
    hash.update(caller.salt.to_le_bytes());
    hash.update(salt.as_bytes());
    first_word(&hash.finalize())
}

/// The first 8 bytes of a hash as a number.
pub(crate) fn first_word(hash: &[u8]) -> u64 {
    hash.iter().take(8).fold(0, |word, &byte| word << 8 | u64::from(byte))
}
