//! Llama 3: `{"name": …, "parameters": {…}}` as the whole answer; several with semicolons between them.

use super::arguments::object_call;
use super::{ToolCall, Tools};
use serde_json::{Deserializer, Value};

pub(super) fn bare(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        values.next()?.ok()?;
        let end = values.byte_offset();
        calls.push(object_call(&rest[..end], tools)?);
        rest = rest[end..].trim_start().trim_start_matches(';').trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}
