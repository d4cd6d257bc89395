//! Loading: from a file and options to one [`Backend`] per rank. Ranks load in threads of their own; nothing is allocated
//! after this.

use crate::collective::{self, Collective, Settings, Transport};
use crate::driver::{Arena, Device, Kernels, Pinned, Stream};
use crate::error::{LoadError, device_name};
use crate::fuse::{Epilogue, Level, Node, fuse, unsupported};
use crate::kernels::{attention, linear, sample};
use crate::plan::Plan;
use crate::rank::{Nodes, Parts, Rank};
use crate::run::wire;
use crate::sampled::Sampled;
use crate::upload::upload;
use std::sync::Arc;
use std::time::Duration;
use tombolo_collective::{ThreadGroup, ThreadRank};
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, Backend, Capacity, Config, Op, Program, Shard};

/// How to load.
#[derive(Clone, Debug)]
pub struct Options {
    /// One device per rank, by the driver's numbers. A device may repeat: ranks then share it, for tests.
    pub devices: Vec<usize>,
    /// How numbers are kept and multiplied.
    pub arith: Arith,
    /// Which memory the ranks talk through.
    pub transport: Transport,
    /// The longest that a rank waits for another.
    pub deadline: Duration,
    /// What a row gives does not depend on the rows beside it, bit for bit. Slower: no kernels for few rows, no graphs.
    pub batch_invariant: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            devices: vec![0],
            arith: Arith::Production,
            transport: Transport::Auto,
            deadline: Duration::from_secs(20),
            batch_invariant: false,
        }
    }
}

/// A rank whose weights are on its device.
struct Loaded {
    stream: Stream,
    inputs: [Pinned; 2],
    outputs: [Pinned; 2],
    arena: Arena,
    kernels: Kernels,
    device: Arc<Device>,
    program: Program,
    plan: Plan,
    nodes: Nodes,
}

/// Loads `tp` ranks of a model.
///
/// # Errors
/// No GPU, a model that does not fit or cannot be split so, or the driver's.
pub fn load(
    gguf: Arc<Gguf>,
    config: &Config,
    tp: usize,
    capacity: Capacity,
    options: &Options,
) -> Result<Vec<Box<dyn Backend>>, LoadError> {
    load_as(gguf, config, tp, capacity, options, true)
}

/// As [`load`], but nothing is recorded: every step is launched node by node. For tests that hold the two together.
///
/// # Errors
/// As [`load`].
pub fn load_eager(
    gguf: Arc<Gguf>,
    config: &Config,
    tp: usize,
    capacity: Capacity,
    options: &Options,
) -> Result<Vec<Box<dyn Backend>>, LoadError> {
    load_as(gguf, config, tp, capacity, options, false)
}

fn load_as(
    gguf: Arc<Gguf>,
    config: &Config,
    tp: usize,
    capacity: Capacity,
    options: &Options,
    graphs: bool,
) -> Result<Vec<Box<dyn Backend>>, LoadError> {
    if options.devices.len() != tp {
        return Err(LoadError::Devices { tp, named: options.devices.len() });
    }
    // The model's own faults first: they do not depend on the machine.
    let programs: Vec<Program> =
        (0..tp).map(|rank| Program::build(&gguf, config, Shard { rank, size: tp })).collect::<Result<_, _>>()?;
    if let Some(what) = programs.first().and_then(unsupported) {
        let what = format!("the GPU backend cannot run {what} yet; --device cpu runs the model on the processor");
        return Err(LoadError::Unsupported { what });
    }
    Kernels::check_built()?;
    let devices: Vec<Arc<Device>> = options.devices.iter().map(|&d| Device::open(d)).collect::<Result<_, _>>()?;
    let threads = (std::thread::available_parallelism().map_or(1, usize::from) / tp).clamp(1, 8);

    let loaded = in_threads(programs.into_iter().zip(&devices).collect(), |(program, device)| {
        load_rank(&gguf, program, device, &capacity, options, threads)
    })?;
    let (ranks, remark) = connect(&loaded, options)?;
    let groups: Vec<Option<ThreadRank>> = match tp {
        1 => vec![None],
        _ => ThreadGroup::new(tp, options.deadline).into_iter().map(Some).collect(),
    };
    let shared = |device: &Device| options.devices.iter().filter(|&&d| d == device.ordinal()).count() > 1;
    let parts: Vec<Parts> = loaded
        .into_iter()
        .zip(ranks)
        .zip(groups)
        .map(|((l, collective), group)| {
            let shared_device = shared(&l.device);
            l.stream.set_overlap(!shared_device);
            l.into_parts(collective, group, capacity, options, shared_device, remark.clone())
        })
        .collect();
    in_threads(parts, |parts| Rank::new(parts, graphs))
        .map(|ranks| ranks.into_iter().map(|r| Box::new(r) as Box<dyn Backend>).collect())
}

