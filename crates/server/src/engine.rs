//! The thread that owns the engine: requests go in by a channel, and what happens to them comes out by one of their own.
//!
//! It never waits for anybody who reads: one whose channel is full is cancelled. Whoever asked and is gone is noticed before
//! the next step.

use crate::limits;
use crate::metrics::{Metrics, Times};
use crate::progress::Progress;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tombolo_engine::{Event, Logprobs, Phase, Reason, Refused, Request, RequestId, Runner, Tally};

/// One or more requests that are taken together or not at all.
pub(crate) struct Ask {
    pub(crate) requests: Vec<Request>,
    pub(crate) updates: Sender<Update>,
    pub(crate) cancelled: Arc<[AtomicBool]>,
}

/// What happened to an [`Ask`]; `choice`: to which of its requests.
#[derive(Debug)]
pub(crate) enum Update {
    /// All its requests are taken.
    Accepted,
    Refused(Refused),
    PromptLogprobs {
        choice: usize,
        logprobs: Vec<Logprobs>,
    },
    Token {
        choice: usize,
        token: u32,
        logprobs: Option<Box<Logprobs>>,
    },
    Finished {
        choice: usize,
        reason: Reason,
        tally: Tally,
    },
    /// The engine has stopped, and with it everything.
    Failed,
}

/// What the thread is told beside requests.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Order {
    GoOn,
    /// Takes nothing more.
    Close,
    /// Ends everything.
    End,
}

/// How the rest of the server reaches the engine.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    asks: SyncSender<(Ask, Instant)>,
    order: Arc<AtomicU8>,
    active: Arc<AtomicUsize>,
}

/// An [`Ask`] that was not passed on.
pub(crate) enum NotPassed {
    /// Too many wait already.
    Full,
    /// The engine has ended.
    Gone,
}

impl EngineHandle {
    /// Starts the thread.
    pub(crate) fn start(runner: Runner, metrics: Arc<Metrics>, progress: Arc<Progress>) -> std::io::Result<Self> {
        let (asks, inbox) = sync_channel(limits::ASKS);
        let (active, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU8::new(Order::GoOn as u8)));
        metrics.set_figures(runner.figures(), *runner.settings());
        let (shared, orders) = (active.clone(), order.clone());
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            let mut engine =
                Engine { runner, requests: HashMap::new(), metrics, progress, active: shared, order: orders };
            let end = catch_unwind(AssertUnwindSafe(|| engine.run(&inbox)));
            let why = match end {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_) => "a fault in the scheduler".into(),
            };
            engine.fail(why);
            // The ranks may be in any state: what owns them is left as it is, and the process ends soon.
            std::mem::forget(engine);
        })?;
        Ok(Self { asks, order, active })
    }

    /// Passes requests on. Their answer, or why not, comes by their channel.
    pub(crate) fn ask(&self, ask: Ask) -> Result<(), NotPassed> {
        self.active.fetch_add(1, Ordering::AcqRel);
        self.asks.try_send((ask, Instant::now())).map_err(|error| {
            self.active.fetch_sub(1, Ordering::AcqRel);
            match error {
                TrySendError::Full(_) => NotPassed::Full,
                TrySendError::Disconnected(_) => NotPassed::Gone,
            }
        })
    }

    /// Takes no more requests.
    pub(crate) fn close(&self) {
        self.order.fetch_max(Order::Close as u8, Ordering::AcqRel);
    }

    /// Ends every request.
    pub(crate) fn end(&self) {
        self.order.fetch_max(Order::End as u8, Ordering::AcqRel);
    }

    /// Asks that are not over.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }
}

/// One request of an ask.
struct Running {
    choice: usize,
    updates: Sender<Update>,
    cancelled: Arc<[AtomicBool]>,
    /// Counts the ask as active as long as one of its requests is there.
    _active: Arc<Active>,
    times: Times,
    /// It had a token in this step.
    is_fresh: bool,
    /// Its reader was too slow: it hears nothing more.
    is_lost: bool,
}

struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Engine {
    runner: Runner,
    requests: HashMap<RequestId, Running>,
    metrics: Arc<Metrics>,
    progress: Arc<Progress>,
    active: Arc<AtomicUsize>,
    order: Arc<AtomicU8>,
}

impl Engine {
    fn run(&mut self, inbox: &Receiver<(Ask, Instant)>) -> Result<(), String> {
        loop {
            if !self.take_asks(inbox) {
                return Ok(());
            }
            self.obey();
            self.cancel_the_unwanted();
            self.step()?;
            self.pass_on();
            self.progress.advance(!self.runner.is_idle());
            self.metrics.set_figures(self.runner.figures(), *self.runner.settings());
        }
    }

    /// Takes what has come; waits where there is nothing else to do. False: nobody will ask any more.
    fn take_asks(&mut self, inbox: &Receiver<(Ask, Instant)>) -> bool {
        loop {
            let (ask, arrived) = if self.runner.is_idle() && self.requests.is_empty() {
                match inbox.recv() {
                    Ok(ask) => ask,
                    Err(_) => return false,
                }
            } else {
                match inbox.try_recv() {
                    Ok(ask) => ask,
                    Err(TryRecvError::Disconnected) if self.runner.is_idle() => return false,
                    Err(_) => return true,
                }
            };
            self.add(ask, arrived);
            self.progress.advance(!self.runner.is_idle());
        }
    }

