//! From requests to the rows of a step.

use super::sequence::Sequence;
use super::{Drafts, Flight, Kind, Part, Scheduler};
use crate::ngram;
use crate::request::{Event, RequestId};
use tombolo_model::{BLOCK_TOKENS, Row, Step, Token};

/// Room that is left in a step.
struct Room {
    rows: usize,
    logits: usize,
}

impl Scheduler {
    /// The next step; `None`: there is nothing to run, or what is in flight must be committed first.
    pub fn schedule(&mut self) -> Option<Step> {
        if !self.in_flight.is_empty() {
            return None;
        }
        if let Some(step) = self.draft_step() {
            return Some(step);
        }
        self.steps += 1;
        let mut room = Room { rows: self.settings.capacity.rows, logits: self.settings.capacity.logits };
        let mut chosen = Vec::new();
        self.decodes(&mut room, &mut chosen);
        let decodes = self.settings.capacity.rows - room.rows;
        // As many rows for each who is here as for those that generate, which draft more or less.
        let all = (self.running.len() + self.queue.len()).min(self.settings.capacity.sequences);
        let all_rows = (all * decodes).div_ceil(chosen.len().max(1)).min(self.settings.capacity.rows);
        room.rows = room.rows.min(self.pace.rows(decodes, all_rows));
        self.admit(&mut room);
        self.prompts(&mut room, &mut chosen);
        if chosen.is_empty() {
            return None;
        }
        Some(self.step(&chosen, decodes))
    }

    /// The step after the one in flight, begun before its results are seen: one token more of the requests in it, each the
    /// one that the device will draw there. `None` where anything else is to be done, or could turn out to be.
    ///
    /// Where a request ends with the step before, its row was run for nothing.
    pub fn schedule_ahead(&mut self) -> Option<Step> {
        let flight = self.in_flight.back().filter(|flight| flight.kind == Kind::Trunk)?;
        let decodes = |part: &&Part| part.drawn == 1 && part.rows == 1;
        // Others that run and are not in the step would wait for nothing.
        let is_all = self.running.iter().all(|sequence| flight.parts.iter().any(|part| part.id == sequence.id));
        let is_plain = self.settings.drafts == Drafts::None && flight.parts.iter().all(|part| decodes(&part));
        if !is_plain || !is_all || self.queue.len() > 0 {
            return None;
        }
        let before = flight.parts.clone();
        let in_flight = self.in_flight.len();
        let mut step = Step::default();
        let mut parts = Vec::new();
        for (index, part) in before.iter().enumerate() {
            let Some(at) = self.position_of(part.id) else { continue };
            let sequence = &self.running[at];
            if sequence.is_on_host() {
                return None;
            }
            let position = part.first + 1;
            if sequence.generated() + in_flight >= sequence.request.max_tokens
                || position >= self.settings.capacity.context
            {
                continue;
            }
            if sequence.blocks_needed(position + 1) > 0 {
                // What is missing is the next block, and nobody has to give one up for it.
                let number = self.blocks.take()?;
                self.running[at].table.push(number);
            }
            let sequence = &self.running[at];
            step.rows.push(Row {
                token: Token::Prev(index as u32),
                position: position as u32,
                sequence: step.sequences.len() as u32,
                sample: Some(sequence.request.sampling),
                draft: false,
            });
            step.sequences.push(self.tables(&sequence.table));
            let (owner, row) = (sequence.request.owner, parts.len());
            self.queue.serve(owner, 1);
            parts.push(Part { id: part.id, first: position, rows: 1, row, drawn: 1 });
        }
        if parts.is_empty() {
            return None;
        }
        self.steps += 1;
        let rows = (parts.len(), 0);
        self.in_flight.push_back(Flight { parts, kind: Kind::Trunk, rows });
        Some(step)
    }

    /// One token of every request that generates, and its drafts.
    fn decodes(&mut self, room: &mut Room, chosen: &mut Vec<(RequestId, usize)>) {
        let mut at = 0;
        while at < self.running.len() {
            if !self.running[at].decodes() {
                at += 1;
                continue;
            }
            self.guess(at, room);
            let sequence = &self.running[at];
            let rows = 1 + sequence.drafts.len();
            // Without drafts there is always room: for a row of every sequence.
            if !self.provide(at, sequence.computed + rows) {
                // It was this one's own blocks that had to go, and it is not there any more.
                break;
            }
            room.rows -= rows;
            room.logits -= rows;
            chosen.push((self.running[at].id, rows));
            at += 1;
        }
    }

    /// Drafts by n-grams, and no more drafts than there is room for.
    fn guess(&mut self, at: usize, room: &Room) {
        let others = self.running.len() - at - 1;
        let wanted = self.drafts_wanted(&self.running[at]);
        let sequence = &mut self.running[at];
        if let Drafts::Ngram(_) = self.settings.drafts {
            sequence.drafts = ngram::guess(&sequence.tokens, wanted);
        }
        let free = room.rows.min(room.logits).saturating_sub(1 + others);
        sequence.drafts.truncate(wanted.min(free));
        // A guess is not worth anybody's blocks.
        let with_drafts = sequence.blocks_needed(sequence.computed + 1 + sequence.drafts.len());
        if with_drafts > self.blocks.free() {
            sequence.drafts.clear();
        }
    }

    /// How many drafts are of use after the last token: the step that confirms them draws one token more, and every one
    /// of its rows needs a position.
    pub(super) fn drafts_wanted(&self, sequence: &Sequence) -> usize {
        if sequence.extra().is_some() {
            return 0;
        }
        let room = self.settings.capacity.context.saturating_sub(sequence.tokens.len());
        let left = sequence.request.max_tokens - sequence.generated();
        self.settings.drafts.most().min(room).min(left.saturating_sub(1))
    }

