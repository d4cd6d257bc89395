//! GLM-4.5 and later: `NAME`, then any number of `<arg_key>K</arg_key><arg_value>V</arg_value>`. Values are bare text for
//! strings and JSON for all else, so that the request's schema decides.

use super::{ToolCall, Tools};
use serde_json::Map;

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub(super) fn call(body: &str, tools: &Tools) -> Option<ToolCall> {
    let (name, mut rest) = match body.find(KEY) {
        Some(at) => (&body[..at], &body[at..]),
        None => (body, ""),
    };
    // The end of a value before it has been seen to leak into a name.
    let name = name.trim().trim_start_matches(VALUE_END).trim();
    if !tools.has(name) || name.contains(['<', '\n']) {
        return None;
    }
    let mut arguments = Map::new();
    let mut are_closed = true;
    while let Some(at) = rest.find(KEY) {
        let (key, after) = rest[at + KEY.len()..].split_once(KEY_END)?;
        // The tag that opens a value is left out now and then.
        let after = after.trim_start();
        let after = after.strip_prefix(VALUE).unwrap_or(after);
        // So is the one that closes it; none is looked for again where there are no more.
        let end = if are_closed { after.find(VALUE_END) } else { None };
        are_closed = end.is_some();
        let (value, after) = match end {
            Some(end) => (&after[..end], &after[end + VALUE_END.len()..]),
            None => after.find(KEY).map_or((after, ""), |next| (&after[..next], &after[next..])),
        };
        let key = key.trim();
        arguments.insert(key.into(), tools.value(name, key, value));
        rest = after;
    }
    Some(ToolCall { name: name.into(), arguments })
}