    fn obey(&mut self) {
        let order = self.order.load(Ordering::Acquire);
        if order >= Order::Close as u8 {
            self.runner.close();
        }
        if order >= Order::End as u8 {
            self.runner.cancel_all();
        }
    }

    fn add(&mut self, ask: Ask, arrived: Instant) {
        let Ask { requests, updates, cancelled } = ask;
        let active = Arc::new(Active(self.active.clone()));
        let waiting = self.runner.figures().waiting;
        let mut taken: Vec<(RequestId, Running)> = Vec::new();
        let mut refused = None;
        if waiting + requests.len() > self.runner.settings().waiting_max {
            refused = Some(Refused::QueueFull { waiting });
        }
        let n = requests.len();
        for (choice, request) in requests.into_iter().enumerate() {
            if refused.is_some() {
                break;
            }
            let times = Times {
                arrived,
                started: None,
                first: None,
                last: None,
                prompt_tokens: request.prompt.len(),
                generated: 0,
                max_tokens: request.max_tokens,
            };
            match self.runner.add(request) {
                Ok(id) => {
                    let (updates, cancelled, _active) = (updates.clone(), cancelled.clone(), active.clone());
                    taken.push((
                        id,
                        Running { choice, updates, cancelled, _active, times, is_fresh: false, is_lost: false },
                    ));
                }
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            Some(why) => {
                match why {
                    Refused::Closed => self.metrics.refuse("stopping"),
                    Refused::QueueFull { .. } => self.metrics.refuse("queue_full"),
                    Refused::MasksLeft { .. } => self.metrics.refuse("masks_left"),
                    // It was wrong, not too much.
                    _ => {}
                }
                // They were never told of: their ends concern nobody.
                taken.iter().for_each(|(id, _)| self.runner.cancel(*id));
                let _ = updates.try_send(Update::Refused(why));
            }
            None => {
                self.metrics.ask(n);
                let _ = updates.try_send(Update::Accepted);
                self.requests.extend(taken);
            }
        }
    }

    fn cancel_the_unwanted(&mut self) {
        for (&id, running) in &self.requests {
            let is_gone = running.updates.is_closed();
            if is_gone || running.cancelled[running.choice].load(Ordering::Acquire) {
                self.runner.cancel(id);
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let started = Instant::now();
        let mut marks = [started; 2];
        let mut rows_run = 0;
        let progress = &self.progress;
        let observe = |phase| {
            progress.advance(true);
            match phase {
                Phase::Submitted { rows } => (rows_run, marks[0]) = (rows, Instant::now()),
                Phase::Collected => marks[1] = Instant::now(),
                Phase::Committed => {}
            }
        };
        self.runner.step(observe).map_err(|error| error.to_string())?;
        if marks[1] > started {
            // Where a step began before the last one was seen, running begins here.
            let submitted = marks[0].clamp(started, marks[1]);
            let parts: [Duration; 3] = [submitted - started, marks[1] - submitted, marks[1].elapsed()];
            if tracing::enabled!(tracing::Level::DEBUG) {
                let [schedule_us, run_us, commit_us] = parts.map(|part| part.as_micros() as u64);
                let figures = self.runner.figures();
                let (running, waiting) = (figures.running, figures.waiting);
                tracing::debug!(rows = rows_run, running, waiting, schedule_us, run_us, commit_us, "step");
            }
            self.metrics.step(rows_run, parts);
        }
        Ok(())
    }

    /// Tells everybody what happened to them.
    fn pass_on(&mut self) {
        let now = Instant::now();
        for event in self.runner.take_events() {
            let (id, is_end) = match &event {
                Event::Started(id) | Event::PromptLogprobs(id, _) | Event::Token { id, .. } => (*id, false),
                Event::Finished { id, .. } => (*id, true),
            };
            let Some(running) = self.requests.get_mut(&id) else { continue };
            let choice = running.choice;
            let update = match event {
                Event::Started(_) => {
                    self.metrics.start(&mut running.times, now);
                    continue;
                }
                Event::PromptLogprobs(_, logprobs) => Update::PromptLogprobs { choice, logprobs },
                Event::Token { token, logprobs, .. } => {
                    if !running.is_fresh {
                        self.metrics.tokens(&mut running.times, now);
                    }
                    running.is_fresh = true;
                    running.times.generated += 1;
                    Update::Token { choice, token, logprobs }
                }
                Event::Finished { reason, tally, .. } => {
                    self.metrics.finish(&running.times, Some(&reason), tally, now);
                    Update::Finished { choice, reason, tally }
                }
            };
            if !running.is_lost && running.updates.try_send(update).is_err() {
                // Where nobody is there any more, it is cancelled anyway. Whoever reads sees the channel end early.
                running.is_lost = true;
                self.metrics.slow_readers.add(u64::from(!running.updates.is_closed()));
                running.cancelled.iter().for_each(|flag| flag.store(true, Ordering::Release));
            }
            if is_end {
                self.requests.remove(&id);
            }
        }
        self.requests.values_mut().for_each(|running| running.is_fresh = false);
    }

    fn fail(&mut self, why: String) {
        tracing::error!(why, "the engine has ended");
        self.progress.fail(why);
        let now = Instant::now();
        for (_, running) in self.requests.drain() {
            self.metrics.finish(&running.times, None, Tally::default(), now);
            // Where there is no room, the channel's end says the same.
            let _ = running.updates.try_send(Update::Failed);
        }
    }
}
