//! The schedules: one-shot, staged pull, two-shot, islands.
//!
//! All that push are one shape, of which the partition of the ranks is the only parameter. Within an island every piece
//! has an owner that gathers the island's parts; owners of the same piece swap what their islands brought; owners push
//! the sum to their islands. Islands of one rank each make a one-shot of it, one island of all ranks a two-shot.
//!
//! Bytes across, per direction between two islands of `a` and `b` ranks and a message of `S` bytes: `a · S`, as what the
//! ranks brought crosses unsummed to keep the order of summing; `2 · S` in place of `a · S` out of the island that is
//! ranks `0..a` with `a > 2` on a 16-bit wire, whose unrounded f32 sum is what the others go on with. Partial sums in
//! both directions would be `S` each, and other bits.

use super::{Hop, Kind, Move, Payload, RANKS_MAX, Schedule, ScheduleFault};

/// From so many ranks on an unrounded sum is fewer bytes than what they brought, on a 16-bit wire.
const PREFIX_RANKS_MIN: usize = 3;

impl Schedule {
    /// Every rank pushes what it brings to every other.
    ///
    /// # Errors
    /// Not 1 to [`RANKS_MAX`] ranks.
    pub fn one_shot(ranks: usize) -> Result<Self, ScheduleFault> {
        let alone: Vec<Vec<usize>> = (0..ranks).map(|rank| vec![rank]).collect();
        Ok(Self { kind: Kind::OneShot, ..Self::islands(&alone)? })
    }

    /// Rank `p` sums piece `p` of `ranks` pieces and pushes the sum to every other rank.
    ///
    /// # Errors
    /// Not 1 to [`RANKS_MAX`] ranks.
    pub fn two_shot(ranks: usize) -> Result<Self, ScheduleFault> {
        Ok(Self { kind: Kind::TwoShot, ..Self::islands(&[(0..ranks).collect::<Vec<_>>()])? })
    }

    /// Every rank stages what it brings and tells every other, which read it in rotated order.
    ///
    /// # Errors
    /// Not 1 to [`RANKS_MAX`] ranks.
    pub fn staged_pull(ranks: usize) -> Result<Self, ScheduleFault> {
        check_count(ranks)?;
        let mut hops = Vec::new();
        for from in 0..ranks {
            for to in others(ranks, from) {
                let payload = Payload::Part(from);
                hops.push(Hop { from, to, piece: 0, payload, by: Move::Announce, after: Vec::new() });
            }
        }
        for to in 0..ranks {
            for from in others(ranks, to) {
                let told = hops.iter().position(|h| (h.from, h.to) == (from, to));
                let (payload, after) = (Payload::Part(from), told.into_iter().collect());
                hops.push(Hop { from, to, piece: 0, payload, by: Move::Pull, after });
            }
        }
        Ok(Self { kind: Kind::StagedPull, ranks, pieces: 1, hops })
    }

    /// Within islands, across them, and back. The partition must name every rank from 0 on once.
    ///
    /// # Errors
    /// Not 1 to [`RANKS_MAX`] ranks, an empty island, a rank that is named twice or not at all.
    pub fn islands(partition: &[Vec<usize>]) -> Result<Self, ScheduleFault> {
        let ranks = partition.iter().map(Vec::len).sum();
        check_count(ranks)?;
        let mut named: Vec<usize> = partition.concat();
        named.sort_unstable();
        if partition.iter().any(Vec::is_empty) || !named.into_iter().eq(0..ranks) {
            return Err(ScheduleFault::BadPartition { partition: partition.to_vec() });
        }
        let islands: Vec<Vec<usize>> = partition
            .iter()
            .map(|island| {
                let mut island = island.clone();
                island.sort_unstable();
                island
            })
            .collect();
        let pieces = islands.iter().map(Vec::len).fold(1, least_common_multiple);
        let mut b = Builder { islands, pieces, hops: Vec::new() };
        b.gather();
        b.swap();
        b.spread();
        Ok(Self { kind: Kind::Islands, ranks, pieces, hops: b.hops })
    }
}

fn check_count(ranks: usize) -> Result<(), ScheduleFault> {
    match ranks {
        1..=RANKS_MAX => Ok(()),
        _ => Err(ScheduleFault::BadCount { ranks }),
    }
}

/// The other members, those behind `of` first: no two ranks begin with the same one.
fn others(count: usize, of: usize) -> impl Iterator<Item = usize> {
    (1..count).map(move |d| (of + d) % count)
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

struct Builder {
    islands: Vec<Vec<usize>>,
    pieces: usize,
    hops: Vec<Hop>,
}

impl Builder {
    fn owner(&self, island: usize, piece: usize) -> usize {
        let members = &self.islands[island];
        members[piece % members.len()]
    }

    fn push(&mut self, from: usize, to: usize, piece: usize, payload: Payload, after: Vec<usize>) {
        self.hops.push(Hop { from, to, piece, payload, by: Move::Push, after });
    }

    /// Every member's part of every piece to the piece's owner in its island.
    fn gather(&mut self) {
        for island in 0..self.islands.len() {
            let count = self.islands[island].len();
            for place in 0..count {
                let from = self.islands[island][place];
                for owner in others(count, place) {
                    for piece in (owner..self.pieces).step_by(count) {
                        let to = self.islands[island][owner];
                        self.push(from, to, piece, Payload::Part(from), Vec::new());
                    }
                }
            }
        }
    }

    /// What an island brought, from each owner to the owners of the same piece elsewhere.
    fn swap(&mut self) {
        for island in 0..self.islands.len() {
            let members = self.islands[island].clone();
            let leads = members.iter().copied().eq(0..members.len()) && members.len() >= PREFIX_RANKS_MIN;
            for piece in 0..self.pieces {
                let from = self.owner(island, piece);
                // Not what other islands have sent meanwhile: nothing of it is needed here.
                let mut arrived = self.arrived(from, piece);
                arrived.retain(|&hop| members.contains(&self.hops[hop].from));
                for other in others(self.islands.len(), island) {
                    let to = self.owner(other, piece);
                    if leads {
                        self.push(from, to, piece, Payload::Prefix(members.len()), arrived.clone());
                        continue;
                    }
                    for &rank in &members {
                        let of_rank = |&hop: &usize| self.hops[hop].payload == Payload::Part(rank);
                        let after = arrived.iter().copied().filter(of_rank).collect();
                        self.push(from, to, piece, Payload::Part(rank), after);
                    }
                }
            }
        }
    }

    /// The sum, from each owner to its island.
    fn spread(&mut self) {
        for island in 0..self.islands.len() {
            let count = self.islands[island].len();
            for piece in 0..self.pieces {
                let from = self.owner(island, piece);
                let arrived = self.arrived(from, piece);
                for place in others(count, piece % count) {
                    let to = self.islands[island][place];
                    self.push(from, to, piece, Payload::Sum, arrived.clone());
                }
            }
        }
    }

    /// The hops so far that bring something of a piece to a rank.
    fn arrived(&self, rank: usize, piece: usize) -> Vec<usize> {
        let hops = self.hops.iter().enumerate();
        hops.filter(|(_, hop)| hop.to == rank && hop.piece == piece).map(|(i, _)| i).collect()
    }
}
