//! Sends the load and takes the times: every request from before it is sent to its last token.

use super::body::{Ask, Manner};
use super::events::{Lines, Told, Usage};
use super::http::{Client, Fault};
use crate::limits::TEXT_KEPT_BYTES_MAX;
use hyper::Method;
use hyper::body::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// What became of a request. Times in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Since the run began.
    pub(super) start: f64,
    /// To the first event with tokens.
    pub(super) ttft: f64,
    /// Between events with tokens.
    pub(super) itls: Vec<f64>,
    /// To the last of them.
    pub(super) latency: f64,
    pub(super) prompt_tokens: usize,
    /// Of the prompt, what the server's cache held.
    pub(super) cached_tokens: usize,
    pub(super) output_tokens: usize,
    /// The server told no usage: tokens of the answer are counted by events, those of the prompt are the client's count.
    pub(super) is_counted: bool,
    /// What was asked for.
    pub(super) max_tokens: usize,
    pub(super) text: String,
    pub(super) error: Option<Fault>,
}

/// A run's load.
pub(super) struct Load {
    pub(super) client: Client,
    pub(super) endpoint: String,
    pub(super) manner: Manner,
    pub(super) asks: Vec<Ask>,
    /// Seconds from the beginning at which each is sent.
    pub(super) arrivals: Vec<f64>,
    /// Requests at once at most.
    pub(super) concurrency: Option<usize>,
    pub(super) keeps_text: bool,
}

impl Load {
    /// Sends one, and takes its times from `begun`.
    pub(super) async fn send(&self, ask: &Ask, body: Bytes, begun: Instant) -> Outcome {
        let started = Instant::now();
        let mut outcome = Outcome {
            start: (started - begun).as_secs_f64(),
            prompt_tokens: ask.prompt_tokens,
            max_tokens: ask.max_tokens,
            ..Outcome::default()
        };
        if let Err(fault) = self.follow(&mut outcome, body, started).await {
            outcome.latency = started.elapsed().as_secs_f64();
            outcome.error = Some(fault);
        }
        outcome
    }

    async fn follow(&self, outcome: &mut Outcome, body: Bytes, started: Instant) -> Result<(), Fault> {
        let mut answer = self.client.send(Method::POST, &self.endpoint, body).await?;
        if answer.status != 200 {
            return Err(answer.refusal().await);
        }
        let (mut lines, mut usage, mut events, mut is_done) = (Lines::default(), None::<Usage>, 0, false);
        let mut last = 0.0;
        while let Some(bytes) = answer.next().await? {
            let now = started.elapsed().as_secs_f64();
            let mut fault = None;
            let mut each = |data: &[u8]| match Told::read(data) {
                Err(odd) => fault = Some(Fault::Odd(odd)),
                Ok(Told { error: Some(error), .. }) => {
                    fault = Some(Fault::Odd(format!("the answer broke off: {error}")))
                }
                Ok(told) => {
                    is_done |= told.is_done;
                    usage = told.usage.or(usage);
                    if told.has_tokens() {
                        match events {
                            0 => outcome.ttft = now,
                            _ => outcome.itls.push(now - last),
                        }
                        (events, last) = (events + 1, now);
                    }
                    if self.keeps_text && outcome.text.len() < TEXT_KEPT_BYTES_MAX {
                        outcome.text.push_str(&told.text);
                    }
                }
            };
            lines.push(&bytes, &mut each).map_err(Fault::Odd)?;
            if let Some(fault) = fault {
                return Err(fault);
            }
        }
        if !is_done {
            return Err(Fault::Odd("the stream ended before [DONE]".into()));
        }
        let usage = usage.filter(|usage| usage.completion_tokens > 0);
        if events == 0 && usage.is_none() {
            return Err(Fault::Odd("the stream had no token and counted none".into()));
        }
        // More tokens than bytes can have come is no count.
        let most = 1 << 32;
        if usage.as_ref().is_some_and(|usage| usage.completion_tokens > most || usage.prompt_tokens > most) {
            return Err(Fault::Odd("the usage that the server tells is no count of tokens".into()));
        }
        if events == 0 {
            // The model ended at once: its one token shows as the end only.
            last = started.elapsed().as_secs_f64();
            outcome.ttft = last;
        }
        outcome.latency = last;
        // A server that fills in zeros counts nothing.
        outcome.is_counted = usage.is_none();
        outcome.output_tokens = usage.map_or(events, |usage| usage.completion_tokens as usize);
        if let Some(usage) = usage {
            outcome.prompt_tokens = usage.prompt_tokens as usize;
            let details = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            outcome.cached_tokens = details.unwrap_or(0) as usize;
        }
        Ok(())
    }

    /// Sends all; their outcomes in the same order, and how long it took. `each` is told of every one that ends.
    pub(super) async fn run(self: &Arc<Self>, each: impl Fn() + Send + Sync + 'static) -> (Vec<Outcome>, Duration) {
        let each = Arc::new(each);
        let most = self.concurrency.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(most));
        let begun = Instant::now();
        let mut tasks = Vec::with_capacity(self.asks.len());
        for (index, at) in self.arrivals.iter().enumerate() {
            let pause = Duration::from_secs_f64(*at).saturating_sub(begun.elapsed());
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            // In the order of arrival: the semaphore is fair, and a place is asked for before the next one arrives.
            let (load, room, each) = (self.clone(), room.clone(), each.clone());
            tasks.push(tokio::spawn(async move {
                let _place = room.acquire_owned().await;
                let ask = &load.asks[index];
                let body = load.manner.body(ask);
                let outcome = load.send(ask, body, begun).await;
                each();
                outcome
            }));
        }
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            let lost = |error: tokio::task::JoinError| Outcome {
                error: Some(Fault::Broken(error.to_string())),
                ..Outcome::default()
            };
            outcomes.push(task.await.unwrap_or_else(lost));
        }
        (outcomes, begun.elapsed())
    }
}
