//! A request that the engine works on, and its answers so far. Dropping it cancels what is left of it.

use crate::allowed::{AllowedTokens, Constrained, Fault};
use crate::answer::{Choice, End};
use crate::app::App;
use crate::constraint::Constraint;
use crate::engine::{Ask, NotPassed, Update};
use crate::error::{ApiError, echo};
use crate::limits::UPDATES;
use crate::progress::Progress;
use crate::wire::{CompletionDetails, PromptDetails, Usage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};
use tombolo_engine::Request;
use tombolo_text::grammar::Reasoning;

/// What is to be generated, ready for the engine.
pub(crate) struct Prepared {
    /// One for each choice.
    pub(crate) requests: Vec<Request>,
    pub(crate) choices: Vec<Choice>,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Choices of each prompt.
    pub(crate) n: usize,
    /// What all choices are held to, if anything.
    pub(crate) held: Option<Held>,
}

/// How choices are held to a constraint.
pub(crate) struct Held {
    pub(crate) constraint: Constraint,
    pub(crate) reasoning: Reasoning,
    /// Of what the constraint allows, no others.
    pub(crate) also: Option<AllowedTokens>,
    /// These no sooner than nothing else is allowed.
    pub(crate) late: Option<AllowedTokens>,
}

impl Prepared {
    /// Compiles the constraint, if there is one, and sets every request its mask.
    async fn constrain(&mut self, app: &App) -> Result<Vec<Fault>, ApiError> {
        let Some(held) = &self.held else { return Ok(Vec::new()) };
        let model = app.take_work()?.model;
        let grammar = app.compiler.compile(model, &held.constraint).await?;
        let faults: Vec<Fault> = self.requests.iter().map(|_| Fault::default()).collect();
        for (request, fault) in self.requests.iter_mut().zip(&faults) {
            let (also, late) = (held.also.clone(), held.late.clone());
            let mask = Constrained::new(grammar.clone(), held.reasoning, also, late, fault.clone());
            request.extra.get_or_insert_default().mask = Some(Box::new(mask));
        }
        Ok(faults)
    }
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
    /// Of each choice, where they are held to a constraint.
    faults: Vec<Fault>,
    /// The field that asked for it.
    field: String,
}

impl Generating {
    /// Hands a request to the engine, and waits until it is taken.
    pub(crate) async fn start(app: &App, mut prepared: Prepared) -> Result<Self, ApiError> {
        let faults = prepared.constrain(app).await?;
        let field = prepared.held.take().map(|held| held.constraint.field).unwrap_or_default();
        let serving = app.take_work()?;
        let Prepared { requests, choices, prompt_tokens, n, held: _ } = prepared;
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
        Ok(Self {
            choices,
            updates,
            batch: Vec::new(),
            cancelled,
            progress,
            prompt_tokens,
            n,
            span,
            started,
            first_token: None,
            faults,
            field,
        })
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
                        if let Some(why) = self.faults.get(choice).and_then(|fault| fault.get()) {
                            let message = format!("`{}` could not be followed to its end: {}", self.field, echo(why));
                            return Err(ApiError::field(&self.field, message));
                        }
                        return Err(ApiError::internal("the model's output is not a number: its file may be damaged"));
                    }
                    Some(End::Mask(fault)) => return Err(Constraint::no_mask(&self.field, fault)),
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
