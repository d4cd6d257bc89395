//! From a file's name to an engine that runs: what every command that computes does first.

use crate::args::{DeviceArgs, Source, SplitArgs};
use crate::backend::{self, Choice, Place};
use crate::demo;
use crate::error::{Error, failure, input};
use crate::limits::{NAME_CHARS_MAX, WARNINGS_MAX};
use crate::memory::{self, Needs};
use crate::output;
use crate::progress::PATIENCE;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tombolo_engine::{Drafts, Engine, Runner, Settings, Shape};
use tombolo_gguf::{Fault, Gguf};
use tombolo_model::{BLOCK_TOKENS, Backend, Capacity, Config, Program, Shard, dummy};

/// Rows of a step: what prefill runs at once.
pub(crate) const ROWS: usize = 512;
/// Context where none is asked for, if the model has as much.
const DEFAULT_CONTEXT: usize = 4096;
/// Between two pictures of what shows that they go on.
const TICK: Duration = Duration::from_millis(100);

/// A model that is loaded, and what drives it.
pub(crate) struct Loaded<E> {
    pub(crate) gguf: Arc<Gguf>,
    pub(crate) config: Config,
    pub(crate) capacity: Capacity,
    pub(crate) engine: E,
    pub(crate) choice: Choice,
    /// One line per rank: its device.
    pub(crate) devices: Vec<String>,
    pub(crate) seconds: f64,
}

/// What nothing drives yet: the ranks, in order.
pub(crate) struct Ranks {
    backends: Vec<Box<dyn Backend>>,
    shape: Shape,
}

/// Opens and checks a model.
pub(crate) fn open(source: &Source) -> Result<Arc<Gguf>, Error> {
    use std::io::ErrorKind::OutOfMemory;
    let opened = match source {
        Source::Demo => {
            output::say(demo::INTRODUCTION);
            demo::open()
        }
        Source::Dummy(name) => return open_dummy(name),
        Source::File(path) => Gguf::open(path),
    };
    let gguf = opened.map_err(|error| match &error.fault {
        // The file is right, and the machine too small.
        Fault::Io { source, .. } if source.kind() == OutOfMemory => failure(error),
        _ => input(error),
    })?;
    for warning in gguf.warnings().iter().take(WARNINGS_MAX) {
        output::say_safely(&format!("warning: {warning}"));
    }
    if let Some(more) = gguf.warnings().len().checked_sub(WARNINGS_MAX).filter(|&n| n > 0) {
        output::say(&format!("warning: {more} more of the kind"));
    }
    Ok(Arc::new(gguf))
}

/// A model with random weights, which are made when they are asked for.
fn open_dummy(name: &str) -> Result<Arc<Gguf>, Error> {
    let preset = dummy::preset(name).ok_or_else(|| {
        let known: Vec<String> = dummy::PRESETS.iter().map(|p| format!("dummy:{}", p.name)).collect();
        input(format!("dummy:{}: there is none of that name; there are {}", output::one_line(name), known.join(", ")))
    })?;
    preset.blueprint().open(dummy::SEED).map(Arc::new).map_err(failure)
}

/// Reads a model's shape, without what drafts tokens.
pub(crate) fn config(gguf: &Gguf, dense_attention: bool) -> Result<Config, Error> {
    Ok(drafting_config(gguf, dense_attention)?.without_draft())
}

/// Reads a model's shape, with what drafts tokens where the file has it.
pub(crate) fn drafting_config(gguf: &Gguf, dense_attention: bool) -> Result<Config, Error> {
    let mut config = Config::from_gguf(gguf).map_err(|e| at_file(gguf, &e))?;
    if dense_attention && !config.force_dense_attention() {
        output::say("--dense-attention changes nothing: this model has no indexer");
    }
    Ok(config)
}

/// An error about what is in a file, with the file's name.
pub(crate) fn at_file(gguf: &Gguf, error: &dyn std::fmt::Display) -> Error {
    match gguf.path() {
        Some(path) => input(format!("{}: {error}", path.display())),
        None => input(error),
    }
}

/// Tokens that a context holds; 0 asks for as many as the model was trained for.
pub(crate) fn context(asked: Option<usize>, config: &Config) -> Result<usize, Error> {
    match asked {
        None => Ok(config.context.min(DEFAULT_CONTEXT)),
        Some(0) => Ok(config.context),
        Some(size) if size <= config.context => Ok(size),
        Some(size) => Err(input(format!("-c {size}: the model was trained for {} tokens at most", config.context))),
    }
}

/// Room for one sequence of `context` tokens, prefilled `rows` at a time, with as many rows of logits as `logits_rows`.
pub(crate) fn capacity(rows: usize, logits_rows: usize, context: usize) -> Capacity {
    Capacity { rows, sequences: logits_rows, logits: logits_rows, context, blocks: context.div_ceil(BLOCK_TOKENS) }
}

