//! Merging of neighbours, the best pair first: what byte-level BPE and SentencePiece have in common. They differ in where
//! a text starts from and in what makes a pair good, so that is told from outside.
//!
//! Pairs wait in an order, not in the text, so a piece of n symbols takes n log n steps, whatever it holds. Most pairs
//! that merging makes come later than all that wait already, so they are only put aside, and sorted when their time has
//! come: on a long run of one character that is several times as quick as a heap of all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stands for no token: as a symbol's id, for text that no token spells yet.
pub(crate) const NONE: u32 = u32::MAX;

/// A part of the piece that is merged: what token it is, and which bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    previous: u32,
    next: u32,
}

/// A merge: its rank, the lowest first, and the token that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

/// A pair that can be merged. The derived order is that of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The rank in the upper half, and in the lower the left one's place: both compare at once.
    order: u64,
    /// Where the pair ends, in bytes: if it ends elsewhere by now, one of the two has been merged with another.
    end: u32,
    id: u32,
}

/// The symbols of one piece, and the room to merge them in, kept from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    waiting: Waiting,
}

/// Candidates, to be had in order.
#[derive(Debug, Default)]
struct Waiting {
    /// Sorted; those before `at` have been had.
    run: Vec<Candidate>,
    at: usize,
    /// Those that came too late for the run, but before its end.
    early: BinaryHeap<Reverse<Candidate>>,
    /// Those behind the run's end.
    late: Vec<Candidate>,
}

impl Waiting {
    fn clear(&mut self) {
        self.run.clear();
        self.at = 0;
        self.early.clear();
        self.late.clear();
    }

    fn push(&mut self, candidate: Candidate) {
        match self.run.last() {
            Some(last) if candidate <= *last => self.early.push(Reverse(candidate)),
            _ => self.late.push(candidate),
        }
    }

    fn pop(&mut self) -> Option<Candidate> {
        if self.at == self.run.len() && self.early.is_empty() {
            self.run.clear();
            std::mem::swap(&mut self.run, &mut self.late);
            self.run.sort_unstable();
            self.at = 0;
        }
        match (self.run.get(self.at), self.early.peek()) {
            (Some(next), Some(Reverse(early))) if early < next => self.early.pop().map(|Reverse(early)| early),
            (Some(next), _) => {
                self.at += 1;
                Some(*next)
            }
            (None, _) => self.early.pop().map(|Reverse(early)| early),
        }
    }
}

impl Merger {
    /// Forgets the last piece.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.waiting.clear();
    }

    /// Adds a symbol behind the others. It is not empty, and its bytes lie behind theirs.
    pub(crate) fn push(&mut self, id: u32, start: usize, end: usize) {
        let at = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        let previous = at.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { id, start: start as u32, end: end as u32, previous, next: NONE });
    }

    /// Merges neighbours until `pair` has nothing to say of any two.
    pub(crate) fn merge(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<Merged>) {
        for left in 1..self.symbols.len() {
            self.consider(left as u32 - 1, &pair);
        }
        while let Some(best) = self.waiting.pop() {
            let at = best.order as u32;
            let left = self.symbols[at as usize];
            if left.start == left.end || left.next == NONE || self.symbols[left.next as usize].end != best.end {
                continue;
            }
            let right = self.symbols[left.next as usize];
            self.symbols[at as usize] = Symbol { id: best.id, end: right.end, next: right.next, ..left };
            self.symbols[left.next as usize].end = right.start; // gone
            if right.next != NONE {
                self.symbols[right.next as usize].previous = at;
                self.consider(at, &pair);
            }
            if left.previous != NONE {
                self.consider(left.previous, &pair);
            }
        }
    }

    /// What is left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.start != symbol.end)
    }

    /// Puts the pair that `left` starts in the queue, if it is one.
    fn consider(&mut self, left: u32, pair: &impl Fn(&Symbol, &Symbol) -> Option<Merged>) {
        let first = &self.symbols[left as usize];
        let second = &self.symbols[first.next as usize];
        if let Some(Merged { rank, id }) = pair(first, second) {
            let order = u64::from(rank) << 32 | u64::from(left);
            self.waiting.push(Candidate { order, end: second.end, id });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two letters become the letter of their sum, unless it is too high; some sums are better than others.
    fn pair(left: u32, right: u32) -> Option<Merged> {
        let id = left + right + 1;
        (id < 12 && !(left * 7 + right).is_multiple_of(3)).then_some(Merged { rank: (left * 5 + right * 3) % 11, id })
    }

    /// The definition: of all pairs the best, of equals the leftmost, until there is none.
    fn by_the_book(mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let pairs = ids.windows(2).enumerate().filter_map(|(at, two)| Some((pair(two[0], two[1])?, at)));
            let Some((best, at)) = pairs.min_by_key(|(merged, at)| (merged.rank, *at)) else { return ids };
            ids.splice(at..at + 2, [best.id]);
        }
    }

    proptest! {
        #[test]
        fn merges_by_the_book(ids in prop::collection::vec(0u32..4, 0..60)) {
            let mut merger = Merger::default();
            for (at, id) in ids.iter().enumerate() {
                merger.push(*id, at * 2, at * 2 + 1); // with gaps, as of bytes that no token has
            }
            merger.merge(|left, right| pair(left.id, right.id));
            let got: Vec<u32> = merger.symbols().map(|symbol| symbol.id).collect();
            prop_assert_eq!(got, by_the_book(ids));
        }
    }
}
