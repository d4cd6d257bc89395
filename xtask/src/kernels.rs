//! `cargo xtask kernels`: compiles every `.cu` under `crates/cuda/src/kernels` into one fatbin each, and writes down
//! what the compiler said of registers, shared memory and spills. The build embeds whatever is found there.
//!
//! Here: which files are stale, the order of work, what fails. The compiler is found in `nvcc`, what it prints is read
//! in `report`, the results are kept in `manifest`.

mod manifest;
mod nvcc;
mod report;
mod sources;

use anyhow::{Context, Result, bail};
use manifest::{Kernel, Manifest, Spills};
use nvcc::Nvcc;
use sources::Source;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cubins for these architectures; `a` variants are exact, the others also run on later minor versions.
const ARCHS: [&str; 5] = ["80", "86", "89", "90a", "120"];
/// What a driver compiles for architectures without a cubin.
const PTX: &str = "80";
/// Flags that every kernel is compiled with.
const FLAGS: [&str; 6] = ["-std=c++17", "-O3", "-Werror=all-warnings", "-Xptxas=-v", "-fatbin", "--compress-mode=size"];
/// Compilers that run at once.
const WORKERS: usize = 2;

/// Options of `kernels`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compile nothing; fail if anything would have to be compiled
    #[arg(long)]
    check: bool,
    /// Only these architectures, for quick work on one card (80, 86, 89, 90a, 120, ptx); default: all
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    arch: Vec<String>,
    /// Compile everything, changed or not
    #[arg(long, conflicts_with = "check")]
    force: bool,
}

/// Where kernels are, and where what is made of them goes.
struct Places {
    sources: PathBuf,
    prebuilt: PathBuf,
    spills: PathBuf,
}

/// Runs the chore.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let cuda = root.join("crates/cuda");
    let places =
        Places { sources: cuda.join("src/kernels"), prebuilt: cuda.join("prebuilt"), spills: cuda.join("spills.toml") };
    let targets = targets(&args.arch)?;
    let sources = sources::find(&places.sources)?;
    let before = Manifest::read(&places.prebuilt);
    if args.check {
        return check(&places.prebuilt, &sources, &before, &targets);
    }
    let nvcc = Nvcc::find(root)?;
    println!("nvcc {} ({})", nvcc.version, nvcc.path.display());
    std::fs::create_dir_all(&places.prebuilt).with_context(|| format!("making {}", places.prebuilt.display()))?;

    let stale: Vec<&Source> = sources
        .iter()
        .filter(|s| {
            args.force
                || !places.prebuilt.join(s.fatbin()).is_file()
                || !before.is_current(s, &targets, Some(&nvcc.version))
        })
        .collect();
    let compiled = compile_all(&nvcc, &places, &stale, &targets);

    let mut manifest = Manifest { nvcc: nvcc.version.clone(), flags: FLAGS.join(" "), kernels: Vec::new() };
    let mut failures = Vec::new();
    for source in &sources {
        match stale.iter().position(|s| s.name == source.name) {
            None => manifest.kernels.extend(before.kernel(&source.name).cloned()),
            Some(index) => match &compiled[index] {
                Ok(kernel) => manifest.kernels.push(kernel.clone()),
                Err(error) => failures.push(format!("{error:#}")),
            },
        }
    }
    remove_orphans(&places.prebuilt, &sources)?;
    manifest.write(&places.prebuilt)?;
    failures.extend(unexcused_spills(&manifest, &Spills::read(&places.spills)?));
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    println!("{} kernel files, {} compiled now, none spills beyond what is allowed", sources.len(), stale.len());
    Ok(())
}

fn check(prebuilt: &Path, sources: &[Source], manifest: &Manifest, targets: &[String]) -> Result<()> {
    let is_there = |s: &Source| prebuilt.join(s.fatbin()).is_file() && manifest.is_current(s, targets, None);
    let stale: Vec<&str> = sources.iter().filter(|s| !is_there(s)).map(|s| s.name.as_str()).collect();
    if !stale.is_empty() {
        bail!("not compiled as they are now: {}; run `cargo xtask kernels`", stale.join(", "));
    }
    println!("{} kernel files, all compiled as they are now", sources.len());
    Ok(())
}

