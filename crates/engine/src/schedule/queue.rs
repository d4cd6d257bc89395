//! The waiting requests: by priority, and within one, owners in turn by what they were given already.
//!
//! Fairness as in Sheng et al. 2024 (virtual token counter): every owner has a counter of rows that were run for it; the
//! owner with the least is next. One that comes back after a pause starts where the least of the waiting is, so that
//! idleness saves nothing up.

use super::sequence::Sequence;
use std::collections::HashMap;

/// Steps after which a request that waits goes before all priorities.
const PATIENCE: u64 = 4096;
/// Owners that are remembered.
const OWNERS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Vec<Sequence>,
    /// Rows that were run for each owner.
    served: HashMap<u64, u64>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        let owner = sequence.request.owner;
        if !self.waiting.iter().any(|s| s.request.owner == owner) {
            let least = self.waiting.iter().map(|s| self.served_of(s.request.owner)).min();
            if self.served.len() >= OWNERS_MAX {
                // Those that have nothing here are forgotten: they are as new ones then.
                let waiting = &self.waiting;
                self.served.retain(|owner, _| waiting.iter().any(|s| s.request.owner == *owner));
            }
            let counter = self.served.entry(owner).or_default();
            *counter = (*counter).max(least.unwrap_or(0));
        }
        self.waiting.push(sequence);
    }

    fn served_of(&self, owner: u64) -> u64 {
        self.served.get(&owner).copied().unwrap_or(0)
    }

    pub(super) fn serve(&mut self, owner: u64, rows: usize) {
        *self.served.entry(owner).or_default() += rows as u64;
    }

    /// Which is next.
    pub(super) fn next(&self, step: u64) -> Option<usize> {
        let key = |s: &Sequence| {
            let is_patient = step.saturating_sub(s.waits_since) < PATIENCE;
            // What was preempted has been served for already.
            let served = if s.was_started { 0 } else { self.served_of(s.request.owner) };
            (is_patient, if is_patient { s.place.priority } else { 0 }, !s.was_started, served, s.place.arrival)
        };
        (0..self.waiting.len()).min_by_key(|&i| key(&self.waiting[i]))
    }

    pub(super) fn get(&self, at: usize) -> &Sequence {
        &self.waiting[at]
    }

    pub(super) fn take(&mut self, at: usize) -> Sequence {
        self.waiting.remove(at)
    }

    pub(super) fn drain(&mut self) -> Vec<Sequence> {
        std::mem::take(&mut self.waiting)
    }
}
