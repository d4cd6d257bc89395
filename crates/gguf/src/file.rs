//! A model, opened: its metadata, its tensors, and their bytes, from one file or from all shards of a split set.

use crate::made::Made;
use crate::map::Data;
use crate::part::{Part, Stamp};
use crate::{GgufError, Metadata, TensorInfo, Warning, assemble};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A model that was checked from end to end, except for the weights themselves.
///
/// Headers were copied while they were checked; the weights are read from maps, so opening takes no memory for them.
#[derive(Default)]
pub struct Gguf {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) index: HashMap<String, usize>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) warnings: Vec<Warning>,
    /// Makes the weights of a model without a file.
    pub(crate) made: Option<Made>,
}

/// A file of a model: the only one, or one of a split set.
#[derive(Default)]
pub struct Shard {
    pub(crate) path: Option<PathBuf>,
    pub(crate) version: u32,
    pub(crate) header_bytes: u64,
    pub(crate) trailing_bytes: u64,
    pub(crate) data: Data,
    pub(crate) stamp: Option<Stamp>,
}

impl Gguf {
    /// Opens and checks a model: a file, a split set by any of its shards, or a directory with one model in it.
    ///
    /// The shards of a set are sought beside the path as it is given, also where that is a link.
    ///
    /// # Errors
    /// One line that names the file, the place in it, what is declared there and what would be right.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        assemble::open(path)
    }

    /// Checks a file in memory: for tests and fuzzing.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_shards(vec![bytes])
    }

    /// Checks a split set in memory, its shards in order: for tests and fuzzing.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_shards(shards: Vec<Vec<u8>>) -> Result<Self, GgufError> {
        assemble::join(shards.into_iter().map(Part::from_bytes).collect::<Result<_, _>>()?)
    }

    /// What the model says of itself; of a split set, what its first shard says.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the shards and in each in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor's bytes, `info.bytes` of them: whole blocks, row after row.
    ///
    /// # Panics
    /// When `info` is of another model, with a place that this one does not have.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        if let Some(made) = &self.made {
            return made.bytes(self.index[&info.name], info);
        }
        let shard = &self.shards[info.shard];
        let start = shard.header_bytes + info.offset;
        &shard.data.bytes()[start as usize..(start + info.bytes) as usize]
    }

    /// Tells the system that a tensor's bytes are not needed for now: memory that holds pages of the file becomes free.
    /// They can be read all the same, and then come from the file again.
    ///
    /// # Panics
    /// As [`Gguf::bytes`].
    pub fn release(&self, info: &TensorInfo) {
        let shard = &self.shards[info.shard];
        let start = (shard.header_bytes + info.offset) as usize;
        shard.data.release(start..start + info.bytes as usize);
    }

    /// The files that it lies in, in order: one, unless it is a split set.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Where its file, or its first shard, was opened; `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.shards.first().and_then(Shard::path)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::file_bytes).sum()
    }

    /// Bytes after the last tensors that belong to nothing: harmless, and among the [warnings](Self::warnings).
    pub fn trailing_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.trailing_bytes).sum()
    }

    /// The format's version, of a split set that of its first shard: 2 or 3.
    pub fn version(&self) -> u32 {
        self.shards.first().map_or(0, |s| s.version)
    }

    /// What is odd and does no harm. For people, once, when a model is opened.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// That no file was cut or written to since it was opened. Weights that were read meanwhile may be anything else.
    ///
    /// A file that was replaced by another under its name is no fault: the map holds on to the old one.
    ///
    /// # Errors
    /// The file that changed, with its length then and now.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        for shard in &self.shards {
            if let (Some(path), Some(stamp)) = (&shard.path, &shard.stamp)
                && let Some(fault) = stamp.changed(path)
            {
                return Err(GgufError { path: Some(path.clone()), offset: 0, fault });
            }
        }
        Ok(())
    }
}

impl Shard {
    /// Where it was opened; `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.data.len()
    }

    /// Bytes before the first tensor: header and padding.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("path", &self.path())
            .field("version", &self.version())
            .field("shards", &self.shards.len())
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}
