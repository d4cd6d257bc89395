//! The model in a directory: which of its files is meant. Reads names only.

use crate::shard_name::ShardName;
use crate::{Fault, GgufError, limits};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Models that an error names.
const SHOWN: usize = 4;

/// The file of the one model in `directory`; of a split set its first file.
///
/// Hidden files are passed over, and vision projectors (`mmproj…`), which lie beside models and are none.
pub(crate) fn model_in(directory: &Path) -> Result<PathBuf, GgufError> {
    let fail = |fault| GgufError { path: Some(directory.to_path_buf()), offset: 0, fault };
    let io = |source| fail(Fault::Io { what: "list", source });
    let mut models = BTreeSet::new();
    let mut hint = "";
    for (seen, entry) in std::fs::read_dir(directory).map_err(io)?.enumerate() {
        if seen as u64 >= limits::DIRECTORY_ENTRIES {
            let (count, limit) = (seen as u64 + 1, limits::DIRECTORY_ENTRIES);
            return Err(fail(Fault::TooMany { what: "files or more", count, limit }));
        }
        let path = entry.map_err(io)?.path();
        let ends = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        let starts = |start: &str| path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with(start));
        if ends("safetensors") {
            hint = "; it has safetensors files: convert the model to GGUF";
        }
        if !ends("gguf") || starts(".") || starts("mmproj") || path.is_dir() {
            continue;
        }
        models.insert(ShardName::parse(&path).map_or(path, |name| name.sibling(0)));
    }
    match models.len() {
        0 => Err(fail(Fault::NoModel { hint })),
        1 => models.pop_first().ok_or_else(|| fail(Fault::NoModel { hint })),
        count => {
            let name = |p: &PathBuf| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            Err(fail(Fault::ManyModels { count, names: models.iter().take(SHOWN).map(name).collect() }))
        }
    }
}
