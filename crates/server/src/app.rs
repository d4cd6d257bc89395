//! What all parts of the server share.

use crate::auth::Keys;
use crate::engine::EngineHandle;
use crate::error::ApiError;
use crate::grammars::Compiler;
use crate::limits::TEXT_AT_ONCE;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::options::Options;
use crate::progress::Progress;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// See the fields.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) options: Options,
    pub(crate) keys: Keys,
    /// Empty while the model is loaded.
    pub(crate) serving: OnceLock<Serving>,
    pub(crate) is_draining: AtomicBool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) connections: AtomicUsize,
    /// For work on text.
    processors: Arc<Semaphore>,
    /// For constraints on answers.
    pub(crate) compiler: Arc<Compiler>,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

/// What is there once the model is.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) model: &'static Model,
    pub(crate) engine: EngineHandle,
}

/// How the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Loading,
    Serving,
    /// What runs is finished, and nothing new taken.
    Draining,
    /// The engine gives no sign of life although it has work.
    Stalled,
    /// The engine has ended.
    Dead,
}

impl App {
    pub(crate) fn new(options: Options) -> Self {
        let keys = Keys::new(&options.keys);
        Self {
            options,
            keys,
            serving: OnceLock::new(),
            is_draining: AtomicBool::new(false),
            metrics: Arc::new(Metrics::new()),
            progress: Arc::new(Progress::new()),
            connections: AtomicUsize::new(0),
            processors: Arc::new(Semaphore::new(TEXT_AT_ONCE)),
            compiler: Arc::new(Compiler::new()),
            started: now(),
        }
    }

    pub(crate) fn health(&self) -> Health {
        if self.progress.failure().is_some() {
            return Health::Dead;
        }
        if self.is_draining.load(Ordering::Acquire) {
            return Health::Draining;
        }
        if self.progress.stalled() > self.options.timeouts.progress {
            return Health::Stalled;
        }
        if self.serving.get().is_some() { Health::Serving } else { Health::Loading }
    }

    /// The model and its engine, for new work.
    pub(crate) fn take_work(&self) -> Result<&Serving, ApiError> {
        match self.health() {
            Health::Dead => Err(ApiError::engine_dead()),
            Health::Draining => {
                self.metrics.refuse("stopping");
                Err(ApiError::stopping().closing())
            }
            // It may well get on.
            Health::Loading | Health::Stalled | Health::Serving => self.serving(),
        }
    }

    /// The model, for questions about it.
    pub(crate) fn serving(&self) -> Result<&Serving, ApiError> {
        self.serving.get().ok_or_else(|| ApiError::unavailable("loading", "the model is being loaded", 2))
    }

    /// Does work on text where it holds nobody up.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let broken = |_| ApiError::internal("a fault of the server");
        let permit = self.processors.clone().acquire_owned().await.map_err(|_| ApiError::stopping())?;
        let work = move || {
            // Held until the work ends, whether somebody still waits for it or not.
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(broken)?
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
