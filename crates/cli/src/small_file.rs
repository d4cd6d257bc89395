//! Small text files that a user names, read within a limit.

use std::io::{ErrorKind, Read};
use std::path::Path;

/// The text of a regular file of at most so many bytes, or what is wrong with it. A pipe may never say anything, and says
/// it once.
pub(crate) fn text(path: &Path, bytes_max: u64) -> Result<String, String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err("a directory, not a regular file".into()),
        Ok(found) if !found.is_file() => return Err("not a regular file".into()),
        _ => {}
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => "it is not UTF-8 text".to_string(),
        _ => error.to_string(),
    })?;
    if text.len() as u64 > bytes_max {
        return Err(format!("it has more than {bytes_max} bytes"));
    }
    Ok(text)
}
