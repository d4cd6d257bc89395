//! One rank: loading it, and the queue of steps in front of it.

use crate::kernels::{Kernels, QUANT};
use crate::kv::Cache;
use crate::linear::Quantized;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::stages::{Stage, stages};
use crate::weights::{self, Held};
use crate::{LoadError, Options, experts, select};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tombolo_collective::ThreadRank;
use tombolo_gguf::Gguf;
use tombolo_model::{
    Arith, BLOCK_TOKENS, Backend, BackendError, Before, Capacity, Config, KvType, Pass, Program, Rows, Shard, Step,
    StepError, StepOutput, Values,
};

/// Most steps that wait to be collected.
const QUEUE_MAX: usize = 8;

/// A rank on the processor.
pub(crate) struct CpuBackend {
    pub(crate) program: Program,
    pub(crate) stages: Vec<Stage>,
    /// Of the pass that drafts tokens.
    pub(crate) draft: Vec<Stage>,
    pub(crate) held: Vec<Held>,
    pub(crate) kv: Vec<Cache>,
    /// Activations, in the order of the program's buffers.
    pub(crate) buffers: Vec<Memory<f32>>,
    pub(crate) kernels: &'static Kernels,
    pub(crate) pool: Pool,
    pub(crate) comm: ThreadRank,
    pub(crate) scratch: Scratch,
    /// Tokens that the last step drew.
    pub(crate) last_tokens: Vec<u32>,
    arith: Arith,
    kv_type: KvType,
    capacity: Capacity,
    queue: VecDeque<Arc<Step>>,
    /// What the last submitted step will leave.
    before: Before,
    /// What ended this rank.
    broken: Option<String>,
}

/// Room that is used anew in every operation.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) quantized: Quantized,
    /// Of an all-reduce.
    pub(crate) sum: Vec<f32>,
    pub(crate) experts: experts::Scratch,
    pub(crate) select: select::Scratch,
    /// Per rotation, `[rows, pairs]` of cosine and sine.
    pub(crate) turns: Vec<Vec<[f32; 2]>>,
}

impl CpuBackend {
    /// Loads one rank.
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        config: &Config,
        comm: ThreadRank,
        capacity: Capacity,
        options: &Options,
        kernels: &'static Kernels,
    ) -> Result<Self, LoadError> {
        let shard = Shard { rank: comm.rank(), size: comm.size() };
        let program = Program::build(gguf, config, shard)?;
        let (_, threads) = shard.part(options.threads);
        let threads = threads.max(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let in_all = options.threads.max(shard.size);
        let mut pool =
            Pool::new(&format!("cpu.{}", shard.rank), threads, in_all <= cores).map_err(LoadError::Thread)?;
        let held = weights::load(gguf, &program, options.arith, &mut pool)?;
        let kind = options.kv_type();
        let kv = program.groups.iter().map(|group| {
            let latent = if let Values::OfKey(latent) = group.values { latent } else { 0 };
            if kind == KvType::Q8_0 && !(group.head_dim.is_multiple_of(QUANT) && latent.is_multiple_of(QUANT)) {
                return Err(LoadError::KvType { kind, head_dim: group.head_dim });
            }
            let block_bytes = kind.bytes(group.layers * group.values_per_token() * BLOCK_TOKENS);
            let mib = block_bytes.saturating_mul(capacity.blocks) >> 20;
            let no_room = |source| LoadError::Memory { what: format!("KV group '{}'", group.name), mib, source };
            Cache::new(group, capacity.blocks, kind).map_err(no_room)
        });
        let kv = kv.collect::<Result<_, _>>()?;
        let buffers = program.buffers.iter().map(|buffer| {
            let rows = match buffer.rows {
                Rows::Batch => capacity.rows,
                Rows::Logits => capacity.logits,
            };
            let len = rows * buffer.width;
            let no_room =
                |source| LoadError::Memory { what: format!("buffer '{}'", buffer.name), mib: len >> 18, source };
            Memory::zeroed(len).map_err(no_room)
        });
        let buffers = buffers.collect::<Result<_, _>>()?;
        Ok(Self {
            stages: stages(&program, &program.ops),
            draft: stages(&program, &program.draft),
            program,
            held,
            kv,
            buffers,
            kernels,
            pool,
            comm,
            scratch: Scratch::default(),
            last_tokens: Vec::new(),
            arith: options.arith,
            kv_type: kind,
            capacity,
            queue: VecDeque::new(),
            before: Before::default(),
            broken: None,
        })
    }

    pub(crate) fn device_error(&self, message: impl Into<String>) -> BackendError {
        BackendError::Device { device: format!("CPU rank {}", self.program.shard.rank), message: message.into() }
    }

    /// Runs a step; a panic in it is an error like any other.
    fn guarded(&mut self, step: &Step) -> Result<StepOutput, BackendError> {
        let result = catch_unwind(AssertUnwindSafe(|| self.run(step)));
        result.unwrap_or_else(|payload| Err(self.device_error(crate::pool::message(&*payload))))
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        let Shard { rank, size } = self.program.shard;
        let tiles: usize =
            self.held.iter().flat_map(Held::matrices).filter_map(|h| h.tiles.as_ref()).map(|t| t.bytes()).sum();
        let copies: usize =
            self.held.iter().flat_map(Held::matrices).filter_map(|h| h.rows.as_ref()).map(|r| r.copied_bytes()).sum();
        let arith = match self.arith {
            Arith::F32 => "f32 arithmetic",
            Arith::Production => "8-bit activations",
        };
        format!(
            "CPU rank {rank} of {size}: {} threads, {} kernels, {arith}, KV in {}; {} MiB of weights repacked, \
             {} MiB copied, the rest read from the file",
            self.pool.threads(),
            self.kernels.tier.name(),
            self.kv_type.name(),
            tiles >> 20,
            copies >> 20,
        )
    }

    fn submit(&mut self, step: Arc<Step>) -> Result<(), BackendError> {
        if let Some(why) = &self.broken {
            return Err(self.device_error(format!("stopped after an earlier error: {why}")));
        }
        if self.queue.len() == QUEUE_MAX {
            return Err(self.device_error(format!("{QUEUE_MAX} steps wait to be collected already")));
        }
        step.check(&self.capacity, self.program.groups.len(), self.program.vocabulary, self.before)?;
        if step.pass != Pass::Trunk && self.draft.is_empty() {
            return Err(StepError::NoDraft.into());
        }
        self.before = step.left();
        self.queue.push_back(step);
        Ok(())
    }

    /// Runs the oldest step: the thread that calls is one of the rank's own.
    fn collect(&mut self) -> Result<StepOutput, BackendError> {
        if let Some(why) = &self.broken {
            return Err(self.device_error(format!("stopped after an earlier error: {why}")));
        }
        let step = self.queue.pop_front().ok_or_else(|| self.device_error("no step was submitted"))?;
        let result = self.guarded(&step);
        match &result {
            Ok(output) => self.last_tokens.clone_from(&output.tokens),
            Err(error) => {
                self.broken = Some(error.to_string());
                // The other ranks learn at once that this one will not come.
                self.comm.leave();
            }
        }
        result
    }
}
