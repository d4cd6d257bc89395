//! From what a step gave to tokens, and to the ends of requests.

use super::sequence::Sequence;
use super::{Flight, Kind, Part, Scheduler};
use crate::draw::{self, Drawn};
use crate::request::{Event, Reason};
use tombolo_model::{NO_TOKEN, StepOutput, side_by_side};

/// A step's drawn tokens and logits, row by row.
struct Results<'a> {
    tokens: &'a [u32],
    /// `[tokens, vocabulary]`, or nothing.
    logits: &'a [f32],
    vocabulary: usize,
}

impl Results<'_> {
    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }
}

impl Scheduler {
    /// Computes the masks by which the oldest step in flight will be drawn from. Nothing else depends on it.
    pub fn prepare_masks(&mut self) {
        let Some(Flight { parts, kind: Kind::Trunk, .. }) = self.in_flight.front() else { return };
        for sequence in &mut self.running {
            let Some(mask) = sequence.request.extra.as_mut().and_then(|extra| extra.mask.as_mut()) else { continue };
            if parts.iter().any(|part| part.drawn > 0 && part.id == sequence.id) {
                mask.prepare();
            }
        }
    }

    /// Takes what came of the oldest step in flight.
    ///
    /// # Panics
    /// None is, or it did not draw as many tokens as it was to.
    pub fn commit(&mut self, output: &StepOutput) {
        let Flight { parts, kind, .. } = self.in_flight.pop_front().expect("a step is in flight");
        assert_eq!(output.tokens.len(), parts.iter().map(|part| part.drawn).sum::<usize>(), "tokens of a step");
        if kind == Kind::Trunk {
            self.draw_on_host(&parts, output);
        }
        let mut at = 0;
        for part in parts {
            let drawn = at..at + part.drawn;
            at = drawn.end;
            // One that was cancelled meanwhile is gone.
            let Some(index) = self.position_of(part.id) else { continue };
            match kind {
                Kind::Trunk => {
                    let results = Results {
                        tokens: &output.tokens[drawn.clone()],
                        logits: output.logits.get(drawn.start * self.settings.vocabulary..).unwrap_or_default(),
                        vocabulary: self.settings.vocabulary,
                    };
                    self.commit_rows(index, part, &results);
                }
                Kind::Draft => self.commit_draft(index, part, &output.tokens[drawn]),
            }
        }
    }

    /// Draws for the requests whose logits are changed or told about, side by side: together this can take longer than
    /// the step did.
    fn draw_on_host(&mut self, parts: &[Part], output: &StepOutput) {
        let vocabulary = self.settings.vocabulary;
        let mut jobs: Vec<(&mut Sequence, usize)> = Vec::new();
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_on_host()) {
            let mut rows = 0;
            let found = parts.iter().find(|part| {
                rows += part.drawn;
                part.id == sequence.id
            });
            let draws = |part: &Part| part.drawn > 0 && part.first + part.rows >= sequence.tokens.len();
            if found.is_some_and(draws) && sequence.request.max_tokens > 0 {
                jobs.push((sequence, rows - 1));
            }
        }
        side_by_side(jobs, vocabulary, |(sequence, row)| {
            let generated = sequence.generated();
            let position = sequence.tokens.len() as u32 - 1;
            let Sequence { request, counts, drawn, .. } = sequence;
            let logits = &output.logits[row * vocabulary..][..vocabulary];
            let counts = counts.get_or_insert_default();
            *drawn = Some(draw::draw(logits, output.tokens[row], request, counts, generated, position));
        });
    }

    fn commit_rows(&mut self, index: usize, part: Part, results: &Results) {
        let sequence = &mut self.running[index];
        let known = sequence.tokens.len();
        let top = sequence.extra().and_then(|extra| extra.prompt_logprobs).unwrap_or(0);
        if let Some(mut all) = sequence.prompt_logprobs.take() {
            let (from, last) = (all.len(), sequence.prompt_tokens - 1);
            let until = (part.first + part.rows).min(last).max(from);
            let mut told = vec![None; until - from];
            let tokens = &sequence.tokens[from + 1..];
            let jobs = told.iter_mut().zip(tokens).zip(from - part.first..).collect();
            side_by_side(jobs, results.vocabulary, |((told, &token), row)| {
                *told = Some(draw::logprobs(results.logits(row), token, top));
            });
            all.extend(told.into_iter().flatten());
            match all.len() == last {
                true => self.events.push(Event::PromptLogprobs(sequence.id, all)),
                false => sequence.prompt_logprobs = Some(all),
            }
        }
        if part.first + part.rows < known {
            // A piece of a prompt: nothing is drawn yet.
            sequence.computed = part.first + part.rows;
            sequence.remember(&mut self.blocks);
            self.to_draft.push(part);
            return;
        }
        let drafts = std::mem::take(&mut sequence.drafts);
        let last = part.drawn - 1 - drafts.len();
        let drawn = &results.tokens[last..];
        let accepted = drafts.iter().zip(drawn).take_while(|(draft, drawn)| draft == drawn).count();
        if !drafts.is_empty() {
            sequence.tally.draft_steps += 1;
            sequence.tally.drafted += drafts.len();
            sequence.tally.accepted += accepted;
            self.figures.draft_steps += 1;
            self.figures.drafted += drafts.len() as u64;
            self.figures.accepted.resize(self.settings.drafts.most(), 0);
            self.figures.accepted[..accepted].iter_mut().for_each(|count| *count += 1);
        }
        sequence.computed = known + accepted;
        let mut end = (sequence.request.max_tokens == 0).then_some(Reason::Length);
        for &token in &drawn[..=accepted] {
            if end.is_none() {
                end = self.push(index, token);
            }
        }
        let sequence = &mut self.running[index];
        sequence.computed = sequence.computed.min(sequence.tokens.len());
        sequence.remember(&mut self.blocks);
        match end {
            Some(reason) => {
                let sequence = self.running.remove(index);
                self.finish(sequence, reason);
            }
            None => self.to_draft.push(part),
        }
    }

    /// Adds a drawn token to a sequence; whether it ends with it.
    fn push(&mut self, index: usize, token: u32) -> Option<Reason> {
        let sequence = &mut self.running[index];
        let generated = sequence.generated();
        let Drawn { token, logprobs } = match sequence.drawn.take() {
            Some(Ok(drawn)) => drawn,
            Some(Err(reason)) => return Some(reason),
            None => Drawn { token, logprobs: None },
        };
        if token == NO_TOKEN {
            return Some(Reason::NotNumbers);
        }
        sequence.tokens.push(token);
        self.figures.generated += 1;
        self.events.push(Event::Token { id: sequence.id, token, logprobs });
        // The last token needs no position of its own.
        let is_full = sequence.tokens.len() > self.settings.capacity.context;
        if sequence.request.stop.contains(&token) {
            Some(Reason::Stop)
        } else if generated + 1 >= sequence.request.max_tokens || is_full {
            Some(Reason::Length)
        } else {
            None
        }
    }
}
