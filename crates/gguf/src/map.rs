//! The data section in memory: a map of the file, or bytes that we hold. The only place with `unsafe`.
#![allow(unsafe_code)]

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use std::fs::File;
use std::ops::Range;

/// The largest page in use: ranges are given back in whole ones.
const PAGE: usize = 1 << 16;

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

    /// Gives the pages that lie wholly in `range` back to the system.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Map(map) = self {
            let start = range.start.next_multiple_of(PAGE);
            if let Some(length) = (range.end / PAGE * PAGE).checked_sub(start).filter(|&n| n > 0) {
                // Advice: where it is not taken, pages merely stay.
                // SAFETY: the map is shared and never written to, so that pages come back from the file as they were.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) };
            }
        }
    }
}
