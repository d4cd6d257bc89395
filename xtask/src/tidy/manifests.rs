//! Who may depend on whom: the arrows of ARCHITECTURE.md, and the libraries that belong to one crate only.

use super::{Fault, File};
use toml::Table;

/// The crates and what each may use. Test-only dependencies are free: an oracle may sit anywhere.
const ARROWS: [(&str, &[&str]); 12] = [
    ("gguf", &[]),
    ("text", &["gguf"]),
    ("model", &["gguf"]),
    ("topology", &[]),
    ("collective", &["topology"]),
    ("cpu", &["collective", "gguf", "model"]),
    ("cuda", &["collective", "gguf", "model"]),
    ("ceiling", &["collective", "gguf", "model", "topology"]),
    ("engine", &["gguf", "model", "text"]),
    ("report", &["ceiling", "topology"]),
    ("server", &["engine", "model", "text"]),
    (
        "cli",
        &["ceiling", "collective", "cpu", "cuda", "engine", "gguf", "model", "report", "server", "text", "topology"],
    ),
];
/// Libraries that few crates may use. `cpu` maps memory, never a file; `cli` is a client of HTTP, `server` answers.
const OWNED: [(&str, &[&str]); 9] = [
    ("nvml-wrapper", &["topology"]),
    ("cudarc", &["cuda"]),
    ("memmap2", &["gguf", "cpu"]),
    ("libloading", &["cuda"]),
    ("clap", &["cli"]),
    ("axum", &["server"]),
    ("hyper", &["cli", "server"]),
    ("tokio", &["cli", "server"]),
    ("ureq", &["cli"]),
];
/// Crates that may hold `unsafe`; all others forbid it.
const UNSAFE: [&str; 4] = ["collective", "cpu", "cuda", "gguf"];

pub(super) fn check(files: &[File]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let text_of = |path: &str| files.iter().find(|f| f.path == path).map(|f| f.text.as_str());
    let map = text_of("ARCHITECTURE.md").unwrap_or_default();
    for manifest in files {
        let Some(name) = manifest.path.strip_prefix("crates/").and_then(|p| p.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        // A crate's fuzz targets are a package of their own, outside the workspace.
        if name.ends_with("/fuzz") {
            continue;
        }
        faults.extend(check_manifest(name, manifest));
        let top = ["lib.rs", "main.rs"].iter().find_map(|f| text_of(&format!("crates/{name}/src/{f}")));
        if !UNSAFE.contains(&name) && !top.is_some_and(|t| t.contains("#![forbid(unsafe_code)]")) {
            faults.push(format!("crates/{name}: its top file must say #![forbid(unsafe_code)]"));
        }
        if !map.contains(&format!("`{name}`")) {
            faults.push(format!("ARCHITECTURE.md: does not mention the crate `{name}`"));
        }
    }
    faults
}

fn check_manifest(name: &str, manifest: &File) -> Vec<Fault> {
    let path = &manifest.path;
    let Ok(table) = manifest.text.parse::<Table>() else { return vec![format!("{path}: is not TOML")] };
    let mut faults = Vec::new();
    let Some((_, allowed)) = ARROWS.iter().find(|(n, _)| *n == name) else {
        return vec![format!("{path}: the crate is not in the table of arrows in xtask/src/tidy/manifests.rs")];
    };
    let package = table.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str());
    if package != Some(format!("tombolo-{name}").as_str()) {
        faults.push(format!("{path}: the package must be called tombolo-{name}"));
    }
    if table.get("lints").and_then(|l| l.get("workspace")).and_then(|w| w.as_bool()) != Some(true) {
        faults.push(format!("{path}: must inherit the workspace's lints"));
    }
    if table.get("features").and_then(|f| f.as_table()).is_some_and(|f| f.contains_key("cuda")) {
        faults.push(format!("{path}: one build serves CPU and GPU, so there is no feature `cuda`"));
    }
    for dependency in ["dependencies", "build-dependencies"].iter().flat_map(|section| names(&table, section)) {
        let ours = dependency.strip_prefix("tombolo-");
        if let Some(other) = ours.filter(|other| !allowed.contains(other)) {
            faults.push(format!("{path}: `{name}` may not depend on `{other}`"));
        }
        if let Some((_, owners)) =
            OWNED.iter().find(|(library, owners)| *library == dependency && !owners.contains(&name))
        {
            faults.push(format!("{path}: only {} may use {dependency}", owners.join(" and ")));
        }
    }
    faults
}

fn names<'a>(table: &'a Table, section: &str) -> Vec<&'a str> {
    table.get(section).and_then(|s| s.as_table()).map(|s| s.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn manifest(name: &str, rest: &str) -> Vec<Fault> {
        let text = format!("[package]\nname = \"tombolo-{name}\"\n[lints]\nworkspace = true\n{rest}");
        let files = [
            file(&format!("crates/{name}/Cargo.toml"), &text),
            file(&format!("crates/{name}/src/lib.rs"), "#![forbid(unsafe_code)]"),
            file("ARCHITECTURE.md", &format!("`{name}`")),
        ];
        check(&files)
    }

    #[test]
    fn arrows_are_kept() {
        assert_eq!(manifest("model", "[dependencies]\ntombolo-gguf.workspace = true"), Vec::<String>::new());
        assert_eq!(manifest("engine", "[dev-dependencies]\ntombolo-cpu.workspace = true"), Vec::<String>::new());
        let wrong = manifest("engine", "[dependencies]\ntombolo-cpu.workspace = true");
        assert_eq!(wrong, ["crates/engine/Cargo.toml: `engine` may not depend on `cpu`"]);
        assert_eq!(manifest("nowhere", "").len(), 1);
    }

    #[test]
    fn libraries_have_owners() {
        let wrong = manifest("model", "[dependencies]\ncudarc = \"1\"\nmemmap2.workspace = true");
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].contains("only cuda may use cudarc"));
        assert_eq!(manifest("gguf", "[dependencies]\nmemmap2.workspace = true"), Vec::<String>::new());
    }

    #[test]
    fn a_crate_is_named_described_and_safe() {
        let files = [file("crates/text/Cargo.toml", "[package]\nname = \"text\"\n[features]\ncuda = []")];
        let faults = check(&files).join("\n");
        for part in
            ["called tombolo-text", "forbid(unsafe_code)", "does not mention", "workspace's lints", "feature `cuda`"]
        {
            assert!(faults.contains(part), "{part} not in {faults}");
        }
    }
}
