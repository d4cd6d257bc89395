//! The scheduler: which tokens of which requests the next step runs, and what its results mean.
//!
//! It is pure and synchronous: [`Scheduler::schedule`] gives a step, [`Scheduler::commit`] takes what came of it. It sees no
//! clock, no thread and no device; the same calls give the same steps.
//!
//! A step runs, in this order, one token of every request that generates (with its drafts), then pieces of prompts, as many
//! rows as fit and as do not hold the others up for longer than [`Settings::max_itl_factor`]. Where blocks run out, the
//! request that came last gives up its own and is run again later: what it draws does not depend on that, because a draw
//! depends on logits, seed and position alone.

mod commit;
mod draft;
mod pace;
mod plan;
mod queue;
mod sequence;

use crate::cache::Blocks;
use crate::request::{Event, Reason, Request, RequestId};
use pace::Pace;
use queue::Queue;
use sequence::{Place, Sequence};
use std::collections::VecDeque;
use tombolo_model::{BLOCK_TOKENS, Capacity};

/// How guesses of tokens ahead are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafts {
    /// Not at all.
    #[default]
    None,
    /// By the model's own block, up to so many.
    Block(usize),
    /// By what followed the last tokens where they occurred before, up to so many.
    Ngram(usize),
}

impl Drafts {
    /// The most for one step.
    pub fn most(self) -> usize {
        match self {
            Drafts::None => 0,
            Drafts::Block(most) | Drafts::Ngram(most) => most,
        }
    }
}

/// What the scheduler works within.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What the ranks were loaded for. [`Capacity::logits`] rows let every sequence draft.
    pub capacity: Capacity,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// KV groups of the model.
    pub groups: usize,
    /// Most requests that wait.
    pub waiting_max: usize,
    /// Blocks are used again for prompts that begin alike.
    pub prefix_cache: bool,
    /// Speculation.
    pub drafts: Drafts,
    /// How many times as long a step may take with pieces of prompts beside answers that are being generated as one that
    /// only generates for all who are here (see [`Scheduler::took`]); `None`: any.
    pub max_itl_factor: Option<f32>,
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refused {
    #[error("{waiting} requests wait already")]
    QueueFull { waiting: usize },
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the prompt has {tokens} tokens; the context holds {context}")]
    PromptTooLong { tokens: usize, context: usize },
    #[error("no tokens are asked for")]
    NothingToDo,
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("the engine is stopping")]
    Closed,
    #[error("{left} grammars that took too long are still at work: until they are done, no answer is held to another")]
    MasksLeft { left: usize },
}

/// Figures of the moment, and counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests in steps.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Blocks that nobody uses.
    pub free_blocks: usize,
    /// All blocks.
    pub blocks: usize,
    /// Prompt tokens that were looked for in the prefix cache.
    pub prefix_queries: u64,
    /// Those that were found.
    pub prefix_hits: u64,
    /// Requests that gave their blocks up for others.
    pub preemptions: u64,
    /// Steps that had drafts of a request.
    pub draft_steps: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafts accepted, by their place after the token.
    pub accepted: Vec<u64>,
    /// Rows of prompts that were run.
    pub prompt_rows: u64,
    /// Tokens that were generated.
    pub generated: u64,
}

/// What became of a step that was given out.
#[derive(Debug)]
struct Flight {
    parts: Vec<Part>,
    kind: Kind,
    /// Rows of answers and of prompts.
    rows: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Trunk,
    /// Of the drafting block.
    Draft,
}

/// One sequence's rows of a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: RequestId,
    /// Position of its first row.
    first: usize,
    rows: usize,
    /// Its first row, among the step's.
    row: usize,
    /// Its rows with logits are the last so many.
    drawn: usize,
}

/// See the module's head.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    blocks: Blocks,
    queue: Queue,
    /// By place.
    running: Vec<Sequence>,
    in_flight: VecDeque<Flight>,
    /// What the drafting block runs next, after a step of the model.
    to_draft: Vec<Part>,
    events: Vec<Event>,
    figures: Figures,
    pace: Pace,
    arrivals: u64,
    steps: u64,
    is_closed: bool,
}

