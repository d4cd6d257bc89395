//! `/v1/chat/completions`.

use super::{FinishReason, StopReason, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What `/v1/chat/completions` is asked beside [`Generation`](super::Generation).
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The conversation.
    #[schema(value_type = Vec<Value>)]
    pub(crate) messages: Vec<Map<String, Value>>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Value>>)]
    pub(crate) tools: Option<Vec<Map<String, Value>>>,
    /// `none`, `auto`, `required`, or `{"type": "function", "function": {"name": …}}`.
    pub(crate) tool_choice: Option<Value>,
    /// Calls that must be made may be several; true where it is not said.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// The same as `max_completion_tokens`.
    pub(crate) max_tokens: Option<u64>,
    /// Most tokens of an answer [default: as many as fit].
    pub(crate) max_completion_tokens: Option<u64>,
    /// Log-probabilities of every token.
    pub(crate) logprobs: Option<bool>,
    /// And of so many of the likeliest.
    pub(crate) top_logprobs: Option<u64>,
    /// Variables of the template's own, as `enable_thinking`.
    #[schema(value_type = Option<Value>)]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Refused: the model brings its own.
    pub(crate) chat_template: Option<String>,
    /// The prompt ends where the assistant's turn begins; true where it is not said.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Not supported.
    pub(crate) continue_final_message: Option<bool>,
    /// Texts to answer from, for templates that know them.
    #[schema(value_type = Option<Vec<Value>>)]
    pub(crate) documents: Option<Vec<Map<String, Value>>>,
    /// For templates that know it.
    pub(crate) reasoning_effort: Option<String>,
    /// Reasoning is part of the answer; true where it is not said.
    pub(crate) include_reasoning: Option<bool>,
    /// Not supported: `tools` took its place.
    pub(crate) functions: Option<Vec<Value>>,
    /// Not supported but for text.
    pub(crate) modalities: Option<Vec<String>>,
}

/// An answer of `/v1/chat/completions`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion<'a> {
    pub(crate) id: &'a str,
    /// `chat.completion`
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
}

/// One answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: FinishReason,
    pub(crate) stop_reason: Option<StopReason>,
}

/// What the assistant says.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatMessage {
    /// `assistant`
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<Call>,
}

/// A part of a streamed answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    /// `chat.completion.chunk`
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
}

/// A part of one answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
}

/// What is new.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Call {
    /// Its place among the answer's calls, in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    pub(crate) id: String,
    /// `function`
    pub(crate) r#type: &'static str,
    pub(crate) function: Function,
}

/// Which tool, with what.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
}

/// Log-probabilities of an answer's tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatLogprob>,
}

/// Of one token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}
