//! One request on its way: its tokens, how far they are run, and the blocks that hold them.

use crate::cache::{Before, Blocks};
use crate::draw::{self, Counts, Drawn};
use crate::request::{Extra, Logprobs, Reason, Request, RequestId, Tally};
use tombolo_model::BLOCK_TOKENS;

/// Who goes first: the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: i32,
    pub(super) arrival: u64,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) place: Place,
    /// The prompt and what was drawn.
    pub(super) tokens: Vec<u32>,
    /// Of them, whose keys and values are in the cache.
    pub(super) computed: usize,
    pub(super) prompt_tokens: usize,
    pub(super) table: Vec<u32>,
    /// Blocks that the prefix cache was told of, and what stands before the next.
    remembered: usize,
    before: Before,
    /// Guesses of the tokens after the last.
    pub(super) drafts: Vec<u32>,
    /// How often tokens occurred, where that matters.
    pub(super) counts: Option<Counts>,
    /// What was drawn on the host in place of what the ranks drew.
    pub(super) drawn: Option<Result<Drawn, Reason>>,
    /// Of the prompt's tokens, as far as they are run; `None`: nobody asked, or all was told.
    pub(super) prompt_logprobs: Option<Vec<Logprobs>>,
    pub(super) tally: Tally,
    pub(super) was_started: bool,
    /// The step in which it was put into the queue.
    pub(super) waits_since: u64,
}

impl Sequence {
    pub(super) fn new(id: RequestId, request: Request, place: Place, step: u64) -> Self {
        let counts = request.extra.as_ref().map(|_| Counts::of_prompt(&request.prompt));
        Self {
            id,
            place,
            tokens: request.prompt.clone(),
            computed: 0,
            prompt_tokens: request.prompt.len(),
            table: Vec::new(),
            remembered: 0,
            before: Before::Start { salt: request.salt },
            drafts: Vec::new(),
            counts,
            drawn: None,
            prompt_logprobs: request.extra.as_ref().and_then(|extra| extra.prompt_logprobs).map(|_| Vec::new()),
            tally: Tally::default(),
            was_started: false,
            waits_since: step,
            request,
        }
    }

    pub(super) fn extra(&self) -> Option<&Extra> {
        self.request.extra.as_deref()
    }

    /// Whether the logits of its next token are needed on the host.
    pub(super) fn is_on_host(&self) -> bool {
        self.extra().is_some_and(|extra| draw::is_on_host(extra, self.generated()))
    }

    /// Tokens generated so far.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Tokens that are not run yet: at least the last one.
    pub(super) fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it runs token after token: all but the last is run.
    pub(super) fn decodes(&self) -> bool {
        self.left() == 1 && self.computed > 0
    }

    /// Whether logits of the prompt's rows are wanted, too, and are still to come.
    pub(super) fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.is_some()
    }

    /// Blocks that are needed beside those that it has, for `tokens` tokens in all.
    pub(super) fn blocks_needed(&self, tokens: usize) -> usize {
        tokens.div_ceil(BLOCK_TOKENS).saturating_sub(self.table.len())
    }

    /// Takes over what the prefix cache has of its tokens: these blocks, and what there is after them. At least one token
    /// is left to be run, for its logits.
    pub(super) fn reuse(&mut self, blocks: &mut Blocks, found: &[u32]) {
        for &number in found {
            blocks.share(number);
            self.before = blocks.after(number).expect("a block that was found is known");
            self.table.push(number);
        }
        self.remembered = found.len();
        self.computed = found.len() * BLOCK_TOKENS;
        let end = self.computed + BLOCK_TOKENS;
        let rest = &self.tokens[self.computed..end.min(self.tokens.len() - 1)];
        if let Some((number, count)) = blocks.take_end(self.before, rest) {
            self.table.push(number);
            self.computed += count;
        }
    }

    /// Tells the prefix cache of blocks that have become full.
    pub(super) fn remember(&mut self, blocks: &mut Blocks) {
        let (whole, _) = self.tokens[..self.computed].as_chunks::<BLOCK_TOKENS>();
        for (i, tokens) in whole.iter().enumerate().skip(self.remembered) {
            self.before = blocks.remember(self.table[i], self.before, *tokens);
            self.remembered = i + 1;
        }
    }

    /// Gives its blocks back: the last first, so that the beginning stays longest in the prefix cache.
    pub(super) fn release(&mut self, blocks: &mut Blocks, keeps: bool) {
        let whole = self.computed / BLOCK_TOKENS;
        let is_end = |at: usize| at == whole && at == self.remembered && keeps;
        if let Some(number) = self.table.get(whole).copied().filter(|_| is_end(whole)) {
            let beyond = self.table.split_off(whole);
            beyond[1..].iter().rev().for_each(|&number| blocks.give(number));
            blocks.give_end(number, self.before, &self.tokens[whole * BLOCK_TOKENS..self.computed]);
        }
        self.table.drain(..).rev().for_each(|number| blocks.give(number));
        self.computed = 0;
        self.remembered = 0;
        self.before = Before::Start { salt: self.request.salt };
        self.drafts.clear();
    }
}
