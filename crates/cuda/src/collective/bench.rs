//! Measures the all-reduce as a decode step meets it: many calls in one CUDA graph per rank, replayed back to back, time
//! by the wall clock over all calls; and checks the result bit for bit. NCCL beside it, in the same form.

use super::{Connected, Settings, Transport, connect};
use crate::driver::nccl::{Nccl, NcclError, NcclType};
use crate::driver::{Arena, CudaError, Device, DevicePtr, Graph, Kernels, NoGpu, Stream};
use crate::kernels::all_reduce::{Then, Wire, all_reduce};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Two all-reduces a layer in GLM-5's 78 layers, and two more.
pub const CALLS: usize = 158;
const REPLAYS: usize = 20;
const EPS: f32 = 1e-5;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BenchError {
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Connect(#[from] super::ConnectError),
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(transparent)]
    Fault(#[from] super::Fault),
    #[error("a rank's thread died")]
    RankDied,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// `all_reduce`, `all_reduce_add`, `all_reduce_add_norm`.
    pub what: &'static str,
    /// Microseconds per call, median of the samples.
    pub us: f64,
    /// Every sample.
    pub samples_us: Vec<f64>,
    /// Values that are not what the host computes, over all ranks.
    pub wrong: usize,
}

/// What our own kernels gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The transport that was used.
    pub transport: Transport,
    /// What `Auto` gave up, and why.
    pub remark: Option<String>,
    /// The three forms.
    pub rows: Vec<Measured>,
}

struct Rank {
    stream: Stream,
    memory: Arena,
}

/// Offsets of a rank's vectors in its arena, in vectors.
const PARTIAL: usize = 0;
const RESIDUAL: usize = 1;
const WEIGHT: usize = 2;
const ADDED: usize = 3;
const OUT: usize = 4;

/// What is measured: `rows` rows of `width` values (a multiple of 4), `samples` times, one rank per entry of `devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Numbers of the GPUs; one may repeat.
    pub devices: Vec<usize>,
    /// What travels.
    pub wire: Wire,
    /// Rows of a message, each with a norm of its own.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// At least 1.
    pub samples: usize,
}

impl Work {
    /// Values of a message.
    pub fn values(&self) -> usize {
        self.rows * self.width
    }

    /// Bytes of a message on the wire.
    pub fn bytes(&self) -> usize {
        self.values() * self.wire.bytes()
    }
}

/// Measures our own kernels.
///
/// # Errors
/// No GPU, a transport that cannot be used, a rank that fell silent.
pub fn measure(work: &Work, transport: Transport) -> Result<Report, BenchError> {
    let &Work { ref devices, wire, .. } = work;
    let values = work.values();
    let opened = open(devices)?;
    let ranks_devices: Vec<Arc<Device>> = devices.iter().map(|d| opened[d].0.clone()).collect();
    let kernels: Vec<&Kernels> = devices.iter().map(|d| &opened[d].1).collect();
    let settings = Settings {
        slot_lines: (work.rows * work.width.div_ceil(wire.values_per_line())).next_multiple_of(64),
        deadline: Duration::from_secs(5),
    };
    let group = connect(&ranks_devices, &kernels, transport, &settings)?;
    let ranks =
        ranks_devices.iter().enumerate().map(|(r, d)| Rank::new(d, r, values)).collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::new();
    for what in ["all_reduce", "all_reduce_add", "all_reduce_add_norm"] {
        rows.push(one_form(what, &group, &kernels, &ranks, work)?);
    }
    Ok(Report { transport: group.ranks[0].transport(), remark: group.remark, rows })
}

fn open(devices: &[usize]) -> Result<BTreeMap<usize, (Arc<Device>, Kernels)>, NoGpu> {
    let mut opened = BTreeMap::new();
    for &ordinal in devices {
        if let std::collections::btree_map::Entry::Vacant(entry) = opened.entry(ordinal) {
            let device = Device::open(ordinal)?;
            let kernels = Kernels::load(&device)?;
            entry.insert((device, kernels));
        }
    }
    Ok(opened)
}

impl Rank {
    fn new(device: &Arc<Device>, rank: usize, values: usize) -> Result<Self, CudaError> {
        let rank_values = Self { stream: Stream::new(device)?, memory: Arena::new(device, 5 * 4 * values)? };
        for (vector, data) in [(PARTIAL, partial(rank, values)), (RESIDUAL, residual(values)), (WEIGHT, weight(values))]
        {
            // SAFETY: the arena holds five vectors of this length.
            unsafe { rank_values.stream.upload(rank_values.at(vector, values), &data) }?;
        }
        Ok(rank_values)
    }

