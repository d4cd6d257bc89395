//! What a server streams: lines of `data:` with JSON (`text/event-stream`), as OpenAI, vLLM and llama-server send them.

use crate::limits::EVENT_BYTES_MAX;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Cuts what comes in into lines.
#[derive(Default)]
pub(super) struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Takes bytes and gives every event's data that they complete. An error: a line is too long to be an event.
    pub(super) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), String> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end);
            if self.held.is_empty() {
                data(line).into_iter().for_each(&mut each);
            } else {
                self.held.extend_from_slice(line);
                data(&self.held).into_iter().for_each(&mut each);
                self.held.clear();
            }
            rest = &after[1..];
        }
        if self.held.len() + rest.len() > EVENT_BYTES_MAX {
            return Err(format!("an event is longer than {EVENT_BYTES_MAX} bytes"));
        }
        self.held.extend_from_slice(rest);
        Ok(())
    }
}

fn data(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"data:").map(<[u8]>::trim_ascii)
}

/// What an event told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    /// Text of the answer, its reasoning included. Empty where the event brought no token.
    pub(super) text: String,
    /// A part of a tool call came.
    pub(super) calls: bool,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<String>,
    pub(super) is_done: bool,
}

impl Told {
    /// Whether tokens came.
    pub(super) fn has_tokens(&self) -> bool {
        self.calls || !self.text.is_empty()
    }

    pub(super) fn read(data: &[u8]) -> Result<Self, String> {
        if data == b"[DONE]" {
            return Ok(Self { is_done: true, ..Self::default() });
        }
        let event: Event = serde_json::from_slice(data).map_err(|error| format!("an event is no JSON: {error}"))?;
        let mut told = Self { usage: event.usage, error: event.error.as_ref().map(message), ..Self::default() };
        for choice in event.choices.into_iter().flatten() {
            let delta = choice.delta.unwrap_or_default();
            told.calls |= delta.tool_calls.is_some_and(|calls| !calls.is_empty());
            for text in [choice.text, delta.reasoning_content.or(delta.reasoning), delta.content].into_iter().flatten()
            {
                told.text.push_str(&text);
            }
        }
        Ok(told)
    }
}

/// What an error's JSON says: `{"message": …}`, or text.
pub(super) fn message(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    text.as_str().map_or_else(|| text.to_string(), str::to_string)
}

#[derive(Deserialize)]
struct Event {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    /// vLLM's newer name of it.
    reasoning: Option<String>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

/// Tokens, as the server counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: u64,
    #[serde(default)]
    pub(super) completion_tokens: u64,
    pub(super) prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = b"data: {\"a\":1}\r\n\r\n: waiting\n\ndata:[DONE]\n\nevent: x\n";
        for size in 1..text.len() {
            let (mut lines, mut events) = (Lines::default(), Vec::new());
            for part in text.chunks(size) {
                lines.push(part, |data| events.push(data.to_vec())).unwrap();
            }
            assert_eq!(events, [&b"{\"a\":1}"[..], b"[DONE]"], "in parts of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::default();
        let mut parts = (0..).map(|_| lines.push(&[b'x'; 4096], |_| ()));
        assert!(parts.by_ref().take(EVENT_BYTES_MAX / 4096 + 1).any(|pushed| pushed.is_err()));
    }

    #[test]
    fn tokens_are_found_where_servers_put_them() {
        let text = |json: &str| Told::read(json.as_bytes()).unwrap().text;
        assert_eq!(text(r#"{"choices":[{"index":0,"text":" a","logprobs":null}],"usage":null}"#), " a");
        assert_eq!(text(r#"{"choices":[{"delta":{"content":"b"}}]}"#), "b");
        assert_eq!(text(r#"{"choices":[{"delta":{"reasoning_content":"c","content":null}}]}"#), "c");
        assert_eq!(text(r#"{"choices":[{"delta":{"reasoning":"d"}}]}"#), "d");
        let role = Told::read(br#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#).unwrap();
        assert!(!role.has_tokens());
        let call = Told::read(br#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#).unwrap();
        assert!(call.has_tokens());
    }

    #[test]
    fn usage_and_errors_are_read() {
        let usage = br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}"#;
        let usage = Told::read(usage).unwrap().usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 4));
        assert_eq!(usage.prompt_tokens_details.unwrap().cached_tokens, Some(2));
        assert_eq!(Told::read(br#"{"error":{"message":"no"}}"#).unwrap().error.as_deref(), Some("no"));
        assert!(Told::read(b"[DONE]").unwrap().is_done);
        assert!(Told::read(b"{").is_err());
    }
}
