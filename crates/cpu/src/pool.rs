//! The threads of one rank: a job is a number of tasks that any of them may take, the caller among them.
//!
//! A step is hundreds of short jobs, so a worker spins for the next one, but only for a while: on a shared or virtual
//! processor the core may be needed by the very thread that is waited for. The caller never waits for a worker that
//! did not come, only for those that took a task.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds of a spin: some tens of microseconds, about what waking a parked thread costs.
const SPINS_MAX: u32 = 4000;

/// A task of a job panicked; the message is what it said.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// A rank's threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Called with the number of a task.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// `job number << 32 | OPEN | workers in it`.
    state: AtomicU64,
    job: UnsafeCell<Option<*const Work<'static>>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    panic: Mutex<Option<String>>,
    spins: u32,
    stop: AtomicBool,
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    caller_parked: AtomicBool,
    done: Condvar,
}

const OPEN: u64 = 1 << 31;
const JOB: u64 = 1 << 32;

// SAFETY: `job` is written by the caller only while the job is closed and no worker is in it, and read by a worker
// only after it entered an open job; the two orders go through `state`. What it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is followed only inside a job, while the caller keeps what it points to alive.
unsafe impl Send for Shared {}

impl Pool {
    /// `threads` in all, the caller counted. With `spin` false waiting threads park at once: for machines where more
    /// threads run than there are cores.
    ///
    /// # Errors
    /// What the system says where it gives no thread.
    pub(crate) fn new(name: &str, threads: usize, spin: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            spins: if spin { SPINS_MAX } else { 0 },
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            caller_parked: AtomicBool::new(false),
            done: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for i in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("{name}.{i}"));
            pool.workers.push(thread.spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Threads, the caller counted.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(0 .. tasks)`, each number once, on all threads; returns when all are done.
    ///
    /// # Errors
    /// A task panicked: the others that had begun were finished, the rest were not begun.
    pub(crate) fn run(&mut self, tasks: usize, work: &Work<'_>) -> Result<(), Panicked> {
        let shared = &*self.shared;
        shared.next.store(0, Ordering::Relaxed);
        shared.tasks.store(tasks, Ordering::Relaxed);
        if tasks <= 1 || self.workers.is_empty() {
            shared.take_tasks(work);
        } else {
            // SAFETY: only the lifetime is erased; `close` below returns after every worker that entered has left,
            // and nothing in between can unwind.
            let erased = unsafe { std::mem::transmute::<&Work<'_>, *const Work<'static>>(work) };
            // SAFETY: the job is closed and empty, so no worker reads the cell now.
            unsafe { *shared.job.get() = Some(erased) };
            let before = shared.state.load(Ordering::Relaxed);
            shared.state.store((before & !(JOB - 1)).wrapping_add(JOB) | OPEN, Ordering::SeqCst);
            if shared.parked.load(Ordering::SeqCst) > 0 {
                drop(shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
                shared.wake.notify_all();
            }
            shared.take_tasks(work);
            shared.close();
        }
        match shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(message) => Err(Panicked(message)),
            None => Ok(()),
        }
    }

    /// Calls `work` with neighbouring ranges that cover `0 .. n`, none shorter than `grain` but the last; several per
    /// thread, so that a thread that is held up does not hold up the job.
    pub(crate) fn split(
        &mut self,
        n: usize,
        grain: usize,
        work: &(dyn Fn(std::ops::Range<usize>) + Sync),
    ) -> Result<(), Panicked> {
        let size = n.div_ceil(self.threads() * PARTS_PER_THREAD).max(grain).max(1);
        self.run(n.div_ceil(size), &|i| work(i * size..((i + 1) * size).min(n)))
    }
}

const PARTS_PER_THREAD: usize = 4;

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what its tasks throw: it cannot have panicked.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes tasks until none is left.
    fn take_tasks(&self, work: &Work<'_>) {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                work(task);
            }
        }));
        if let Err(payload) = result {
            self.next.store(tasks, Ordering::Relaxed);
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(message(&*payload));
        }
    }

    /// Lets no more workers in and waits until those inside have left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        let inside = || self.state.load(Ordering::SeqCst) & (OPEN - 1) > 0;
        for _ in 0..self.spins {
            if !inside() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.caller_parked.store(true, Ordering::SeqCst);
        while inside() {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_parked.store(false, Ordering::SeqCst);
    }

    /// A worker's life.
    fn serve(&self) {
        let mut last = 0;
        while let Some(job) = self.enter(last) {
            last = job;
            // SAFETY: this worker is inside an open job: the caller has set the cell and waits for it to leave.
            let work = unsafe { (*self.job.get()).map(|work| &*work) };
            if let Some(work) = work {
                self.take_tasks(work);
            }
            self.state.fetch_sub(1, Ordering::SeqCst);
            if self.caller_parked.load(Ordering::SeqCst) {
                drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
                self.done.notify_one();
            }
        }
    }

    /// Waits for a job other than `last` and enters it: its number, or `None` where the pool ends.
    fn enter(&self, last: u64) -> Option<u64> {
        loop {
            for _ in 0..=self.spins {
                if let Some(job) = self.try_enter(last) {
                    return Some(job);
                }
                std::hint::spin_loop();
            }
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            // Counted before looking again: whoever opens a job after that look sees the count and wakes.
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !self.stop.load(Ordering::SeqCst) && !self.is_open(last) {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
        }
    }

    fn is_open(&self, last: u64) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state & OPEN != 0 && state / JOB != last
    }

    fn try_enter(&self, last: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        if state & OPEN == 0 || state / JOB == last {
            return None;
        }
        self.state.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::Relaxed).ok().map(|state| state / JOB)
    }
}

/// What a panic said.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for (threads, spin) in [(1, true), (2, true), (2, false), (5, true), (7, false)] {
            let mut pool = Pool::new("test", threads, spin).unwrap();
            for round in 0..500 {
                let tasks = round % 23;
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn ranges_cover_everything_once() {
        let mut pool = Pool::new("test", 3, true).unwrap();
        for n in [0, 1, 7, 8, 100, 1000] {
            let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.split(n, 8, &|range| {
                range.for_each(|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            })
            .unwrap();
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{n}");
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let mut pool = Pool::new("test", 4, true).unwrap();
        for bad in 0..50 {
            let error = pool.run(50, &|i| assert_ne!(i, bad, "task {i} is bad")).unwrap_err();
            assert!(error.0.contains("is bad"), "{error:?}");
            pool.run(50, &|_| {}).unwrap();
        }
    }

    #[test]
    fn parked_workers_are_woken() {
        let mut pool = Pool::new("test", 2, true).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let both = std::sync::Barrier::new(2);
            // Both threads must come for either task to end.
            pool.run(2, &|_| {
                both.wait();
            })
            .unwrap();
        }
    }
}
