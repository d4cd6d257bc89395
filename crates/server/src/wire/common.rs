//! What all requests for text share.

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use utoipa::ToSchema;

/// How text is to be generated.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Generation {
    /// One of the names that `/v1/models` lists; the first where it is left out.
    pub(crate) model: Option<String>,
    /// As events, while it is generated.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// Answers to each prompt.
    pub(crate) n: Option<u64>,
    /// The same as `n`, or nothing.
    pub(crate) best_of: Option<u64>,
    /// Answers are the same for the same seed.
    #[schema(value_type = Option<i64>)]
    pub(crate) seed: Option<Seed>,
    /// 0: always the most likely token.
    pub(crate) temperature: Option<f64>,
    /// The most likely tokens up to this probability.
    pub(crate) top_p: Option<f64>,
    /// So many most likely tokens; 0 or -1: all.
    pub(crate) top_k: Option<i64>,
    /// Tokens at least this likely relative to the most likely one.
    pub(crate) min_p: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    /// Added to logits, by token id.
    #[schema(value_type = Option<std::collections::BTreeMap<String, f64>>)]
    pub(crate) logit_bias: Option<Map<String, Value>>,
    /// Strings that end an answer.
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) stop: Option<OneOrMany>,
    /// Tokens that end an answer.
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// The stop string stays at the end of the answer.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// Control tokens are left out of the text; true where it is not said.
    pub(crate) skip_special_tokens: Option<bool>,
    /// No other tokens are drawn.
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    /// An answer does not end before so many tokens.
    pub(crate) min_tokens: Option<u64>,
    /// The model's own end of an answer does not end it.
    pub(crate) ignore_eos: Option<bool>,
    /// Log-probabilities of the prompt's tokens, and of so many of the likeliest.
    pub(crate) prompt_logprobs: Option<u64>,
    /// Prompts share cached work only with those of the same salt.
    pub(crate) cache_salt: Option<String>,
    /// Lower ones go first.
    pub(crate) priority: Option<i32>,
    /// What the answer is to be, by its `type`: `text`, `json_object`, or `json_schema` with a schema. `stop` cuts it.
    pub(crate) response_format: Option<Value>,
    /// The same, as vLLM spells it: one of `json`, `json_object`, `regex`, `choice` and `grammar`.
    pub(crate) structured_outputs: Option<Value>,
    /// `structured_outputs.json` by its older name.
    pub(crate) guided_json: Option<Value>,
    /// `structured_outputs.regex` by its older name.
    pub(crate) guided_regex: Option<Value>,
    /// `structured_outputs.choice` by its older name.
    pub(crate) guided_choice: Option<Value>,
    /// `structured_outputs.grammar` by its older name.
    pub(crate) guided_grammar: Option<Value>,
    /// Not supported.
    pub(crate) use_beam_search: Option<bool>,
}

/// What is streamed beside text.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// A last event with the usage.
    pub(crate) include_usage: Option<bool>,
}

/// A text, or several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OneOrMany(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> Result<OneOrMany, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = access.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMany(texts))
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

/// Any whole number of 64 bits, with a sign or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of 64 bits")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Seed, E> {
                Ok(Seed(value as u64))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Seed, E> {
                Ok(Seed(value))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// They were in the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// Of the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionDetails {
    /// They were reasoning.
    pub(crate) reasoning_tokens: usize,
}

/// What ended an answer, where it was of the request: a stop string or a token.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Token(u32),
    Text(String),
}

/// Why an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}
