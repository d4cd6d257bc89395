//! What can be proved of a schedule without running it: every rank ends with the sum of every piece, nobody sends what
//! it does not hold, nobody waits in a circle; and how many bytes go where.

use super::{Hop, Move, Payload, RANKS_MAX, Schedule};

/// Why a schedule is no all-reduce.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ScheduleFault {
    #[error("{ranks} ranks: 1 to {RANKS_MAX} are possible")]
    BadCount { ranks: usize },
    #[error("the islands {partition:?} do not name every rank from 0 on exactly once")]
    BadPartition { partition: Vec<Vec<usize>> },
    #[error("hop {hop} names a rank, a piece or a hop that there is not, or goes from a rank to itself")]
    BadHop { hop: usize },
    #[error("hop {hop} waits for hop {after}, which does not arrive at the rank that acts")]
    WaitsElsewhere { hop: usize, after: usize },
    #[error("hop {hop}: rank {rank} cannot make what it sends of what has arrived")]
    NotHeld { hop: usize, rank: usize },
    #[error("hop {hop} reads what was not announced to it")]
    NotAnnounced { hop: usize },
    #[error("hop {hop} brings what has been brought before")]
    Twice { hop: usize },
    #[error("hop {hop} waits, by way of others, for itself")]
    Circular { hop: usize },
    #[error("rank {rank} never has the sum of piece {piece}")]
    Incomplete { rank: usize, piece: usize },
}

/// What was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Hops of the longest chain of which each waits for the one before.
    pub depth: usize,
}

/// Bytes that a schedule moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// `[from][to]`.
    pub pairs: Vec<Vec<usize>>,
}

impl Traffic {
    /// Out of a rank.
    pub fn sent(&self, rank: usize) -> usize {
        self.pairs[rank].iter().sum()
    }

    /// Into a rank.
    pub fn received(&self, rank: usize) -> usize {
        self.pairs.iter().map(|row| row[rank]).sum()
    }

    /// From some ranks to all the others.
    pub fn across(&self, from: &[usize]) -> usize {
        let outside = |to: &usize| !from.contains(to);
        from.iter().map(|&r| (0..self.pairs.len()).filter(outside).map(|to| self.pairs[r][to]).sum::<usize>()).sum()
    }
}

/// What a rank holds of a piece.
#[derive(Clone, Copy, Default)]
struct Held {
    /// A bit per rank.
    parts: u32,
    /// A bit per number of ranks whose sum it is.
    prefixes: u32,
    sum: bool,
}

impl Held {
    fn own(rank: usize) -> Self {
        Self { parts: 1 << rank, ..Self::default() }
    }

    fn add(&mut self, payload: Payload) {
        match payload {
            Payload::Part(rank) => self.parts |= 1 << rank,
            Payload::Prefix(ranks) => self.prefixes |= 1 << ranks,
            Payload::Sum => self.sum = true,
        }
    }

    fn makes(&self, payload: Payload, ranks: usize) -> bool {
        let has = |rank: usize| self.parts >> rank & 1 == 1;
        let sums = |to: usize| {
            let starts = |from: usize| from == 0 || self.prefixes >> from & 1 == 1;
            (0..=to).any(|from| starts(from) && (from..to).all(has))
        };
        match payload {
            Payload::Part(rank) => has(rank),
            Payload::Prefix(n) => sums(n),
            Payload::Sum => self.sum || sums(ranks),
        }
    }
}

