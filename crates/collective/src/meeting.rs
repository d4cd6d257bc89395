//! How a rank that is a thread waits for others: a bounded spin, then parked until what it waits for is there, the
//! deadline passes or the other is gone. What is waited for is the caller's business.

use crate::Silent;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rounds of the spin before a waiting rank parks: some tens of microseconds, about what parking costs.
const SPINS_MAX: u32 = 1000;

/// Where the ranks of one group wait.
pub(crate) struct Meeting {
    spins: u32,
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// A rank that has not come yet; `gone`: and never will.
pub(crate) struct Missing {
    pub(crate) rank: usize,
    pub(crate) gone: bool,
}

impl Meeting {
    /// For a group of `size` ranks.
    pub(crate) fn new(size: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Ranks that share a core must hand it over at once instead of spinning on it.
        let spins = if size > cores { 0 } else { SPINS_MAX };
        Self { spins, parked: AtomicUsize::new(0), lock: Mutex::new(()), wake: Condvar::new() }
    }

    /// Waits until nothing is missing. What `missing` looks at must be stored with sequential consistency before
    /// [`Meeting::wake_parked`] is called.
    pub(crate) fn wait(
        &self,
        rank: usize,
        deadline: Duration,
        missing: impl Fn() -> Option<Missing>,
    ) -> Result<(), Silent> {
        for _ in 0..self.spins {
            if missing().is_none() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Counted before looking again: whoever publishes after that look sees the count and wakes this rank.
        self.parked.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let Some(missing) = missing() else { break Ok(()) };
            let waited = start.elapsed();
            let left = deadline.saturating_sub(waited);
            if missing.gone || left.is_zero() {
                break Err(Silent { rank, silent: missing.rank, waited_ms: waited.as_millis() as u64 });
            }
            guard = self.wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Lets every waiting rank look again.
    pub(crate) fn wake_parked(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            // Taken and released: a rank between its last look and its sleep holds the lock, and would miss the call.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }
}