impl Scheduler {
    /// An empty one.
    ///
    /// # Panics
    /// The blocks do not hold one context, or a step has no room for a row of every sequence.
    pub fn new(settings: Settings) -> Self {
        let Capacity { rows, sequences, logits, context, blocks } = settings.capacity;
        assert!(blocks >= context.div_ceil(BLOCK_TOKENS), "one context must fit the blocks");
        assert!(rows >= sequences && logits >= sequences && sequences > 0, "a step has a row for every sequence");
        Self {
            settings,
            blocks: Blocks::new(blocks),
            queue: Queue::default(),
            running: Vec::new(),
            in_flight: VecDeque::new(),
            to_draft: Vec::new(),
            events: Vec::new(),
            figures: Figures::default(),
            pace: Pace::new(settings.max_itl_factor, rows),
            arrivals: 0,
            steps: 0,
            is_closed: false,
        }
    }

    /// How long the oldest step in flight took, in seconds, from when the ranks were free for it: from this it learns how
    /// much of prompts a step may have. Without, it has as much as fits. The only thing that it knows of time.
    pub fn took(&mut self, seconds: f64) {
        if let Some(Flight { kind: Kind::Trunk, rows: (decodes, prompts), .. }) = self.in_flight.front() {
            self.pace.learn(*decodes, *prompts, seconds);
        }
    }

    /// Takes a request, or says why not. Its end will be an [`Event::Finished`].
    pub fn add(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.check(&request)?;
        let id = RequestId(self.arrivals);
        self.arrivals += 1;
        let place = Place { priority: request.priority, arrival: id.0 };
        self.queue.push(Sequence::new(id, request, place, self.steps));
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), Refused> {
        let Settings { capacity, vocabulary, waiting_max, .. } = self.settings;
        if self.is_closed {
            return Err(Refused::Closed);
        }
        if self.queue.len() >= waiting_max {
            return Err(Refused::QueueFull { waiting: self.queue.len() });
        }
        if request.prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if request.prompt.len() > capacity.context {
            return Err(Refused::PromptTooLong { tokens: request.prompt.len(), context: capacity.context });
        }
        if request.max_tokens == 0 && request.extra.as_ref().is_none_or(|extra| extra.prompt_logprobs.is_none()) {
            return Err(Refused::NothingToDo);
        }
        let bias = request.extra.iter().flat_map(|extra| extra.bias.iter().map(|(token, _)| token));
        let mut tokens = request.prompt.iter().chain(request.stop.iter()).chain(bias);
        match tokens.find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(Refused::Token { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Ends a request that nobody wants any more; nothing if it is over already.
    pub fn cancel(&mut self, id: RequestId) {
        let waits = self.queue.iter().position(|sequence| sequence.id == id);
        let sequence = match waits {
            Some(at) => self.queue.take(at),
            None => match self.running.iter().position(|sequence| sequence.id == id) {
                Some(at) => self.running.remove(at),
                None => return,
            },
        };
        self.finish(sequence, Reason::Cancelled);
    }

    /// Takes no more requests; those that are there go on.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Ends every request.
    pub fn cancel_all(&mut self) {
        let all = self.queue.drain().into_iter().chain(std::mem::take(&mut self.running));
        all.collect::<Vec<_>>().into_iter().for_each(|sequence| self.finish(sequence, Reason::Cancelled));
    }

    /// How many tokens of a request's prompt are run; `None`: it waits, or it is over.
    pub fn prompt_done(&self, id: RequestId) -> Option<usize> {
        let sequence = &self.running[self.position_of(id)?];
        Some(sequence.computed.min(sequence.prompt_tokens))
    }

    /// Whether there is nothing to run and nothing to wait for.
    pub fn is_idle(&self) -> bool {
        self.queue.len() == 0 && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// Steps that were given out and not committed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Figures of the moment.
    pub fn figures(&self) -> Figures {
        Figures {
            running: self.running.len(),
            waiting: self.queue.len(),
            free_blocks: self.blocks.free(),
            blocks: self.blocks.total(),
            ..self.figures.clone()
        }
    }

    /// A sequence's blocks may still be written by a step in flight; whoever takes them writes them later, in a later step.
    fn finish(&mut self, mut sequence: Sequence, reason: Reason) {
        sequence.release(&mut self.blocks, self.settings.prefix_cache);
        self.events.push(Event::Finished { id: sequence.id, reason, tally: sequence.tally });
    }

    fn position_of(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == id)
    }

    /// Checks that every block is accounted for: for tests and debug builds.
    ///
    /// # Panics
    /// It is not so.
    pub fn check_blocks(&self) {
        assert!(self.queue.iter().all(|sequence| sequence.table.is_empty()));
        self.blocks.check(self.running.iter().map(|sequence| sequence.table.as_slice()));
    }
}
