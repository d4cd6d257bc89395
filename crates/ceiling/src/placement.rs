//! Where a model can be put on a machine: every legal placement with its memory and its ceiling, and why the others are
//! illegal.

use crate::budget::{Budget, Load};
use crate::constants::Constants;
use crate::links::{Fabric, FabricError, Params};
use crate::reduce;
use crate::step::{AllReduce, Engine, StepTime, step_time};
use serde::Serialize;
use tombolo_gguf::Gguf;
use tombolo_model::{Config, KvType, Program, Shard};
use tombolo_topology::Machine;

/// What is wanted of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences at once, where many are served.
    pub batch: usize,
    /// How caches are kept.
    pub kv: KvType,
    /// Tokens drafted in a step by the model's own drafting block, and the share of them that is right.
    pub speculation: Option<(usize, f64)>,
    /// Tokens of a prompt that prefill is told for.
    pub prompt: usize,
    /// Rows of a step of prefill.
    pub chunk: usize,
}

/// Why nothing can be said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlanError {
    #[error("the machine has no GPU")]
    NoGpu,
    #[error("memory size and bandwidth of GPU {gpu} are not known: name the card with --gpu")]
    UnknownCard { gpu: usize },
    #[error(transparent)]
    Links(#[from] FabricError),
}

/// What a GPU must hold, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Weights of the rank with most.
    pub weights: f64,
    /// Caches of one user.
    pub kv_one: f64,
    /// Caches of many.
    pub kv_many: f64,
    /// Activations, and what the driver and modules take.
    pub rest: f64,
    /// What the GPU has.
    pub capacity: f64,
    /// Longest context of one user that fits.
    pub context_max: usize,
    /// Most sequences of the wished context that fit.
    pub batch_max: usize,
}

/// One placement.
#[derive(Clone, Debug, Serialize)]
pub struct Placement {
    /// As people write it.
    pub name: String,
    /// Ranks that share a layer.
    pub tensor_parallel: usize,
    /// Whole experts on ranks, though they could be cut.
    pub experts_whole: bool,
    /// Groups of layers one after the other.
    pub pipeline: usize,
    /// Copies of the model.
    pub replicas: usize,
    /// Why tombolo cannot run it yet, where it cannot.
    pub cannot_run_yet: Option<&'static str>,
    /// Whether it fits.
    pub fits: bool,
    /// Per GPU.
    pub memory: Memory,
    /// One rank's work for one user.
    pub budget: Budget,
    /// A step for one user.
    pub one: StepTime,
    /// The all-reduce in it.
    pub all_reduce: AllReduce,
    /// Tokens a second for one user.
    pub tok_s_one: f64,
    /// The same with the all-reduce that there is a GPU kernel for, where the quickest is still to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tok_s_one_today: Option<f64>,
    /// Of the weights that are read, those that every rank reads alike: splitting does not make them fewer.
    pub replicated_bytes: f64,
    /// A step of the batch that fits, at most the wished one.
    pub many: StepTime,
    /// Sequences in it, over all copies.
    pub batch: usize,
    /// Tokens a second for all of them together.
    pub tok_s_many: f64,
    /// A prompt's time, in milliseconds; `None` where the card's arithmetic is not known.
    pub prefill_ms: Option<f64>,
}

/// A number of ranks that the model cannot be split into.
#[derive(Clone, Debug, Serialize)]
pub struct Illegal {
    /// Ranks.
    pub tensor_parallel: usize,
    /// The tensor, and the sizes that are legal.
    pub why: String,
}

/// A model as placements see it: its programs for every number of ranks, built once.
pub struct Model<'a> {
    /// Header.
    pub gguf: &'a Gguf,
    /// Shape.
    pub config: &'a Config,
    splits: Vec<Result<Split, String>>,
}

/// Programs of all ranks, and which of them reads most.
struct Split {
    programs: Vec<Program>,
    heaviest: usize,
}

impl<'a> Model<'a> {
    /// Builds the programs of all sizes.
    pub fn new(gguf: &'a Gguf, config: &'a Config) -> Self {
        let programs = |size| {
            let of = |rank| Program::build(gguf, config, Shard { rank, size });
            let programs = (0..size).map(of).collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
            let heaviest = (0..size).max_by_key(|&rank| programs[rank].weight_bytes_per_token()).unwrap_or(0);
            Ok(Split { programs, heaviest })
        };
        Self { gguf, config, splits: (1..=tombolo_model::MAX_RANKS).map(programs).collect() }
    }

