//! Reads the header, each byte once, into memory of our own: a file that changes meanwhile cannot change a number
//! between its check and its use. Knows bytes, numbers and strings; not what they are for.

use crate::{Fault, GgufError};
use std::fmt::Display;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// A position in a file of known length.
pub(crate) struct Cursor<R> {
    inner: R,
    path: Option<PathBuf>,
    /// Where the next byte comes from.
    position: u64,
    /// Where the field that was read last starts: what errors point at.
    field: u64,
    length: u64,
}

impl<R: Read> Cursor<R> {
    /// At the start of `length` bytes.
    pub(crate) fn new(inner: R, path: Option<&Path>, length: u64) -> Self {
        Self { inner, path: path.map(Path::to_path_buf), position: 0, field: 0, length }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.length - self.position
    }

    /// The fault, at the field that was read last.
    pub(crate) fn fail(&self, fault: Fault) -> GgufError {
        self.fail_at(self.field, fault)
    }

    /// The fault, at a position of the caller's choice.
    pub(crate) fn fail_at(&self, offset: u64, fault: Fault) -> GgufError {
        GgufError { path: self.path.clone(), offset, fault }
    }

    /// That `needed` bytes are left.
    pub(crate) fn require(&self, needed: u64, place: impl Display) -> Result<(), GgufError> {
        let remaining = self.remaining();
        if needed > remaining {
            return Err(self.fail_at(self.position, Fault::Truncated { place: place.to_string(), needed, remaining }));
        }
        Ok(())
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, place: impl Display) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, place)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, place: impl Display) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(place)?))
    }

    pub(crate) fn u64(&mut self, place: impl Display) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(place)?))
    }

    /// The next `length` bytes. The caller has bounded `length`, which is also checked against the file here.
    pub(crate) fn bytes(&mut self, length: u64, place: impl Display) -> Result<Vec<u8>, GgufError> {
        self.require(length, &place)?;
        let mut bytes = Vec::new();
        let out_of_memory =
            |_| self.fail(Fault::Io { what: "hold the header in memory", source: ErrorKind::OutOfMemory.into() });
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(length).map_err(out_of_memory)?;
        bytes.resize(length, 0);
        self.fill(&mut bytes, place)?;
        Ok(bytes)
    }

    fn fill(&mut self, out: &mut [u8], place: impl Display) -> Result<(), GgufError> {
        self.require(out.len() as u64, &place)?;
        self.field = self.position;
        self.inner.read_exact(out).map_err(|source| match source.kind() {
            // The file was cut after its length was asked for.
            ErrorKind::UnexpectedEof => {
                self.fail(Fault::Truncated { place: place.to_string(), needed: out.len() as u64, remaining: 0 })
            }
            _ => self.fail(Fault::Io { what: "read", source }),
        })?;
        self.position += out.len() as u64;
        Ok(())
    }
}
