//! What a chat template is given: messages, tools and settings as JSON, since templates look at fields of which only
//! their model knows. And what comes out of it: a prompt, in which text of the conversation is told from the template's.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use crate::matcher::Matcher;
use crate::{TextError, limits};

/// One turn of a conversation that is only text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl From<&Message> for Json {
    fn from(message: &Message) -> Self {
        json!({"role": message.role, "content": message.content})
    }
}

/// All that a chat template is given. The JSON keeps its order of keys: templates print tools as they come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The turns, each an object: `role` and `content`, and what else the template knows, as `tool_calls` or
    /// `reasoning_content`.
    pub messages: Vec<Json>,
    /// The tools that the model may call, as OpenAI's API describes them.
    pub tools: Vec<Json>,
    /// Texts to answer from, for templates that know them.
    pub documents: Vec<Json>,
    /// Whether the prompt ends where the assistant's turn begins.
    pub add_generation_prompt: bool,
    /// Variables of the template's own, as `enable_thinking`.
    pub settings: Map<String, Json>,
}

impl Conversation {
    /// A conversation of text only, for the assistant to answer.
    pub fn new(messages: &[Message]) -> Self {
        let messages = messages.iter().map(Json::from).collect();
        Self { messages, add_generation_prompt: true, ..Self::default() }
    }

    /// The variables that a template sees. Control tokens that `control` finds in the conversation's text are marked.
    pub(crate) fn variables(&self, control: &Matcher) -> Result<(Value, Size), TextError> {
        at_most("conversation, messages", self.messages.len(), limits::MESSAGES_MAX)?;
        let mut reader = Reader { control, keeps_reasoning: false, size: Size::default() };
        let list = |values: &[Json], reader: &mut Reader<'_>| {
            let turn = |value: &Json| {
                reader.keeps_reasoning = value.get("role").is_some_and(|role| role == "assistant");
                match with_reasoning(value) {
                    Some(renamed) => reader.value(&renamed, 0),
                    None => reader.value(value, 0),
                }
            };
            values.iter().map(turn).collect::<Result<Vec<Value>, TextError>>().map(Value::from)
        };
        // transformers passes `tools` and `documents` whether there are any or not, and templates test for none.
        let or_none = |values: &[Json], reader: &mut Reader<'_>| {
            if values.is_empty() { Ok(Value::from(())) } else { list(values, reader) }
        };
        let mut variables = vec![
            ("messages", list(&self.messages, &mut reader)?),
            ("tools", or_none(&self.tools, &mut reader)?),
            ("documents", or_none(&self.documents, &mut reader)?),
            ("add_generation_prompt", self.add_generation_prompt.into()),
        ];
        for (name, value) in &self.settings {
            if RESERVED.contains(&name.as_str()) || !is_name(name) {
                return Err(TextError::Setting { name: crate::error::shorten(name) });
            }
            variables.push((name.as_str(), reader.value(value, 0)?));
        }
        Ok((Value::from_pairs(variables), reader.size))
    }
}

/// Variables that a conversation's settings cannot be: what is passed beside them, and what templates rely on.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
];

/// A turn with its reasoning, if it has any, under the names that templates know: `reasoning_content`, and for gpt-oss
/// `thinking`. transformers has this rule, and the order.
fn with_reasoning(turn: &Json) -> Option<Json> {
    let fields = turn.as_object()?;
    let names = ["reasoning_content", "thinking", "reasoning"];
    let reasoning = names.iter().filter_map(|name| fields.get(*name)).find(|value| !value.is_null())?;
    let mut renamed = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
    renamed.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    renamed.insert("reasoning_content".to_owned(), reasoning.clone());
    Some(Json::Object(renamed))
}

/// Whether a template could spell a variable of this name.
fn is_name(name: &str) -> bool {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    letters && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// How much a conversation holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// Strings, keys among them, and a byte for every value.
    pub(crate) bytes: usize,
    pub(crate) values: usize,
}

/// Reads JSON, and counts it.
struct Reader<'m> {
    control: &'m Matcher,
    /// Whether this is the model's own turn: templates cut its reasoning out by the tags around it.
    keeps_reasoning: bool,
    size: Size,
}

