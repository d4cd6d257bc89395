//! Embeds the compiled kernels: `prebuilt/*.fatbin`, made by `cargo xtask kernels`. No CUDA toolkit is needed here, and
//! where the folder is empty the crate still builds and says at run time that it has no kernels. Kernels that were not
//! compiled from the sources that lie here are not embedded either: their arguments may be others by now.

mod source_hash;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    let (prebuilt, sources) = (root.join("prebuilt"), root.join("src/kernels"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=source_hash.rs");
    println!("cargo::rerun-if-changed={}", prebuilt.display());
    println!("cargo::rerun-if-changed={}", sources.display());
    let mut fatbins = files(&prebuilt, "fatbin");
    let stale = if fatbins.is_empty() { Vec::new() } else { stale(&prebuilt, &sources) };
    if !stale.is_empty() {
        println!(
            "cargo::warning=no GPU kernels in this build: {} changed since `cargo xtask kernels`",
            stale.join(", ")
        );
        fatbins.clear();
    }
    let mut text = format!("pub(super) static STALE: &str = {:?};\n", stale.join(", "));
    text += "pub(super) static MODULES: &[(&str, &[u8])] = &[\n";
    for path in &fatbins {
        println!("cargo::rerun-if-changed={}", path.display());
        // The driver reads the image in place: it must lie aligned.
        text += &format!(
            "    ({:?}, {{ static IMAGE: &super::Aligned<[u8]> = &super::Aligned(*include_bytes!({:?})); &IMAGE.0 }}),\n",
            stem(path),
            path.display().to_string()
        );
    }
    text += "];\n";
    fs::write(out, text).expect("OUT_DIR can be written");
}

/// Kernel files whose fatbin is missing or was compiled from something else.
fn stale(prebuilt: &Path, sources: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(prebuilt.join("manifest.toml")).unwrap_or_default();
    let hashes = hashes(&manifest);
    let mut stale = Vec::new();
    for path in files(sources, "cu") {
        let name = stem(&path);
        let is_current = prebuilt.join(format!("{name}.fatbin")).is_file()
            && source_hash::hash(sources, &path).is_ok_and(|hash| hashes.get(name.as_str()) == Some(&hash.as_str()));
        if !is_current {
            stale.push(name);
        }
    }
    stale
}

/// Hash by name, out of the lines that `cargo xtask kernels` writes: a kernel's `name` stands before its `hash`.
fn hashes(manifest: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    let mut name = "";
    for line in manifest.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value.trim_matches('"');
        } else if let Some(value) = line.strip_prefix("hash = ") {
            found.insert(name, value.trim_matches('"'));
        }
    }
    found
}

/// All files with that extension in a folder and below, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