impl Schedule {
    /// Proves that this is an all-reduce.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<Checked, ScheduleFault> {
        if !(1..=RANKS_MAX).contains(&self.ranks) || self.pieces == 0 {
            return Err(ScheduleFault::BadCount { ranks: self.ranks });
        }
        for (i, hop) in self.hops.iter().enumerate() {
            self.check_hop(i, hop)?;
        }
        for rank in 0..self.ranks {
            for piece in 0..self.pieces {
                let mut held = Held::own(rank);
                let into = |h: &&Hop| h.to == rank && h.piece == piece && h.by != Move::Announce;
                self.hops.iter().filter(into).for_each(|h| held.add(h.payload));
                if !held.makes(Payload::Sum, self.ranks) {
                    return Err(ScheduleFault::Incomplete { rank, piece });
                }
            }
        }
        Ok(Checked { depth: self.depth()? })
    }

    fn check_hop(&self, i: usize, hop: &Hop) -> Result<(), ScheduleFault> {
        let named = match hop.payload {
            Payload::Part(rank) => rank < self.ranks,
            Payload::Prefix(ranks) => (1..=self.ranks).contains(&ranks),
            Payload::Sum => true,
        };
        let known = hop.from < self.ranks && hop.to < self.ranks && hop.piece < self.pieces;
        if !named || !known || hop.from == hop.to || hop.after.iter().any(|&a| a >= self.hops.len()) {
            return Err(ScheduleFault::BadHop { hop: i });
        }
        let actor = hop.actor();
        let mut held = Held::own(actor);
        for &after in &hop.after {
            let before = &self.hops[after];
            if before.to != actor {
                return Err(ScheduleFault::WaitsElsewhere { hop: i, after });
            }
            if before.piece == hop.piece && before.by != Move::Announce {
                held.add(before.payload);
            }
        }
        let same = |h: &Hop| (h.from, h.to, h.piece, h.payload) == (hop.from, hop.to, hop.piece, hop.payload);
        if hop.by == Move::Pull {
            if !hop.after.iter().any(|&a| self.hops[a].by == Move::Announce && same(&self.hops[a])) {
                return Err(ScheduleFault::NotAnnounced { hop: i });
            }
        } else if !held.makes(hop.payload, self.ranks) {
            return Err(ScheduleFault::NotHeld { hop: i, rank: actor });
        }
        let again = |h: &Hop| (h.to, h.piece, h.payload, h.by) == (hop.to, hop.piece, hop.payload, hop.by);
        if self.hops[..i].iter().any(again) || hop.payload == Payload::Part(hop.to) {
            return Err(ScheduleFault::Twice { hop: i });
        }
        Ok(())
    }

    /// The longest chain of waits. Hops wait for `after`, and, for circles, also for the rank's own hops before them.
    fn depth(&self) -> Result<usize, ScheduleFault> {
        let mut last = vec![None; self.ranks];
        let before: Vec<Option<usize>> =
            self.hops.iter().enumerate().map(|(i, hop)| last[hop.actor()].replace(i)).collect();
        let mut depth = vec![0usize; self.hops.len()];
        let mut done = vec![false; self.hops.len()];
        // As many rounds as hops are enough; a round that finishes none is a circle.
        loop {
            let mut stuck = None;
            let mut moved = false;
            for (i, hop) in self.hops.iter().enumerate().filter(|&(i, _)| !done[i]).collect::<Vec<_>>() {
                if hop.after.iter().chain(&before[i]).all(|&a| done[a]) {
                    depth[i] = 1 + hop.after.iter().map(|&a| depth[a]).max().unwrap_or(0);
                    done[i] = true;
                    moved = true;
                } else {
                    stuck.get_or_insert(i);
                }
            }
            match stuck {
                None => return Ok(depth.into_iter().max().unwrap_or(0)),
                Some(hop) if !moved => return Err(ScheduleFault::Circular { hop }),
                Some(_) => {}
            }
        }
    }

    /// Bytes between every two ranks, for a message of `values` values that have `value_bytes` each on the wire.
    pub fn traffic(&self, values: usize, value_bytes: usize) -> Traffic {
        let mut pairs = vec![vec![0; self.ranks]; self.ranks];
        for hop in &self.hops {
            pairs[hop.from][hop.to] += hop.bytes(self.range(hop.piece, values).len(), value_bytes);
        }
        Traffic { pairs }
    }
}
