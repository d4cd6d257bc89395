//! Masks on threads of their own, so that one that takes long ends its own request and nothing else.
//!
//! A thread begins with the request's first mask and lives as long as the request runs: it owns the mask, hears of the
//! tokens that were drawn, and computes what may come next while the step runs. The engine waits for it no longer than
//! [`MASK_LIMIT`]. A computation cannot be ended from outside: it is asked to end, and left behind. Of those that are left
//! behind and still run there are never more than [`MASKS_LEFT_MAX`] before requests with masks are refused.
//!
//! What is drawn does not depend on when a mask was ready. Nothing here knows of grammars, and the scheduler nothing of
//! threads: to it, this is a mask like any other.

use crate::Refused;
use crate::request::{Interrupt, Mask, MaskFault};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longest that the engine waits for the mask of one token. What people ask for takes some microseconds, and a thousand
/// times that in a build for debugging on a busy machine.
pub const MASK_LIMIT: Duration = Duration::from_secs(2);
/// Computations that are left behind, each on a thread that cannot be ended: at so many of them, requests with masks are
/// refused until one is done.
pub const MASKS_LEFT_MAX: usize = 8;
/// Waited for in any case: where everything stood still, the mask's thread did, too.
const GRACE: Duration = Duration::from_millis(50);
/// The stack of a mask's thread, in bytes.
const STACK_BYTES: usize = 2 << 20;

/// What the masks of an engine have in common.
#[derive(Debug)]
pub(crate) struct Masks {
    pub(crate) limit: Duration,
    /// Computations that were left behind and still run.
    left: Arc<AtomicUsize>,
}

impl Masks {
    pub(crate) fn new() -> Self {
        Self { limit: MASK_LIMIT, left: Arc::new(AtomicUsize::new(0)) }
    }

    /// The same mask, within its time.
    pub(crate) fn within(&self, mask: Box<dyn Mask>) -> Result<Box<dyn Mask>, Refused> {
        if mask.is_fixed() {
            return Ok(mask);
        }
        let left = self.left.load(Ordering::Acquire);
        if left >= MASKS_LEFT_MAX {
            return Err(Refused::MasksLeft { left });
        }
        let (limit, left) = (self.limit, self.left.clone());
        let work = Work::New(Some(mask));
        Ok(Box::new(Timed { work, limit, left, accepted: Vec::new(), words: Vec::new(), known: Known::Not }))
    }
}

/// What is to be done: the tokens that were drawn are taken, and the buffer is filled.
struct Job {
    accepted: Vec<u32>,
    words: Vec<u32>,
}

/// The buffers come back.
struct Done {
    job: Job,
    is_everything: bool,
}

/// Where a mask is.
enum Work {
    /// Nobody has asked for it yet.
    New(Option<Box<dyn Mask>>),
    Thread(Thread),
    Over(MaskFault),
}

struct Thread {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    /// Since when it is at work.
    asked: Option<Instant>,
    stage: Arc<AtomicU8>,
    interrupt: Option<Interrupt>,
}

/// Stages of a thread: whoever is the second to leave knows it.
const RUNS: u8 = 0;
const LEFT: u8 = 1;
const ENDED: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Not,
    Words,
    Everything,
}

struct Timed {
    work: Work,
    limit: Duration,
    left: Arc<AtomicUsize>,
    /// Tokens that were drawn and that the mask does not know of yet.
    accepted: Vec<u32>,
    words: Vec<u32>,
    known: Known,
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timed").field("limit", &self.limit).field("known", &self.known).finish_non_exhaustive()
    }
}

impl Mask for Timed {
    fn allowed(&mut self) -> Option<&[u32]> {
        self.prepare();
        self.wait();
        (self.known != Known::Everything).then_some(&self.words)
    }

    fn prepare(&mut self) {
        if self.known != Known::Not {
            return;
        }
        if let Work::New(mask) = &mut self.work
            && let Some(mask) = mask.take()
        {
            let started = Thread::start(mask, self.left.clone());
            self.work = started.map_or_else(Work::Over, Work::Thread);
        }
        let Work::Thread(thread) = &mut self.work else { return };
        if thread.asked.is_none() {
            thread.asked = Some(Instant::now());
            let job = Job { accepted: std::mem::take(&mut self.accepted), words: std::mem::take(&mut self.words) };
            // One that is gone shows when its answer is waited for.
            let _ = thread.jobs.send(job);
        }
    }

    fn accept(&mut self, token: u32) {
        // What it is at work on is of no use any more, but its buffers are.
        self.wait();
        self.known = Known::Not;
        self.accepted.push(token);
    }

    fn fault(&self) -> Option<MaskFault> {
        match &self.work {
            Work::Over(fault) => Some(fault.clone()),
            Work::New(_) | Work::Thread(_) => None,
        }
    }
}

impl Timed {
    /// Waits for what was asked for, if anything was.
    fn wait(&mut self) {
        let Work::Thread(thread) = &mut self.work else { return };
        let Some(asked) = thread.asked else { return };
        let fault = match thread.done.recv_timeout(self.limit.saturating_sub(asked.elapsed()).max(GRACE)) {
            Ok(Done { job, is_everything }) => {
                thread.asked = None;
                (self.accepted, self.words) = (job.accepted, job.words);
                self.known = if is_everything { Known::Everything } else { Known::Words };
                return;
            }
            Err(RecvTimeoutError::Timeout) => MaskFault::Late { limit: self.limit },
            Err(RecvTimeoutError::Disconnected) => {
                thread.asked = None;
                MaskFault::Died
            }
        };
        self.leave();
        // Nothing is allowed, and the request ends.
        self.work = Work::Over(fault);
        self.words.clear();
        self.known = Known::Words;
    }

    /// Counts a thread that is at work and that nobody waits for any more, and asks it to end.
    fn leave(&mut self) {
        let Work::Thread(thread) = &self.work else { return };
        if thread.asked.is_none() {
            return;
        }
        self.left.fetch_add(1, Ordering::AcqRel);
        if thread.stage.swap(LEFT, Ordering::AcqRel) == ENDED {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(interrupt) = &thread.interrupt {
            interrupt();
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Thread {
    fn start(mut mask: Box<dyn Mask>, left: Arc<AtomicUsize>) -> Result<Self, MaskFault> {
        let interrupt = mask.interrupt();
        let (jobs, inbox) = channel::<Job>();
        let (outbox, done) = channel();
        let stage = Arc::new(AtomicU8::new(RUNS));
        let end = End { stage: stage.clone(), left };
        let thread = std::thread::Builder::new().name("mask".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            // Whatever its end is: what it holds goes first.
            let _end = end;
            let mut mask = mask;
            for mut job in inbox {
                job.accepted.drain(..).for_each(|token| mask.accept(token));
                job.words.clear();
                let allowed = mask.allowed();
                job.words.extend_from_slice(allowed.unwrap_or_default());
                let is_everything = allowed.is_none();
                if outbox.send(Done { job, is_everything }).is_err() {
                    return;
                }
            }
        });
        spawned.map_err(|error| MaskFault::NoThread { error: error.to_string() })?;
        Ok(Self { jobs, done, asked: None, stage, interrupt })
    }
}

/// Says that a thread has come to its end.
struct End {
    stage: Arc<AtomicU8>,
    left: Arc<AtomicUsize>,
}

impl Drop for End {
    fn drop(&mut self) {
        if self.stage.swap(ENDED, Ordering::AcqRel) == LEFT {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
