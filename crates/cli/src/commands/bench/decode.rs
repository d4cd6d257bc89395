//! `tombolo bench decode`: prefill (`pp`) of one sequence and decode (`tg`) of one or several. Loading, tokenising and the first, warming
//! run are not timed.

use crate::args::{DeviceArgs, ModelArgs, SplitArgs, count};
use crate::commands::bench::table::{Format, Printer, Row};
use crate::error::{Error, failure, input};
use crate::interrupt::{self, Answer};
use crate::load::{self, Loaded, ROWS, capacity};
use crate::output::{self, mean_and_deviation};
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tombolo_engine::{Context, Engine, EngineError};
use tombolo_gguf::Gguf;
use tombolo_model::{Capacity, Config, Sampling};

/// Options of `bench decode`.
#[derive(clap::Args)]
pub(crate) struct DecodeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens to prefill; 0: none
    #[arg(short = 'p', long = "n-prompt", value_delimiter = ',', default_value = "512", value_name = "N,…", value_parser = count)]
    prompt: Vec<usize>,
    /// Tokens to decode; 0: none
    #[arg(short = 'n', long = "n-gen", value_delimiter = ',', default_value = "128", value_name = "N,…", value_parser = count)]
    generate: Vec<usize>,
    /// Tokens that are in the context already
    #[arg(short = 'd', long = "n-depth", value_delimiter = ',', default_value = "0", value_name = "N,…", value_parser = count)]
    depth: Vec<usize>,
    /// Sequences that are decoded at once
    #[arg(long, visible_alias = "npl", value_delimiter = ',', default_value = "1", value_name = "N,…", value_parser = count)]
    n_parallel: Vec<usize>,
    /// Runs of each test
    #[arg(short = 'r', long = "repetitions", default_value_t = 5, value_name = "N", value_parser = count)]
    repetitions: usize,
    /// Rows of a prefill step
    #[arg(short = 'b', long = "ubatch-size", alias = "batch-size", default_value_t = ROWS, value_name = "N", value_parser = count)]
    rows: usize,
    /// Threads on the processor [default: one per core]
    #[arg(short = 't', long, value_delimiter = ',', value_name = "N,…", value_parser = count)]
    threads: Vec<usize>,
    /// Ranks to split the model over, short -tp [default: 1, or one per GPU named in --device]
    #[arg(long, visible_alias = "tp", value_delimiter = ',', value_name = "N,…", value_parser = count)]
    tensor_parallel_size: Vec<usize>,
    /// How to print
    #[arg(short = 'o', long = "output", default_value = "md", value_enum, value_name = "FORMAT")]
    output: Format,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Sequences of one test.
const PARALLEL_MAX: usize = 1024;

/// One test.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    generate: usize,
    depth: usize,
    /// Sequences.
    parallel: usize,
}

