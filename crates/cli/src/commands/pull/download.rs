//! One file: into `NAME.part`, on from where it ends, summed while it comes, and only whole and checked under its name.

use super::hub::{Hub, RemoteFile};
use crate::error::{Error, failure};
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that are moved at once.
const PIECE: usize = 1 << 18;

/// How patient, and how talkative.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Broken connections in a row that brought nothing.
    pub(super) retries: u32,
    pub(super) bars: bool,
}

/// A file that is there.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    /// The hub's sum was there to compare with.
    pub(super) is_checked: bool,
    /// Bytes that came now.
    pub(super) downloaded: u64,
}

/// A file on its way.
pub(super) struct Download {
    pub(super) file: RemoteFile,
    path: PathBuf,
    part: PathBuf,
    state: State,
}

enum State {
    /// Under its name, and as large as it should be.
    There,
    /// What came so far, locked.
    Part { held: File, bytes: u64 },
}

/// Why a connection ended early.
enum Stop {
    /// Another one may bring the rest.
    Broken(String),
    Final(Error),
}

impl Download {
    /// Looks at what is there of it.
    pub(super) fn open(dir: &Path, file: &RemoteFile) -> Result<Self, Error> {
        let path = dir.join(file.name());
        let part = dir.join(format!("{}.part", file.name()));
        let at = |error: std::io::Error| failure(format!("{}: {error}", part.display()));
        let is_there = std::fs::metadata(&path).is_ok_and(|data| data.is_file() && data.len() == file.bytes);
        let state = if is_there {
            State::There
        } else {
            let mut options = OpenOptions::new();
            let held = options.read(true).write(true).create(true).truncate(false).open(&part).map_err(at)?;
            match held.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    return Err(failure(format!("{}: another download writes it", part.display())));
                }
                // File systems without locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            let bytes = held.metadata().map_err(at)?.len();
            // Longer than the whole is not a beginning of it.
            let bytes = if bytes > file.bytes { 0 } else { bytes };
            State::Part { held, bytes }
        };
        Ok(Self { file: file.clone(), path, part, state })
    }

    /// Bytes that the disk must still take.
    pub(super) fn missing(&self) -> u64 {
        match self.state {
            State::There => 0,
            State::Part { bytes, .. } => self.file.bytes - bytes,
        }
    }

    /// Brings the rest, checks it and gives it its name.
    pub(super) fn finish(self, hub: &Hub, url: &str, pace: Pace) -> Result<Saved, Error> {
        let Self { file, path, part, state } = self;
        let bar = bar(&file, pace);
        let mut sum = Sha256::new();
        let saved = |sum: Sha256, downloaded| {
            let sha256 = hex(&sum.finalize());
            let is_checked = file.sha256.is_some();
            Saved { path: path.clone(), bytes: file.bytes, sha256, is_checked, downloaded }
        };
        let (held, begin) = match state {
            State::There => {
                let mut held = File::open(&path).map_err(|error| failure(format!("{}: {error}", path.display())))?;
                read_into(&mut held, file.bytes, &mut sum, &bar)
                    .map_err(|e| failure(format!("{}: {e}", path.display())))?;
                bar.finish_and_clear();
                let saved = saved(sum, 0);
                if file.sha256.as_ref().is_some_and(|expected| *expected != saved.sha256) {
                    let path = path.display();
                    return Err(failure(format!("{path} is another file of the same size: move it away first")));
                }
                output::say(&format!("{} is there already", path.display()));
                return Ok(saved);
            }
            State::Part { held, bytes } => (held, bytes),
        };
        let mut copy = Copy { held, at: begin, file: &file, part: &part, sum, bar: &bar };
        copy.begin(begin)?;
        if begin > 0 && begin < file.bytes {
            output::say(&format!("going on with {} after {}", part.display(), output::size(begin)));
        }
        let downloaded = copy.all(hub, url, pace)?;
        let Copy { held, sum, .. } = copy;
        bar.finish_and_clear();
        let saved = saved(sum, downloaded);
        if let Some(expected) = file.sha256.as_ref().filter(|expected| **expected != saved.sha256) {
            // What is wrong somewhere cannot be gone on with.
            let _ = std::fs::remove_file(&part);
            let path = path.display();
            return Err(failure(format!(
                "{path}: what came has the SHA-256 {} and should have {expected}; it was removed, try again",
                saved.sha256
            )));
        }
        if !saved.is_checked {
            output::say(&format!("warning: the hub has no checksum of {}; only its size is checked", file.name()));
        }
        name(held, &part, &path)?;
        Ok(saved)
    }
}

/// On the disk first, then under its name, then the name on the disk.
fn name(held: File, part: &Path, path: &Path) -> Result<(), Error> {
    let at = |what: &Path, error: std::io::Error| failure(format!("{}: {error}", what.display()));
    held.sync_all().map_err(|error| at(part, error))?;
    std::fs::rename(part, path).map_err(|error| at(path, error))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Some file systems cannot do this for a folder; the file itself is safe.
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
    Ok(())
}

