//! Which machine a plan is for.

use crate::error::{Error, input};
use crate::limits::TEXT_BYTES_MAX;
use std::io::Read;
use std::path::{Path, PathBuf};
use tombolo_topology::Machine;

/// Reads the machine that files describe.
pub(super) fn read(paths: &[PathBuf], _card: Option<&str>) -> Result<Machine, Error> {
    let [path] = paths else {
        return Err(input("--machine FILE is needed: the machine as JSON"));
    };
    serde_json::from_str(&text_of(path)?).map_err(|e| input(format!("{}: {e}", path.display())))
}

/// A small text file.
pub(super) fn text_of(path: &Path) -> Result<String, Error> {
    let wrong = |e: std::io::Error| input(format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(wrong)?;
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).map_err(wrong)?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        return Err(input(format!("{}: more than {TEXT_BYTES_MAX} bytes", path.display())));
    }
    Ok(text)
}
