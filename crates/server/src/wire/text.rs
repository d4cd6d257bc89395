//! `/v1/models`, `/tokenize` and `/detokenize`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The models that are served: one, under its names.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModelList<'a> {
    /// `list`
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelCard<'a>>,
}

/// A model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard<'a> {
    pub(crate) id: &'a str,
    /// `model`
    pub(crate) object: &'static str,
    /// Seconds since 1970 when the server started.
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// The name that answers bear.
    pub(crate) root: &'a str,
    /// Tokens that a context holds.
    pub(crate) max_model_len: usize,
    /// It answers messages; otherwise it only goes on with texts.
    pub(crate) chat: bool,
}

/// What `/tokenize` is asked: a prompt, or a conversation as `/v1/chat/completions` takes it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<String>,
    /// The token that texts begin with goes before it; true where it is not said.
    pub(crate) add_special_tokens: Option<bool>,
    /// The tokens' texts, too.
    pub(crate) return_token_strs: Option<bool>,
}

/// Tokens of a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Tokenized {
    pub(crate) count: usize,
    /// Tokens that a context holds.
    pub(crate) max_model_len: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) token_strs: Option<Vec<String>>,
}

/// What `/detokenize` is asked.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Detokenized {
    pub(crate) prompt: String,
}
