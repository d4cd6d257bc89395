//! `/v1/completions`.

use super::{FinishReason, StopReason, Usage};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use utoipa::ToSchema;

/// What `/v1/completions` is asked beside [`Generation`](super::Generation).
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// A text, token ids, or a list of either.
    #[schema(value_type = Value)]
    pub(crate) prompt: Prompts,
    /// Most tokens of an answer [default: 16].
    pub(crate) max_tokens: Option<u64>,
    /// The prompt stands before the answer.
    pub(crate) echo: Option<bool>,
    /// Log-probabilities of every token, and of so many of the likeliest.
    pub(crate) logprobs: Option<u64>,
    /// Not supported.
    pub(crate) suffix: Option<String>,
}

/// What answers go on with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// One prompt or several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of token ids, or a list of such prompts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
                while let Some(item) = access.next_element::<Item>()? {
                    match item {
                        Item::Token(token) => tokens.push(token),
                        Item::Text(text) => prompts.push(Prompt::Text(text)),
                        Item::Tokens(tokens) => prompts.push(Prompt::Tokens(tokens)),
                    }
                }
                if !tokens.is_empty() {
                    if !prompts.is_empty() {
                        return Err(A::Error::custom("token ids and prompts are mixed"));
                    }
                    prompts.push(Prompt::Tokens(tokens));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

enum Item {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id, or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<Item, E> {
                u32::try_from(token).map(Item::Token).map_err(|_| E::custom(format!("{token} is no token id")))
            }

            fn visit_i64<E: Error>(self, token: i64) -> Result<Item, E> {
                Err(E::custom(format!("{token} is no token id")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Item, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = access.next_element()? {
                    tokens.push(token);
                }
                Ok(Item::Tokens(tokens))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// An answer of `/v1/completions`, or a part of one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Completion<'a> {
    pub(crate) id: &'a str,
    /// `text_completion`
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    pub(crate) usage: Option<Usage>,
}

/// One answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<LegacyLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) stop_reason: Option<StopReason>,
    /// For every token of the prompt, by token id; null for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Value>>)]
    pub(crate) prompt_logprobs: Option<Vec<Value>>,
}

/// Log-probabilities, list by list.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct LegacyLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    #[schema(value_type = Vec<Value>)]
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins in the text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_all_kinds() {
        let read = |text: &str| serde_json::from_str::<Prompts>(text).map(|prompts| prompts.0);
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(read(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("[1, 2]").unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(read("[[1], [2, 3]]").unwrap(), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
        assert_eq!(read("[]").unwrap(), []);
        for wrong in ["[-1]", "[4294967296]", "[1.5]", r#"[1, "a"]"#, "[[-1]]", "7", "{}", "[[[1]]]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