/// A file being filled.
struct Copy<'a> {
    held: File,
    /// Bytes that are in it, and in the sum.
    at: u64,
    file: &'a RemoteFile,
    part: &'a Path,
    sum: Sha256,
    bar: &'a ProgressBar,
}

impl Copy<'_> {
    fn on_disk(&self, error: &std::io::Error) -> Error {
        failure(format!("{}: {error}; what is there stays, and the same command goes on with it", self.part.display()))
    }

    /// Keeps the first `bytes` of what is there.
    fn begin(&mut self, bytes: u64) -> Result<(), Error> {
        self.sum = Sha256::new();
        self.bar.set_position(0);
        let kept = self.held.set_len(bytes).and_then(|()| self.held.seek(SeekFrom::Start(0)));
        kept.and_then(|_| read_into(&mut self.held, bytes, &mut self.sum, self.bar)).map_err(|e| self.on_disk(&e))?;
        self.at = bytes;
        Ok(())
    }

    /// Fills it; the bytes that came.
    fn all(&mut self, hub: &Hub, url: &str, pace: Pace) -> Result<u64, Error> {
        let (mut in_vain, mut came) = (0, 0);
        while self.at < self.file.bytes {
            let before = self.at;
            let stop = self.some(hub, url, &mut came);
            let Err(stop) = stop else { continue };
            let why = match stop {
                Stop::Final(error) => return Err(error),
                Stop::Broken(why) => why,
            };
            in_vain = if self.at > before { 0 } else { in_vain + 1 };
            if in_vain > pace.retries {
                let part = self.part.display();
                return Err(failure(format!("{url}: {why}; {part} stays, and the same command goes on with it")));
            }
            output::say_safely(&format!("{why}; going on after {}", output::size(self.at)));
            std::thread::sleep(Duration::from_millis(250 << in_vain.min(6)));
        }
        Ok(came)
    }

    /// One connection.
    fn some(&mut self, hub: &Hub, url: &str, came: &mut u64) -> Result<(), Stop> {
        let from = (self.at > 0).then_some(self.at);
        let response = hub.get(url, from).map_err(|error| match error {
            Error::Failure(why) => Stop::Broken(why),
            error => Stop::Final(error),
        })?;
        let status = response.status().as_u16();
        if matches!(status, 408 | 429 | 500..=599) {
            return Err(Stop::Broken(format!("the hub answers {status}")));
        }
        if status == 416 {
            self.begin(0).map_err(Stop::Final)?;
            return Err(Stop::Broken("the hub has no such rest: once more from the beginning".into()));
        }
        // Without a range it is the whole.
        let begins = if status == 206 { range_begin(&response) } else { Some(0) };
        let response = hub.checked(response, self.file.name()).map_err(Stop::Final)?;
        if begins != Some(self.at) {
            if begins != Some(0) {
                return Err(Stop::Broken("the hub sends another part than was asked for".into()));
            }
            output::say("the hub cannot go on in the middle: once more from the beginning");
            self.begin(0).map_err(Stop::Final)?;
        }
        self.take(response.into_body().into_reader(), came)
    }

    fn take(&mut self, mut body: impl Read, came: &mut u64) -> Result<(), Stop> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = match body.read(&mut piece) {
                Ok(0) if self.at == self.file.bytes => return Ok(()),
                Ok(0) => return Err(Stop::Broken("the connection ended early".into())),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stop::Broken(error.to_string())),
            };
            if self.at + count as u64 > self.file.bytes {
                let name = self.file.name();
                let line = format!("{name}: more comes than the {} bytes that the hub lists", self.file.bytes);
                return Err(Stop::Final(failure(line)));
            }
            self.held.write_all(&piece[..count]).map_err(|error| Stop::Final(self.on_disk(&error)))?;
            self.sum.update(&piece[..count]);
            self.at += count as u64;
            *came += count as u64;
            self.bar.set_position(self.at);
        }
    }
}

/// Where a part begins (`Content-Range: bytes 5-9/10`, RFC 9110 14.4).
fn range_begin(response: &ureq::http::Response<ureq::Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Sums up the first `bytes` of a file.
fn read_into(held: &mut File, bytes: u64, sum: &mut Sha256, bar: &ProgressBar) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let count = held.read(&mut piece[..most])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        sum.update(&piece[..count]);
        left -= count as u64;
        bar.set_position(bytes - left);
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Draws nothing where standard error is no terminal.
fn bar(file: &RemoteFile, pace: Pace) -> ProgressBar {
    if !pace.bars {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = ProgressBar::new(file.bytes).with_message(output::shortened(file.name(), 40));
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}
