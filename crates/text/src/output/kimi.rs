//! Kimi K2: `functions.NAME:NUMBER`, a marker, and JSON. One call, or several in a section.

use super::arguments::json_call;
use super::dialect::{Section, parts};
use super::{ToolCall, Tools};

const CALL: &str = "<|tool_call_begin|>";
const CALL_END: &str = "<|tool_call_end|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

pub(super) fn calls(section: Section, body: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    if section.open == CALL {
        return call(body, tools).map(|call| vec![call]);
    }
    parts(body, CALL, CALL_END)?.into_iter().map(|body| call(body, tools)).collect()
}

fn call(body: &str, tools: &Tools) -> Option<ToolCall> {
    let (id, arguments) = body.split_once(ARGUMENTS)?;
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    json_call(name, arguments, tools)
}
