//! The passes of the drafting block between two steps of the model.
//!
//! After every step of the model it runs the same rows, as far as they are certain, each with the token after it: its own
//! cache has every position then. Of sequences that generate, the last row draws a guess of the token after the next, and as
//! many more passes as drafts are wanted go on from that.

use super::sequence::Sequence;
use super::{Drafts, Flight, Kind, Part, Scheduler};
use tombolo_model::{NO_TOKEN, Pass, Row, Step, Token};

impl Scheduler {
    /// The drafting block's next pass; `None`: there is none to run.
    pub(super) fn draft_step(&mut self) -> Option<Step> {
        let parts = std::mem::take(&mut self.to_draft);
        if !matches!(self.settings.drafts, Drafts::Block(most) if most > 0) {
            return None;
        }
        let mut hidden = Vec::new();
        let mut step = Step::default();
        let mut flight = Vec::new();
        for part in parts {
            let Some(at) = self.position_of(part.id) else { continue };
            let wanted = self.drafts_wanted(&self.running[at]);
            let sequence = &mut self.running[at];
            if sequence.extra().is_some() {
                // Its logits are changed first: it never drafts.
                continue;
            }
            let done = sequence.drafts.len();
            // The first pass runs what is certain, a later one the last guess.
            let (first, rows) = match done {
                0 => (part.first, sequence.computed.min(sequence.tokens.len() - 1) - part.first),
                done => (sequence.computed - 1 + done, 1),
            };
            let draws = sequence.decodes() && done < wanted && has_blocks(sequence, first + rows);
            if rows == 0 || (done > 0 && !draws) {
                continue;
            }
            let row = step.rows.len();
            for i in 0..rows {
                let token = sequence.tokens.get(first + i + 1).copied().unwrap_or_else(|| sequence.drafts[done - 1]);
                step.rows.push(Row {
                    token: Token::Host(token),
                    position: (first + i) as u32,
                    sequence: step.sequences.len() as u32,
                    sample: (draws && i + 1 == rows).then_some(sequence.request.sampling),
                    draft: done > 0,
                });
                hidden.push((part.row + i) as u32);
            }
            let tables = self.tables(&self.running[at].table);
            step.sequences.push(tables);
            flight.push(Part { id: part.id, first, rows, row, drawn: usize::from(draws) });
        }
        if step.rows.is_empty() {
            return None;
        }
        step.pass = Pass::Draft { hidden };
        self.in_flight.push_back(Flight { parts: flight, kind: Kind::Draft, rows: (0, 0) });
        Some(step)
    }

    /// Takes a guess; the next pass goes on from the row that made it.
    pub(super) fn commit_draft(&mut self, index: usize, part: Part, drawn: &[u32]) {
        let wanted = self.drafts_wanted(&self.running[index]);
        let sequence = &mut self.running[index];
        if drawn.contains(&NO_TOKEN) {
            return;
        }
        sequence.drafts.extend_from_slice(drawn);
        if !drawn.is_empty() && sequence.drafts.len() < wanted {
            let row = part.row + part.rows - 1;
            self.to_draft.push(Part { first: part.first + part.rows, rows: 1, row, drawn: 1, ..part });
        }
    }
}

/// Whether its blocks hold so many tokens: a guess is not worth taking more.
fn has_blocks(sequence: &Sequence, tokens: usize) -> bool {
    sequence.blocks_needed(tokens) == 0
}
