//! DeepSeek: V3 and R1 write `function`, a separator, the name, and JSON in a fenced block; V3.1 the name, a separator, and
//! JSON. One call, or several in a section.

use super::arguments::json_call;
use super::dialect::{Section, parts};
use super::{ToolCall, Tools};

const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) fn calls(section: Section, body: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    if section.open == CALL {
        return call(body, tools).map(|call| vec![call]);
    }
    parts(body, CALL, CALL_END)?.into_iter().map(|body| call(body, tools)).collect()
}

fn call(body: &str, tools: &Tools) -> Option<ToolCall> {
    let (first, rest) = body.split_once(SEPARATOR)?;
    if first.trim() != "function" {
        return json_call(first, rest, tools);
    }
    let (name, arguments) = rest.trim_start().split_once('\n').unwrap_or((rest, ""));
    let arguments = arguments.trim();
    let arguments = arguments.strip_prefix("```json").or_else(|| arguments.strip_prefix("```")).unwrap_or(arguments);
    json_call(name, arguments.trim_end().trim_end_matches("```"), tools)
}
