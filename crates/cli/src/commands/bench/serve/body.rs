//! What is asked: a prompt as the JSON that an endpoint takes.

use hyper::body::Bytes;
use serde_json::{Map, Value, json};

/// Which of OpenAI's APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Completions,
    Chat,
}

impl Api {
    /// By an endpoint's path.
    pub(super) fn of(endpoint: &str) -> Option<Self> {
        match endpoint.trim_end_matches('/') {
            path if path.ends_with("/chat/completions") => Some(Self::Chat),
            path if path.ends_with("/completions") => Some(Self::Completions),
            _ => None,
        }
    }

    /// vLLM's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Completions => "openai",
            Self::Chat => "openai-chat",
        }
    }
}

/// What an answer goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    /// `/v1/completions` only.
    Tokens(Vec<u32>),
}

/// One request of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) prompt: Prompt,
    /// Tokens of the prompt, as far as it is known before the server counts them.
    pub(super) prompt_tokens: usize,
    /// Tokens of the answer at most.
    pub(super) max_tokens: usize,
}

/// What all requests have in common.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) api: Api,
    pub(super) model: String,
    pub(super) temperature: f64,
    pub(super) ignore_eos: bool,
    /// Goes into every body last.
    pub(super) extra: Map<String, Value>,
}

impl Manner {
    /// The JSON.
    pub(super) fn body(&self, ask: &Ask) -> Bytes {
        let mut body = json!({
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": self.temperature,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let prompt = match &ask.prompt {
            Prompt::Text(text) => json!(text),
            Prompt::Tokens(tokens) => json!(tokens),
        };
        match self.api {
            Api::Completions => body["prompt"] = prompt,
            Api::Chat => body["messages"] = json!([{"role": "user", "content": prompt}]),
        }
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        body.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(api: Api, prompt: Prompt, ignore_eos: bool) -> Value {
        let extra = json!({"top_k": 1, "temperature": 0.5}).as_object().unwrap().clone();
        let manner = Manner { api, model: "m".into(), temperature: 0.0, ignore_eos, extra };
        let ask = Ask { prompt, prompt_tokens: 2, max_tokens: 9 };
        serde_json::from_slice(&manner.body(&ask)).unwrap()
    }

    #[test]
    fn completions_take_tokens_and_text() {
        let tokens = body(Api::Completions, Prompt::Tokens(vec![5, 6]), true);
        let expected = json!({"model": "m", "max_tokens": 9, "temperature": 0.5, "stream": true, "top_k": 1,
            "stream_options": {"include_usage": true}, "prompt": [5, 6], "ignore_eos": true});
        assert_eq!(tokens, expected);
        let text = body(Api::Completions, Prompt::Text("a\n\"".into()), false);
        assert_eq!((&text["prompt"], text.get("ignore_eos")), (&json!("a\n\""), None));
    }

    #[test]
    fn chats_take_messages() {
        let chat = body(Api::Chat, Prompt::Text("a".into()), false);
        assert_eq!(chat["messages"], json!([{"role": "user", "content": "a"}]));
        assert_eq!(chat.get("prompt"), None);
    }

    #[test]
    fn the_endpoint_tells_the_api() {
        assert_eq!(Api::of("/v1/completions"), Some(Api::Completions));
        assert_eq!(Api::of("/proxy/v1/chat/completions/"), Some(Api::Chat));
        assert_eq!(Api::of("/v1/embeddings"), None);
    }
}
