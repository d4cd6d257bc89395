//! Tools that a model may call: a file with the list that a request of OpenAI's API has under `tools`.

use crate::error::{Error, input};
use crate::limits::TOOLS_BYTES_MAX;
use crate::small_file;
use serde_json::Value;
use std::path::Path;

/// The tools in a file, each an object.
pub(crate) fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let wrong = |what: &dyn std::fmt::Display| input(format!("--tools {}: {what}", path.display()));
    let text = small_file::text(path, TOOLS_BYTES_MAX).map_err(|error| wrong(&error))?;
    let list: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let name = |tool: &Value| tool.get("function").unwrap_or(tool).get("name").is_some_and(Value::is_string);
    match list {
        Value::Array(tools) if tools.iter().all(name) => Ok(tools),
        _ => Err(wrong(&"not a list of functions with names, as \"tools\" is in a request")),
    }
}
