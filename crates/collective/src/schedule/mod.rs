//! All-reduce schedules: who sends what to whom in which hop, as plain data.
//!
//! A message is cut into pieces. A [`Hop`] moves one [`Payload`] of one piece from a rank to another, once certain hops
//! before it have arrived. Nothing is ever summed in another order than rank 0 first, in f32, rounded once at the end:
//! a rank sends on either what single ranks brought, or the unrounded sum of ranks `0..n`, which whoever gets it can go
//! on with, or the finished sum. So all schedules give the same bits and can be swapped.
//!
//! Here: the data. `shapes` makes them, `check` proves them, `threads` interprets them. How long one takes on which
//! links is not known here.

mod check;
mod shapes;
mod threads;

pub use check::{Checked, ScheduleFault, Traffic};
pub use threads::{ScheduledRank, scheduled};

use std::ops::Range;

/// Most ranks of a schedule: what one machine holds, and what CUDA lets peer.
pub const RANKS_MAX: usize = 8;

/// Which family a schedule belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank pushes its part to all others: one hop, `(ranks − 1)` times the message out of every rank.
    OneShot,
    /// Every rank stages its part in its own memory and says so; the others read it: for fabrics whose writes collapse.
    StagedPull,
    /// Every rank gathers and sums one piece, then pushes the sum to all: two hops, twice the message.
    TwoShot,
    /// Within islands, across them between the owners of a piece, and back: three hops, one stream per rank across.
    Islands,
}

impl Kind {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OneShot => "one-shot push",
            Kind::StagedPull => "staged pull",
            Kind::TwoShot => "two-shot",
            Kind::Islands => "islands",
        }
    }
}

/// What a hop carries of its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// What one rank brings, in the type of the wire.
    Part(usize),
    /// The sum of what ranks `0..n` bring, in f32 and not rounded: twice the bytes of a 16-bit wire.
    Prefix(usize),
    /// The sum of all, rounded to the type of the wire.
    Sum,
}

/// Who moves the bytes of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// The sender writes into the receiver's memory; readiness is in the data.
    Push,
    /// The sender stages the payload in its own memory and writes only a flag into the receiver's.
    Announce,
    /// The receiver reads what was announced to it out of the sender's memory.
    Pull,
}

/// One movement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Whose memory it comes from.
    pub from: usize,
    /// Whose memory it goes to.
    pub to: usize,
    /// Of the message.
    pub piece: usize,
    /// What of it.
    pub payload: Payload,
    /// By whom.
    pub by: Move,
    /// Hops, by their place in [`Schedule::hops`], that must have arrived at the rank that acts before it can.
    pub after: Vec<usize>,
}

impl Hop {
    /// The rank that does it.
    pub fn actor(&self) -> usize {
        if self.by == Move::Pull { self.to } else { self.from }
    }

    /// Bytes on the wire, where a piece has `values` values of `value_bytes` each.
    pub fn bytes(&self, values: usize, value_bytes: usize) -> usize {
        match (self.by, self.payload) {
            (Move::Announce, _) => 0,
            (_, Payload::Prefix(_)) => values * size_of::<f32>(),
            _ => values * value_bytes,
        }
    }
}

/// A schedule. Every rank does its hops in the order of the list, each when what it waits for has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Family.
    pub kind: Kind,
    /// Ranks.
    pub ranks: usize,
    /// Pieces that the message is cut into, as even as may be; some are empty where it has fewer values.
    pub pieces: usize,
    /// The hops.
    pub hops: Vec<Hop>,
}

impl Schedule {
    /// Which of a message's `values` values a piece holds.
    pub fn range(&self, piece: usize, values: usize) -> Range<usize> {
        piece * values / self.pieces..(piece + 1) * values / self.pieces
    }
}
