//! Tools that a model may call: a file with the list that a request of OpenAI's API has under `tools`.

use crate::error::{Error, input};
use crate::limits::TOOLS_BYTES_MAX;
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// The tools in a file, each an object.
pub(crate) fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let wrong = |what: &dyn std::fmt::Display| input(format!("--tools {}: {what}", path.display()));
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(wrong(&"not a regular file"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
    file.take(TOOLS_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > TOOLS_BYTES_MAX {
        return Err(wrong(&format!("it has more than {TOOLS_BYTES_MAX} bytes")));
    }
    let list: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let name = |tool: &Value| tool.get("function").unwrap_or(tool).get("name").is_some_and(Value::is_string);
    match list {
        Value::Array(tools) if tools.iter().all(name) => Ok(tools),
        _ => Err(wrong(&"not a list of functions with names, as \"tools\" is in a request")),
    }
}
