//! The data section in memory: a map of the file, or bytes that we hold. `unsafe` is here and in [`crate::bus_error`],
//! which explains what happens when a mapped file is cut.
#![allow(unsafe_code)]

use crate::bus_error::{self, Watched};
use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// The largest page in use: ranges are given back in whole ones.
const PAGE: usize = 1 << 16;

/// The whole file.
pub(crate) enum Data {
    Map(Map),
    Held(Vec<u8>),
    /// So many bytes that are made when they are asked for, and are not here.
    Made(u64),
}

impl Default for Data {
    fn default() -> Self {
        Self::Held(Vec::new())
    }
}

/// A map, known to the handler of bus errors while it lives.
pub(crate) struct Map {
    map: Mmap,
    watched: &'static Watched,
}

impl Drop for Map {
    fn drop(&mut self) {
        self.watched.forget();
    }
}

impl Data {
    /// Maps a file for reading. `path` is what it is called in errors.
    pub(crate) fn map(file: &File, path: &Path) -> std::io::Result<Self> {
        // SAFETY: the map is private to us and read-only. Another process may still cut or change the file; what is
        // read from the map is only weights, plain bytes for which any value is valid, never lengths or offsets.
        let map = unsafe { Mmap::map(file)? };
        let watched = bus_error::watch(&map, path);
        Ok(Self::Map(Map { map, watched }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => &map.map,
            Self::Held(bytes) => bytes,
            Self::Made(_) => &[],
        }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Made(length) => *length,
            _ => self.bytes().len() as u64,
        }
    }

    /// Gives the pages that lie wholly in `range` back to the system.
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Self::Map(map) = self {
            let start = range.start.next_multiple_of(PAGE);
            if let Some(length) = (range.end / PAGE * PAGE).checked_sub(start).filter(|&n| n > 0) {
                // Advice: where it is not taken, pages merely stay.
                // SAFETY: the map is shared and never written to, so that pages come back from the file as they were.
                let _ = unsafe { map.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) };
            }
        }
    }
}
