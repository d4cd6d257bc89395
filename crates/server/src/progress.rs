//! Signs of life of the engine: whether it gets on while it has work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Written by the engine's thread, read by everybody.
#[derive(Debug)]
pub(crate) struct Progress {
    origin: Instant,
    has_work: AtomicBool,
    /// Milliseconds after `origin`.
    at_ms: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let at_ms = AtomicU64::new(0);
        Self { origin: Instant::now(), has_work: AtomicBool::new(false), at_ms, failure: Mutex::new(None) }
    }

    /// Something was done, or there is something to do from now on.
    pub(crate) fn advance(&self, has_work: bool) {
        self.at_ms.store(self.origin.elapsed().as_millis() as u64, Ordering::Release);
        self.has_work.store(has_work, Ordering::Release);
    }

    /// How long nothing was done although there was something to do.
    pub(crate) fn stalled(&self) -> Duration {
        if !self.has_work.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.origin.elapsed().saturating_sub(Duration::from_millis(self.at_ms.load(Ordering::Acquire)))
    }

    /// Seconds since the last sign of life.
    pub(crate) fn age(&self) -> Duration {
        self.origin.elapsed().saturating_sub(Duration::from_millis(self.at_ms.load(Ordering::Acquire)))
    }

    /// The engine has ended for good.
    pub(crate) fn fail(&self, why: String) {
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(why);
        }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().ok().and_then(|failure| failure.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pending_work_can_stall() {
        let progress = Progress::new();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(progress.stalled(), Duration::ZERO);
        progress.advance(true);
        std::thread::sleep(Duration::from_millis(5));
        assert!(progress.stalled() >= Duration::from_millis(4));
        progress.advance(false);
        assert_eq!(progress.stalled(), Duration::ZERO);
        progress.fail("first".into());
        progress.fail("second".into());
        assert_eq!(progress.failure().as_deref(), Some("first"));
    }
}
