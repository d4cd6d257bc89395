//! One file: into `NAME.part`, on from where it ends, summed while it comes, and only whole and checked under its name.

use super::hub::{Hub, RemoteFile, Stop, again};
use super::part::Part;
use crate::error::{Error, failure};
use crate::limits::RETRY_AFTER_MAX;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::fs::File;
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
    state: State,
}

enum State {
    /// Under its name, and as large as it should be.
    There,
    /// What came so far, and the bytes of it that are a beginning.
    Part(Part, u64),
}

impl Download {
    /// Looks at what is there of it.
    pub(super) fn open(dir: &Path, file: &RemoteFile) -> Result<Self, Error> {
        let path = dir.join(file.name());
        let is_there = std::fs::metadata(&path).is_ok_and(|data| data.is_file() && data.len() == file.bytes);
        let state = if is_there {
            State::There
        } else {
            let (part, bytes) = Part::open(dir.join(format!("{}.part", file.name())))?;
            // Longer than the whole is not a beginning of it.
            State::Part(part, if bytes > file.bytes { 0 } else { bytes })
        };
        Ok(Self { file: file.clone(), path, state })
    }

    /// Bytes that the disk must still take.
    pub(super) fn missing(&self) -> u64 {
        match self.state {
            State::There => 0,
            State::Part(_, bytes) => self.file.bytes - bytes,
        }
    }

    /// Brings the rest, checks it and gives it its name.
    pub(super) fn finish(self, hub: &Hub, url: &str, pace: Pace) -> Result<Saved, Error> {
        let Self { file, path, state } = self;
        let bar = bar(&file, pace);
        let mut sum = Sha256::new();
        let saved = |sum: Sha256, downloaded| {
            let sha256 = hex(&sum.finalize());
            let is_checked = file.sha256.is_some();
            Saved { path: path.clone(), bytes: file.bytes, sha256, is_checked, downloaded }
        };
        let (part, begin) = match state {
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
            State::Part(part, bytes) => (part, bytes),
        };
        let mut copy = Copy { part, at: begin, file: &file, sum, bar: &bar };
        copy.begin(begin)?;
        if begin > 0 && begin < file.bytes {
            let part = copy.part.path().display();
            output::say(&format!("going on with {part} after {}", output::size(begin)));
        }
        let downloaded = copy.all(hub, url, pace)?;
        let Copy { part, sum, .. } = copy;
        bar.finish_and_clear();
        let saved = saved(sum, downloaded);
        if let Some(expected) = file.sha256.as_ref().filter(|expected| **expected != saved.sha256) {
            // What is wrong somewhere cannot be gone on with.
            part.remove();
            let path = path.display();
            return Err(failure(format!(
                "{path}: what came has the SHA-256 {} and should have {expected}; it was removed, try again",
                saved.sha256
            )));
        }
        if !saved.is_checked {
            output::say(&format!("warning: the hub has no checksum of {}; only its size is checked", file.name()));
        }
        part.name(&path)?;
        Ok(saved)
    }
}

/// A file being filled.
struct Copy<'a> {
    part: Part,
    /// Bytes that are in it, and in the sum.
    at: u64,
    file: &'a RemoteFile,
    sum: Sha256,
    bar: &'a ProgressBar,
}

impl Copy<'_> {
    /// An error, with what becomes of what came.
    fn over(&self, what: &dyn std::fmt::Display) -> Error {
        let part = self.part.path().display();
        failure(match self.at {
            0 => format!("{what}; nothing came, and the same command tries again"),
            _ => format!("{what}; {part} stays, and the same command goes on with it"),
        })
    }

    fn on_disk(&self, error: &std::io::Error) -> Error {
        self.over(&format!("{}: {error}", self.part.path().display()))
    }

    /// Keeps the first `bytes` of what is there.
    fn begin(&mut self, bytes: u64) -> Result<(), Error> {
        self.sum = Sha256::new();
        self.bar.set_position(0);
        let Some(held) = self.part.there() else { return Ok(()) };
        let kept = held.set_len(bytes).and_then(|()| held.seek(SeekFrom::Start(0)));
        let read = kept.and_then(|_| read_into(held, bytes, &mut self.sum, self.bar));
        read.map_err(|error| self.on_disk(&error))?;
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
            let (why, wait) = match stop {
                Stop::Final(error) => return Err(error),
                Stop::Broken(why, wait) => (why, wait.unwrap_or_default()),
            };
            in_vain = if self.at > before { 0 } else { in_vain + 1 };
            if in_vain > pace.retries || wait > RETRY_AFTER_MAX {
                return Err(self.over(&format!("{url}: {why}")));
            }
            output::say_safely(&format!("{why}; going on after {}", output::size(self.at)));
            std::thread::sleep(wait.max(Duration::from_millis(250 << in_vain.min(6))));
        }
        Ok(came)
    }

    /// One connection.
    fn some(&mut self, hub: &Hub, url: &str, came: &mut u64) -> Result<(), Stop> {
        let from = (self.at > 0).then_some(self.at);
        let response = hub.get(url, from)?;
        let status = response.status().as_u16();
        if matches!(status, 408 | 429 | 500..=599) {
            return Err(match again(&response) {
                Some((when, wait)) => Stop::Broken(format!("the hub answers {status}: to be asked again {when}"), wait),
                None => Stop::Broken(format!("the hub answers {status}"), None),
            });
        }
        if status == 416 {
            self.begin(0).map_err(Stop::Final)?;
            return Err(Stop::Broken("the hub has no such rest: once more from the beginning".into(), None));
        }
        // Without a range it is the whole.
        let begins = if status == 206 { range_begin(&response) } else { Some(0) };
        let response = hub.checked(response, self.file.name()).map_err(Stop::Final)?;
        if begins != Some(self.at) {
            if begins != Some(0) {
                return Err(Stop::Broken("the hub sends another part than was asked for".into(), None));
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
                Ok(0) => return Err(Stop::Broken("the connection ended early".into(), None)),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stop::Broken(error.to_string(), None)),
            };
            if self.at + count as u64 > self.file.bytes {
                let name = self.file.name();
                let line = format!("{name}: more comes than the {} bytes that the hub lists", self.file.bytes);
                return Err(Stop::Final(failure(line)));
            }
            let written = self.part.made().map_err(Stop::Final)?.write_all(&piece[..count]);
            written.map_err(|error| Stop::Final(self.on_disk(&error)))?;
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
