//! The data section in memory: a map of the file, or bytes that we hold. The only place with `unsafe`.
#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;

/// The whole file.
pub(crate) enum Data {
    Map(Mmap),
    Held(Vec<u8>),
}

impl Data {
    /// Maps a file for reading.
    pub(crate) fn map(file: &File) -> std::io::Result<Self> {
        // SAFETY: the map is private to us and read-only. Another process may still cut or change the file; what is
        // read from the map is only weights, plain bytes for which any value is valid, never lengths or offsets.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self::Map(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Held(bytes) => bytes,
        }
    }
}
