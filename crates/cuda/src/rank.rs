//! One rank: its device, its memory, its recorded graphs, and the steps in flight. Implements [`Backend`].
//!
//! Decode steps (one row a sequence, all with logits) replay the graph of the next larger bucket; all others are
//! launched node by node, through the same code that recorded the graphs.

use crate::collective::Collective;
use crate::driver::{Arena, Device, DevicePtr, Event, Graph, Kernels, Pinned, Stream};
use crate::error::{LoadError, device_name, step_error};
use crate::fuse::Node;
use crate::input::is_decode;
use crate::plan::{BUCKETS, Plan, attention_shape, bucket_for};
use crate::run::{FEW_ROWS, LIST_KINDS, List, Runner, Shape};
use crate::sampled::{Draw, Sampled};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tombolo_collective::ThreadRank;
use tombolo_model::{
    Arith, Backend, BackendError, Before, Capacity, Pass, Program, Step, StepError, StepOutput, side_by_side,
};

/// Steps that may be in flight: as many as there are pinned blocks each way.
const IN_FLIGHT: usize = 2;
/// On top of what kernels wait for each other: the longest that a step's own work may take.
const WORK_DEADLINE: Duration = Duration::from_secs(60);

/// The lists of launches of one program.
pub(crate) struct Nodes {
    /// For recorded decode steps of few rows, and of more.
    pub(crate) few: Vec<Node>,
    pub(crate) many: Vec<Node>,
    /// For everything else.
    pub(crate) eager: Vec<Node>,
}

impl Nodes {
    /// For a decode step of a bucket, or for any other step.
    fn of(&self, bucket: Option<usize>) -> List<'_> {
        let list = match bucket {
            Some(rows) if rows <= FEW_ROWS => 0,
            Some(_) => 1,
            None => 2,
        };
        List { nodes: self.lists()[list], first_kind: list as u32 * LIST_KINDS }
    }

    /// In the order of their kinds.
    fn lists(&self) -> [&[Node]; 3] {
        [&self.few, &self.many, &self.eager]
    }

    /// What a kernel that complained was part of.
    fn name(&self, kind: u32) -> String {
        let (list, index) = ((kind / LIST_KINDS) as usize, (kind % LIST_KINDS) as usize);
        let nodes = self.lists().get(list).and_then(|nodes| nodes.get(..=index)).unwrap_or_default();
        match nodes.last() {
            Some(Node::Sample { .. }) => "the gathering of candidates".into(),
            Some(Node::AllReduceAddNorm(_)) => {
                let number = nodes.iter().filter(|node| matches!(node, Node::AllReduceAddNorm(_))).count();
                format!("all-reduce {number} of a step")
            }
            _ => format!("operation {kind}"),
        }
    }
}

/// A loaded rank. Dropped, it waits for what it has queued; its fields are in the order in which they must go then: what
/// uses memory before the memory.
pub(crate) struct Rank {
    graphs: Vec<(usize, Graph)>,
    done: [Event; IN_FLIGHT],
    in_flight: VecDeque<InFlight>,
    finished: VecDeque<StepOutput>,
    /// Tokens that the last step drew, where the host knows them.
    known: Option<Vec<u32>>,
    before: Before,
    number: u32,
    pub(crate) parts: Parts,
}

/// What a rank was loaded with.
pub(crate) struct Parts {
    pub(crate) stream: Stream,
    pub(crate) inputs: [Pinned; IN_FLIGHT],
    pub(crate) outputs: [Pinned; IN_FLIGHT],
    pub(crate) arena: Arena,
    pub(crate) collective: Collective,
    pub(crate) kernels: Kernels,
    pub(crate) device: Arc<Device>,
    pub(crate) program: Program,
    pub(crate) plan: Plan,
    pub(crate) nodes: Nodes,
    pub(crate) capacity: Capacity,
    pub(crate) arith: Arith,
    /// Every step is launched like one of many rows.
    pub(crate) batch_invariant: bool,
    pub(crate) deadline: Duration,
    /// How the ranks' host sides talk: only where a draw needs the full logits.
    pub(crate) group: Option<ThreadRank>,
    pub(crate) shared_device: bool,
    /// What the choice of a transport had to say.
    pub(crate) remark: Option<String>,
}

struct InFlight {
    step: Arc<Step>,
    number: u32,
}

impl InFlight {
    /// The device's greedy tokens are not all that the next step may need to know.
    fn needs_host(&self) -> bool {
        self.step.full_logits || self.step.rows.iter().any(|r| r.sample.is_some_and(|s| !s.is_greedy()))
    }
}

