//! A step: one run of a program over a batch, as plain data.
//!
//! Prefill and decode are not different things here: a step is a list of rows, each one token of some sequence.
//! A sequence may bring many rows (prefill) or one (decode); both kinds mix freely.

use crate::Sampling;

/// Tokens of one sequence that one KV block holds, in every group and layer.
pub const BLOCK_TOKENS: usize = 32;

/// Where a row's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Known to the host.
    Host(u32),
    /// What the step before sampled for its `n`-th logits row; the host need not have seen it yet.
    Prev(u32),
}

/// One token to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The token.
    pub token: Token,
    /// Its position in its sequence, from 0.
    pub position: u32,
    /// Index into [`Step::sequences`]. Rows of one sequence are neighbours, in ascending positions.
    pub sequence: u32,
    /// `Some`: logits are wanted after this row, and a token is drawn from them.
    pub sample: Option<Sampling>,
    /// A speculated token: its keys may be overwritten by a later step.
    pub draft: bool,
}

/// The KV blocks of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Per KV group of the program: block numbers; entry `b` holds positions `b * BLOCK_TOKENS ..`.
    pub tables: Vec<Vec<u32>>,
}

/// Which of a program's passes a step runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Pass {
    /// The model.
    #[default]
    Trunk,
    /// The block that drafts tokens. A row's token is the one after its position, and what is drawn is the one after
    /// that, by the same chance that the row of the next position will draw by.
    Draft {
        /// For every row: the row of the step before, of either pass, whose hidden state it goes on from.
        hidden: Vec<u32>,
    },
}

/// What backends remember of the last step, because the next may refer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Rows that it had.
    pub rows: usize,
    /// Tokens that it drew.
    pub drawn: usize,
}

/// One run of a program over a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is run.
    pub pass: Pass,
    /// The tokens, grouped by sequence.
    pub rows: Vec<Row>,
    /// The sequences that the rows belong to.
    pub sequences: Vec<Sequence>,
    /// Return the whole logits too (slow: for `logits`, tests and exact sampling).
    pub full_logits: bool,
}

/// Instead of a token, where there was no number among the logits to draw by, or one without bounds.
pub const NO_TOKEN: u32 = u32::MAX;

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One token, or [`NO_TOKEN`], per row with `sample`, in row order; the same on every rank.
    pub tokens: Vec<u32>,
    /// With [`Step::full_logits`]: `[logits rows, this rank's vocabulary shard]`, row-major.
    pub logits: Vec<f32>,
}

/// How much a loaded backend can take; decided before loading, never grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Most rows in a step.
    pub rows: usize,
    /// Most sequences in a step.
    pub sequences: usize,
    /// Most rows with logits in a step.
    pub logits: usize,
    /// Most tokens in one sequence.
    pub context: usize,
    /// KV blocks per group.
    pub blocks: usize,
}

impl Capacity {
    /// Room for `sequences` sequences of `context` tokens each, `rows` rows a step, one of each sequence with logits.
    pub fn new(rows: usize, sequences: usize, context: usize) -> Self {
        let blocks = sequences * context.div_ceil(BLOCK_TOKENS);
        Self { rows, sequences, logits: sequences, context, blocks }
    }

    /// Entries of one block table.
    pub fn table_len(&self) -> usize {
        self.context.div_ceil(BLOCK_TOKENS)
    }
}

/// A step that breaks its own rules: a fault of the caller, found before a kernel could read out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum StepError {
    #[error(
        "the step has {rows} rows and {logits} logits rows; this backend was loaded for {max_rows} and {max_logits}"
    )]
    TooLarge { rows: usize, logits: usize, max_rows: usize, max_logits: usize },
    #[error("the step has no rows")]
    Empty,
    #[error("row {row}: token {token} is outside the vocabulary of {vocabulary}")]
    Token { row: usize, token: u32, vocabulary: usize },
    #[error("row {row}: takes sample {index} of the step before, which drew {drawn}")]
    Prev { row: usize, index: u32, drawn: usize },
    #[error("a pass that drafts has {rows} rows and {hidden} hidden states, and the step before has left {left}")]
    Hidden { rows: usize, hidden: usize, left: usize },
    #[error("this model has no block that drafts tokens")]
    NoDraft,
    #[error("row {row}: position {position} is at or beyond the context of {context}")]
    Position { row: usize, position: u32, context: usize },
    #[error("row {row}: sequence {sequence} is out of order or does not exist")]
    Sequence { row: usize, sequence: u32 },
    #[error("sequence {sequence}: has no block for position {position} in KV group {group}, or one past {blocks}")]
    Block { sequence: usize, position: u32, group: usize, blocks: usize },
}

impl Step {
    /// Rows whose logits are wanted.
    pub fn logits_rows(&self) -> usize {
        self.rows.iter().filter(|r| r.sample.is_some()).count()
    }

    /// What the next step may refer to.
    pub fn left(&self) -> Before {
        Before { rows: self.rows.len(), drawn: self.logits_rows() }
    }

    /// Checks every index that a kernel will follow.
    pub fn check(
        &self,
        capacity: &Capacity,
        groups: usize,
        vocabulary: usize,
        before: Before,
    ) -> Result<(), StepError> {
        let drawn = before.drawn;
        let (rows, logits) = (self.rows.len(), self.logits_rows());
        if rows == 0 {
            return Err(StepError::Empty);
        }
        if rows > capacity.rows || logits > capacity.logits || self.sequences.len() > capacity.sequences {
            return Err(StepError::TooLarge { rows, logits, max_rows: capacity.rows, max_logits: capacity.logits });
        }
        if let Pass::Draft { hidden } = &self.pass
            && (hidden.len() != rows || hidden.iter().any(|&h| h as usize >= before.rows))
        {
            return Err(StepError::Hidden { rows, hidden: hidden.len(), left: before.rows });
        }
        let mut last: Option<(u32, u32)> = None;
        let mut seen = vec![false; self.sequences.len()];
        for (i, row) in self.rows.iter().enumerate() {
            match row.token {
                Token::Host(token) if token as usize >= vocabulary => {
                    return Err(StepError::Token { row: i, token, vocabulary });
                }
                Token::Prev(index) if index as usize >= drawn => {
                    return Err(StepError::Prev { row: i, index, drawn });
                }
                _ => {}
            }
            if row.position as usize >= capacity.context {
                return Err(StepError::Position { row: i, position: row.position, context: capacity.context });
            }
            let wrong_order = StepError::Sequence { row: i, sequence: row.sequence };
            match last {
                Some((sequence, position)) if sequence == row.sequence => {
                    if row.position != position + 1 {
                        return Err(wrong_order);
                    }
                }
                _ => match seen.get_mut(row.sequence as usize) {
                    Some(seen) if !*seen => *seen = true,
                    _ => return Err(wrong_order),
                },
            }
            last = Some((row.sequence, row.position));
            self.check_blocks(row, capacity, groups)?;
        }
        Ok(())
    }

    fn check_blocks(&self, row: &Row, capacity: &Capacity, groups: usize) -> Result<(), StepError> {
        let sequence = row.sequence as usize;
        let needed = row.position as usize / BLOCK_TOKENS + 1;
        for group in 0..groups {
            let table = self.sequences[sequence].tables.get(group).map_or(&[][..], |t| t);
            let bad = table.len() < needed
                || table.len() > capacity.table_len()
                || table.iter().any(|&b| b as usize >= capacity.blocks);
            if bad {
                return Err(StepError::Block { sequence, position: row.position, group, blocks: capacity.blocks });
            }
        }
        Ok(())
    }
}
