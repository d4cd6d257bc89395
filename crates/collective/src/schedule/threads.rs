//! The interpreter: ranks that are threads do what a schedule says, hop by hop. It is there to prove schedules; the
//! backends have quicker ways for those that they use.
//!
//! Every hop has two buffers, of which call `n` uses `n % 2`. Two are enough for any all-reduce: a rank ends call
//! `n + 1` only with a sum that has a part of every other rank in it, and a rank gives that part only after it has ended
//! call `n`. So whoever writes in call `n + 2` knows that nobody still reads what call `n` left there.

use super::{Move, Payload, Schedule, ScheduleFault};
use crate::Silent;
use crate::meeting::{Meeting, Missing};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A group of ranks that all-reduce by `schedule`. A rank that waits longer than `deadline` for another gives up.
///
/// # Errors
/// The schedule is no all-reduce.
pub fn scheduled(schedule: &Schedule, deadline: Duration) -> Result<Vec<ScheduledRank>, ScheduleFault> {
    schedule.check()?;
    let shared = Arc::new(Shared {
        schedule: schedule.clone(),
        slots: schedule.hops.iter().map(|_| Slot::default()).collect(),
        gone: (0..schedule.ranks).map(|_| AtomicBool::new(false)).collect(),
        meeting: Meeting::new(schedule.ranks),
    });
    let rank = |rank| ScheduledRank { rank, deadline, calls: 0, broken: None, pause: None, shared: shared.clone() };
    Ok((0..schedule.ranks).map(rank).collect())
}

/// One rank's end; as a [`crate::ThreadRank`], but by any schedule.
pub struct ScheduledRank {
    rank: usize,
    deadline: Duration,
    calls: u64,
    broken: Option<Silent>,
    pause: Option<Box<dyn FnMut() + Send>>,
    shared: Arc<Shared>,
}

/// Where a hop leaves what it brings.
#[derive(Default)]
struct Slot {
    /// The last call in which it arrived.
    arrived: AtomicU64,
    buffers: [Mutex<Vec<f32>>; 2],
}

struct Shared {
    schedule: Schedule,
    slots: Vec<Slot>,
    gone: Vec<AtomicBool>,
    meeting: Meeting,
}

impl ScheduledRank {
    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Calls `pause` before every hop of this rank: to try other orders of events.
    pub fn pause_before_hops(&mut self, pause: impl FnMut() + Send + 'static) {
        self.pause = Some(Box::new(pause));
    }

    /// `sum = Σ partial` over all ranks in f32, rank 0 first: the same bits on every rank and by every schedule.
    ///
    /// # Errors
    /// [`Silent`] where a rank does not come; this end is then of no more use and repeats the error.
    ///
    /// # Panics
    /// If `sum` is not as long as `partial`, or the ranks do not agree about the length.
    pub fn all_reduce(&mut self, partial: &[f32], sum: &mut [f32]) -> Result<(), Silent> {
        assert_eq!(partial.len(), sum.len(), "partial and sum must be equally long");
        if let Some(silent) = self.broken {
            return Err(silent);
        }
        self.calls += 1;
        let result = self.run(partial, sum);
        if let Err(silent) = result {
            self.broken = Some(silent);
            self.shared.gone[silent.silent].store(true, Ordering::SeqCst);
            self.shared.meeting.wake_parked();
        }
        result
    }

