//! The thread transport: ranks are threads, their meeting place is shared memory. This is the one-shot schedule without
//! an interpreter, for the backend that uses it; `schedule/threads.rs` interprets them all.
//!
//! Every rank owns two buffers and a count of the calls that it has published. In call `n` a rank copies its part into
//! buffer `n % 2`, publishes `n`, waits until all others have published it too, and reads them all. One wait is
//! enough: a buffer is written again in call `n + 2`, which its owner can reach only after every rank has published
//! `n + 1`, and a rank that has published `n + 1` has finished reading `n`.

use crate::Silent;
use crate::meeting::{Meeting, Missing};
use bytemuck::Pod;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Makes the ranks of one group.
pub struct ThreadGroup;

impl ThreadGroup {
    /// A group of `size` ranks. A rank that waits longer than `deadline` for another gives up with [`Silent`].
    ///
    /// # Panics
    /// If `size` is 0.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(size: usize, deadline: Duration) -> Vec<ThreadRank> {
        assert!(size > 0, "a group has at least one rank");
        let places = (0..size).map(|_| Place::default()).collect();
        let shared = Arc::new(Shared { places, meeting: Meeting::new(size) });
        (0..size)
            .map(|rank| ThreadRank { rank, deadline, calls: 0, broken: None, shared: Arc::clone(&shared) })
            .collect()
    }
}

/// One rank's end. Every rank must make the same calls in the same order; whoever drops its end takes leave: a rank
/// that still waits for it then gets [`Silent`] at once.
pub struct ThreadRank {
    rank: usize,
    deadline: Duration,
    calls: u64,
    broken: Option<Silent>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Buffer {
    /// Wide words, so that the bytes in them are aligned for any plain type.
    words: Vec<u128>,
    bytes: usize,
}

/// What one rank shows the others; kept apart from its neighbours' cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Place {
    published: AtomicU64,
    gone: AtomicBool,
    buffers: [UnsafeCell<Buffer>; 2],
}

struct Shared {
    places: Vec<Place>,
    meeting: Meeting,
}

// SAFETY: the `UnsafeCell`s are the only part that is not `Sync` by itself. A buffer is written only by its owner and
// read only between the publication of its call and the reader's own next publication; the module head shows that the
// two never overlap, and the release/acquire pair on `published` orders them.
unsafe impl Sync for Shared {}

impl ThreadRank {
    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in the group.
    pub fn size(&self) -> usize {
        self.shared.places.len()
    }

    /// `sum = Σ partial` over all ranks in f32, rank 0 first: the same bits on every rank.
    ///
    /// # Errors
    /// [`Silent`] where a rank does not come; this end is then of no more use and repeats the error.
    ///
    /// # Panics
    /// If `sum` is not as long as `partial`, or the ranks do not agree about the length.
    pub fn all_reduce(&mut self, partial: &[f32], sum: &mut [f32]) -> Result<(), Silent> {
        assert_eq!(partial.len(), sum.len(), "partial and sum must be equally long");
        if self.size() == 1 {
            sum.copy_from_slice(partial);
            return Ok(());
        }
        self.meet(bytemuck::cast_slice(partial))?;
        for rank in 0..self.size() {
            let part: &[f32] = bytemuck::cast_slice(self.part_of(rank));
            assert_eq!(part.len(), sum.len(), "rank {rank} reduces another length");
            if rank == 0 {
                sum.copy_from_slice(part);
            } else {
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        }
        Ok(())
    }

    /// `out` = what every rank brings, in rank order; lengths may differ. `out` is cleared first.
    ///
    /// # Errors
    /// As [`ThreadRank::all_reduce`].
    pub fn all_gather<T: Pod>(&mut self, mine: &[T], out: &mut Vec<T>) -> Result<(), Silent> {
        out.clear();
        if self.size() == 1 {
            out.extend_from_slice(mine);
            return Ok(());
        }
        self.meet(bytemuck::cast_slice(mine))?;
        for rank in 0..self.size() {
            out.extend_from_slice(bytemuck::cast_slice(self.part_of(rank)));
        }
        Ok(())
    }

    /// Takes leave before the end is dropped: ranks that wait for this one get [`Silent`] at once.
    pub fn leave(&mut self) {
        self.shared.places[self.rank].gone.store(true, Ordering::SeqCst);
        self.shared.meeting.wake_parked();
    }

    /// Publishes `mine` and waits until every rank has published its own.
    fn meet(&mut self, mine: &[u8]) -> Result<(), Silent> {
        if let Some(silent) = self.broken {
            return Err(silent);
        }
        self.calls += 1;
        let place = &self.shared.places[self.rank];
        // SAFETY: this rank owns the buffer, and no rank reads it any more: all have published the call before this
        // one, hence finished the one before that, which used the same buffer.
        let buffer = unsafe { &mut *place.buffers[self.parity()].get() };
        buffer.words.resize(mine.len().div_ceil(size_of::<u128>()), 0);
        buffer.bytes = mine.len();
        bytemuck::cast_slice_mut::<u128, u8>(&mut buffer.words)[..mine.len()].copy_from_slice(mine);
        place.published.store(self.calls, Ordering::SeqCst);
        self.shared.meeting.wake_parked();
        self.wait()
    }

    fn wait(&mut self) -> Result<(), Silent> {
        let (shared, calls) = (&self.shared, self.calls);
        let result = shared.meeting.wait(self.rank, self.deadline, || shared.missing(calls));
        if let Err(silent) = result {
            self.broken = Some(silent);
            // The others need not sit out their own deadlines for a group that cannot go on.
            self.shared.places[silent.silent].gone.store(true, Ordering::SeqCst);
            self.shared.meeting.wake_parked();
        }
        result
    }

    fn parity(&self) -> usize {
        (self.calls % 2) as usize
    }

    /// What `rank` published in the present call.
    fn part_of(&self, rank: usize) -> &[u8] {
        // SAFETY: called after `meet` only: `rank` has published this call, and it cannot write this buffer again
        // before this rank has published its next call, which needs `&mut self`.
        let buffer = unsafe { &*self.shared.places[rank].buffers[self.parity()].get() };
        &bytemuck::cast_slice::<u128, u8>(&buffer.words)[..buffer.bytes]
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Shared {
    /// A rank that has not published `call`; one that will never do so comes first.
    fn missing(&self, call: u64) -> Option<Missing> {
        let mut found: Option<Missing> = None;
        for (rank, place) in self.places.iter().enumerate() {
            // Read before `published`: a rank may publish its last call and leave between the two reads.
            let gone = place.gone.load(Ordering::SeqCst);
            if place.published.load(Ordering::SeqCst) < call && (gone || found.is_none()) {
                found = Some(Missing { rank, gone });
                if gone {
                    break;
                }
            }
        }
        found
    }
}
