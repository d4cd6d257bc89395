//! `prebuilt/manifest.toml`, written beside the fatbins, and the committed list of spills that are allowed.

use super::report::Entry;
use super::sources::Source;
use super::{FLAGS, report};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "manifest.toml";

/// All compiled kernels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Version of the compiler.
    pub(super) nvcc: String,
    pub(super) flags: String,
    #[serde(default, rename = "kernel")]
    pub(super) kernels: Vec<Kernel>,
}

/// One compiled file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// From the folder of kernels.
    pub(super) source: String,
    /// Of the file and its headers.
    pub(super) hash: String,
    pub(super) targets: Vec<String>,
    pub(super) fatbin_bytes: u64,
    #[serde(default, rename = "entry")]
    pub(super) entries: Vec<report::Entry>,
}

impl Manifest {
    /// The manifest of a folder; an empty one where there is none that can be read.
    pub(super) fn read(prebuilt: &Path) -> Self {
        std::fs::read_to_string(prebuilt.join(FILE))
            .ok()
            .and_then(|text| toml::from_str(&text).ok())
            .unwrap_or_default()
    }

    pub(super) fn write(&self, prebuilt: &Path) -> Result<()> {
        let text = format!("# Written by `cargo xtask kernels`.\n{}", toml::to_string(self)?);
        let path = prebuilt.join(FILE);
        // Untouched where nothing changed: the build that embeds the kernels watches this file.
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Whether `source` was compiled as it is now, for at least `targets`, by this compiler if one is given.
    pub(super) fn is_current(&self, source: &Source, targets: &[String], nvcc: Option<&str>) -> bool {
        self.flags == FLAGS.join(" ")
            && nvcc.is_none_or(|version| version == self.nvcc)
            && self.kernel(&source.name).is_some_and(|kernel| {
                kernel.hash == source.hash && targets.iter().all(|target| kernel.targets.contains(target))
            })
    }
}

/// `crates/cuda/spills.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spills {
    #[serde(default)]
    allow: Vec<Allowed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    entry: String,
    /// Every architecture where it is absent.
    arch: Option<String>,
    /// Stores and loads together.
    bytes: u64,
    /// Why it is worth it: the list is useless without.
    #[serde(rename = "reason")]
    _reason: String,
}

impl Spills {
    pub(super) fn read(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("reading {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Bytes that an entry may spill.
    pub(super) fn allowed(&self, entry: &Entry) -> u64 {
        let fits = |a: &&Allowed| a.entry == entry.entry && a.arch.as_ref().is_none_or(|arch| *arch == entry.arch);
        self.allow.iter().filter(fits).map(|a| a.bytes).max().unwrap_or(0)
    }
}
