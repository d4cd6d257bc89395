//! `cargo xtask tidy`: the rules of ARCHITECTURE.md that a program can check. Also runs as a test.
//!
//! Here: which files are looked at. The rules are in `manifests` (who may depend on whom) and `text` (what a file may
//! hold).

mod manifests;
mod text;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Never looked into: what is made, fetched or not ours.
const SKIPPED: [&str; 5] = [".git", "target", "models", "prebuilt", "node_modules"];
/// What is looked at: the rest are data.
const EXTENSIONS: [&str; 10] = ["rs", "toml", "md", "cu", "cuh", "py", "sh", "txt", "yml", "json"];

/// A text file of the repository.
struct File {
    /// From the root, with `/`.
    path: String,
    text: String,
}

/// One broken rule, as a line for people.
type Fault = String;

/// Runs the chore.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = read(root)?;
    let faults = check(&files);
    if !faults.is_empty() {
        bail!("not tidy:\n{}", faults.join("\n"));
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

fn check(files: &[File]) -> Vec<Fault> {
    let mut faults = manifests::check(files);
    faults.extend(files.iter().flat_map(text::check));
    faults.sort();
    faults
}

fn read(root: &Path) -> Result<Vec<File>> {
    let mut paths = Vec::new();
    walk(root, &mut paths)?;
    let mut files = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        match String::from_utf8(bytes) {
            Ok(text) => files.push(File { path: relative, text }),
            Err(_) => bail!("{relative} is not UTF-8"),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // Data of tests are inputs: whatever they hold is on purpose.
            if !SKIPPED.contains(&name.as_str()) && !path.ends_with("tests/data") {
                walk(&path, found)?;
            }
        } else if name == "run" || path.extension().is_some_and(|e| EXTENSIONS.iter().any(|x| e == *x)) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.into() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        let files = super::read(&crate::root()).unwrap();
        assert!(files.iter().any(|f| f.path == "crates/model/src/lib.rs"), "looked in the wrong place");
        let faults = super::check(&files);
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
