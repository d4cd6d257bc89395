//! Jobs on many rows of logits, on several threads.

use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Logits for which a thread is worth starting: weighing them takes several times as long.
const WORTH_A_THREAD: usize = 64 << 10;
/// More threads would wait for memory.
const MOST_THREADS: usize = 16;

/// Does jobs on rows of `logits` logits each, on as many threads as they are worth.
pub fn side_by_side<T: Send>(jobs: Vec<T>, logits: usize, work: impl Fn(T) + Sync) {
    // Asked once: the answer is read from files.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = || *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS));
    let worth = jobs.len().min(jobs.len() * logits / WORTH_A_THREAD);
    let threads = if worth > 1 { worth.min(cores()) } else { 1 };
    if threads <= 1 {
        return jobs.into_iter().for_each(work);
    }
    let jobs = Mutex::new(jobs.into_iter());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let all = || std::iter::from_fn(next).for_each(&work);
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where none can be started, those that are there do all.
            let _ = thread::Builder::new().name("logits".into()).spawn_scoped(scope, all);
        }
        all();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once() {
        for count in [0, 1, 2, 3, 7, 16, 100, 1001] {
            for logits in [0, 1000, 1 << 20] {
                let mut done = vec![0; count];
                side_by_side(done.iter_mut().collect(), logits, |done| *done += 1);
                assert!(done.iter().all(|&done| done == 1), "{count}, {logits}");
            }
        }
    }
}