/// Where a model that was opened will run, and its shape there. Loads nothing: what cannot be is refused here.
pub(crate) fn plan(
    gguf: &Gguf,
    config: &Config,
    device: &DeviceArgs,
    split: &SplitArgs,
) -> Result<(Choice, Shape), Error> {
    let choice = backend::choose(&device.device, split.tensor_parallel_size, split.threads)?;
    choice.place.check_transport(device.transport)?;
    choice.place.check_kv(device)?;
    let shape = shape(gguf, config, choice.ranks)?;
    Ok((choice, shape))
}

/// Loads a model that was opened.
pub(crate) fn load(
    gguf: &Arc<Gguf>,
    config: &Config,
    device: &DeviceArgs,
    split: &SplitArgs,
    capacity: Capacity,
) -> Result<Loaded<Ranks>, Error> {
    let (choice, shape) = plan(gguf, config, device, split)?;
    if matches!(choice.place, Place::Cpu { .. }) {
        needs(gguf, config, device, choice.ranks, capacity)?.check(memory::available())?;
    }
    let started = Instant::now();
    let name = name(config);
    let size = output::bytes(gguf.file_bytes());
    let backends = showing_patience(&format!("loading {name}, {size}"), || {
        choice.place.load(gguf.clone(), config, choice.ranks, capacity, device)
    })?;
    gguf.check_unchanged().map_err(input)?;
    let devices = backends.iter().map(|b| b.describe()).collect();
    let seconds = started.elapsed().as_secs_f64();
    let engine = Ranks { backends, shape };
    Ok(Loaded { gguf: gguf.clone(), config: config.clone(), capacity, engine, choice, devices, seconds })
}

/// What a model takes of the processor's memory.
pub(crate) fn needs(
    gguf: &Gguf,
    config: &Config,
    device: &DeviceArgs,
    ranks: usize,
    capacity: Capacity,
) -> Result<Needs, Error> {
    let programs = programs(gguf, config, ranks)?;
    let arith = tombolo_model::Arith::from(device.arith);
    let kv = device.kv_cache_dtype.kind().unwrap_or(arith.kv_type());
    Ok(Needs::of(gguf, &programs, capacity, arith, kv))
}

/// A model's name, fit for a line.
pub(crate) fn name(config: &Config) -> String {
    output::shortened(&output::one_line(&config.name), NAME_CHARS_MAX)
}

/// Builds every rank's program before anything is loaded: an illegal split is refused here.
fn shape(gguf: &Gguf, config: &Config, size: usize) -> Result<Shape, Error> {
    let programs = programs(gguf, config, size)?;
    let groups = programs.last().map_or(0, |p| p.groups.len());
    Ok(Shape { vocabulary: config.vocabulary, groups })
}

fn programs(gguf: &Gguf, config: &Config, size: usize) -> Result<Vec<Program>, Error> {
    let of = |rank| Program::build(gguf, config, Shard { rank, size }).map_err(|e| at_file(gguf, &e));
    (0..size).map(of).collect()
}

impl Loaded<Ranks> {
    /// Driven step by step, for measurements and comparisons.
    pub(crate) fn by_hand(self) -> Loaded<Engine> {
        let capacity = self.capacity;
        self.driven(|ranks| Engine::new(ranks.backends, ranks.shape, capacity))
    }

    /// Driven by the scheduler. `max_itl_factor`: of [`Settings`].
    pub(crate) fn scheduled(
        self,
        waiting_max: usize,
        prefix_cache: bool,
        drafts: Drafts,
        max_itl_factor: Option<f32>,
    ) -> Loaded<Runner> {
        let capacity = self.capacity;
        self.driven(|Ranks { backends, shape: Shape { vocabulary, groups } }| {
            let settings = Settings { capacity, vocabulary, groups, waiting_max, prefix_cache, drafts, max_itl_factor };
            Runner::new(backends, settings)
        })
    }

    fn driven<E>(self, by: impl FnOnce(Ranks) -> E) -> Loaded<E> {
        let Loaded { gguf, config, capacity, engine, choice, devices, seconds } = self;
        Loaded { gguf, config, capacity, engine: by(engine), choice, devices, seconds }
    }
}

impl<E> Loaded<E> {
    /// The line that says what was loaded, where, and with what in force.
    pub(crate) fn print_summary(&self) {
        if let Some(remark) = &self.choice.remark {
            output::say_safely(remark);
        }
        let first = self.devices.first().map_or("", |d| d);
        output::say(&format!(
            "loaded {} ({}, {}) in {:.1} s, context {}; {}",
            name(&self.config),
            self.config.architecture,
            output::bytes(self.gguf.file_bytes()),
            self.seconds,
            self.capacity.context,
            output::one_line(first),
        ));
    }
}

/// Runs `work` while a line on the terminal says that it goes on, if it takes long and somebody looks.
fn showing_patience<T>(message: &str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let show = move || {
            if !crate::log::is_json() && ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Draws nothing where standard error is no terminal.
                let bar = indicatif::ProgressBar::new_spinner().with_message(message.to_string());
                while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    bar.tick();
                }
                bar.finish_and_clear();
            }
        };
        // Without a thread for it, nothing is shown.
        let _ = std::thread::Builder::new().spawn_scoped(scope, show);
        let result = work();
        drop(done);
        result
    })
}