    /// What one rank runs that holds everything.
    pub fn whole_program(&self) -> Option<&Program> {
        self.splits.first()?.as_ref().ok()?.programs.first()
    }
}

/// What everything is computed from.
pub struct Basis {
    /// Of links.
    pub params: Params,
    /// Of steps.
    pub constants: Constants,
}

impl Basis {
    /// The stored figures.
    pub fn stored() -> Self {
        Self { params: Params::stored(), constants: Constants::stored() }
    }
}

/// All placements, those that fit first, quickest for one user first; and the sizes that are illegal.
///
/// # Errors
/// The machine is not known well enough.
pub fn placements(
    model: &Model,
    machine: &Machine,
    wish: &Wish,
    basis: &Basis,
) -> Result<(Vec<Placement>, Vec<Illegal>), PlanError> {
    if machine.is_empty() {
        return Err(PlanError::NoGpu);
    }
    let (mut found, mut illegal) = (Vec::new(), Vec::new());
    for (size, split) in (1..=machine.len()).zip(&model.splits) {
        match split {
            Err(why) => illegal.push(Illegal { tensor_parallel: size, why: why.clone() }),
            Ok(Split { programs, heaviest }) => {
                let at = At { model, machine, wish, basis, programs, heaviest: *heaviest };
                found.push(at.placement(false, 1)?);
                if model.config.experts.is_some() && size > 1 && !at.experts_are_whole() {
                    found.push(at.placement(true, 1)?);
                }
                let pipeline = machine.len() / size;
                if pipeline > 1 {
                    found.push(at.placement(false, pipeline)?);
                }
            }
        }
    }
    let rank = |p: &Placement| (!p.fits, p.cannot_run_yet.is_some());
    found.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.tok_s_one.total_cmp(&a.tok_s_one)));
    // What does not fit, by what it lacks.
    let lacks = |p: &Placement| p.memory.weights + p.memory.kv_one + p.memory.rest - p.memory.capacity;
    let fitting = found.iter().filter(|p| p.fits).count();
    found[fitting..].sort_by(|a, b| lacks(a).total_cmp(&lacks(b)));
    Ok((found, illegal))
}

/// Of a card's nominal memory, what the driver shows.
const NOMINAL: f64 = 0.995;

struct At<'a> {
    model: &'a Model<'a>,
    machine: &'a Machine,
    wish: &'a Wish,
    basis: &'a Basis,
    programs: &'a [Program],
    heaviest: usize,
}

