//! The input block of a step: where everything that the host says about a step lies, and how it is written.
//! The device's view of the head is `kernels/common/step.cuh`.

use tombolo_model::{Program, Step, Token};

/// In a token: the low bits are a logits row of the step before.
pub const FROM_PREVIOUS: u32 = 1 << 31;
/// As a position: the row is padding; nothing is read or written for it.
pub const NO_ROW: u32 = u32::MAX;

/// Byte offsets inside the block of a step of a given size. All are multiples of 16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLayout {
    /// Rows that there is room for.
    pub rows: usize,
    /// Sequences that there is room for.
    pub sequences: usize,
    /// Logits rows that there is room for.
    pub logits: usize,
    /// Entries of a block table.
    pub table_len: usize,
    /// `[rows]` tokens, or `FROM_PREVIOUS` and an index.
    pub tokens: usize,
    /// `[rows]` positions, or `NO_ROW`.
    pub positions: usize,
    /// `[rows]` sequences.
    pub sequence_of: usize,
    /// `[logits]` which rows want logits.
    pub logits_rows: usize,
    /// `[logits]` f32: 1 / temperature, or 0 for greedy rows.
    pub inverse_temperatures: usize,
    /// `[rows]` pairs: first row and number of rows of every attention tile.
    pub tiles: usize,
    /// Per KV group: `[sequences, table_len]` block numbers.
    pub tables: Vec<usize>,
    /// Length of the block.
    pub bytes: usize,
}

impl InputLayout {
    /// The layout for steps of up to so many rows, sequences and logits rows, with tables of `table_len` entries.
    pub fn new(rows: usize, sequences: usize, logits: usize, table_len: usize, groups: usize) -> Self {
        let mut bytes = 16;
        let mut take = |words: usize| {
            let at = bytes;
            bytes += (4 * words).next_multiple_of(16);
            at
        };
        let (tokens, positions, sequence_of) = (take(rows), take(rows), take(rows));
        let (logits_rows, inverse_temperatures, tiles) = (take(logits), take(logits), take(2 * rows));
        let tables = (0..groups).map(|_| take(sequences * table_len)).collect();
        Self {
            rows,
            sequences,
            logits,
            table_len,
            tokens,
            positions,
            sequence_of,
            logits_rows,
            inverse_temperatures,
            tiles,
            tables,
            bytes,
        }
    }

    /// The layout for exactly this step.
    pub fn of(step: &Step, program: &Program) -> Self {
        let longest = step.sequences.iter().flat_map(|s| s.tables.iter().map(Vec::len)).max().unwrap_or(0);
        let logits = step.logits_rows();
        Self::new(step.rows.len(), step.sequences.len(), logits, longest.max(1), program.groups.len())
    }

    /// Writes `step` into `block` (the layout's bytes, as words). `replaced` gives tokens that the host has learnt
    /// meanwhile for `Prev` rows. Returns the number of attention tiles of up to `tile_rows` rows.
    ///
    /// # Panics
    /// When the step does not fit the layout.
    pub fn write(
        &self,
        step: &Step,
        number: u32,
        replaced: Option<&[u32]>,
        tile_rows: usize,
        block: &mut [u32],
    ) -> usize {
        assert!(step.rows.len() <= self.rows && step.sequences.len() <= self.sequences);
        let logits = step.logits_rows();
        assert!(logits <= self.logits);
        block[..4].copy_from_slice(&[step.rows.len() as u32, step.sequences.len() as u32, logits as u32, number]);
        let mut next_logits = 0;
        for i in 0..self.rows {
            let row = step.rows.get(i);
            let token = match row.map_or(Token::Host(0), |r| r.token) {
                Token::Host(token) => token,
                Token::Prev(index) => replaced.map_or(FROM_PREVIOUS | index, |known| known[index as usize]),
            };
            block[self.tokens / 4 + i] = token;
            block[self.positions / 4 + i] = row.map_or(NO_ROW, |r| r.position);
            block[self.sequence_of / 4 + i] = row.map_or(0, |r| r.sequence);
            if let Some(sampling) = row.and_then(|r| r.sample) {
                let inverse = if sampling.is_greedy() { 0.0 } else { 1.0 / sampling.temperature };
                block[self.logits_rows / 4 + next_logits] = i as u32;
                block[self.inverse_temperatures / 4 + next_logits] = inverse.to_bits();
                next_logits += 1;
            }
        }
        for i in next_logits..self.logits {
            block[self.logits_rows / 4 + i] = 0;
            block[self.inverse_temperatures / 4 + i] = 0;
        }
        for (s, sequence) in step.sequences.iter().enumerate() {
            for (&tables, table) in self.tables.iter().zip(&sequence.tables) {
                let at = tables / 4 + s * self.table_len;
                block[at..at + table.len()].copy_from_slice(table);
            }
        }
        self.write_tiles(step, tile_rows, block)
    }

    /// Runs of neighbouring rows of one sequence, at most `tile_rows` each.
    fn write_tiles(&self, step: &Step, tile_rows: usize, block: &mut [u32]) -> usize {
        let (mut tiles, mut first) = (0, 0);
        while first < step.rows.len() {
            let sequence = step.rows[first].sequence;
            let run = step.rows[first..].iter().take(tile_rows).take_while(|r| r.sequence == sequence).count();
            block[self.tiles / 4 + 2 * tiles] = first as u32;
            block[self.tiles / 4 + 2 * tiles + 1] = run as u32;
            tiles += 1;
            first += run;
        }
        tiles
    }
}

/// Whether every row is a sequence of its own and wants logits: what the recorded graphs run.
pub fn is_decode(step: &Step) -> bool {
    let mut sequences = step.rows.iter().map(|r| r.sequence);
    step.rows.iter().all(|r| r.sample.is_some())
        && step.rows.len() == step.sequences.len()
        && sequences.by_ref().enumerate().all(|(i, s)| s as usize == i)
}
