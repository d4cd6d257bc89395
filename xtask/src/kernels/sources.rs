//! The kernel files, and a hash of each that covers the headers that it includes.

// The build script of the crate that embeds the kernels compares with the same rule.
#[path = "../../../crates/cuda/source_hash.rs"]
mod source_hash;

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One `.cu` file.
pub(super) struct Source {
    /// File stem: the name of the fatbin.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// From the folder of kernels.
    pub(super) relative: PathBuf,
    /// Of the file and every header of ours that it includes, in hexadecimal.
    pub(super) hash: String,
}

impl Source {
    pub(super) fn fatbin(&self) -> String {
        format!("{}.fatbin", self.name)
    }
}

/// All `.cu` files under `dir`, by name.
pub(super) fn find(dir: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    if dir.is_dir() {
        walk(dir, &mut paths)?;
    }
    let mut by_name = BTreeMap::new();
    for path in paths {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let relative = path.strip_prefix(dir).unwrap_or(&path).to_path_buf();
        let hash = source_hash::hash(dir, &path).map_err(anyhow::Error::msg)?;
        let source = Source { name: name.clone(), hash, relative, path };
        if let Some(other) = by_name.insert(name, source) {
            bail!("two kernel files are called {}.cu: their fatbins would overwrite each other", other.name);
        }
    }
    Ok(by_name.into_values().collect())
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "cu") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_changes_the_hash() {
        let dir = std::env::temp_dir().join(format!("tombolo-xtask-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("op")).unwrap();
        std::fs::write(dir.join("op/k.cu"), "#include \"common.cuh\"\n#include <cuda_fp16.h>\nvoid f();").unwrap();
        std::fs::write(dir.join("common.cuh"), "  #  include \"op/k.cu\"\nint a;").unwrap();
        let first = find(&dir).unwrap();
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].fatbin(), "k.fatbin");
        std::fs::write(dir.join("common.cuh"), "int b;").unwrap();
        assert_ne!(find(&dir).unwrap()[0].hash, first[0].hash);
        std::fs::remove_file(dir.join("common.cuh")).unwrap();
        assert!(find(&dir).is_err(), "a missing header must be named");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