impl At<'_> {
    fn size(&self) -> usize {
        self.programs.len()
    }

    fn experts_are_whole(&self) -> bool {
        let held = |p: &Program| p.weights.iter().filter(|w| w.tensor.contains("_exps")).map(|w| w.count).min();
        held(&self.programs[0]).zip(self.model.config.experts).is_some_and(|(held, e)| held < e.count)
    }

    fn placement(&self, experts_whole: bool, pipeline: usize) -> Result<Placement, PlanError> {
        let size = self.size();
        let replicas = (self.machine.len() / (size * pipeline)).max(1);
        let gpus = chosen(self.machine, size);
        let fabric = Fabric::of(self.machine, &gpus)?;
        let memory = self.memory(&gpus, pipeline)?;
        let (one_load, drafts) = self.load(1, experts_whole);
        let (one, budget, all_reduce) = self.step(&gpus, &fabric, &one_load, pipeline)?;
        let batch = self.wish.batch.div_ceil(replicas).min(memory.batch_max.max(1));
        let (many_load, _) = self.load(batch, experts_whole);
        let (many, _, _) = self.step(&gpus, &fabric, &many_load, pipeline)?;
        let drafting = drafts.map_or(0.0, |d| self.drafting_ms(&one, d.0));
        let tokens = drafts.map_or(1.0, |(count, right)| tokens_a_step(count, right));
        let fits = memory.weights + memory.kv_one + memory.rest <= memory.capacity;
        let cannot_run_yet = match (pipeline > 1, experts_whole, drafts.is_some()) {
            (true, ..) => Some("pipeline parallel cannot run yet"),
            (_, true, _) => Some("whole experts cannot be asked for yet where they can be cut"),
            (.., true) => Some("speculation cannot run on GPUs yet"),
            _ => None,
        };
        let slower_ms = all_reduce.today_us.map(|us| (us - all_reduce.us) * budget.all_reduces as f64 / 1e3);
        let uncut = !experts_whole && self.model.config.experts.is_some() && size > 1 && self.experts_are_whole();
        Ok(Placement {
            name: name(size, experts_whole, uncut, pipeline, replicas),
            tok_s_one_today: slower_ms.map(|slower| tokens * 1e3 / (one.ms + drafting + slower)),
            replicated_bytes: self.replicated(&budget, &one_load),
            tensor_parallel: size,
            experts_whole,
            pipeline,
            replicas,
            cannot_run_yet,
            fits,
            budget,
            all_reduce,
            tok_s_one: tokens * 1e3 / (one.ms + drafting),
            tok_s_many: tokens * (batch * replicas) as f64 * 1e3 / (many.ms + drafting),
            batch: batch * replicas,
            prefill_ms: self.prefill(&gpus, &fabric, experts_whole, pipeline)?,
            one,
            many,
            memory,
        })
    }

    fn load(&self, sequences: usize, experts_whole: bool) -> (Load, Option<(usize, f64)>) {
        let drafts = self.wish.speculation.filter(|_| self.model.config.draft_layers > 0);
        let rows_each = 1 + drafts.map_or(0, |(count, _)| count);
        let Wish { context, kv, .. } = *self.wish;
        (Load { sequences, rows_each, context, kv, experts_whole }, drafts)
    }

    /// The step of the rank with most to do.
    fn step(
        &self,
        gpus: &[usize],
        fabric: &Fabric,
        load: &Load,
        pipeline: usize,
    ) -> Result<(StepTime, Budget, AllReduce), PlanError> {
        let mut slowest: Option<(StepTime, Budget, AllReduce)> = None;
        let mut reduces: Option<AllReduce> = None;
        let cards: Vec<f64> = gpus.iter().map(|&gpu| Ok(self.card(gpu)?.1)).collect::<Result<_, PlanError>>()?;
        let alike = cards.windows(2).all(|w| w[0] == w[1]);
        for (rank, (program, &gpu)) in self.programs.iter().zip(gpus).enumerate() {
            // Of equal cards the one with most to read is the slowest.
            if alike && rank != self.heaviest {
                continue;
            }
            let gb_s = cards[rank];
            let budget = Budget::of(program, load);
            let reduce = reduces
                .get_or_insert_with(|| reduce::best(fabric, budget.all_reduce_bytes, &self.basis.params))
                .clone();
            let peak = (load.rows_each > 8).then(|| tflops(self.machine, gpu)).flatten();
            let mut time = step_time(&budget, load, gb_s, peak, &reduce, Engine::Ceiling, &self.basis.constants);
            if pipeline > 1 {
                // The residual stream crosses to the next group of GPUs.
                let hop = (pipeline - 1) as f64 * 5.0 / 1e3;
                time.ms += hop;
            }
            if slowest.as_ref().is_none_or(|(found, ..)| found.ms < time.ms) {
                slowest = Some((time, budget, reduce));
            }
        }
        slowest.ok_or(PlanError::NoGpu)
    }

    /// From what one rank reads that has everything, and what each of several reads.
    fn replicated(&self, budget: &Budget, load: &Load) -> f64 {
        let Some(whole) = self.model.whole_program().filter(|_| self.size() > 1) else { return 0.0 };
        let (all, ranks) = (Budget::of(whole, load).weight_bytes, self.size() as f64);
        ((ranks * budget.weight_bytes - all) / (ranks - 1.0)).clamp(0.0, budget.weight_bytes)
    }

    /// What drafting costs: of the model's layers one, its head and its collectives for every draft.
    fn drafting_ms(&self, step: &StepTime, drafts: usize) -> f64 {
        drafts as f64 * step.ms * 1.5 / self.model.config.layers() as f64
    }

    fn card(&self, gpu: usize) -> Result<(f64, f64), PlanError> {
        let found = self.machine.gpus.get(gpu).and_then(|g| Some((g.memory_bytes? as f64, g.memory_gb_s?)));
        found.ok_or(PlanError::UnknownCard { gpu })
    }

    fn memory(&self, gpus: &[usize], pipeline: usize) -> Result<Memory, PlanError> {
        let most = |f: &dyn Fn(&Program) -> f64| self.programs.iter().map(f).fold(0.0, f64::max);
        let share = 1.0 / pipeline as f64;
        let weights = most(&|p| p.weight_bytes() as f64) * share;
        let kv = self.wish.kv;
        let kept = |p: &Program, context: usize| -> f64 {
            let group = |g: &tombolo_model::KvGroup| {
                let seen = g.window.map_or(context, |w| w.min(context));
                (g.layers * kv.bytes(g.values_per_token()) * seen) as f64
            };
            p.groups.iter().map(group).sum()
        };
        let kv_one = most(&|p| kept(p, self.wish.context)) * share;
        let activations = most(&|p| {
            let rows = self.wish.chunk.max(self.wish.batch);
            p.buffers.iter().map(|b| 4.0 * (b.width * rows) as f64).sum()
        });
        let rest = activations + self.basis.constants.reserve_gib.value * f64::from(1 << 30);
        let mut capacity = f64::INFINITY;
        for &gpu in gpus {
            let bytes = self.card(gpu)?.0;
            // A round figure is the maker's: of 96 GiB the driver shows 95.6, of 32 GiB 31.8.
            let shown = if bytes % f64::from(1 << 30) == 0.0 { bytes * NOMINAL } else { bytes };
            capacity = capacity.min(shown);
        }
        let free = (capacity - weights - rest).max(0.0);
        let per_token = most(&|p| kept(p, 1)) * share;
        let batch_max = if kv_one > 0.0 { (free / kv_one) as usize } else { usize::MAX };
        // Windows make the first tokens dear and the rest cheap: the context is found with all of them dear.
        let context_max = (free / per_token.max(1.0)) as usize;
        let context_max = context_max.min(self.model.config.context);
        let kv_many = kv_one * batch_max.min(self.wish.batch) as f64;
        Ok(Memory { weights, kv_one, kv_many, rest, capacity, context_max, batch_max })
    }

    fn prefill(&self, gpus: &[usize], fabric: &Fabric, whole: bool, pipeline: usize) -> Result<Option<f64>, PlanError> {
        let Wish { prompt, chunk, kv, .. } = *self.wish;
        if tflops(self.machine, gpus[0]).is_none() || prompt == 0 {
            return Ok(None);
        }
        let mut ms = 0.0;
        let mut done = 0;
        while done < prompt {
            let rows = chunk.max(1).min(prompt - done);
            let load = Load { sequences: 1, rows_each: rows, context: done + rows, kv, experts_whole: whole };
            ms += self.step(gpus, fabric, &load, pipeline)?.0.ms;
            done += rows;
            // Chunks differ little; a long prompt is the first ones and the rest in proportion.
            if done >= 8 * chunk && done < prompt {
                ms *= prompt as f64 / done as f64;
                break;
            }
        }
        Ok(Some(ms))
    }
}

