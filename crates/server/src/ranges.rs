//! Which values the fields of requests may have, in one place: requests are checked against it, and the API's description
//! tells it. How many there may be of something is in [`limits`].

use crate::error::ApiError;
use crate::limits;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Display;

/// From `least` to `most`, both allowed.
pub(crate) struct Range<T> {
    pub(crate) field: &'static str,
    pub(crate) least: T,
    pub(crate) most: T,
}

const fn range<T: Copy>(field: &'static str, least: T, most: T) -> Range<T> {
    Range { field, least, most }
}

pub(crate) const N: Range<u64> = range("n", 1, limits::CHOICES as u64);
pub(crate) const BEST_OF: Range<u64> = range("best_of", 1, limits::CHOICES as u64);
pub(crate) const TEMPERATURE: Range<f64> = range("temperature", 0.0, 100.0);
pub(crate) const TOP_P: Range<f64> = range("top_p", 0.0, 1.0);
pub(crate) const TOP_K: Range<i64> = range("top_k", -1, i64::MAX);
pub(crate) const MIN_P: Range<f64> = range("min_p", 0.0, 1.0);
pub(crate) const PRESENCE: Range<f64> = range("presence_penalty", -2.0, 2.0);
pub(crate) const FREQUENCY: Range<f64> = range("frequency_penalty", -2.0, 2.0);
pub(crate) const REPETITION: Range<f64> = range("repetition_penalty", 0.01, 100.0);
/// Of every entry.
pub(crate) const BIAS: Range<f64> = range("logit_bias", -100.0, 100.0);
/// Of `/v1/completions`; in conversations it is true or false.
pub(crate) const LOGPROBS: Range<u64> = range("logprobs", 0, limits::TOP_LOGPROBS);
pub(crate) const TOP_LOGPROBS: Range<u64> = range("top_logprobs", 0, limits::TOP_LOGPROBS);
pub(crate) const PROMPT_LOGPROBS: Range<u64> = range("prompt_logprobs", 0, limits::TOP_LOGPROBS);
/// As many as nobody needs are as many as fit.
pub(crate) const MAX_TOKENS: Range<u64> = range("max_tokens", 1, u64::MAX);
pub(crate) const MAX_COMPLETION_TOKENS: Range<u64> = range("max_completion_tokens", 1, u64::MAX);

impl<T: Copy + PartialOrd + Display> Range<T> {
    /// A value of the range; of what is no number, none is.
    pub(crate) fn check(&self, value: T) -> Result<T, ApiError> {
        let Self { field, least, most } = self;
        if value >= *least && value <= *most {
            return Ok(value);
        }
        Err(ApiError::field(field, format!("`{field}` is {value}; it must be from {least} to {most}")))
    }
}

impl<T: Copy + Serialize> Range<T> {
    fn keywords(&self) -> Value {
        // The type's format is that of numbers with a sign.
        json!({"minimum": self.least, "maximum": self.most, "format": null})
    }

    fn of(&self, schema: &'static str) -> Keywords {
        (schema, self.field, self.keywords())
    }
}

/// What `tool_choice` may be beside one function.
pub(crate) const TOOL_CHOICES: [&str; 3] = ["none", "auto", "required"];
/// What `response_format.type` may be.
pub(crate) const RESPONSE_FORMATS: [&str; 3] = ["text", "json_object", "json_schema"];

/// A schema of the description, one of its fields, and what JSON Schema says of its values beside their type. Where a keyword
/// is null, the type's own goes.
pub(crate) type Keywords = (&'static str, &'static str, Value);

/// Of all fields.
pub(crate) fn keywords() -> Vec<Keywords> {
    let [shared, chat, completion] = ["Generation", "ChatRequest", "CompletionRequest"];
    let mut all = vec![N.of(shared), BEST_OF.of(shared), TOP_K.of(shared), PROMPT_LOGPROBS.of(shared)];
    all.extend([&TEMPERATURE, &TOP_P, &MIN_P, &PRESENCE, &FREQUENCY, &REPETITION].map(|range| range.of(shared)));
    all.extend([TOP_LOGPROBS.of(chat), MAX_TOKENS.of(chat), MAX_COMPLETION_TOKENS.of(chat), LOGPROBS.of(completion)]);
    let from_0 = json!({"minimum": 0, "maximum": u64::MAX, "format": null});
    let stop = json!({"type": "string", "minLength": 1, "maxLength": limits::STOP_BYTES});
    let stops = json!({
        "type": ["string", "array", "null"],
        "minLength": 1, "maxLength": limits::STOP_BYTES, "maxItems": limits::STOPS, "items": stop,
    });
    let bias = json!({
        "maxProperties": limits::BIASES, "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
        "additionalProperties": {"type": "number", "minimum": BIAS.least, "maximum": BIAS.most},
    });
    let format = json!({
        "type": ["object", "null"], "required": ["type"], "properties": {"type": {"enum": RESPONSE_FORMATS}},
    });
    let name = json!({"type": "string", "minLength": 1, "maxLength": limits::TOOL_NAME_BYTES});
    let function = json!({"type": "object", "required": ["name"], "properties": {"name": name}});
    let tool = json!({"type": "object", "required": ["function"], "properties": {"function": function}});
    let text = json!({"type": "string", "minLength": 1});
    let message = json!({"type": "object", "required": ["role"], "properties": {"role": text}});
    let [first, second, third] = TOOL_CHOICES;
    let seed = json!({"minimum": i64::MIN, "maximum": u64::MAX, "format": null});
    all.extend([
        (shared, "logit_bias", bias),
        (shared, "stop", stops),
        (shared, "stop_token_ids", json!({"maxItems": limits::TOKEN_IDS})),
        (shared, "allowed_token_ids", json!({"minItems": 1, "maxItems": limits::TOKEN_IDS})),
        (shared, "seed", seed),
        (shared, "min_tokens", from_0.clone()),
        (completion, "max_tokens", from_0),
        (shared, "response_format", format),
        (shared, "structured_outputs", json!({"type": ["object", "null"]})),
        (shared, "guided_regex", json!({"type": ["string", "null"], "minLength": 1})),
        (shared, "guided_grammar", json!({"type": ["string", "null"]})),
        (shared, "guided_choice", json!({"type": ["array", "null"], "minItems": 1, "items": text})),
        (shared, "priority", json!({"minimum": i32::MIN, "maximum": i32::MAX})),
        (shared, "use_beam_search", json!({"enum": [false, null]})),
        (chat, "messages", json!({"minItems": 1, "items": message})),
        (chat, "tools", json!({"maxItems": limits::TOOLS, "items": tool})),
        (chat, "tool_choice", json!({"anyOf": [{"enum": [first, second, third, null]}, &tool]})),
        (chat, "chat_template_kwargs", json!({"type": ["object", "null"]})),
        (chat, "functions", json!({"maxItems": 0})),
        (chat, "modalities", json!({"items": {"enum": ["text"]}})),
        (chat, "continue_final_message", json!({"enum": [false, null]})),
        (chat, "documents", json!({"items": {"type": "object"}})),
        (completion, "prompt", prompts()),
        (completion, "suffix", json!({"maxLength": 0})),
        ("DetokenizeRequest", "tokens", json!({"maxItems": limits::DETOKENIZE_TOKENS})),
    ]);
    all
}

/// A text, token ids, or a list of such.
fn prompts() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let tokens = json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}});
    let several = |items: &Value| json!({"type": "array", "minItems": 1, "maxItems": limits::CHOICES, "items": items});
    json!({"anyOf": [text, tokens, several(&text), several(&tokens)]})
}
