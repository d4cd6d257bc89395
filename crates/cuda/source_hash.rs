//! What a compiled kernel was compiled from: a hash of its `.cu` file and of every header of ours that it includes.
//! `cargo xtask kernels` writes it down, the build script compares; both include this file, so that the rule is one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// FNV-1a with 64 bits (Fowler, Noll, Vo): it has to tell an edit, not an attack.
struct Fnv(u64);

impl Fnv {
    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Hashes a file with everything it includes by `#include "…"`, sought beside the file and under `root`.
pub(crate) fn hash(root: &Path, path: &Path) -> Result<String, String> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![path.to_path_buf()];
    while let Some(path) = todo.pop() {
        let key = path.canonicalize().map_err(|e| format!("finding {}: {e}", path.display()))?;
        if seen.contains_key(&key) {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|e| format!("reading {}: {e}", path.display()))?;
        todo.extend(headers(root, &path, &text)?);
        seen.insert(key, text);
    }
    // Names, not paths: the hash must not depend on where the repository lies.
    let mut files: Vec<(&std::ffi::OsStr, &String)> =
        seen.iter().map(|(path, text)| (path.file_name().unwrap_or_default(), text)).collect();
    files.sort();
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for (name, text) in files {
        hash.update(name.as_encoded_bytes());
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    Ok(format!("{:016x}", hash.0))
}

fn headers(root: &Path, path: &Path, text: &str) -> Result<Vec<PathBuf>, String> {
    let beside = path.parent().unwrap_or(root);
    let find = |name: &str| {
        let found = [beside.join(name), root.join(name)].into_iter().find(|p| p.is_file());
        let (path, root) = (path.display(), root.display());
        found.ok_or_else(|| format!("{path} includes \"{name}\", which is not beside it nor under {root}"))
    };
    text.lines().filter_map(included).map(find).collect()
}

/// `x.cuh` out of `#include "x.cuh"`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
}
