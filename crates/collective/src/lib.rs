//! What the ranks of one model say to each other. Here: the all-reduce schedules as plain data with their checker
//! ([`schedule`]), and the thread transport, through which ranks that are threads of one process reduce and gather. All
//! sums are canonical: f32, rank 0 first, so that every rank holds the same bits whatever the schedule.
//!
//! No device, no kernel and no model lives here.

mod meeting;
pub mod schedule;
mod thread;

pub use thread::{ThreadGroup, ThreadRank};

/// A rank did not come to a collective: it died, or it was still elsewhere when the deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} waited {waited_ms} ms for rank {silent}: it died or never arrived")]
pub struct Silent {
    /// Who waited.
    pub rank: usize,
    /// Whom it waited for.
    pub silent: usize,
    /// How long, in milliseconds.
    pub waited_ms: u64,
}
