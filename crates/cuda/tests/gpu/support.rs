//! Golden files, ranks in threads, and comparisons.

use safetensors::SafeTensors;
use std::sync::Arc;
use std::time::Duration;
use tombolo_cuda::{LoadError, Options, Transport, devices, load, load_eager};
use tombolo_gguf::Gguf;
use tombolo_model::{
    Arith, BLOCK_TOKENS, Backend, Capacity, Config, Program, Row, Sampling, Sequence, Step, StepOutput, Token,
};

type Load = fn(Arc<Gguf>, &Config, usize, Capacity, &Options) -> Result<Vec<Box<dyn Backend>>, LoadError>;

/// A tiny model with what the reference makes of it.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    pub(crate) gguf: Arc<Gguf>,
    pub(crate) config: Config,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) decode_tokens: Vec<u32>,
    pub(crate) decode_logits: Vec<f32>,
}

macro_rules! golden {
    ($name:literal) => {
        Golden::new(
            $name,
            include_bytes!(concat!("../../../model/tests/data/", $name, ".gguf")),
            include_bytes!(concat!("../../../model/tests/data/", $name, ".safetensors")),
        )
    };
}

pub(crate) fn goldens() -> Vec<Golden> {
    vec![
        golden!("tiny-llama"),
        golden!("tiny-llama-q8_0"),
        golden!("tiny-llama-q4_0"),
        golden!("tiny-llama-q4_k"),
        golden!("tiny-qwen3"),
    ]
}

impl Golden {
    fn new(name: &'static str, file: &[u8], reference: &[u8]) -> Self {
        let gguf = Arc::new(Gguf::from_bytes(file.to_vec()).unwrap());
        let config = Config::from_gguf(&gguf).unwrap();
        let tensors = SafeTensors::deserialize(reference).unwrap();
        let words = |name: &str| -> Vec<[u8; 4]> { tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec() };
        let floats = |name| words(name).into_iter().map(f32::from_le_bytes).collect();
        let ids = |name| words(name).into_iter().map(u32::from_le_bytes).collect();
        Self {
            name,
            gguf,
            config,
            tokens: ids("tokens"),
            logits: floats("logits"),
            decode_tokens: ids("decode_tokens"),
            decode_logits: floats("decode_logits"),
        }
    }

    /// Whether the model can be split over so many ranks: blocks of 256 weights allow fewer than the others.
    pub(crate) fn can_split(&self, tp: usize) -> bool {
        Program::legal_sizes(&self.gguf, &self.config).contains(&tp)
    }

    pub(crate) fn load(&self, tp: usize, options: Options) -> Result<Ranks, LoadError> {
        self.load_by(load, tp, &options)
    }

    pub(crate) fn load_eager(&self, tp: usize, options: Options) -> Result<Ranks, LoadError> {
        self.load_by(load_eager, tp, &options)
    }

    fn load_by(&self, load: Load, tp: usize, options: &Options) -> Result<Ranks, LoadError> {
        let capacity = Capacity::new(64, 64, 128);
        let backends = load(self.gguf.clone(), &self.config, tp, capacity, options)?;
        for backend in &backends {
            println!("{}: {}", self.name, backend.describe());
        }
        Ok(Ranks { backends, vocabulary: self.config.vocabulary })
    }
}

/// Options for `tp` ranks: a device each where there are enough, else device 0 for all.
pub(crate) fn options(tp: usize, arith: Arith, transport: Transport) -> Options {
    let there = devices().expect("these tests need a GPU").len();
    let devices = (0..tp).map(|rank| rank % there).collect();
    Options { devices, arith, transport, deadline: Duration::from_secs(10), ..Options::default() }
}

/// All ranks of a model.
pub(crate) struct Ranks {
    backends: Vec<Box<dyn Backend>>,
    vocabulary: usize,
}

impl Ranks {
    /// Runs a step on every rank, in a thread each; tokens must agree, logits come out side by side.
    pub(crate) fn run(&mut self, step: Step) -> StepOutput {
        let mut outputs = self.run_all(vec![step]);
        outputs.pop().unwrap()
    }