/// Runs the command.
pub(crate) fn run(args: &DecodeArgs) -> Result<ExitCode, Error> {
    interrupt::install()?;
    let tests = tests(args)?;
    let gguf = load::open(&args.model.source())?;
    let config = load::config(&gguf, args.device.dense_attention)?;
    let context = context(&tests)?;
    let splits = splits(args);
    // All of them first: after an hour of measuring it is late to hear that the last one cannot be.
    for split in &splits {
        load::plan(&gguf, &config, &args.device, split)?;
    }
    let sequences = tests.iter().map(|test| test.parallel).max().unwrap_or(1);
    let one = capacity(args.rows.min(context).max(sequences), sequences, context);
    let capacity = Capacity { blocks: one.blocks * sequences, ..one };
    let mut printer = Printer::new(args.output);
    // What is begun as one array must end as one: Ctrl-C ends the measuring first, and then the program.
    let answer = (args.output == Format::Json).then(Answer::begin);
    let mut measured = || {
        for split in &splits {
            let mut loaded = load::load(&gguf, &config, &args.device, split, capacity)?.by_hand();
            loaded.engine.set_between_chunks(interrupt::between_chunks);
            loaded.print_summary();
            for &test in &tests {
                let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
                let Some(nanoseconds) = measure(&mut loaded, test, args.repetitions)? else {
                    return Ok(ExitCode::from(interrupt::EXIT_CODE));
                };
                printer.print(&row(&loaded, args, test, output::iso_time(started), nanoseconds))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    };
    let ended: Result<ExitCode, Error> = measured();
    drop(answer);
    if ended.is_ok() || printer.has_printed() {
        // Of two errors the first is the one to hear of.
        let finished = printer.finish();
        if ended.is_ok() {
            finished?;
        }
    }
    ended
}

/// Tokens that the longest test needs room for.
fn context(tests: &[Test]) -> Result<usize, Error> {
    let most = tombolo_model::limits::CONTEXT;
    let mut longest = 0;
    for test in tests {
        let tokens = test.depth.checked_add(test.prompt).and_then(|sum| sum.checked_add(test.generate));
        match tokens.filter(|&tokens| tokens <= most) {
            Some(tokens) => longest = longest.max(tokens),
            None => {
                let Test { prompt, generate, depth, .. } = *test;
                let test = if prompt > 0 { format!("-p {prompt}") } else { format!("-n {generate}") };
                let with = if depth > 0 { format!(" with -d {depth}") } else { String::new() };
                return Err(input(format!("{test}{with}: more than the {most} tokens that any context holds")));
            }
        }
    }
    Ok(longest)
}

fn tests(args: &DecodeArgs) -> Result<Vec<Test>, Error> {
    if args.repetitions == 0 {
        return Err(input("-r 0: a test runs at least once"));
    }
    if args.rows == 0 {
        return Err(input("-b 0: a step has at least one row"));
    }
    if let Some(wrong) = args.n_parallel.iter().find(|&&n| !(1..=PARALLEL_MAX).contains(&n)) {
        return Err(input(format!("--n-parallel {wrong} is not between 1 and {PARALLEL_MAX}")));
    }
    let mut tests = Vec::new();
    for &depth in &args.depth {
        let prompts = args.prompt.iter().map(|&prompt| Test { prompt, generate: 0, depth, parallel: 1 });
        tests.extend(prompts.filter(|t| t.prompt > 0));
        for &parallel in &args.n_parallel {
            let generations = args.generate.iter().map(|&generate| Test { prompt: 0, generate, depth, parallel });
            tests.extend(generations.filter(|t| t.generate > 0));
        }
    }
    if tests.is_empty() { Err(input("-p 0 -n 0: nothing to measure")) } else { Ok(tests) }
}

/// Every combination of threads and ranks.
fn splits(args: &DecodeArgs) -> Vec<SplitArgs> {
    fn or_default(values: &[usize]) -> Vec<Option<usize>> {
        if values.is_empty() { vec![None] } else { values.iter().map(|&v| Some(v)).collect() }
    }
    let threads = or_default(&args.threads);
    let sizes = or_default(&args.tensor_parallel_size);
    let pairs = sizes.iter().flat_map(|&size| threads.iter().map(move |&threads| (threads, size)));
    pairs.map(|(threads, tensor_parallel_size)| SplitArgs { threads, tensor_parallel_size }).collect()
}

/// Nanoseconds of each repetition; `None` where Ctrl-C ended them.
fn measure(loaded: &mut Loaded<Engine>, test: Test, repetitions: usize) -> Result<Option<Vec<u64>>, Error> {
    // The warming run is short: it is there for page faults and caches, not for a figure.
    let warm = Test { prompt: test.prompt.min(ROWS), generate: test.generate.min(1), depth: 0, ..test };
    let runs = std::iter::once(warm).chain(std::iter::repeat_n(test, repetitions));
    let mut samples = Vec::new();
    for run in runs {
        match once(loaded, run) {
            Err(EngineError::Cancelled) => return Ok(None),
            _ if interrupt::is_pressed() => return Ok(None),
            nanoseconds => samples.push(nanoseconds.map_err(failure)?),
        }
    }
    samples.remove(0);
    Ok(Some(samples))
}

fn once(loaded: &mut Loaded<Engine>, test: Test) -> Result<u64, EngineError> {
    let vocabulary = loaded.config.vocabulary;
    let mut contexts: Vec<Context> = (0..test.parallel).map(|_| loaded.engine.open()).collect();
    let mut first = vec![token(0, vocabulary); test.parallel];
    if test.depth > 0 {
        for (context, first) in contexts.iter_mut().zip(&mut first) {
            *first = prefill(loaded, context, test.depth, vocabulary)?;
        }
    }
    let started = Instant::now();
    if test.prompt > 0 {
        prefill(loaded, &mut contexts[0], test.prompt, vocabulary)?;
    }
    if test.generate > 0 {
        loaded.engine.decode_greedy(&mut contexts, &first, test.generate)?;
    }
    let nanoseconds = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    contexts.into_iter().for_each(|context| loaded.engine.close(context));
    Ok(nanoseconds)
}

/// Runs tokens that no cache can have seen in this order; the one drawn after them.
fn prefill(
    loaded: &mut Loaded<Engine>,
    context: &mut Context,
    tokens: usize,
    vocabulary: usize,
) -> Result<u32, EngineError> {
    let start = context.tokens().len();
    let tokens: Vec<u32> = (start..start + tokens).map(|i| token(i, vocabulary)).collect();
    let output = loaded.engine.prefill(context, &tokens, &Sampling::GREEDY, false)?;
    Ok(output.tokens.last().copied().unwrap_or(0))
}

/// Some token, the same on every run.
fn token(index: usize, vocabulary: usize) -> u32 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    (mixed % vocabulary as u64) as u32
}

fn row(loaded: &Loaded<Engine>, args: &DecodeArgs, test: Test, test_time: String, samples_ns: Vec<u64>) -> Row {
    let tokens = (test.prompt + test.generate * test.parallel) as f64;
    let rates: Vec<f64> = samples_ns.iter().map(|&ns| 1e9 * tokens / (ns.max(1) as f64)).collect();
    let times: Vec<f64> = samples_ns.iter().map(|&ns| ns as f64).collect();
    let (avg_ns, stddev_ns) = mean_and_deviation(&times);
    let (avg_ts, stddev_ts) = mean_and_deviation(&rates);
    let on_gpu = loaded.choice.place.name() == "CUDA";
    Row {
        build_commit: env!("TOMBOLO_COMMIT"),
        build_number: 0,
        cpu_info: cpu_name(),
        gpu_info: if on_gpu { loaded.devices.join("; ") } else { String::new() },
        backends: loaded.choice.place.name(),
        model_filename: args.model.source().name(),
        model_type: model_type(&loaded.gguf, &loaded.config),
        model_size: loaded.gguf.tensors().iter().map(|t| t.bytes).sum(),
        model_n_params: loaded.gguf.tensors().iter().map(|t| t.dims.iter().product::<u64>()).sum(),
        n_batch: args.rows,
        n_ubatch: args.rows,
        n_threads: loaded.choice.place.threads(),
        tensor_parallel_size: loaded.choice.ranks,
        // Where nothing is carried there is no transport.
        transport: if on_gpu && loaded.choice.ranks > 1 {
            format!("{:?}", args.device.transport).to_lowercase()
        } else {
            "-".into()
        },
        arith: format!("{:?}", args.device.arith).to_lowercase(),
        n_prompt: test.prompt,
        n_gen: test.generate,
        n_depth: test.depth,
        n_parallel: test.parallel,
        test_time,
        avg_ns: avg_ns as u64,
        stddev_ns: stddev_ns as u64,
        avg_ts,
        stddev_ts,
        samples_ns,
        samples_ts: rates,
    }
}

/// As `llama 135M Q4_1`: architecture, size, the type that holds most bytes.
fn model_type(gguf: &Gguf, config: &Config) -> String {
    let mut bytes: Vec<(&str, u64)> = Vec::new();
    for tensor in gguf.tensors() {
        match bytes.iter_mut().find(|(name, _)| *name == tensor.ty.name()) {
            Some((_, sum)) => *sum += tensor.bytes,
            None => bytes.push((tensor.ty.name(), tensor.bytes)),
        }
    }
    let ty = bytes.iter().max_by_key(|(_, sum)| *sum).map_or("", |(name, _)| name);
    let size = gguf.metadata().str("general.size_label").map(output::one_line);
    match size {
        Some(size) => format!("{} {size} {ty}", config.architecture),
        None => format!("{} {ty}", config.architecture),
    }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    line.trim_start_matches([' ', '\t', ':']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_do_not_wrap() {
        let with = |depth, prompt| context(&[Test { prompt, generate: 0, depth, parallel: 1 }]);
        assert_eq!(with(3, 4).unwrap(), 7);
        assert!(with(usize::MAX, 2).is_err());
        assert!(with(0, tombolo_model::limits::CONTEXT + 1).is_err());
    }

    #[test]
    fn tokens_are_of_the_vocabulary_and_differ() {
        let tokens: std::collections::HashSet<u32> = (0..512).map(|i| token(i, 49_152)).collect();
        assert!(tokens.len() > 500);
        assert!((0..1000).all(|i| token(i, 7) < 7));
    }
}
