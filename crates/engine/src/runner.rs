//! A model that serves many requests: the scheduler and the ranks that run its steps.

use crate::masks::Masks;
use crate::workers::Workers;
use crate::{EngineError, Event, Figures, Refused, Request, RequestId, Scheduler, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_model::{Backend, Before, Step};

/// Where a call of [`Runner::step`] has got to, for whoever measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The next step is chosen and handed to the ranks.
    Submitted {
        /// Rows that it has.
        rows: usize,
    },
    /// The ranks are done with the oldest step.
    Collected,
    /// Its results are taken in.
    Committed,
}

/// Owns the ranks of a model and what they are to do. It runs only while [`Runner::step`] is called.
pub struct Runner {
    workers: Workers,
    scheduler: Scheduler,
    settings: Settings,
    before: Before,
    masks: Masks,
    /// Steps are begun before the last one's results are seen.
    overlaps: bool,
    /// When the ranks last had nothing to wait for: since then they are at the oldest step in flight.
    busy_since: Instant,
}

impl Runner {
    /// Takes over the loaded ranks, in rank order.
    ///
    /// # Panics
    /// There are none, or the settings do not go together (see [`Scheduler::new`]).
    pub fn new(backends: Vec<Box<dyn Backend>>, settings: Settings) -> Self {
        assert!(!backends.is_empty(), "a model has at least one rank");
        let overlaps = backends.iter().all(|backend| backend.is_asynchronous());
        let scheduler = Scheduler::new(settings);
        Self {
            workers: Workers::start(backends),
            scheduler,
            settings,
            before: Before::default(),
            masks: Masks::new(),
            overlaps,
            busy_since: Instant::now(),
        }
    }

    /// Waits for the mask of one token no longer than this, in place of [`MASK_LIMIT`](crate::MASK_LIMIT).
    pub fn set_mask_limit(&mut self, limit: Duration) {
        self.masks.limit = limit;
    }

    /// Takes a request, or says why not. Its mask is computed within a limit of time.
    pub fn add(&mut self, mut request: Request) -> Result<RequestId, Refused> {
        if let Some(extra) = &mut request.extra {
            extra.mask = extra.mask.take().map(|mask| self.masks.within(mask)).transpose()?;
        }
        self.scheduler.add(request)
    }

    /// Ends a request; nothing if it is over already.
    pub fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id);
    }

    /// Takes no more requests.
    pub fn close(&mut self) {
        self.scheduler.close();
    }

    /// Ends every request.
    pub fn cancel_all(&mut self) {
        self.scheduler.cancel_all();
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// How many tokens of a request's prompt are run; `None`: it waits, or it is over.
    pub fn prompt_done(&self, id: RequestId) -> Option<usize> {
        self.scheduler.prompt_done(id)
    }

    /// What it works within.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Figures of the moment.
    pub fn figures(&self) -> Figures {
        self.scheduler.figures()
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.scheduler.take_events()
    }

    /// Runs one step, if there is something to run, and tells `observe` how far it is.
    ///
    /// # Errors
    /// A rank failed, died or gave no answer: nothing can be run any more.
    pub fn step(&mut self, mut observe: impl FnMut(Phase)) -> Result<(), EngineError> {
        if self.scheduler.in_flight() == 0 {
            let Some(step) = self.scheduler.schedule() else { return Ok(()) };
            self.busy_since = Instant::now();
            self.submit(step, &mut observe)?;
        }
        if self.overlaps
            && self.scheduler.in_flight() == 1
            && let Some(step) = self.scheduler.schedule_ahead()
        {
            self.submit(step, &mut observe)?;
        }
        // While the ranks are at work.
        self.scheduler.prepare_masks();
        let output = self.workers.collect()?;
        observe(Phase::Collected);
        let now = Instant::now();
        self.scheduler.took((now - self.busy_since).as_secs_f64());
        self.busy_since = now;
        self.scheduler.commit(&output);
        observe(Phase::Committed);
        Ok(())
    }

    fn submit(&mut self, step: Step, observe: &mut impl FnMut(Phase)) -> Result<(), EngineError> {
        let Settings { capacity, groups, vocabulary, .. } = self.settings;
        step.check(&capacity, groups, vocabulary, self.before)?;
        self.before = step.left();
        let rows = step.rows.len();
        self.workers.submit(&Arc::new(step));
        observe(Phase::Submitted { rows });
        Ok(())
    }
}
