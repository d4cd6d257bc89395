//! Files that are whole or not there: written under another name, then renamed.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Makes `path` by `write`, which is given the name to write to. Where it fails nothing is left, and what had the name
/// before keeps it.
pub(crate) fn write(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = write(&part).and_then(|()| Ok(std::fs::rename(&part, path)?));
    if written.is_err() {
        // It may never have been there.
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}
