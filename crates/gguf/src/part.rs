//! One file, read and checked by itself: a whole model, or a shard of a split set. What shards must have in common is in
//! [`crate::assemble`].

use crate::cursor::Cursor;
use crate::map::Data;
use crate::tensors::Tensors;
use crate::{Fault, GgufError, Metadata, Warning, header, limits, tensors};
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file, its header copied and its weights mapped.
pub(crate) struct Part {
    pub(crate) path: Option<PathBuf>,
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Tensors,
    pub(crate) data: Data,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) warnings: Vec<Warning>,
}

/// What a file says of the split set that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Which shard it is, from 0.
    pub(crate) number: u64,
    /// Shards in the set, 2 or more.
    pub(crate) count: u64,
    /// Tensors in all shards together, where it says so.
    pub(crate) tensors: Option<u64>,
}

/// What a file looked like when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Device and inode: which file it is, whatever its name.
    identity: (u64, u64),
    length: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(found: &std::fs::Metadata) -> Self {
        Self { identity: (found.dev(), found.ino()), length: found.len(), modified: found.modified().ok() }
    }

    /// How the file at `path` differs, where it is still the same file: one that was replaced by another under its name
    /// lives on in the map.
    pub(crate) fn changed(&self, path: &Path) -> Option<Fault> {
        let now = Self::of(&std::fs::metadata(path).ok()?);
        let changed = self.identity == now.identity && *self != now;
        changed.then_some(Fault::Changed { was: self.length, is: now.length })
    }
}

impl Part {
    /// Opens and checks a file.
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        let fail = |fault| GgufError { path: Some(path.to_path_buf()), offset: 0, fault };
        let io = |what| move |source| fail(Fault::Io { what, source });
        // Before opening: to open a pipe would wait for its other end.
        let found = std::fs::metadata(path).map_err(io("open"))?;
        if found.is_dir() {
            return Err(fail(Fault::NotAFile { found: "a directory" }));
        }
        if !found.is_file() {
            return Err(fail(Fault::NotAFile { found: "a device, pipe or socket" }));
        }
        let file = File::open(path).map_err(io("open"))?;
        let found = file.metadata().map_err(io("read"))?;
        let length = found.len();
        let input = Cursor::new(BufReader::with_capacity(1 << 16, &file), Some(path), length);
        let mut part = Self::read(input, Some(path))?;
        part.data = if length == 0 { Data::Held(Vec::new()) } else { Data::map(&file, path).map_err(io("map"))? };
        part.stamp = Some(Stamp::of(&found));
        let mapped = part.data.bytes().len() as u64;
        if mapped < length {
            let place = "the map".to_string();
            return Err(fail(Fault::Truncated { place, needed: length, remaining: mapped }));
        }
        part.check_end()?;
        Ok(part)
    }

    /// Checks a file in memory.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let mut part = Self::read(Cursor::new(bytes.as_slice(), None, bytes.len() as u64), None)?;
        part.data = Data::Held(bytes);
        part.check_end()?;
        Ok(part)
    }

    pub(crate) fn read<R: Read>(mut c: Cursor<R>, path: Option<&Path>) -> Result<Self, GgufError> {
        let preamble = header::preamble(&mut c)?;
        let (metadata, not_utf8) = header::metadata(&mut c, preamble.entries)?;
        let tensors = tensors::tensors(&mut c, preamble.tensors, &metadata)?;
        let path = path.map(Path::to_path_buf);
        let warnings = not_utf8.into_iter().map(|key| Warning::NotUtf8 { path: path.clone(), key }).collect();
        let data = Data::Held(Vec::new());
        Ok(Self { path, version: preamble.version, metadata, tensors, data, stamp: None, warnings })
    }

    /// What follows the last tensor.
    fn check_end(&mut self) -> Result<(), GgufError> {
        let bytes = self.tensors.trailing;
        let split = self.claim()?.is_some();
        let next = |at: u64| self.data.bytes().get(at as usize..).is_some_and(|rest| rest.starts_with(b"GGUF"));
        if let Some(&at) = self.tensors.ends.iter().find(|&&at| split && next(at)) {
            return Err(self.fail_at(at, Fault::JoinedShards));
        }
        if bytes > 0 {
            self.warnings.push(Warning::TrailingBytes { path: self.path.clone(), bytes });
        }
        Ok(())
    }

    /// What it says of the split set that it belongs to; `None` for a file that is whole.
    pub(crate) fn claim(&self) -> Result<Option<Claim>, GgufError> {
        let number = |key: &'static str| match (self.metadata.get(key), self.metadata.u64(key)) {
            (None, _) => Ok(None),
            (Some(_), Some(number)) => Ok(Some(number)),
            (Some(_), None) => Err(self.fail(Fault::ShardKey { key, why: "is no whole number" })),
        };
        let Some(count @ 2..) = number(limits::SPLIT_COUNT_KEY)? else { return Ok(None) };
        if count > limits::SHARDS {
            return Err(self.fail(Fault::TooMany { what: "shards", count, limit: limits::SHARDS }));
        }
        let key = limits::SPLIT_NUMBER_KEY;
        match number(key)? {
            None => Err(self.fail(Fault::ShardKey { key, why: "is missing" })),
            Some(this) if this >= count => Err(self.fail(Fault::ShardKey { key, why: "is not below split.count" })),
            Some(this) => Ok(Some(Claim { number: this, count, tensors: number(limits::SPLIT_TENSORS_KEY)? })),
        }
    }

    /// The fault, of the file as a whole.
    pub(crate) fn fail(&self, fault: Fault) -> GgufError {
        self.fail_at(0, fault)
    }

    fn fail_at(&self, offset: u64, fault: Fault) -> GgufError {
        GgufError { path: self.path.clone(), offset, fault }
    }
}
