//! Runs whole models on all ranks at once, and reads reference tensors.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tombolo_cpu::{Options, Tier};
use tombolo_engine::{Drafts, Runner, Settings};
use tombolo_gguf::Gguf;
use tombolo_model::{
    Arith, BLOCK_TOKENS, Backend, Capacity, Config, KvType, Program, Row, Sampling, Sequence, Shard, Step, StepOutput,
    Token,
};

/// A loaded model: all ranks of it.
pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) ranks: Vec<Box<dyn Backend>>,
    pub(crate) capacity: Capacity,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) tp: usize,
    pub(crate) arith: Arith,
    pub(crate) threads: usize,
    pub(crate) tier: Tier,
    pub(crate) rows: usize,
    pub(crate) kv: Option<KvType>,
}

impl How {
    pub(crate) fn new(tp: usize, arith: Arith) -> Self {
        Self { tp, arith, threads: 2, tier: Tier::best(), rows: 160, kv: None }
    }
}

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

pub(crate) fn smollm2() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/assets/demo.gguf")
}

pub(crate) fn gemma3() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-3-270m-q4_k_m.gguf")
}

/// A model under the scheduler. Its drafting block is left out where nothing is drafted by it, or it has none.
pub(crate) fn runner(
    path: &Path,
    tp: usize,
    threads: usize,
    capacity: Capacity,
    prefix_cache: bool,
    drafts: Drafts,
) -> Runner {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let config = Config::from_gguf(&gguf).unwrap();
    let (config, drafts) = match drafts {
        Drafts::Block(_) if config.draft.is_some() => (config, drafts),
        Drafts::Block(_) => (config, Drafts::None),
        _ => (config.without_draft(), drafts),
    };
    let groups = Program::build(&gguf, &config, Shard::WHOLE).unwrap().groups.len();
    let options = Options { threads, arith: Arith::Production, ..Options::default() };
    let ranks = tombolo_cpu::load(gguf, &config, tp, capacity, &options).unwrap();
    let settings = Settings {
        capacity,
        vocabulary: config.vocabulary,
        groups,
        waiting_max: 64,
        prefix_cache,
        drafts,
        max_itl_factor: None,
    };
    Runner::new(ranks, settings)
}

impl Model {
    pub(crate) fn load(path: &Path, how: How) -> Self {
        Self::of(Arc::new(Gguf::open(path).unwrap()), how)
    }

    pub(crate) fn of(gguf: Arc<Gguf>, how: How) -> Self {
        Self::sized(gguf, how, Capacity::new(how.rows, how.rows, 256))
    }

    pub(crate) fn with_capacity(path: &Path, how: How, capacity: Capacity) -> Self {
        Self::sized(Arc::new(Gguf::open(path).unwrap()), how, capacity)
    }

    fn sized(gguf: Arc<Gguf>, how: How, capacity: Capacity) -> Self {
        let config = Config::from_gguf(&gguf).unwrap();
        let options = Options { threads: how.threads, arith: how.arith, kv: how.kv, deadline: Duration::from_secs(60) };
        let ranks = tombolo_cpu::load_with(gguf, &config, how.tp, capacity, &options, how.tier).unwrap();
        Self { config, ranks, capacity }
    }

    /// Runs steps one after the other on every rank; per step the tokens and `[logits rows, vocabulary]`.
    pub(crate) fn run(&mut self, steps: &[Step]) -> Vec<StepOutput> {
        let per_rank: Vec<Vec<StepOutput>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .ranks
                .iter_mut()
                .map(|rank| {
                    scope.spawn(move || {
                        let run = |step: &Step| {
                            rank.submit(Arc::new(step.clone())).unwrap();
                            rank.collect().unwrap()
                        };
                        steps.iter().map(run).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        (0..steps.len()).map(|i| join(per_rank.iter().map(|outputs| &outputs[i]).collect())).collect()
    }
}

/// One output out of all ranks': tokens must agree, logits are put side by side.
fn join(ranks: Vec<&StepOutput>) -> StepOutput {
    assert!(ranks.iter().all(|r| r.tokens == ranks[0].tokens), "ranks drew different tokens");
    let rows = ranks[0].tokens.len();
    let logits = (0..rows).flat_map(|row| {
        ranks.iter().flat_map(move |rank| {
            let width = rank.logits.len() / rows;
            rank.logits[row * width..][..width].iter().copied()
        })
    });
    StepOutput { tokens: ranks[0].tokens.clone(), logits: logits.collect() }
}

/// Blocks for a sequence of up to 256 tokens, in an order that is not the obvious one; of the second group, if there is
/// one, in another.
pub(crate) fn sequence(number: usize) -> Sequence {
    sequence_of(number, 256)
}

/// The same for up to `tokens` tokens; all of them in a model of that context.
pub(crate) fn sequence_of(number: usize, tokens: usize) -> Sequence {
    let len = tokens / BLOCK_TOKENS;
    let block = |b: usize| (number * len + b) as u32;
    Sequence { tables: vec![(0..len).rev().map(block).collect(), (0..len).map(|b| block(b ^ 1)).collect()] }
}

/// Rows for `tokens` of sequence `sequence` from position `start` on; all of them want logits if `all`, else the last.
pub(crate) fn rows(sequence: u32, start: usize, tokens: &[u32], all: bool) -> Vec<Row> {
    let last = tokens.len() - 1;
    tokens
        .iter()
        .enumerate()
        .map(|(i, &token)| Row {
            token: Token::Host(token),
            position: (start + i) as u32,
            sequence,
            sample: (all || i == last).then_some(Sampling::GREEDY),
            draft: false,
        })
        .collect()
}

/// A step of one sequence, with logits.
pub(crate) fn step(start: usize, tokens: &[u32], all: bool) -> Step {
    Step { rows: rows(0, start, tokens, all), sequences: vec![sequence(0)], full_logits: true, ..Step::default() }
}

/// Largest absolute difference.
pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { d.max(most) })
}

/// A file of reference tensors.
pub(crate) struct Reference(Vec<u8>);

impl Reference {
    pub(crate) fn open(name: &str) -> Self {
        Self(std::fs::read(data(name)).unwrap())
    }

    fn words<T>(&self, name: &str, of: impl Fn([u8; 4]) -> T) -> Vec<T> {
        let tensors = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).unwrap().data().chunks_exact(4).map(|b| of(b.try_into().unwrap())).collect()
    }

    pub(crate) fn f32s(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    pub(crate) fn tokens(&self, name: &str) -> Vec<u32> {
        self.words(name, u32::from_le_bytes)
    }
}
