//! The names of the files of a split set: `<prefix>-00001-of-00003.gguf`, counted from 1. Knows names only, opens nothing.

use std::path::{Path, PathBuf};

/// The name of a file of a split set, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardName {
    /// The path as it was given: siblings are sought beside it, not beside what a link points to.
    path: PathBuf,
    /// The name before `-00001-of-00003.gguf`.
    prefix: String,
    /// Which file it is, from 0.
    pub(crate) number: u64,
    /// Files in the set.
    pub(crate) count: u64,
}

impl ShardName {
    /// `None` where the name has another form.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (digits(number)?, digits(count)?);
        let possible = (1..=count).contains(&number);
        possible.then(|| Self { path: path.to_path_buf(), prefix: prefix.to_string(), number: number - 1, count })
    }

    /// The path of file `number`, from 0.
    pub(crate) fn sibling(&self, number: u64) -> PathBuf {
        self.path.with_file_name(format!("{}-{:05}-of-{:05}.gguf", self.prefix, number + 1, self.count))
    }
}

fn digits(text: &str) -> Option<u64> {
    let five = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    five.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::ShardName;
    use std::path::Path;

    #[test]
    fn names_are_taken_apart_and_put_together() {
        let name = ShardName::parse(Path::new("../m/GLM-5-UD-Q4_K_XL-00002-of-00010.gguf")).unwrap();
        assert_eq!((name.number, name.count), (1, 10));
        assert_eq!(name.sibling(0), Path::new("../m/GLM-5-UD-Q4_K_XL-00001-of-00010.gguf"));
        assert_eq!(name.sibling(9), Path::new("../m/GLM-5-UD-Q4_K_XL-00010-of-00010.gguf"));
        let odd = ShardName::parse(Path::new("a-of-00001-00001-of-00001.gguf")).unwrap();
        assert_eq!((odd.prefix.as_str(), odd.number, odd.count), ("a-of-00001", 0, 1));
    }

    #[test]
    fn other_names_are_not_shards() {
        for name in [
            "model.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-1-of-2.gguf",
            "m-00001-of-00002.GGUF",
            "m-0000١-of-00002.gguf",
            "m-+0001-of-00002.gguf",
            "00001-of-00002.gguf",
            "..",
        ] {
            assert_eq!(ShardName::parse(Path::new(name)), None, "{name}");
        }
    }
}