    fn run(&mut self, partial: &[f32], sum: &mut [f32]) -> Result<(), Silent> {
        let shared = Arc::clone(&self.shared);
        let schedule = &shared.schedule;
        for (i, hop) in schedule.hops.iter().enumerate().filter(|(_, hop)| hop.actor() == self.rank) {
            if let Some(pause) = &mut self.pause {
                pause();
            }
            self.wait_for(&hop.after)?;
            let values = match hop.by {
                Move::Pull => self.announced(i),
                _ => self.make(hop.payload, hop.piece, &hop.after, &partial[schedule.range(hop.piece, partial.len())]),
            };
            *lock(&shared.slots[i].buffers[self.parity()]) = values;
            shared.slots[i].arrived.store(self.calls, Ordering::SeqCst);
            shared.meeting.wake_parked();
        }
        for piece in 0..schedule.pieces {
            let hops = schedule.hops.iter().enumerate();
            let into = hops.filter(|(_, h)| h.to == self.rank && h.piece == piece && h.by != Move::Announce);
            let into: Vec<usize> = into.map(|(i, _)| i).collect();
            self.wait_for(&into)?;
            let range = schedule.range(piece, partial.len());
            let values = self.make(Payload::Sum, piece, &into, &partial[range.clone()]);
            sum[range].copy_from_slice(&values);
        }
        Ok(())
    }

    fn wait_for(&self, hops: &[usize]) -> Result<(), Silent> {
        let shared = &self.shared;
        let missing = |&hop: &usize| {
            let rank = shared.schedule.hops[hop].from;
            // Read before `arrived`: a rank may send its last and leave between the two reads.
            let gone = shared.gone[rank].load(Ordering::SeqCst);
            (shared.slots[hop].arrived.load(Ordering::SeqCst) < self.calls).then_some(Missing { rank, gone })
        };
        shared.meeting.wait(self.rank, self.deadline, || {
            let mut all = hops.iter().filter_map(missing);
            let first = all.next()?;
            Some(if first.gone { first } else { all.find(|m| m.gone).unwrap_or(first) })
        })
    }

    /// What a hop reads that was announced to it.
    fn announced(&self, pull: usize) -> Vec<f32> {
        let hops = &self.shared.schedule.hops;
        let hop = &hops[pull];
        let is_source = |&&a: &&usize| {
            let a = &hops[a];
            a.by == Move::Announce && (a.from, a.piece, a.payload) == (hop.from, hop.piece, hop.payload)
        };
        let source = hop.after.iter().find(is_source).expect("the schedule was checked");
        self.arrived(*source)
    }

    /// A payload, made of this rank's own part and of what hops have brought.
    fn make(&self, payload: Payload, piece: usize, hops: &[usize], own: &[f32]) -> Vec<f32> {
        let schedule = &self.shared.schedule;
        let brought = |wanted: Payload| {
            let found = hops.iter().find(|&&h| {
                let hop = &schedule.hops[h];
                hop.piece == piece && hop.payload == wanted && hop.by != Move::Announce
            });
            found.map(|&h| self.arrived(h))
        };
        let part = |rank: usize| match rank == self.rank {
            true => own.to_vec(),
            false => brought(Payload::Part(rank)).expect("the schedule was checked"),
        };
        let ranks = match payload {
            Payload::Part(rank) => return part(rank),
            Payload::Sum => schedule.ranks,
            Payload::Prefix(ranks) => ranks,
        };
        if payload == Payload::Sum
            && let Some(sum) = brought(Payload::Sum)
        {
            return sum;
        }
        let start = (1..=ranks).rev().find_map(|n| Some((n, brought(Payload::Prefix(n))?)));
        let (summed, mut sum) = start.unwrap_or_else(|| (1, part(0)));
        for rank in summed..ranks {
            let part = part(rank);
            assert_eq!(part.len(), sum.len(), "rank {rank} reduces another length");
            sum.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x);
        }
        sum
    }

    fn arrived(&self, hop: usize) -> Vec<f32> {
        lock(&self.shared.slots[hop].buffers[self.parity()]).clone()
    }

    fn parity(&self) -> usize {
        (self.calls % 2) as usize
    }
}

impl Drop for ScheduledRank {
    fn drop(&mut self) {
        self.shared.gone[self.rank].store(true, Ordering::SeqCst);
        self.shared.meeting.wake_parked();
    }
}

fn lock(buffer: &Mutex<Vec<f32>>) -> std::sync::MutexGuard<'_, Vec<f32>> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}