    fn at(&self, vector: usize, values: usize) -> DevicePtr {
        self.memory.start().offset(4 * vector * values)
    }

    fn read(&self, vector: usize, values: usize) -> Result<Vec<f32>, CudaError> {
        self.stream.device().make_current()?;
        // SAFETY: the arena holds five vectors of this length.
        unsafe { self.stream.download(self.at(vector, values), values) }
    }
}

fn one_form(
    what: &'static str,
    group: &Connected,
    kernels: &[&Kernels],
    ranks: &[Rank],
    work: &Work,
) -> Result<Measured, BenchError> {
    let &Work { wire, rows, width, samples, .. } = work;
    let values = work.values();
    let mut graphs = Vec::new();
    for ((rank, end), kernels) in ranks.iter().zip(&group.ranks).zip(kernels) {
        rank.stream.device().make_current()?;
        let at = |vector| rank.at(vector, values);
        let link = end.link();
        let then = match what {
            "all_reduce" => Then::Store { out: at(OUT) },
            "all_reduce_add" => Then::Add { residual_in: at(RESIDUAL), residual_out: at(ADDED) },
            _ => Then::AddNorm {
                residual_in: at(RESIDUAL),
                residual_out: at(ADDED),
                weight: at(WEIGHT),
                out: at(OUT),
                eps: EPS,
            },
        };
        graphs.push(Graph::capture(&rank.stream, || {
            for call in 0..CALLS {
                // SAFETY: the arena holds every vector; every rank records the same calls.
                unsafe {
                    all_reduce(&rank.stream, kernels, link, wire, at(PARTIAL), &then, (rows, width), call as u32)
                }?;
            }
            Ok::<(), CudaError>(())
        })?);
    }
    let run = |replays: usize| -> Result<f64, BenchError> {
        let start = Instant::now();
        for _ in 0..replays {
            for (rank, graph) in ranks.iter().zip(&graphs) {
                rank.stream.device().make_current()?;
                graph.launch(&rank.stream)?;
            }
        }
        for rank in ranks {
            rank.stream.synchronize()?;
        }
        group.ranks.iter().find_map(super::Collective::fault).map_or(Ok(()), Err)?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / (replays * CALLS) as f64)
    };
    run(3)?;
    let samples_us = (0..samples.max(1)).map(|_| run(REPLAYS)).collect::<Result<Vec<_>, _>>()?;
    let wrong = count_wrong(what, ranks, work)?;
    Ok(Measured { what, us: median(&samples_us), samples_us, wrong })
}

fn count_wrong(what: &str, ranks: &[Rank], work: &Work) -> Result<usize, CudaError> {
    let values = work.values();
    let sum = host_sum(ranks.len(), work.wire, values);
    let added: Vec<f32> = residual(values).iter().zip(&sum).map(|(r, s)| r + s).collect();
    let differ = |a: &[f32], b: &[f32]| a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let mut wrong = 0;
    let first_out = ranks[0].read(OUT, values)?;
    for rank in ranks {
        wrong += match what {
            "all_reduce" => differ(&rank.read(OUT, values)?, &sum),
            "all_reduce_add" => differ(&rank.read(ADDED, values)?, &added),
            _ => {
                let out = rank.read(OUT, values)?;
                // The ranks must agree in every bit; with the host in all but the rounding of the mean.
                let far = normed(&added, work.width).iter().zip(&out).filter(|(w, o)| (**w - **o).abs() > 1e-4).count();
                differ(&rank.read(ADDED, values)?, &added) + differ(&out, &first_out) + far
            }
        };
    }
    Ok(wrong)
}

fn host_sum(ranks: usize, wire: Wire, values: usize) -> Vec<f32> {
    let on_wire = |v: f32| if wire == Wire::Bf16 { half::bf16::from_f32(v).to_f32() } else { v };
    let mut sum: Vec<f32> = partial(0, values).into_iter().map(on_wire).collect();
    for rank in 1..ranks {
        sum.iter_mut().zip(partial(rank, values)).for_each(|(s, v)| *s += on_wire(v));
    }
    sum
}