    /// Submits each step as soon as two are not in flight.
    pub(crate) fn run_all(&mut self, steps: Vec<Step>) -> Vec<StepOutput> {
        let steps: Vec<Arc<Step>> = steps.into_iter().map(Arc::new).collect();
        let per_rank: Vec<Vec<StepOutput>> = std::thread::scope(|scope| {
            let run = |backend: &mut Box<dyn Backend>| {
                let mut outputs = Vec::new();
                for (i, step) in steps.iter().enumerate() {
                    backend.submit(step.clone()).unwrap();
                    if i >= 1 {
                        outputs.push(backend.collect().unwrap());
                    }
                }
                outputs.push(backend.collect().unwrap());
                outputs
            };
            let threads: Vec<_> = self.backends.iter_mut().map(|b| scope.spawn(move || run(b))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        (0..steps.len()).map(|i| self.join(per_rank.iter().map(|o| &o[i]).collect())).collect()
    }

    fn join(&self, ranks: Vec<&StepOutput>) -> StepOutput {
        let tokens = ranks[0].tokens.clone();
        assert!(ranks.iter().all(|r| r.tokens == tokens), "ranks drew different tokens");
        let rows = ranks.iter().map(|r| r.logits.len()).sum::<usize>() / self.vocabulary;
        let mut logits = Vec::new();
        for row in 0..rows {
            for rank in &ranks {
                let width = rank.logits.len() / rows;
                logits.extend_from_slice(&rank.logits[row * width..(row + 1) * width]);
            }
        }
        StepOutput { tokens, logits }
    }
}

/// Blocks of sequence `s`, scattered so that a wrong table shows.
pub(crate) fn table(s: usize) -> Vec<u32> {
    let per = 128 / BLOCK_TOKENS;
    (0..per).map(|b| ((b * 64 + (s * 37 + b * 11) % 64) % (64 * per)) as u32).collect()
}

/// One sequence's rows from `start` on; all of them sampled greedily if `all`, else the last.
pub(crate) fn rows(step: &mut Step, sequence: usize, start: usize, tokens: &[Token], all: bool) {
    let index = step.sequences.len() as u32;
    step.sequences.push(Sequence { tables: vec![table(sequence)] });
    for (i, &token) in tokens.iter().enumerate() {
        let sample = (all || i + 1 == tokens.len()).then_some(Sampling::GREEDY);
        let position = (start + i) as u32;
        step.rows.push(Row { token, position, sequence: index, sample, draft: false });
    }
}

/// A prompt from position 0, with logits of every row.
pub(crate) fn prefill(tokens: &[u32]) -> Step {
    let mut step = Step { full_logits: true, ..Step::default() };
    let tokens: Vec<Token> = tokens.iter().map(|&t| Token::Host(t)).collect();
    rows(&mut step, 0, 0, &tokens, true);
    step
}

/// One more token of sequence 0.
pub(crate) fn decode(token: Token, position: usize, full_logits: bool) -> Step {
    let mut step = Step { full_logits, ..Step::default() };
    rows(&mut step, 0, position, &[token], true);
    step
}

/// Largest difference; NaN counts as infinite.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = |(x, y): (&f32, &f32)| if (x - y).is_nan() { f32::INFINITY } else { (x - y).abs() };
    a.iter().zip(b).map(far).fold(0.0, f32::max)
}

/// Mean over rows of KL(softmax a || softmax b).
pub(crate) fn kl(a: &[f32], b: &[f32], width: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&v| f64::from(v - most).exp()).sum();
        row.iter().map(|&v| f64::from(v - most) - sum.ln()).collect()
    };
    let rows = a.len() / width;
    let one = |r: usize| -> f64 {
        let (p, q) = (log_softmax(&a[r * width..(r + 1) * width]), log_softmax(&b[r * width..(r + 1) * width]));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    (0..rows).map(one).sum::<f64>() / rows as f64
}