/// Tokens of a step that checks `count` drafts of which each is right with probability `right` if all before it were:
/// `(1 − r^(count + 1)) / (1 − r)` (Leviathan et al. 2023).
pub fn tokens_a_step(count: usize, right: f64) -> f64 {
    (0..=count).map(|n| right.powi(n as i32)).sum()
}

/// GPUs for a group of ranks: those of one island first.
pub fn chosen(machine: &Machine, size: usize) -> Vec<usize> {
    let islands = machine.islands().unwrap_or_else(|| vec![(0..machine.len()).collect()]);
    let home = islands.iter().filter(|i| i.len() >= size).min_by_key(|i| i.len());
    match home {
        Some(island) => island[..size].to_vec(),
        None => islands.concat().into_iter().take(size).collect(),
    }
}

/// `uncut`: experts stay whole because they cannot be cut into so many.
fn name(size: usize, experts_whole: bool, uncut: bool, pipeline: usize, replicas: usize) -> String {
    let mut name = format!("TP {size}");
    if experts_whole || uncut {
        name += &format!(" + EP {size}");
    }
    if pipeline > 1 {
        name += &format!(" x PP {pipeline}");
    }
    if replicas > 1 {
        name += &format!(", {replicas} replicas");
    }
    name
}

/// Peak of dense 16-bit matrix products with f32 sums, in TFLOP/s, from the makers' data sheets (half of figures "with
/// sparsity"); `None`: not known.
pub fn tflops(machine: &Machine, gpu: usize) -> Option<f64> {
    let name = machine.gpus.get(gpu)?.name.as_deref()?.to_uppercase();
    let table = [
        ("H200", 989.0),
        ("H100 PCIE", 756.0),
        ("H100", 989.0),
        ("A100", 312.0),
        ("A800", 312.0),
        ("RTX PRO 6000", 503.0),
        ("RTX 6000 ADA", 364.0),
        ("L40S", 362.0),
        ("RTX 5090", 209.5),
        ("RTX 4090", 165.2),
        ("RTX 3090", 71.0),
        ("V100", 125.0),
    ];
    table.iter().find(|(card, _)| name.contains(card)).map(|&(_, tflops)| tflops)
}