/// Runs `f` for every item in a thread of its own.
fn in_threads<T: Send, U: Send>(
    items: Vec<T>,
    f: impl Fn(T) -> Result<U, LoadError> + Sync,
) -> Result<Vec<U>, LoadError> {
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || f(item))).collect();
        let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        results.into_iter().enumerate().map(|(rank, r)| r.map_err(|_| LoadError::RankDied { rank })?).collect()
    })
}

fn load_rank(
    gguf: &Gguf,
    program: Program,
    device: &Arc<Device>,
    capacity: &Capacity,
    options: &Options,
    threads: usize,
) -> Result<Loaded, LoadError> {
    device.make_current()?;
    check_shapes(&program)?;
    let nodes = Nodes {
        few: fuse(&program, Level::Chained)?,
        many: fuse(&program, Level::Joined)?,
        eager: fuse(&program, Level::Plain)?,
    };
    check_products(&program, &nodes, device)?;
    let kernels = Kernels::load(device)?;
    let plan = Plan::new(&program, capacity, options.arith, device.info.multiprocessors as usize);
    let arena = allocate(device, &plan)?;
    let stream = Stream::new(device)?;
    // SAFETY: the arena is as long as said.
    unsafe { stream.fill(arena.start(), 0, arena.bytes()) }?;
    stream.synchronize()?;
    upload(device, gguf, &program, &plan, arena.start(), threads)?;
    for (rope, slot) in program.ropes.iter().zip(&plan.ropes) {
        // SAFETY: the slot was planned for these frequencies.
        unsafe { stream.upload(arena.at(*slot), &rope.frequencies) }?;
    }
    let pinned = |bytes| Pinned::new(device, bytes);
    let output_bytes = Sampled::block_bytes(capacity, program.shard.size);
    Ok(Loaded {
        inputs: [pinned(plan.input_bytes)?, pinned(plan.input_bytes)?],
        outputs: [pinned(output_bytes)?, pinned(output_bytes)?],
        stream,
        arena,
        kernels,
        device: device.clone(),
        program,
        plan,
        nodes,
    })
}

/// What the kernels cannot do is refused here, not found by them.
fn check_shapes(program: &Program) -> Result<(), LoadError> {
    if let Some(group) = program.groups.iter().find(|g| !attention::supports(g.head_dim)) {
        let dim = group.head_dim;
        let what = format!("heads of {dim} values cannot run on GPUs: their kernels take multiples of 8 up to 256");
        return Err(LoadError::Unsupported { what });
    }
    let mut matrices = program.ops.iter().filter_map(|op| match op {
        Op::Linear { weight, .. } | Op::Embed { table: weight, .. } => Some(program.weight(*weight)),
        _ => None,
    });
    if let Some(weight) = matrices.find(|weight| !linear::layout::is_supported(weight.ty)) {
        let what =
            format!("tensor '{}' has type {}, which has no GPU kernel yet: use the CPU", weight.tensor, weight.ty);
        return Err(LoadError::Unsupported { what });
    }
    let multiplied = program.ops.iter().filter_map(|op| match op {
        Op::Linear { x, .. } => Some(program.buffer(*x).width),
        _ => None,
    });
    if let Some(width) = multiplied.filter(|width| !width.is_multiple_of(4)).max() {
        let what = format!("a width of {width} on one rank cannot run on GPUs: their products take multiples of 4");
        return Err(LoadError::Unsupported { what });
    }
    let summed = program.ops.iter().filter_map(|op| match op {
        Op::AllReduceAddNorm { partial, .. } => Some(program.buffer(*partial).width),
        _ => None,
    });
    match summed.filter(|width| program.shard.size > 1 && !width.is_multiple_of(4)).max() {
        Some(width) => Err(LoadError::Unsupported {
            what: format!("a hidden width of {width} cannot be split over GPUs: their all-reduce takes multiples of 4"),
        }),
        None => Ok(()),
    }
}

