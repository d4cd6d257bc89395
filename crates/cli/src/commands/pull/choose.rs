//! Which of a repository's files are a model, and which model is meant.

use super::hub::RemoteFile;
use crate::output;
use std::collections::BTreeMap;

/// What is taken where nothing is said.
const DEFAULT: &str = "Q4_K_M";

/// One model: a file, or the shards of a split set in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// The path, of a split set without the shard's number.
    pub(super) name: String,
    /// `Q4_K_M`; empty where the name does not tell.
    pub(super) label: String,
    pub(super) files: Vec<RemoteFile>,
    /// Shards that there should be.
    count: usize,
}

impl Set {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// No shard is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.files.len() == self.count
    }
}

/// Sorts files into models. What else a repository holds is left out, projectors of images and sound among it, and
/// statistics for quantizing.
pub(super) fn sets(files: Vec<RemoteFile>) -> Vec<Set> {
    let mut sets: BTreeMap<(String, usize), BTreeMap<usize, RemoteFile>> = BTreeMap::new();
    for file in files {
        let base = file.name();
        let Some(stem) = base.strip_suffix(".gguf") else { continue };
        let lower = stem.to_ascii_lowercase();
        if lower.starts_with("mmproj") || lower.starts_with("imatrix") || lower.ends_with("imatrix") {
            continue;
        }
        let path = file.path.strip_suffix(".gguf").unwrap_or(&file.path);
        let (name, index, count) = shard(path).unwrap_or((path, 1, 1));
        sets.entry((name.to_string(), count)).or_default().insert(index, file);
    }
    let set = |((name, count), shards): ((String, usize), BTreeMap<usize, RemoteFile>)| {
        let label = label(&name);
        Set { name, label, files: shards.into_values().collect(), count }
    };
    sets.into_iter().map(set).collect()
}

/// `NAME-00002-of-00003` as its parts.
fn shard(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, index) = rest.rsplit_once('-')?;
    let number = |text: &str| -> Option<usize> {
        if text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
    };
    let (index, count) = (number(index)?, number(count)?);
    (1..=count).contains(&index).then_some((name, index, count))
}

/// The part of a file's name that tells its type: the last one that looks like one, with what Unsloth puts before it.
fn label(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or_default().to_ascii_uppercase();
    let parts: Vec<&str> = base.split(['-', '.']).collect();
    let Some(at) = parts.iter().rposition(|part| is_type(part)) else { return String::new() };
    match at.checked_sub(1).map(|before| parts[before]) {
        Some("UD") => format!("UD-{}", parts[at]),
        _ => parts[at].to_string(),
    }
}

fn is_type(part: &str) -> bool {
    let rest = ["IQ", "TQ", "Q"].iter().find_map(|begin| part.strip_prefix(begin));
    let is_quant = rest.is_some_and(|rest| {
        rest.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    });
    is_quant || ["F16", "BF16", "F32"].contains(&part) || part.starts_with("MXFP4") || part.starts_with("NVFP4")
}

/// The one that is meant, or why there is none.
pub(super) fn choose<'a>(sets: &'a [Set], quant: Option<&str>) -> Result<&'a Set, String> {
    if sets.is_empty() {
        return Err("has no GGUF files".into());
    }
    let labelled =
        |label: &str| -> Vec<&Set> { sets.iter().filter(|set| set.label.eq_ignore_ascii_case(label)).collect() };
    let found = match quant {
        Some(quant) => labelled(quant),
        None if sets.len() == 1 => vec![&sets[0]],
        None => labelled(DEFAULT),
    };
    match found[..] {
        [set] if set.is_whole() => Ok(set),
        [set] => Err(format!("{} of {} shards of {} are there", set.files.len(), set.count, set.name)),
        [] => Err(format!("which one? there are {}", names(sets))),
        _ => {
            let found: Vec<Set> = found.into_iter().cloned().collect();
            let files: Vec<&str> = found.iter().map(|set| set.name.as_str()).collect();
            Err(format!("{} name several models: {}", found[0].label, files.join(", ")))
        }
    }
}

fn names(sets: &[Set]) -> String {
    let name = |set: &Set| {
        let label = if set.label.is_empty() { set.name.as_str() } else { &set.label };
        format!("{label} ({})", output::bytes(set.bytes()))
    };
    sets.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RemoteFile> {
        paths.iter().map(|path| RemoteFile { path: (*path).into(), bytes: 1 << 20, sha256: None }).collect()
    }

    fn chosen(paths: &[&str], quant: Option<&str>) -> Result<Vec<String>, String> {
        let sets = sets(files(paths));
        choose(&sets, quant).map(|set| set.files.iter().map(|file| file.path.clone()).collect())
    }

    #[test]
    fn types_are_read_off_names() {
        for (name, expected) in [
            ("Qwen3-8B-Q4_K_M", "Q4_K_M"),
            ("UD-Q4_K_XL/GLM-5-UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("model.q8_0", "Q8_0"),
            ("Model-BF16", "BF16"),
            ("gpt-oss-20b-MXFP4_MOE", "MXFP4_MOE"),
            ("Model-IQ2_XXS", "IQ2_XXS"),
            ("Qwen2.5-model", ""),
        ] {
            assert_eq!(label(name), expected, "{name}");
        }
    }

    #[test]
    fn all_shards_of_a_set_are_taken_in_order() {
        let paths = ["Q4/M-Q4_K_M-00002-of-00002.gguf", "README.md", "Q4/M-Q4_K_M-00001-of-00002.gguf", "M-Q8_0.gguf"];
        let expected = vec!["Q4/M-Q4_K_M-00001-of-00002.gguf".to_string(), "Q4/M-Q4_K_M-00002-of-00002.gguf".into()];
        assert_eq!(chosen(&paths, None), Ok(expected.clone()));
        assert_eq!(chosen(&paths, Some("q4_k_m")), Ok(expected));
        assert_eq!(chosen(&paths, Some("Q8_0")), Ok(vec!["M-Q8_0.gguf".into()]));
        let missing = chosen(&paths[..1], None).unwrap_err();
        assert!(missing.contains("1 of 2 shards"), "{missing}");
    }

    #[test]
    fn what_is_not_clear_is_asked() {
        let why = chosen(&["a-Q2_K.gguf", "a-Q8_0.gguf"], None).unwrap_err();
        assert!(why.contains("Q2_K (1.00 MiB), Q8_0"), "{why}");
        assert!(chosen(&["a-Q8_0.gguf", "b-Q8_0.gguf"], Some("Q8_0")).unwrap_err().contains("several"));
        assert!(chosen(&["a-Q8_0.gguf"], Some("Q8")).unwrap_err().contains("which one"));
        assert!(chosen(&["a.safetensors", "mmproj-F16.gguf"], None).unwrap_err().contains("no GGUF"));
        assert_eq!(chosen(&["only.gguf", "mmproj-F16.gguf"], None), Ok(vec!["only.gguf".into()]));
        assert_eq!(
            chosen(&["only.gguf", "imatrix-only.gguf", "only.imatrix.gguf"], None),
            Ok(vec!["only.gguf".into()])
        );
    }

    #[test]
    fn shards_of_no_set_are_files() {
        assert_eq!(shard("a-00003-of-00002"), None);
        assert_eq!(shard("a-1-of-2"), None);
        assert_eq!(shard("a-00001-of-00002"), Some(("a", 1, 2)));
    }
}