impl Rank {
    /// Records the graphs of a rank whose weights are in place.
    pub(crate) fn new(parts: Parts, graphs: bool) -> Result<Self, LoadError> {
        parts.device.make_current()?;
        let done = [Event::new(&parts.device)?, Event::new(&parts.device)?];
        let mut rank = Self {
            graphs: Vec::new(),
            done,
            in_flight: VecDeque::new(),
            finished: VecDeque::new(),
            known: None,
            before: Before::default(),
            number: 0,
            parts,
        };
        if graphs && !rank.parts.batch_invariant {
            rank.record()?;
        }
        Ok(rank)
    }

    fn record(&mut self) -> Result<(), LoadError> {
        let parts = &self.parts;
        for bucket in BUCKETS.into_iter().filter(|&b| b <= parts.largest_bucket()) {
            let shape = Shape::bucket(bucket, &parts.program, &parts.capacity);
            let runner = parts.runner();
            let graph = Graph::capture(&parts.stream, || runner.enqueue(parts.nodes.of(Some(bucket)), &shape))?;
            self.graphs.push((bucket, graph));
        }
        Ok(())
    }

    /// `(rows, nodes)` of every recorded graph.
    pub(crate) fn graph_nodes(&self) -> Vec<(usize, usize)> {
        self.graphs.iter().map(|(bucket, graph)| (*bucket, graph.nodes())).collect()
    }

    fn start(&mut self, step: &Arc<Step>) -> Result<(), BackendError> {
        let parts = &self.parts;
        let turn = self.number as usize % IN_FLIGHT;
        let recorded = is_decode(step) && !parts.batch_invariant;
        let bucket = bucket_for(step.rows.len()).filter(|&b| recorded && b <= parts.largest_bucket());
        let mut shape = match bucket {
            Some(bucket) => Shape::bucket(bucket, &parts.program, &parts.capacity),
            None => Shape::exact(step, &parts.program),
        };
        let layout = shape.layout.clone();
        // SAFETY: the step that last read this block has been waited for (at most two are in flight).
        let block = unsafe { parts.inputs[turn].slice_mut::<u32>(0, layout.bytes / 4) };
        shape.tiles = layout.write(step, self.number, self.known.as_deref(), parts.tile_rows(), block);
        let wrong = |error| step_error(&parts.device, error);
        let graph = bucket.and_then(|bucket| self.graphs.iter().find(|(b, _)| *b == bucket));
        match graph {
            Some((_, graph)) => graph.launch(&parts.stream).map_err(wrong)?,
            None => parts.runner().enqueue(parts.nodes.of(bucket), &shape).map_err(wrong)?,
        }
        self.done[turn].record(&parts.stream).map_err(wrong)
    }

    /// Waits for the oldest step in flight and makes its output.
    fn finish(&mut self) -> Result<StepOutput, BackendError> {
        let Some(InFlight { step, number }) = self.in_flight.pop_front() else {
            return Err(self.fault("a step was collected that was never submitted"));
        };
        let turn = number as usize % IN_FLIGHT;
        self.wait(turn)?;
        let sampled = Sampled::new(&self.parts.outputs[turn], &step, &self.parts.program, &self.parts.capacity);
        let logits = if step.full_logits { self.download_logits(step.logits_rows())? } else { Vec::new() };
        let mut tokens = vec![0; step.logits_rows()];
        let mut beyond = Vec::new();
        for (index, token) in tokens.iter_mut().enumerate() {
            match sampled.draw(index) {
                Draw::Token(drawn) => *token = drawn,
                Draw::NeedsLogits => beyond.push((token, index, self.gather_logits(index)?)),
            }
        }
        side_by_side(beyond, self.parts.program.vocabulary, |(token, index, logits)| {
            *token = sampled.draw_from(index, &logits);
        });
        let is_last = number.wrapping_add(1) == self.number;
        if is_last {
            self.known = Some(tokens.clone());
        }
        Ok(StepOutput { tokens, logits })
    }

    fn wait(&self, turn: usize) -> Result<(), BackendError> {
        let parts = &self.parts;
        let done = self.done[turn].wait(2 * parts.deadline + WORK_DEADLINE);
        // First of all: what the driver complains of may only follow from it.
        if let Some(fault) = parts.collective.fault() {
            return Err(BackendError::RankSilent {
                rank: fault.rank,
                silent: fault.silent,
                waited_ms: fault.waited_ms,
                what: parts.nodes.name(fault.kind),
            });
        }
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.fault("a step did not end in time")),
            Err(error) => Err(step_error(&parts.device, error)),
        }
    }

    fn fault(&self, message: &str) -> BackendError {
        BackendError::Device { device: device_name(&self.parts.device), message: message.to_string() }
    }

    /// This rank's logits of `rows` logits rows of the step that has just run.
    fn download_logits(&self, rows: usize) -> Result<Vec<f32>, BackendError> {
        let width = self.parts.logits_width();
        self.download(0, rows * width)
    }

    /// One row's logits of the whole vocabulary, from all ranks.
    fn gather_logits(&mut self, index: usize) -> Result<Vec<f32>, BackendError> {
        let width = self.parts.logits_width();
        let mine = self.download(index * width, width)?;
        let Some(group) = &mut self.parts.group else { return Ok(mine) };
        let mut whole = Vec::new();
        group.all_gather(&mine, &mut whole).map_err(|silent| BackendError::RankSilent {
            rank: silent.rank,
            silent: silent.silent,
            waited_ms: silent.waited_ms,
            what: "the exchange of full logits".into(),
        })?;
        Ok(whole)
    }

    fn download(&self, first: usize, len: usize) -> Result<Vec<f32>, BackendError> {
        let at = self.parts.logits().offset(4 * first);
        // SAFETY: the logits buffer holds at least so many rows, and nothing was launched since it was written.
        unsafe { self.parts.stream.download(at, len) }.map_err(|e| step_error(&self.parts.device, e))
    }
}

