//! What a step's output block says: the device's greedy tokens, and for the other rows every rank's summary, from which
//! the host draws by the model's law.

use crate::driver::Pinned;
use crate::kernels::sample;
use tombolo_model::{Capacity, Program, Sampling, Step, Summary, draw, draw_from_all};

/// Of one row.
pub(crate) enum Draw {
    Token(u32),
    /// The answer lies beyond the candidates.
    NeedsLogits,
}

struct Row {
    token: u32,
    sampling: Sampling,
    position: u32,
    /// Where the host draws: every rank's summary, in rank order.
    summaries: Option<Vec<Summary>>,
}

/// All logits rows of a step that has ended.
pub(crate) struct Sampled {
    rows: Vec<Row>,
    vocabulary: usize,
}

impl Sampled {
    /// Length of an output block.
    pub(crate) fn block_bytes(capacity: &Capacity, ranks: usize) -> usize {
        Self::tokens_bytes(capacity) + capacity.sequences * ranks * sample::SUMMARY_BYTES
    }

    /// Where the summaries start.
    pub(crate) fn tokens_bytes(capacity: &Capacity) -> usize {
        (4 * capacity.sequences).next_multiple_of(16)
    }

    /// Reads the block of a step that has ended.
    pub(crate) fn new(block: &Pinned, step: &Step, program: &Program, capacity: &Capacity) -> Self {
        let ranks = program.shard.size;
        let row_bytes = ranks * sample::SUMMARY_BYTES;
        let read = |(index, row): (usize, &tombolo_model::Row)| {
            let sampling = row.sample.unwrap_or(Sampling::GREEDY);
            // SAFETY: the step's last kernel has written the block and has ended.
            let token = unsafe { block.slice::<u32>(4 * index, 1) }[0];
            let at = Self::tokens_bytes(capacity) + index * row_bytes;
            // SAFETY: as above.
            let lines = unsafe { block.slice::<[u32; 2]>(at, row_bytes / 8) };
            let summaries = (!sampling.is_greedy())
                .then(|| lines.chunks_exact(sample::SUMMARY_LINES).map(sample::read_summary).collect());
            Row { token, sampling, position: row.position, summaries }
        };
        let rows = step.rows.iter().filter(|r| r.sample.is_some()).enumerate().map(read).collect();
        Self { rows, vocabulary: program.vocabulary }
    }

    /// Draws for logits row `index`.
    pub(crate) fn draw(&self, index: usize) -> Draw {
        let row = &self.rows[index];
        let Some(shards) = &row.summaries else { return Draw::Token(row.token) };
        let merged = Summary::merge(shards, row.sampling.temperature);
        draw(&merged, self.vocabulary, &row.sampling, row.position).map_or(Draw::NeedsLogits, Draw::Token)
    }

    /// Draws for logits row `index` from all its logits.
    pub(crate) fn draw_from(&self, index: usize, logits: &[f32]) -> u32 {
        let row = &self.rows[index];
        draw_from_all(logits, &row.sampling, row.position).unwrap_or(row.token)
    }
}
