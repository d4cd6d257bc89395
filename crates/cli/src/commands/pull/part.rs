//! `NAME.part`: what came of a file so far. It is made by its first byte, written by one at a time, and goes where it holds
//! nothing. What is written lives in `download`.

use crate::error::{Error, failure};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file, which need not be there yet.
pub(super) struct Part {
    path: PathBuf,
    held: Option<File>,
}

impl Part {
    /// Takes what is there; the bytes that it has.
    pub(super) fn open(path: PathBuf) -> Result<(Self, u64), Error> {
        let mut part = Self { path, held: None };
        part.hold(false)?;
        let bytes = match &part.held {
            Some(held) => held.metadata().map_err(|error| part.wrong(&error))?.len(),
            None => 0,
        };
        Ok((part, bytes))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file where there is one.
    pub(super) fn there(&mut self) -> Option<&mut File> {
        self.held.as_mut()
    }

    /// The file, made where there is none.
    pub(super) fn made(&mut self) -> Result<&mut File, Error> {
        if self.held.is_none() {
            self.hold(true)?;
        }
        let why = || failure(format!("{}: it is gone", self.path.display()));
        self.held.as_mut().ok_or_else(why)
    }

    fn hold(&mut self, makes: bool) -> Result<(), Error> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(makes).truncate(false);
        let held = match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !makes => return Ok(()),
            opened => opened.map_err(|error| self.wrong(&error))?,
        };
        match held.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(failure(format!("{}: another download writes it", self.path.display())));
            }
            // File systems without locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        self.held = Some(held);
        Ok(())
    }

    fn wrong(&self, error: &std::io::Error) -> Error {
        let (dir, name) = (self.path.parent().unwrap_or(Path::new(".")), self.path.file_name().unwrap_or_default());
        let (dir, name) = (dir.display(), name.display());
        failure(format!("--dir {dir}: {name} cannot be made there: {error}; give a folder that can be written to"))
    }

    /// On the disk first, then under its name, then the name on the disk.
    pub(super) fn name(mut self, path: &Path) -> Result<(), Error> {
        let at = |what: &Path, error: std::io::Error| failure(format!("{}: {error}", what.display()));
        let Some(held) = self.held.take() else { return Ok(()) };
        held.sync_all().map_err(|error| at(&self.path, error))?;
        std::fs::rename(&self.path, path).map_err(|error| at(path, error))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Some file systems cannot do this for a folder; the file itself is safe.
        let _ = File::open(dir).and_then(|dir| dir.sync_all());
        Ok(())
    }

    /// Leaves nothing of it.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let data = self.held.as_ref().and_then(|held| held.metadata().ok());
        if data.is_some_and(|data| data.is_file() && data.len() == 0) {
            self.remove();
        }
    }
}
