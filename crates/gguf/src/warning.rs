//! What is odd about a file and does no harm, as data, and as one line for people.

use std::path::PathBuf;

/// Something worth telling about a file that was accepted all the same. `path` is `None` for bytes in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Warning {
    /// Bytes after the last tensor that belong to nothing.
    TrailingBytes { path: Option<PathBuf>, bytes: u64 },
    /// A text that was read with replacement characters; none of those that a model depends on.
    NotUtf8 { path: Option<PathBuf>, key: String },
    /// A name of the form `…-00001-of-00003.gguf`, but no metadata of a split set in it.
    NamedLikeShard { path: PathBuf },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = match self {
            Self::TrailingBytes { path, .. } | Self::NotUtf8 { path, .. } => path.as_deref(),
            Self::NamedLikeShard { path } => Some(path.as_path()),
        };
        crate::error::write_path(f, path)?;
        match self {
            Self::TrailingBytes { bytes, .. } => write!(f, ": {bytes} bytes after the last tensor are ignored"),
            Self::NotUtf8 { key, .. } => write!(f, ": key {key:?} has a string that is not UTF-8"),
            Self::NamedLikeShard { .. } => {
                f.write_str(": named like a part of a split set, but read as a whole file, which it says it is")
            }
        }
    }
}
