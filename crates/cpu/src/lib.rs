//! The backend for processors: runs a program on threads, with SIMD kernels chosen at run time.
//!
//! [`load`] gives one [`Backend`] per tensor-parallel rank; ranks are threads that meet in shared memory. Results do
//! not depend on the batch a row ran in, on the number of threads, or on the processor's tier: every output has one
//! order of summation. They do depend on the number of ranks, which cut sums in parts.
//!
//! No file parsing, no scheduling and no other device lives here.

mod attention;
mod backend;
mod experts;
mod grid;
mod heads;
mod kernels;
mod kv;
mod latent;
mod linear;
mod memory;
mod pack;
mod pool;
mod route;
mod row_cache;
mod run;
mod run_latent;
mod sample;
mod select;
mod stages;
mod store;
#[cfg(test)]
mod tests;
mod weights;

pub use kernels::Tier;

use std::sync::Arc;
use std::time::Duration;
use tombolo_collective::ThreadGroup;
use tombolo_gguf::{Gguf, quant::QuantError};
use tombolo_model::{Arith, Backend, Capacity, Config, KvType, ModelError, Program, Shard};

/// How to run on the processor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads in all, shared out over the ranks; each rank has at least one.
    pub threads: usize,
    /// How numbers are kept and multiplied.
    pub arith: Arith,
    /// How keys and values are kept; `None`: as [`Arith::kv_type`] says.
    pub kv: Option<KvType>,
    /// How long a rank waits for another before it gives up.
    pub deadline: Duration,
}

impl Options {
    fn kv_type(&self) -> KvType {
        self.kv.unwrap_or(self.arith.kv_type())
    }
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, arith: Arith::Production, kv: None, deadline: Duration::from_secs(60) }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Weights(#[from] QuantError),
    #[error("no memory for {what}: {mib} MiB wanted ({source})")]
    Memory { what: String, mib: usize, source: std::io::Error },
    #[error("keys and values of {head_dim} per head cannot be kept in {}: it takes multiples of 32", kind.name())]
    KvType { kind: KvType, head_dim: usize },
    #[error("the system gives no more threads: {0}")]
    Thread(std::io::Error),
    #[error("this processor cannot run {} kernels; it can run {available}", tier.name())]
    Tier { tier: Tier, available: String },
    #[error("loading stopped: {message}")]
    Panicked { message: String },
}

impl From<pool::Panicked> for LoadError {
    fn from(panicked: pool::Panicked) -> Self {
        Self::Panicked { message: panicked.0 }
    }
}

/// Loads `tp` ranks, in rank order, each with `capacity`.
///
/// # Errors
/// A model that cannot run, or not on so many ranks; not enough memory or threads.
pub fn load(
    gguf: Arc<Gguf>,
    config: &Config,
    tp: usize,
    capacity: Capacity,
    options: &Options,
) -> Result<Vec<Box<dyn Backend>>, LoadError> {
    load_with(gguf, config, tp, capacity, options, Tier::best())
}

/// As [`load`], with the kernels of a tier of one's own choice.
///
/// # Errors
/// As [`load`]; a tier that this processor does not have.
pub fn load_with(
    gguf: Arc<Gguf>,
    config: &Config,
    tp: usize,
    capacity: Capacity,
    options: &Options,
    tier: Tier,
) -> Result<Vec<Box<dyn Backend>>, LoadError> {
    // Builds rank 0 first: a size that is not legal is refused before anything is made for it.
    Program::build(&gguf, config, Shard { rank: 0, size: tp })?;
    let kernels = kernels::Kernels::of(tier).ok_or_else(|| {
        let names: Vec<_> = Tier::available().iter().map(|t| t.name()).collect();
        LoadError::Tier { tier, available: names.join(", ") }
    })?;
    let ranks = ThreadGroup::new(tp, options.deadline);
    let loaded = std::thread::scope(|scope| {
        let gguf = &gguf;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let load = move || backend::CpuBackend::load(gguf, config, comm, capacity, options, kernels);
                std::thread::Builder::new().spawn_scoped(scope, load)
            })
            .collect();
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| {
            let thread = thread.map_err(LoadError::Thread)?;
            thread.join().unwrap_or_else(|_| Err(LoadError::Panicked { message: "a rank panicked".into() }))
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    loaded.into_iter().map(|rank| rank.map(|rank| Box::new(rank) as Box<dyn Backend>)).collect()
}
