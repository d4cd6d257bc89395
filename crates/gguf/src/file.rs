//! A file, opened: its metadata, its tensors, and their bytes.

use crate::cursor::Cursor;
use crate::map::Data;
use crate::tensors::Tensors;
use crate::{Fault, GgufError, Metadata, TensorInfo, header, tensors};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// A GGUF file that was checked from end to end, except for the weights themselves.
///
/// The header was copied while it was checked; the weights are read from a map, so opening takes no memory for them.
pub struct Gguf {
    path: Option<PathBuf>,
    version: u32,
    metadata: Metadata,
    tensors: Tensors,
    data: Data,
}

impl Gguf {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// One line that names the file, the place in it, what is declared there and what would be right.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
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
        let length = file.metadata().map_err(io("read"))?.len();
        let header = Header::read(Cursor::new(BufReader::with_capacity(1 << 16, &file), Some(path), length))?;
        let data = if length == 0 { Data::Held(Vec::new()) } else { Data::map(&file).map_err(io("map"))? };
        let mapped = data.bytes().len() as u64;
        if mapped < length {
            let place = "the map".to_string();
            return Err(fail(Fault::Truncated { place, needed: length, remaining: mapped }));
        }
        Ok(header.with(Some(path.to_path_buf()), data))
    }

    /// Checks a file in memory: for tests and fuzzing.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let header = Header::read(Cursor::new(bytes.as_slice(), None, bytes.len() as u64))?;
        Ok(header.with(None, Data::Held(bytes)))
    }

    /// What the file says of itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors.infos
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.index.get(name).map(|&i| &self.tensors.infos[i])
    }

    /// A tensor's bytes, `info.bytes` of them: whole blocks, row after row.
    ///
    /// # Panics
    /// When `info` is of another file, with a place that this one does not have.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let start = self.tensors.data_start + info.offset;
        &self.data.bytes()[start as usize..(start + info.bytes) as usize]
    }

    /// Where it was opened; `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.data.bytes().len() as u64
    }

    /// Bytes before the first tensor: header and padding.
    pub fn header_bytes(&self) -> u64 {
        self.tensors.data_start
    }

    /// Bytes after the last tensor that belong to nothing: harmless, but worth a warning.
    pub fn trailing_bytes(&self) -> u64 {
        self.tensors.trailing
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("path", &self.path)
            .field("version", &self.version)
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.infos.len())
            .finish()
    }
}

struct Header {
    version: u32,
    metadata: Metadata,
    tensors: Tensors,
}

impl Header {
    fn read<R: Read>(mut c: Cursor<R>) -> Result<Self, GgufError> {
        let preamble = header::preamble(&mut c)?;
        let metadata = header::metadata(&mut c, preamble.entries)?;
        let tensors = tensors::tensors(&mut c, preamble.tensors, &metadata)?;
        Ok(Self { version: preamble.version, metadata, tensors })
    }

    fn with(self, path: Option<PathBuf>, data: Data) -> Gguf {
        Gguf { path, version: self.version, metadata: self.metadata, tensors: self.tensors, data }
    }
}
