//! A request that the engine works on, and its answers so far. Dropping it cancels what is left of it.

use crate::answer::{Choice, End};
use crate::app::App;
use crate::engine::{Ask, NotPassed, Update};
use crate::error::ApiError;
use crate::limits::UPDATES;
use crate::progress::Progress;
use crate::wire::{CompletionDetails, PromptDetails, Usage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};
use tombolo_engine::Request;

/// What is to be generated, ready for the engine.
pub(crate) struct Prepared {
    /// One for each choice.
    pub(crate) requests: Vec<Request>,
    pub(crate) choices: Vec<Choice>,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Choices of each prompt.
    pub(crate) n: usize,
}

/// See the module's head.
pub(crate) struct Generating {
    pub(crate) choices: Vec<Choice>,
    updates: Receiver<Update>,
    batch: Vec<Update>,
    cancelled: Arc<[AtomicBool]>,
    progress: Arc<Progress>,
    prompt_tokens: usize,
    n: usize,
    /// The request's.
    span: tracing::Span,
    started: Instant,
    first_token: Option<Duration>,
}

impl Generating {
    /// Hands a request to the engine, and waits until it is taken.
    pub(crate) async fn start(app: &App, prepared: Prepared) -> Result<Self, ApiError> {
        let serving = app.take_work()?;
        let Prepared { requests, choices, prompt_tokens, n } = prepared;
        let cancelled: Arc<[AtomicBool]> = choices.iter().map(|_| AtomicBool::new(false)).collect();
        let (sender, mut updates) = channel(UPDATES * choices.len() + 1);
        let ask = Ask { requests, updates: sender, cancelled: cancelled.clone() };
        serving.engine.ask(ask).map_err(|error| match error {
            NotPassed::Full => {
                app.metrics.refuse("queue_full");
                ApiError::busy()
            }
            NotPassed::Gone => ApiError::engine_dead(),
        })?;
        match updates.recv().await {
            Some(Update::Accepted) => {}
            Some(Update::Refused(why)) => return Err(why.into()),
            _ => return Err(ApiError::engine_dead()),
        }
        let progress = app.progress.clone();
        let (span, started) = (tracing::Span::current(), Instant::now());
        let batch = Vec::new();
        Ok(Self { choices, updates, batch, cancelled, progress, prompt_tokens, n, span, started, first_token: None })
    }

    /// Waits for something to happen, and takes it in. False: everything has happened.
    pub(crate) async fn advance(&mut self) -> Result<bool, ApiError> {
        if self.choices.iter().all(Choice::is_over) {
            return Ok(false);
        }
        if self.updates.recv_many(&mut self.batch, UPDATES).await == 0 {
            let is_dead = self.progress.failure().is_some();
            let too_slow = || ApiError::internal("the answer was not read in time");
            return Err(if is_dead { ApiError::engine_dead() } else { too_slow() });
        }
        let batch = std::mem::take(&mut self.batch);
        for update in batch {
            self.take(update)?;
        }
        Ok(true)
    }

    fn take(&mut self, update: Update) -> Result<(), ApiError> {
        match update {
            Update::Token { choice, token, logprobs } => {
                self.first_token.get_or_insert_with(|| self.started.elapsed());
                if self.choices[choice].token(token, logprobs) {
                    self.cancelled[choice].store(true, Ordering::Release);
                }
            }
            Update::PromptLogprobs { choice, logprobs } => self.choices[choice].prompt_logprobs(&logprobs),
            Update::Finished { choice, reason, tally } => {
                self.choices[choice].finish(&reason, tally);
                match self.choices[choice].end() {
                    Some(End::NotNumbers) => {
                        return Err(ApiError::internal("the model's output is not a number: its file may be damaged"));
                    }
                    Some(End::Cancelled) => return Err(ApiError::stopping()),
                    _ => {}
                }
            }
            Update::Failed => return Err(ApiError::engine_dead()),
            Update::Accepted | Update::Refused(_) => {}
        }
        Ok(())
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        let completion_tokens = self.choices.iter().map(|choice| choice.tokens).sum();
        // A prompt's second choice finds it in the cache whatever was there before.
        let firsts = self.choices.iter().step_by(self.n.max(1));
        let cached_tokens = firsts.map(|choice| choice.tally.cached_tokens).sum();
        let reasoning_tokens = self.choices.iter().map(|choice| choice.reasoning_tokens).sum();
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: CompletionDetails { reasoning_tokens },
        }
    }
}

impl Drop for Generating {
    /// Whatever the end was.
    fn drop(&mut self) {
        let usage = self.usage();
        let whole = self.choices.iter().all(|choice| choice.end().is_some());
        tracing::info!(
            parent: &self.span,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.prompt_tokens_details.cached_tokens,
            completion_tokens = usage.completion_tokens,
            first_token_ms = self.first_token.map(|time| time.as_millis() as u64),
            ms = self.started.elapsed().as_millis() as u64,
            end = if whole { "whole" } else { "left" },
            "generated"
        );
    }
}