/// As [`check_shapes`], but what depends on the device: rows whose products need more shared memory than it has.
fn check_products(program: &Program, nodes: &Nodes, device: &Device) -> Result<(), LoadError> {
    let (sms, shared) = (device.info.multiprocessors as usize, device.info.shared_memory as usize);
    for node in [&nodes.few, &nodes.many, &nodes.eager].into_iter().flatten() {
        let Node::Linear(linear) = node else { continue };
        let of = |id| (program.weight(id).ty, program.weight(id).rows);
        let parts: Vec<_> = linear.parts.iter().map(|&(id, _)| of(id)).collect();
        let width = program.buffer(linear.x).width;
        if !linear::fits(&parts, width, matches!(linear.epilogue, Epilogue::SiluMul(_)), sms, shared) {
            let (device, kib) = (device_name(device), shared >> 10);
            let what = format!("products of {width} values need more than the {kib} KiB of shared memory of {device}");
            return Err(LoadError::Unsupported { what });
        }
    }
    Ok(())
}

/// The arena, or how much was wanted and how much there is.
fn allocate(device: &Arc<Device>, plan: &Plan) -> Result<Arena, LoadError> {
    let (free, _) = device.memory()?;
    let mebibytes = |bytes: u64| bytes >> 20;
    let out_of_memory = || LoadError::OutOfMemory {
        device: device_name(device),
        what: format!("the model: {}", plan.describe()),
        wanted_mib: mebibytes(plan.arena.bytes() as u64),
        free_mib: mebibytes(free),
    };
    match Arena::new(device, plan.arena.bytes()) {
        Ok(arena) => Ok(arena),
        Err(error) if error.is_out_of_memory() => Err(out_of_memory()),
        Err(error) => Err(error.into()),
    }
}

/// Lines of a slot: what a decode step of the largest bucket sends at once, and the candidates of its rows.
fn slot_lines(program: &Program, arith: Arith) -> usize {
    let hidden = program.ops.iter().find_map(|op| match op {
        Op::AllReduceAddNorm { partial, .. } => Some(program.buffer(*partial).width),
        _ => None,
    });
    let row = hidden.unwrap_or(0).div_ceil(wire(arith).values_per_line());
    (64 * row).max(sample::slot_lines(sample::MOST_ROWS))
}

fn connect(loaded: &[Loaded], options: &Options) -> Result<(Vec<Collective>, Option<String>), LoadError> {
    let devices: Vec<Arc<Device>> = loaded.iter().map(|l| l.device.clone()).collect();
    let kernels: Vec<&Kernels> = loaded.iter().map(|l| &l.kernels).collect();
    let settings = Settings { slot_lines: slot_lines(&loaded[0].program, options.arith), deadline: options.deadline };
    // A lone rank talks to nobody: no transport can be refused to it.
    let transport = if loaded.len() == 1 { Transport::Auto } else { options.transport };
    let connected = collective::connect(&devices, &kernels, transport, &settings)?;
    Ok((connected.ranks, connected.remark))
}

impl Loaded {
    fn into_parts(
        self,
        collective: Collective,
        group: Option<ThreadRank>,
        capacity: Capacity,
        options: &Options,
        shared_device: bool,
        remark: Option<String>,
    ) -> Parts {
        Parts {
            stream: self.stream,
            inputs: self.inputs,
            outputs: self.outputs,
            arena: self.arena,
            collective,
            kernels: self.kernels,
            device: self.device,
            program: self.program,
            plan: self.plan,
            nodes: self.nodes,
            capacity,
            arith: options.arith,
            batch_invariant: options.batch_invariant,
            deadline: options.deadline,
            group,
            shared_device,
            remark,
        }
    }
}