/// The targets to compile for, as `sm_90a` and `compute_80`.
fn targets(wanted: &[String]) -> Result<Vec<String>> {
    let all = || ARCHS.iter().map(|a| format!("sm_{a}")).chain([format!("compute_{PTX}")]);
    if wanted.is_empty() {
        return Ok(all().collect());
    }
    let mut targets = Vec::new();
    for name in wanted {
        let bare = name.trim_start_matches("sm_");
        let target = if bare == "ptx" { format!("compute_{PTX}") } else { format!("sm_{bare}") };
        if !all().any(|t| t == target) {
            bail!("no architecture '{name}'; there are {}, ptx", ARCHS.join(", "));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Compiles `stale`, a few at once; one result per source, in the same order.
fn compile_all(nvcc: &Nvcc, places: &Places, stale: &[&Source], targets: &[String]) -> Vec<Result<Kernel>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Kernel>>>> = Mutex::new(stale.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(stale.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(source) = stale.get(index) else { break };
                    let result = compile(nvcc, places, source, targets);
                    if let Ok(mut results) = results.lock() {
                        results[index] = Some(result);
                    }
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    results.into_iter().map(|r| r.unwrap_or_else(|| bail!("a compiling thread died"))).collect()
}

fn compile(nvcc: &Nvcc, places: &Places, source: &Source, targets: &[String]) -> Result<Kernel> {
    let started = std::time::Instant::now();
    let out = places.prebuilt.join(source.fatbin());
    let text = nvcc.compile(&places.sources, &source.path, &out, targets).inspect_err(|_| {
        // What was compiled before is not what the sources say now.
        let _ = std::fs::remove_file(&out);
    })?;
    let entries = report::parse(&text);
    let fatbin_bytes = std::fs::metadata(&out).with_context(|| format!("reading {}", out.display()))?.len();
    println!(
        "  {:<24} {:>7} bytes, {:>2} entries, {:.1} s",
        source.relative.display(),
        fatbin_bytes,
        entries.iter().map(|e| &e.entry).collect::<std::collections::BTreeSet<_>>().len(),
        started.elapsed().as_secs_f64()
    );
    Ok(Kernel {
        name: source.name.clone(),
        source: source.relative.display().to_string(),
        hash: source.hash.clone(),
        targets: targets.to_vec(),
        fatbin_bytes,
        entries,
    })
}

/// A fatbin whose source is gone would still be embedded.
fn remove_orphans(prebuilt: &Path, sources: &[Source]) -> Result<()> {
    for entry in std::fs::read_dir(prebuilt)? {
        let path = entry?.path();
        let known = sources.iter().any(|s| path.file_name().is_some_and(|n| n == s.fatbin().as_str()));
        if path.extension().is_some_and(|e| e == "fatbin") && !known {
            std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

/// One line per entry that spills more than the committed list allows.
fn unexcused_spills(manifest: &Manifest, spills: &Spills) -> Vec<String> {
    let mut lines = Vec::new();
    for kernel in &manifest.kernels {
        for e in kernel.entries.iter().filter(|e| e.spill_store_bytes + e.spill_load_bytes > spills.allowed(e)) {
            lines.push(format!(
                "{}: {} for {} spills {} bytes out and {} bytes in; make it need fewer registers, or allow it with a reason in crates/cuda/spills.toml",
                kernel.source, e.entry, e.arch, e.spill_store_bytes, e.spill_load_bytes
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Entry;

    fn entry(name: &str, arch: &str, spill: u64) -> Entry {
        Entry { entry: name.into(), arch: arch.into(), spill_store_bytes: spill, ..Entry::default() }
    }

    #[test]
    fn targets_are_names_of_the_list() {
        assert_eq!(targets(&[]).unwrap().len(), ARCHS.len() + 1);
        assert_eq!(targets(&["90a".into(), "ptx".into()]).unwrap(), ["sm_90a", "compute_80"]);
        assert_eq!(targets(&["sm_86".into()]).unwrap(), ["sm_86"]);
        assert!(targets(&["70".into()]).is_err());
    }

    #[test]
    fn a_fatbin_that_is_missing_fails_the_check() {
        let dir = std::env::temp_dir().join(format!("tombolo-xtask-check-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("k")).unwrap();
        std::fs::write(dir.join("k/k.cu"), "void f();").unwrap();
        let sources = sources::find(&dir).unwrap();
        let kernel = Kernel {
            name: "k".into(),
            source: "k/k.cu".into(),
            hash: sources[0].hash.clone(),
            targets: vec!["sm_80".into()],
            fatbin_bytes: 0,
            entries: Vec::new(),
        };
        let manifest = Manifest { nvcc: String::new(), flags: FLAGS.join(" "), kernels: vec![kernel] };
        let targets = ["sm_80".to_string()];
        assert!(check(&dir, &sources, &manifest, &targets).is_err());
        std::fs::write(dir.join("k.fatbin"), "").unwrap();
        assert!(check(&dir, &sources, &manifest, &targets).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_what_the_list_allows_may_spill() {
        let kernel = Kernel {
            name: "k".into(),
            source: "k/k.cu".into(),
            hash: String::new(),
            targets: Vec::new(),
            fatbin_bytes: 0,
            entries: vec![entry("clean", "sm_80", 0), entry("spills", "sm_80", 16), entry("spills", "sm_90a", 8)],
        };
        let manifest = Manifest { nvcc: String::new(), flags: String::new(), kernels: vec![kernel] };
        let lines = unexcused_spills(&manifest, &Spills::default());
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("spills for sm_80 spills 16 bytes"), "{}", lines[0]);
        let list = "[[allow]]\nentry = 'spills'\narch = 'sm_80'\nbytes = 16\nreason = 'rare path'";
        let lines = unexcused_spills(&manifest, &Spills::parse(list).unwrap());
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("sm_90a"));
    }
}
