//! How families of models mark the parts of an answer.

use super::{ToolCall, Tools, deepseek, glm, hermes, kimi, llama};

/// A family's way of writing calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// None: all is text, save reasoning.
    Plain,
    /// GLM-4.5 and later: a name and pairs of key and value in tags.
    Glm,
    /// Qwen 2.5 and 3, Hermes: a JSON object in tags.
    Hermes,
    /// DeepSeek V3, V3.1, R1: sections with names and JSON.
    DeepSeek,
    /// Kimi K2: the same with other markers and numbered names.
    Kimi,
    /// Llama 3: a JSON object that is the whole answer, with or without a tag before it.
    Llama,
}

/// A part of an answer with calls in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) open: &'static str,
    /// `None`: the answer's end.
    pub(super) close: Option<&'static str>,
}

const fn section(open: &'static str, close: &'static str) -> Section {
    Section { open, close: Some(close) }
}

const TAGS: &[Section] = &[section("<tool_call>", "</tool_call>")];
const DEEPSEEK: &[Section] = &[
    section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    section("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
];
const KIMI: &[Section] = &[
    section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    section("<|tool_call_begin|>", "<|tool_call_end|>"),
];
const LLAMA: &[Section] = &[Section { open: "<|python_tag|>", close: None }];

impl Dialect {
    /// The one that a chat template teaches, by the markers in its text.
    pub fn of_template(template: &str) -> Self {
        let has = |marker: &str| template.contains(marker);
        match () {
            () if has("<arg_key>") => Self::Glm,
            () if has("tool▁call▁begin") || has("tool▁calls▁begin") => Self::DeepSeek,
            () if has("<|tool_call_begin|>") || has("<|tool_calls_section_begin|>") => Self::Kimi,
            () if has("<tool_call>") => Self::Hermes,
            () if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) => Self::Llama,
            () => Self::Plain,
        }
    }

    pub(super) fn sections(self) -> &'static [Section] {
        match self {
            Self::Plain => &[],
            Self::Glm | Self::Hermes => TAGS,
            Self::DeepSeek => DEEPSEEK,
            Self::Kimi => KIMI,
            Self::Llama => LLAMA,
        }
    }

    /// The section that a marker opens.
    pub(super) fn section(self, open: &str) -> Option<Section> {
        self.sections().iter().find(|s| s.open == open).copied()
    }

    /// Whether a call may be the whole answer, without a marker.
    pub(super) fn may_be_bare(self) -> bool {
        self == Self::Llama
    }

    /// The calls in a section's body, at least one; `None` where it is something else.
    pub(super) fn calls(self, section: Section, body: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
        match self {
            Self::Plain => None,
            Self::Glm => glm::call(body, tools).map(|call| vec![call]),
            Self::Hermes => hermes::call(body, tools).map(|call| vec![call]),
            Self::DeepSeek => deepseek::calls(section, body, tools),
            Self::Kimi => kimi::calls(section, body, tools),
            Self::Llama => llama::tagged(body, tools),
        }
    }
}

/// Every part of `text` between `open` and `close`; the last may lack its end. `None` where there is none.
pub(super) fn parts<'t>(text: &'t str, open: &str, close: &str) -> Option<Vec<&'t str>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(open) {
        let body = &rest[at + open.len()..];
        let (body, after) = body.split_once(close).unwrap_or((body, ""));
        found.push(body);
        rest = after;
    }
    (!found.is_empty()).then_some(found)
}
