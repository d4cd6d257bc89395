//! What is asked of the engine, and what it answers.

use std::sync::Arc;
use std::time::Duration;
use tombolo_model::Sampling;

/// A request, as the engine numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Tokens to go on with, and how.
#[derive(Debug)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Most tokens that are generated; the context may end it before.
    pub max_tokens: usize,
    /// Tokens that end the generation. They are handed up, too.
    pub stop: Arc<[u32]>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What is done to logits first, and what is told about them; `None`: nothing, which is quicker.
    pub extra: Option<Box<Extra>>,
    /// Lower ones go first.
    pub priority: i32,
    /// Whose it is: owners get their turns in equal shares.
    pub owner: u64,
    /// Prompts share cached blocks only with those of the same salt.
    pub salt: u64,
}

impl Request {
    /// A plain request.
    pub fn new(prompt: Vec<u32>, max_tokens: usize, sampling: Sampling) -> Self {
        let stop = Arc::from([]);
        Self { prompt, max_tokens, stop, sampling, extra: None, priority: 0, owner: 0, salt: 0 }
    }
}

/// What needs a row's whole logits on the host.
#[derive(Debug, Default)]
pub struct Extra {
    /// Tokens of [`Request::stop`] are not drawn before so many others.
    pub min_tokens: usize,
    /// Against repetition.
    pub penalties: Penalties,
    /// Added to logits of tokens.
    pub bias: Vec<(u32, f32)>,
    /// Which tokens are allowed at all; told of every token that is drawn.
    pub mask: Option<Box<dyn Mask>>,
    /// Log-probabilities of every token drawn and of so many of the likeliest.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt, the first one excepted.
    pub prompt_logprobs: Option<usize>,
}

/// Against repetition, as OpenAI's API and (the first) CTRL (Keskar et al. 2019) have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Logits of tokens that occurred, in the prompt too, are divided by this where positive, multiplied where negative.
    pub repetition: f32,
    /// Subtracted for tokens that were generated.
    pub presence: f32,
    /// Subtracted for each time.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

/// What a grammar allows next.
pub trait Mask: Send + std::fmt::Debug {
    /// One bit per token, 32 to a word, from the lowest bit of the first one on; `None`: everything.
    fn allowed(&mut self) -> Option<&[u32]>;

    /// [`allowed`](Self::allowed) will be asked next, and there is time until then: the step runs.
    fn prepare(&mut self) {}

    /// A token was drawn.
    fn accept(&mut self, token: u32);

    /// It is known beforehand, and takes no time: it needs no thread.
    fn is_fixed(&self) -> bool {
        false
    }

    /// What asks it, from another thread, to give up what it is at work on: then, or soon, or never.
    fn interrupt(&mut self) -> Option<Interrupt> {
        None
    }

    /// Why nothing is allowed, where that is not the grammar's doing.
    fn fault(&self) -> Option<MaskFault> {
        None
    }
}

/// Asks a mask to give up; see [`Mask::interrupt`].
pub type Interrupt = Box<dyn Fn() + Send>;

/// Why there was no mask for a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskFault {
    /// It takes too long.
    #[error("to find out which token may come next takes longer than the {} s that one token may take", .limit.as_secs_f32())]
    Late {
        /// Longest that the engine waits.
        limit: Duration,
    },
    /// Its thread died.
    #[error("what finds out which token may come next failed")]
    Died,
    /// The system gives no thread for it.
    #[error("the system gives no thread to find out which token may come next: {error}")]
    NoThread {
        /// What the system says.
        error: String,
    },
}

/// How likely a token was, before anything was done to its logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// Tokens that are likelier, plus one.
    pub rank: usize,
    /// The likeliest tokens, the best first.
    pub top: Vec<(u32, f32)>,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// By a token of [`Request::stop`].
    Stop,
    /// As many tokens as were asked for, or as the context holds.
    Length,
    /// Nobody wants it any more.
    Cancelled,
    /// The logits were no numbers, or the mask allowed nothing.
    NotNumbers,
    /// There was no mask for the next token.
    Mask(MaskFault),
}

/// How a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens of the prompt that the prefix cache had.
    pub cached_tokens: usize,
    /// Times that its blocks were taken for others, and its tokens run again.
    pub preemptions: usize,
    /// Steps in which it had drafts.
    pub draft_steps: usize,
    /// Tokens drafted for it.
    pub drafted: usize,
    /// Those of them that were accepted.
    pub accepted: usize,
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It left the queue.
    Started(RequestId),
    /// For every token of the prompt but the first; before the first token.
    PromptLogprobs(RequestId, Vec<Logprobs>),
    /// One token more.
    Token {
        /// Of the request.
        id: RequestId,
        /// The token.
        token: u32,
        /// Where they were asked for.
        logprobs: Option<Box<Logprobs>>,
    },
    /// It is over. This comes exactly once, and nothing after it.
    Finished {
        /// Of the request.
        id: RequestId,
        /// Why.
        reason: Reason,
        /// How it went.
        tally: Tally,
    },
}