    /// Gives a running sequence blocks for so many tokens in all. Those that came last lose theirs for it, and where it is
    /// the last itself, it does, and false is what comes back.
    fn provide(&mut self, at: usize, tokens: usize) -> bool {
        while self.running[at].blocks_needed(tokens) > self.blocks.free() {
            let last = self.running.len() - 1;
            self.preempt(last);
            if last == at {
                return false;
            }
        }
        let sequence = &mut self.running[at];
        for _ in 0..sequence.blocks_needed(tokens) {
            sequence.table.push(self.blocks.take().expect("there are as many free blocks"));
        }
        true
    }

    fn preempt(&mut self, at: usize) {
        let mut sequence = self.running.remove(at);
        sequence.release(&mut self.blocks, self.settings.prefix_cache);
        sequence.tally.preemptions += 1;
        sequence.waits_since = self.steps;
        self.figures.preemptions += 1;
        self.queue.push(sequence);
    }

    /// Takes requests out of the queue as long as there are seats, rows and blocks for their tokens so far, and a block more
    /// for everyone that runs.
    fn admit(&mut self, room: &mut Room) {
        let prefilling: usize = self.running.iter().filter(|s| !s.decodes()).map(Sequence::left).sum();
        let mut rows = room.rows.saturating_sub(prefilling);
        while self.running.len() < self.settings.capacity.sequences && rows > 0 {
            let Some(next) = self.queue.next(self.steps) else { break };
            let sequence = self.queue.get(next);
            let reuses = self.settings.prefix_cache && !sequence.wants_prompt_logprobs();
            let mut found = Vec::new();
            if reuses {
                // At least one token is run.
                let most = (sequence.tokens.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
                found = self.blocks.find(sequence.request.salt, &sequence.tokens[..most]);
            }
            let needed = sequence.tokens.len().div_ceil(BLOCK_TOKENS) - found.len();
            let free = self.blocks.free() - self.blocks.idle_among(&found);
            let reserve = if self.running.is_empty() { 0 } else { self.running.len() + 1 };
            if needed + reserve > free {
                break;
            }
            let mut sequence = self.queue.take(next);
            if reuses {
                sequence.reuse(&mut self.blocks, &found);
            }
            if reuses && !sequence.was_started {
                self.figures.prefix_queries += sequence.tokens.len() as u64;
                self.figures.prefix_hits += sequence.computed as u64;
                sequence.tally.cached_tokens = sequence.computed;
            }
            for _ in 0..sequence.blocks_needed(sequence.tokens.len()) {
                sequence.table.push(self.blocks.take().expect("there are as many free blocks"));
            }
            if !sequence.was_started {
                sequence.was_started = true;
                self.events.push(Event::Started(sequence.id));
            }
            rows = rows.saturating_sub(sequence.left());
            let at = self.running.partition_point(|other| other.place < sequence.place);
            self.running.insert(at, sequence);
        }
    }

    /// Pieces of prompts, in the order of their places.
    fn prompts(&mut self, room: &mut Room, chosen: &mut Vec<(RequestId, usize)>) {
        let decoding = chosen.len();
        for sequence in &self.running {
            // One that was just taken in may have a single token left to run: it is a prompt's, like others.
            let is_chosen = chosen[..decoding].iter().any(|(id, _)| *id == sequence.id);
            if is_chosen || room.rows == 0 || room.logits == 0 {
                continue;
            }
            let mut rows = sequence.left().min(room.rows);
            let mut logits = usize::from(rows == sequence.left());
            if sequence.wants_prompt_logprobs() {
                rows = rows.min(room.logits);
                logits = rows;
            }
            room.rows -= rows;
            room.logits -= logits;
            chosen.push((sequence.id, rows));
        }
    }

    /// `decodes`: how many of its rows are answers'.
    fn step(&mut self, chosen: &[(RequestId, usize)], decodes: usize) -> Step {
        let mut step = Step::default();
        let mut parts = Vec::with_capacity(chosen.len());
        for &(id, rows) in chosen {
            let at = self.position_of(id).expect("what was chosen runs");
            let sequence = &self.running[at];
            let (first, row) = (sequence.computed, step.rows.len());
            let tokens = sequence.tokens[first..].iter().chain(&sequence.drafts).take(rows);
            let ends = first + rows >= sequence.tokens.len();
            let drawn = match ends {
                _ if sequence.wants_prompt_logprobs() => rows,
                true => 1 + sequence.drafts.len(),
                false => 0,
            };
            for (i, &token) in tokens.enumerate() {
                step.rows.push(Row {
                    token: Token::Host(token),
                    position: (first + i) as u32,
                    sequence: step.sequences.len() as u32,
                    sample: (i + drawn >= rows).then_some(sequence.request.sampling),
                    draft: first + i >= sequence.tokens.len(),
                });
            }
            step.sequences.push(self.tables(&sequence.table));
            step.full_logits |= drawn > 0 && (sequence.is_on_host() || sequence.wants_prompt_logprobs());
            parts.push(Part { id: sequence.id, first, rows, row, drawn });
            let (owner, is_prompt) = (sequence.request.owner, !sequence.decodes());
            self.queue.serve(owner, rows);
            if is_prompt {
                self.figures.prompt_rows += rows as u64;
            }
        }
        let rows = (decodes, step.rows.len() - decodes);
        self.in_flight.push_back(Flight { parts, kind: Kind::Trunk, rows });
        step
    }

    pub(super) fn tables(&self, table: &[u32]) -> tombolo_model::Sequence {
        tombolo_model::Sequence { tables: vec![table.to_vec(); self.settings.groups] }
    }
}
