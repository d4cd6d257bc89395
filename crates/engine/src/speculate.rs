//! Speculative decoding by the model's own drafting block (multi-token prediction): a step runs the next token together
//! with drafts of those after it, and what the model itself draws for each confirms them or not.
//!
//! Every token that is handed up is drawn by the model, by the law and with the chance that it would have been drawn with
//! alone, so that the output is the same with drafts and without, greedy or not. Drafts are drawn with that chance too:
//! where the block's distribution is near to the model's, they mostly fall on the same token.

use crate::{Context, Engine, EngineError, Finish};
use std::ops::ControlFlow;
use tombolo_model::{Pass, Row, Sampling, Sequence, Step, Token};

/// How well drafts were guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculation {
    /// Steps that had drafts.
    pub steps: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Those that the model drew too.
    pub accepted: usize,
}

impl Speculation {
    /// Share of drafts that were accepted, 0 to 1; `None` before the first draft.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
}

impl Engine {
    /// From now on, drafts up to `most` tokens for every step of [`Engine::generate`], as many as the capacity has rows
    /// with logits for beside the first; 0: none. Without a block that drafts, nothing changes.
    pub fn set_draft_max(&mut self, most: usize) {
        let room = self.capacity.logits.min(self.capacity.rows).saturating_sub(1);
        self.draft_max = if self.shape.drafts { most.min(room) } else { 0 };
    }

    /// Tokens that are drafted for a step, at most.
    pub fn draft_max(&self) -> usize {
        self.draft_max
    }

    /// What drafting has come to since the engine began.
    pub fn speculation(&self) -> Speculation {
        self.speculation
    }

    /// The loop of [`Engine::generate`] after the first token, with drafts of those after it.
    pub(crate) fn generate_speculating(
        &mut self,
        context: &mut Context,
        mut token: u32,
        mut drafts: Vec<u32>,
        sampling: &Sampling,
        max_tokens: usize,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        let mut left = max_tokens;
        loop {
            left -= 1;
            if on_token(token).is_break() {
                return Ok(Finish::Stopped);
            }
            if left == 0 {
                return Ok(Finish::Length);
            }
            let first = context.tokens.len();
            if first == self.capacity.context {
                return Ok(Finish::ContextFull);
            }
            let drawn = self.verify(context, token, &drafts, sampling)?;
            let accepted = drafts.iter().zip(&drawn).take_while(|(draft, drawn)| draft == drawn).count();
            if !drafts.is_empty() {
                self.speculation.steps += 1;
                self.speculation.drafted += drafts.len();
                self.speculation.accepted += accepted;
            }
            context.tokens.push(token);
            for &draft in &drafts[..accepted] {
                left -= 1;
                // A draft is never the last token: there is always one more drawn after it.
                if on_token(draft).is_break() {
                    return Ok(Finish::Stopped);
                }
                context.tokens.push(draft);
            }
            token = drawn[accepted];
            let wanted = self.drafts_wanted(context, left);
            drafts = self.draft(context, first, &drawn[..=accepted], sampling, wanted)?;
        }
    }

    /// How many drafts are of use after the next token, which is the first of `left`: the step that confirms them draws
    /// one token more, and every one of its rows needs a position.
    pub(crate) fn drafts_wanted(&self, context: &Context, left: usize) -> usize {
        let room = self.capacity.context.saturating_sub(context.tokens.len() + 1);
        self.draft_max.min(room).min(left.saturating_sub(2))
    }

    /// Runs the next token and its drafts; what the model draws after each of them.
    fn verify(
        &mut self,
        context: &mut Context,
        token: u32,
        drafts: &[u32],
        sampling: &Sampling,
    ) -> Result<Vec<u32>, EngineError> {
        let first = context.tokens.len();
        self.reserve(context, first + 1 + drafts.len())?;
        let tokens = [token].into_iter().chain(drafts.iter().copied());
        let rows = tokens.enumerate().map(|(i, token)| row(token, first + i, Some(*sampling), i > 0));
        let step = Step { rows: rows.collect(), sequences: sequences(context), ..Step::default() };
        Ok(self.run(step)?.tokens)
    }

    /// Runs the drafting block after a step whose first rows, from position `first` on, are certain: `next` has the token
    /// after each of them. Drafts up to `wanted` tokens after the last of `next`.
    pub(crate) fn draft(
        &mut self,
        context: &mut Context,
        first: usize,
        next: &[u32],
        sampling: &Sampling,
        wanted: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let mut drafts = Vec::with_capacity(wanted);
        let last = next.len() - 1;
        self.reserve(context, first + next.len() + wanted.saturating_sub(1))?;
        let rows = next.iter().enumerate();
        let sample = |i: usize| (wanted > 0 && i == last).then_some(*sampling);
        let mut rows: Vec<Row> = rows.map(|(i, &token)| row(token, first + i, sample(i), false)).collect();
        let mut hidden: Vec<u32> = (0..next.len() as u32).collect();
        loop {
            let from = rows.len() as u32 - 1;
            let pass = Pass::Draft { hidden };
            let output = self.run(Step { pass, rows, sequences: sequences(context), full_logits: false })?;
            drafts.extend(output.tokens);
            let Some(&token) = drafts.last().filter(|_| drafts.len() < wanted) else { return Ok(drafts) };
            // Goes on from itself. What it keeps of guesses is written anew when they are certain.
            rows = vec![row(token, first + last + drafts.len(), Some(*sampling), true)];
            hidden = vec![from];
        }
    }
}

fn row(token: u32, position: usize, sample: Option<Sampling>, draft: bool) -> Row {
    Row { token: Token::Host(token), position: position as u32, sequence: 0, sample, draft }
}

fn sequences(context: &Context) -> Vec<Sequence> {
    vec![Sequence { tables: context.tables.clone() }]
}