impl Reader<'_> {
    fn value(&mut self, json: &Json, depth: usize) -> Result<Value, TextError> {
        if depth > limits::VALUE_DEPTH_MAX {
            return Err(TextError::TooMany {
                what: "conversation, levels of lists and objects",
                count: depth,
                limit: limits::VALUE_DEPTH_MAX,
            });
        }
        self.size.values += 1;
        self.count(1)?;
        Ok(match json {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::from(value),
                (None, Some(value)) => Value::from(value),
                (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => {
                self.count(text.len())?;
                Value::from(marks::mark(text, self.control, self.keeps_reasoning))
            }
            Json::Array(items) => {
                let items: Result<Vec<Value>, TextError> = items.iter().map(|v| self.value(v, depth + 1)).collect();
                Value::from(items?)
            }
            Json::Object(fields) => {
                let mut pairs = Vec::with_capacity(fields.len());
                for (key, value) in fields {
                    self.count(key.len())?;
                    pairs.push((key.as_str(), self.value(value, depth + 1)?));
                }
                Value::from_pairs(pairs)
            }
        })
    }

    fn count(&mut self, bytes: usize) -> Result<(), TextError> {
        self.size.bytes += bytes;
        at_most("conversation, bytes", self.size.bytes, limits::TEXT_BYTES_MAX)
    }
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), TextError> {
    if count > limit { Err(TextError::TooMany { what, count, limit }) } else { Ok(()) }
}

/// A rendered conversation. It knows which of its text is the template's own: only there does the spelling of a control
/// token stand for that token, so nobody ends a turn, or begins one, by writing so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    marked: String,
}

impl Prompt {
    pub(crate) fn new(marked: String) -> Self {
        Self { marked }
    }

    /// The text, which does not tell the conversation from the template.
    pub fn text(&self) -> String {
        self.parts().map(|(part, _)| part).collect()
    }

    /// Whether it ends inside the reasoning that the answer goes on with.
    pub fn opens_reasoning(&self) -> bool {
        self.marked.trim_end().ends_with("<think>")
    }

    /// Whether it ends where reasoning has been closed: the answer goes on without.
    pub(crate) fn closes_reasoning(&self) -> bool {
        self.marked.trim_end().ends_with("</think>")
    }

    /// The text in parts, and whether each lies outside of marks: the template's own, or what is no control token.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, bool)> {
        marks::parts(&self.marked)
    }
}

/// Marks around what looks like a control token in a conversation's text. They wrap it, so that a template still finds
/// what it looks for. One whose partner a template has cut away still separates, and means nothing else.
mod marks {
    use crate::matcher::Matcher;

    /// Two of Unicode's noncharacters: no text has them.
    const OPEN: char = '\u{fdd0}';
    const CLOSE: char = '\u{fdd1}';

    pub(super) fn mark(text: &str, control: &Matcher, keeps_reasoning: bool) -> String {
        let clean;
        let text = if text.contains([OPEN, CLOSE]) {
            clean = text.replace([OPEN, CLOSE], "");
            &clean
        } else {
            text
        };
        let mut marked = String::with_capacity(text.len());
        let mut at = 0;
        for (start, end, _) in control.find(text) {
            if keeps_reasoning && text[start..end].contains("think") {
                continue;
            }
            marked.push_str(&text[at..start]);
            marked.push(OPEN);
            marked.push_str(&text[start..end]);
            marked.push(CLOSE);
            at = end;
        }
        marked.push_str(&text[at..]);
        marked
    }

    pub(super) fn parts(marked: &str) -> impl Iterator<Item = (&str, bool)> {
        let mut at = 0;
        let mut is_open = false;
        std::iter::from_fn(move || {
            while at < marked.len() {
                let rest = &marked[at..];
                let end = rest.find([OPEN, CLOSE]).unwrap_or(rest.len());
                let (part, mark) = (&rest[..end], rest[end..].chars().next());
                // A control token's spelling is never far from where its mark opens; a lost close must not take the
                // template's own tokens along, so an opening mark counts only where its close comes next.
                let is_text = is_open && mark == Some(CLOSE);
                is_open = mark == Some(OPEN);
                at += end + mark.map_or(0, char::len_utf8);
                if !part.is_empty() {
                    return Some((part, !is_text));
                }
            }
            None
        })
    }

    #[cfg(test)]
    mod tests {
        use super::parts;

        #[test]
        fn marks_pair_up_or_only_separate() {
            let cut = |text: &'static str| parts(text).collect::<Vec<_>>();
            assert_eq!(cut("a\u{fdd0}<x>\u{fdd1}b"), [("a", true), ("<x>", false), ("b", true)]);
            assert_eq!(cut("\u{fdd0}<x>\u{fdd1}"), [("<x>", false)]);
            assert_eq!(cut("a\u{fdd1}b\u{fdd0}c"), [("a", true), ("b", true), ("c", true)]);
            assert_eq!(
                cut("<x\u{fdd0}<x>\u{fdd0}<x>\u{fdd1}>"),
                [("<x", true), ("<x>", true), ("<x>", false), (">", true)]
            );
            assert_eq!(cut(""), []);
        }
    }
}
