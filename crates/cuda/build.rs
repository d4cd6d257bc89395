//! Embeds the compiled kernels: `prebuilt/*.fatbin`, made by `cargo xtask kernels`. No CUDA toolkit is needed here, and
//! where the folder is empty the crate still builds and says at run time that it has no kernels.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    let prebuilt = root.join("prebuilt");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", prebuilt.display());
    let fatbins = fatbins(&prebuilt);
    let mut text = String::from("pub(super) static MODULES: &[(&str, &[u8])] = &[\n");
    for path in &fatbins {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // The driver reads the image in place: it must lie aligned.
        text += &format!(
            "    ({name:?}, {{ static IMAGE: &super::Aligned<[u8]> = &super::Aligned(*include_bytes!({:?})); &IMAGE.0 }}),\n",
            path.display().to_string()
        );
    }
    text += "];\n";
    fs::write(out, text).expect("OUT_DIR can be written");
}

fn fatbins(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "fatbin")).collect();
    paths.sort();
    paths
}