impl Backend for Rank {
    fn describe(&self) -> String {
        let parts = &self.parts;
        let shard = parts.program.shard;
        let graphs: Vec<String> = self.graph_nodes().iter().map(|(rows, nodes)| format!("{rows}: {nodes}")).collect();
        let transport = match shard.size {
            1 => String::new(),
            _ => format!(", {} transport", parts.collective.transport().name()),
        };
        let invariant = if parts.batch_invariant { ", batch-invariant" } else { "" };
        let shared = if parts.shared_device { ", shares its device: launches do not overlap" } else { "" };
        format!(
            "{}, rank {} of {}{transport}{shared}{invariant}; memory {}; graph nodes by rows {}{}",
            device_name(&parts.device),
            shard.rank,
            shard.size,
            parts.plan.describe(),
            if graphs.is_empty() { "none".to_string() } else { graphs.join(", ") },
            parts.remark.as_ref().map_or(String::new(), |r| format!("; {r}"))
        )
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, step: Arc<Step>) -> Result<(), BackendError> {
        let parts = &self.parts;
        parts.device.make_current().map_err(|e| step_error(&parts.device, e))?;
        step.check(&parts.capacity, parts.program.groups.len(), parts.program.vocabulary, self.before)?;
        if step.pass != Pass::Trunk {
            return Err(StepError::NoDraft.into());
        }
        let all = self.in_flight.back().is_some_and(InFlight::needs_host);
        while !self.in_flight.is_empty() && (all || self.in_flight.len() >= IN_FLIGHT) {
            let output = self.finish()?;
            self.finished.push_back(output);
        }
        self.start(&step)?;
        self.before = step.left();
        self.known = None;
        self.in_flight.push_back(InFlight { step, number: self.number });
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, BackendError> {
        if let Some(output) = self.finished.pop_front() {
            return Ok(output);
        }
        self.parts.device.make_current().map_err(|e| step_error(&self.parts.device, e))?;
        self.finish()
    }
}

impl Drop for Rank {
    /// Nothing may run any more when the memory goes.
    fn drop(&mut self) {
        let parts = &self.parts;
        let _ = parts.device.make_current();
        let is_idle = self.in_flight.is_empty() && self.done.iter().all(|done| done.is_done().unwrap_or(true));
        if !is_idle {
            // Kernels may be waiting for a rank that is gone already.
            parts.collective.abort();
        }
        let _ = parts.stream.synchronize();
    }
}

impl Parts {
    pub(crate) fn runner(&self) -> Runner<'_> {
        Runner {
            stream: &self.stream,
            kernels: &self.kernels,
            program: &self.program,
            plan: &self.plan,
            start: self.arena.start(),
            arith: self.arith,
            same_bits: self.batch_invariant,
            collective: &self.collective,
            inputs: [self.inputs[0].device_ptr(), self.inputs[1].device_ptr()],
            outputs: [self.outputs[0].device_ptr(), self.outputs[1].device_ptr()],
            tokens_bytes: Sampled::tokens_bytes(&self.capacity),
        }
    }

    /// Rows of the largest decode step that runs as one.
    fn largest_bucket(&self) -> usize {
        bucket_for(self.capacity.sequences).unwrap_or(BUCKETS[BUCKETS.len() - 1])
    }

    /// Most rows of an attention tile, in every attention of the program.
    fn tile_rows(&self) -> usize {
        let shapes = self.nodes.eager.iter().filter_map(|node| match node {
            Node::Attention(a) => Some(attention_shape(&self.program, a.group, a.heads, self.arith).tile_rows()),
            _ => None,
        });
        shapes.min().unwrap_or(1)
    }

    fn logits_buffer(&self) -> usize {
        // The builder makes the logits last.
        self.program.buffers.len() - 1
    }

    fn logits_width(&self) -> usize {
        self.program.buffers[self.logits_buffer()].width
    }

    fn logits(&self) -> DevicePtr {
        self.arena.at(self.plan.buffers[self.logits_buffer()])
    }
}