/// Of rows of `width`.
fn normed(x: &[f32], width: usize) -> Vec<f32> {
    let weight = weight(width);
    let row = |x: &[f32]| {
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (squares / width as f64 + f64::from(EPS)).sqrt();
        x.iter().zip(&weight).map(|(&v, w)| (f64::from(v) * scale) as f32 * w).collect::<Vec<_>>()
    };
    x.chunks(width).flat_map(row).collect()
}

fn random(seed: u64, values: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..values).map(|_| next()).collect()
}

fn partial(rank: usize, values: usize) -> Vec<f32> {
    random(rank as u64 + 1, values)
}

fn residual(values: usize) -> Vec<f32> {
    random(101, values)
}

fn weight(values: usize) -> Vec<f32> {
    random(102, values).into_iter().map(|v| 1.0 + 0.1 * v).collect()
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// What NCCL gave, with whatever its environment variables say.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclReport {
    /// Of the library.
    pub version: String,
    /// Microseconds per call, median of the samples.
    pub us: f64,
    /// Values that are further from the host's sum than bf16 explains.
    pub wrong: usize,
}

/// Measures NCCL's all-reduce in the same way, one thread per rank. NCCL reads its environment
/// variables once a process: every setting needs a process of its own.
///
/// # Errors
/// No GPU, no NCCL, or its own.
pub fn measure_nccl(library: Option<&Path>, work: &Work) -> Result<NcclReport, BenchError> {
    let devices = &work.devices;
    let nccl = Nccl::open(library)?;
    let id = nccl.unique_id()?;
    let barrier = Barrier::new(devices.len());
    let results: Vec<Result<(f64, usize), BenchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..devices.len())
            .map(|rank| {
                let (nccl, barrier) = (&nccl, &barrier);
                scope.spawn(move || nccl_rank(nccl, id, rank, work, barrier))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Err(BenchError::RankDied))).collect()
    });
    let (mut us, mut wrong) = (0.0f64, 0);
    for result in results {
        let (rank_us, rank_wrong) = result?;
        us = us.max(rank_us);
        wrong += rank_wrong;
    }
    Ok(NcclReport { version: nccl.version()?, us, wrong })
}

fn nccl_rank(
    nccl: &Arc<Nccl>,
    id: crate::driver::nccl::UniqueId,
    rank: usize,
    work: &Work,
    barrier: &Barrier,
) -> Result<(f64, usize), BenchError> {
    let &Work { ref devices, wire, samples, .. } = work;
    let values = work.values();
    let device = Device::open(devices[rank])?;
    let stream = Stream::new(&device)?;
    let bytes = work.bytes();
    let memory = Arena::new(&device, 2 * bytes.next_multiple_of(256))?;
    let (from, to) = (memory.start(), memory.start().offset(bytes.next_multiple_of(256)));
    let data = encode(&partial(rank, values), wire);
    // SAFETY: the arena holds two vectors.
    unsafe { stream.upload(from, &data) }?;
    let member = nccl.join(id, rank, devices.len())?;
    let ty = if wire == Wire::Bf16 { NcclType::Bf16 } else { NcclType::F32 };
    // SAFETY: the arena holds both vectors; every rank queues the same calls.
    let call = || unsafe { member.all_reduce(from, to, values, ty, &stream) };
    for _ in 0..5 {
        call()?;
    }
    stream.synchronize()?;
    let graph = Graph::capture(&stream, || (0..CALLS).try_for_each(|_| call()))?;
    let run = |replays: usize| -> Result<f64, CudaError> {
        barrier.wait();
        let start = Instant::now();
        for _ in 0..replays {
            graph.launch(&stream)?;
        }
        stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / (replays * CALLS) as f64)
    };
    run(3)?;
    let samples = (0..samples.max(1)).map(|_| run(REPLAYS)).collect::<Result<Vec<_>, _>>()?;
    // SAFETY: the arena holds the result.
    let got = decode(&unsafe { stream.download::<u8>(to, bytes) }?, wire);
    let far = |(got, want): (&f32, &f32)| (got - want).abs() > 0.02 * (1.0 + want.abs());
    let wrong = got.iter().zip(&host_sum(devices.len(), wire, values)).filter(|&pair| far(pair)).count();
    barrier.wait();
    Ok((median(&samples), wrong))
}

fn encode(values: &[f32], wire: Wire) -> Vec<u8> {
    match wire {
        Wire::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        Wire::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn decode(bytes: &[u8], wire: Wire) -> Vec<f32> {
    match wire {
        Wire::Bf16 => bytes.as_chunks::<2>().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        Wire::F32 => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
    }
}
