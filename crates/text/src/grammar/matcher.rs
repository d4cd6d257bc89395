//! Follows one answer: which tokens may come next, and whether it may end.

use super::faults::Fault;
use crate::{Tokenizer, limits};
use std::sync::Arc;

/// Whether an answer reasons before what is constrained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// It begins with what is constrained.
    #[default]
    None,
    /// The prompt has opened the reasoning: what is constrained begins where it closes.
    Open,
    /// The model may open it with its first token.
    Possible,
}

/// What opens and closes reasoning.
const THINK: &str = "<think>";
const THINK_END: &[u8] = b"</think>";

/// What all answers of a vocabulary share.
#[derive(Debug)]
pub(super) struct Tokens {
    tokenizer: &'static Tokenizer,
    /// Bits of the tokens that end an answer.
    ends: Vec<u32>,
    /// And of all others.
    others: Vec<u32>,
    /// The token that opens reasoning, where one does.
    think: Option<u32>,
}

impl Tokens {
    pub(super) fn new(tokenizer: &'static Tokenizer) -> Self {
        let count = tokenizer.vocabulary();
        let (mut ends, mut others) = (vec![0u32; count.div_ceil(32)], vec![u32::MAX; count.div_ceil(32)]);
        for &id in tokenizer.end_of_generation() {
            set(&mut ends, id);
            others[id as usize / 32] &= !(1 << (id % 32));
        }
        if let Some(last) = others.last_mut()
            && !count.is_multiple_of(32)
        {
            *last &= (1 << (count % 32)) - 1;
        }
        // One that is not shown would not be told from the answer.
        let is_think = |id: &u32| tokenizer.piece(*id) == THINK.as_bytes() && !tokenizer.is_control(*id);
        let think = (0..count as u32).find(is_think);
        Self { tokenizer, ends, others, think }
    }
}

fn set(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

/// See the module's head. Whatever it is told, it never panics: what goes wrong is a [`fault`](Self::fault), after which
/// nothing is allowed.
pub struct Matcher {
    inner: llguidance::Matcher,
    tokens: Arc<Tokens>,
    state: State,
    /// Bits of the tokens that are allowed next.
    words: Vec<u32>,
    /// They stand for the state that it is in.
    is_current: bool,
    fault: Option<String>,
    work: u64,
}

/// See [`Matcher::interrupter`].
#[derive(Clone, Debug)]
pub struct Interrupter(Option<llguidance::CancellationHandle>);

impl Interrupter {
    /// Ends the matcher's work. What takes longest is left soon, not everything is.
    pub fn interrupt(&self) {
        self.0.iter().for_each(llguidance::CancellationHandle::cancel);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nothing came yet, and reasoning may.
    Undecided,
    /// The last bytes of the reasoning.
    Reasoning(Vec<u8>),
    Constrained,
    /// A token ended it.
    Ended,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("state", &self.state).field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(super) fn new(inner: llguidance::Matcher, tokens: Arc<Tokens>, reasoning: Reasoning) -> Self {
        let state = match reasoning {
            Reasoning::Open => State::Reasoning(Vec::new()),
            Reasoning::Possible if tokens.think.is_some() => State::Undecided,
            Reasoning::Possible | Reasoning::None => State::Constrained,
        };
        Self { inner, tokens, state, words: Vec::new(), is_current: false, fault: None, work: 0 }
    }

    /// The tokens that may come next: a bit for each, 32 to a word, from the lowest bit of the first one on. Those that
    /// end an answer are among them where it is complete.
    pub fn allowed(&mut self) -> &[u32] {
        if !self.is_current {
            self.is_current = true;
            self.words.clear();
            match &self.state {
                // An answer does not end before what is asked for has begun.
                State::Reasoning(_) => self.words.extend_from_slice(&self.tokens.others),
                State::Ended => self.words.extend_from_slice(&self.tokens.ends),
                State::Undecided | State::Constrained => self.compute(),
            }
        }
        &self.words
    }

    /// Takes the next token.
    pub fn accept(&mut self, token: u32) {
        self.is_current = false;
        if self.state == State::Undecided && self.tokens.think == Some(token) {
            self.state = State::Reasoning(Vec::new());
            return;
        }
        match &mut self.state {
            State::Reasoning(tail) => {
                tail.extend_from_slice(self.tokens.tokenizer.piece(token));
                let is_over = tail.windows(THINK_END.len()).any(|part| part == THINK_END);
                tail.drain(..tail.len().saturating_sub(THINK_END.len() - 1));
                if is_over {
                    self.state = State::Constrained;
                }
            }
            State::Ended => {}
            State::Undecided | State::Constrained => {
                self.state = State::Constrained;
                if self.tokens.tokenizer.is_end_of_generation(token) {
                    self.state = State::Ended;
                } else if let Err(error) = self.inner.consume_token(token) {
                    self.fail(Fault::of(&error.to_string()).of_mask());
                }
            }
        }
    }

    /// Whether the answer may end here.
    pub fn is_complete(&mut self) -> bool {
        match self.state {
            State::Reasoning(_) => false,
            State::Ended => true,
            // One that has come to its end accepts, too.
            State::Undecided | State::Constrained => self.fault.is_none() && self.inner.is_accepting().unwrap_or(false),
        }
    }

    /// Whether nothing but the end may come.
    pub fn is_over(&self) -> bool {
        self.state == State::Ended || (self.state == State::Constrained && self.inner.is_stopped())
    }

    /// Ends, from another thread, what it is at work on, soon: nothing is allowed from then on.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(self.inner.cancellation_handle())
    }

    /// What went wrong on the way, if anything did: the constraint asked for more work than one may.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Work on masks so far: derivatives of expressions and items of the parser.
    pub fn work(&self) -> u64 {
        self.work
    }

    fn compute(&mut self) {
        if self.fault.is_some() {
            return;
        }
        match self.inner.compute_mask_or_eos() {
            Ok(mask) => self.words.extend_from_slice(mask.as_slice()),
            Err(error) => return self.fail(Fault::of(&error.to_string()).of_mask()),
        }
        self.work += self.inner.last_step_stats().map_or(0, |stats| stats.lexer_cost + stats.all_items as u64);
        if self.work > limits::ANSWER_WORK_MAX {
            return self.fail("it takes too much work to say what may come next: make it simpler".into());
        }
        if let (State::Undecided, Some(think)) = (&self.state, self.tokens.think) {
            set(&mut self.words, think);
        }
    }

    fn fail(&mut self, why: String) {
        self.words.clear();
        self.fault = Some(why);
    }
}
