//! What is measured, and under which names it is told: vLLM's, with its types, labels and buckets, so that dashboards and
//! routers know them; what vLLM has no name for begins with `tombolo:`.

mod registry;

use crate::limits;
use crate::progress::Progress;
pub(crate) use registry::{Counter, Gauge, Histogram, Page};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tombolo_engine::{Figures, Reason, Settings, Tally};
use tombolo_model::BLOCK_TOKENS;

/// To a first token.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Between tokens.
const BETWEEN_TOKENS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// The same where tokens come by the hundred in a second.
const BETWEEN_TOKENS_FINE: &[f64] = &[
    0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02,
    0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
];
/// Of whole requests.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const STEP_TOKENS: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const PARAMS_N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
/// Parts of a step.
const PHASE: &[f64] = &[
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 60.0,
];
/// 1, 2, 5, 10 … : as many as a context has tokens.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6,
    1e7,
];

/// How a request ended, as vLLM calls it.
const FINISHED: [&str; 4] = ["stop", "length", "abort", "error"];
/// Why one was not taken.
const REFUSED: [&str; 3] = ["queue_full", "stopping", "masks_left"];

/// All that is measured.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The engine's own figures, as they were after the last step.
    figures: Mutex<Option<(Figures, Settings)>>,
    finished: [Counter; FINISHED.len()],
    refused: [Counter; REFUSED.len()],
    prompt_tokens: Counter,
    prompt_tokens_cached: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
    between_tokens_fine: Histogram,
    per_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    step_tokens: Histogram,
    prompt_length: Histogram,
    answer_length: Histogram,
    answer_max: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
    prefill_computed: Histogram,
    preemptions: Histogram,
    schedule: Histogram,
    run: Histogram,
    commit: Histogram,
    pub(crate) connections: Gauge,
    pub(crate) slow_readers: Counter,
}

/// What happened when to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) arrived: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
    pub(crate) prompt_tokens: usize,
    pub(crate) generated: usize,
    pub(crate) max_tokens: usize,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let new = Histogram::new;
        Self {
            figures: Mutex::new(None),
            finished: Default::default(),
            refused: Default::default(),
            prompt_tokens: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            first_token: new(FIRST_TOKEN),
            between_tokens: new(BETWEEN_TOKENS),
            between_tokens_fine: new(BETWEEN_TOKENS_FINE),
            per_token: new(BETWEEN_TOKENS),
            end_to_end: new(REQUEST),
            queue: new(REQUEST),
            inference: new(REQUEST),
            prefill: new(REQUEST),
            decode: new(REQUEST),
            step_tokens: new(STEP_TOKENS),
            prompt_length: new(TOKENS),
            answer_length: new(TOKENS),
            answer_max: new(TOKENS),
            params_n: new(PARAMS_N),
            params_max_tokens: new(TOKENS),
            prefill_computed: new(TOKENS),
            preemptions: new(PREEMPTIONS),
            schedule: new(PHASE),
            run: new(PHASE),
            commit: new(PHASE),
            connections: Gauge::default(),
            slow_readers: Counter::default(),
        }
    }

    pub(crate) fn set_figures(&self, figures: Figures, settings: Settings) {
        if let Ok(mut own) = self.figures.lock() {
            *own = Some((figures, settings));
        }
    }

    pub(crate) fn figures(&self) -> Option<(Figures, Settings)> {
        self.figures.lock().ok().and_then(|figures| figures.clone())
    }

    /// A request was not taken: `queue_full`, `stopping` or `masks_left`.
    pub(crate) fn refuse(&self, reason: &str) {
        if let Some(at) = REFUSED.iter().position(|name| *name == reason) {
            self.refused[at].add(1);
        }
    }

    /// A request was taken for so many answers.
    pub(crate) fn ask(&self, n: usize) {
        self.params_n.observe(n as f64);
    }

    /// A step's parts, in seconds, and its rows.
    pub(crate) fn step(&self, rows: usize, [schedule, run, commit]: [Duration; 3]) {
        self.step_tokens.observe(rows as f64);
        self.schedule.observe(schedule.as_secs_f64());
        self.run.observe(run.as_secs_f64());
        self.commit.observe(commit.as_secs_f64());
    }

    /// The first token of a request came, or others after it in one step.
    pub(crate) fn tokens(&self, times: &mut Times, now: Instant) {
        match times.last {
            None => self.first_token.observe((now - times.arrived).as_secs_f64()),
            Some(last) => {
                let seconds = (now - last).as_secs_f64();
                self.between_tokens.observe(seconds);
                self.between_tokens_fine.observe(seconds);
            }
        }
        times.first.get_or_insert(now);
        times.last = Some(now);
    }

    pub(crate) fn start(&self, times: &mut Times, now: Instant) {
        times.started = Some(now);
        self.prompt_tokens.add(times.prompt_tokens as u64);
    }

    pub(crate) fn finish(&self, times: &Times, reason: Option<&Reason>, tally: Tally, now: Instant) {
        let name = match reason {
            Some(Reason::Stop) => "stop",
            Some(Reason::Length) => "length",
            Some(Reason::Cancelled) => "abort",
            Some(Reason::NotNumbers | Reason::Mask(_)) | None => "error",
        };
        if let Some(at) = FINISHED.iter().position(|known| *known == name) {
            self.finished[at].add(1);
        }
        let seconds = |from: Option<Instant>, to: Instant| from.map(|from| (to - from).as_secs_f64());
        self.end_to_end.observe((now - times.arrived).as_secs_f64());
        let Some(started) = times.started else { return };
        self.prompt_tokens_cached.add(tally.cached_tokens as u64);
        self.queue.observe((started - times.arrived).as_secs_f64());
        self.prompt_length.observe(times.prompt_tokens as f64);
        self.prefill_computed.observe(times.prompt_tokens.saturating_sub(tally.cached_tokens) as f64);
        self.answer_length.observe(times.generated as f64);
        self.answer_max.observe(times.generated as f64);
        self.params_max_tokens.observe(times.max_tokens as f64);
        self.preemptions.observe(tally.preemptions as f64);
        let Some((first, last)) = times.first.zip(times.last) else { return };
        self.prefill.observe((first - started).as_secs_f64());
        let decode = seconds(Some(first), last).unwrap_or(0.0);
        self.decode.observe(decode);
        self.inference.observe((last - started).as_secs_f64());
        if times.generated > 1 {
            self.per_token.observe(decode / (times.generated - 1) as f64);
        }
    }

    /// The whole page.
    pub(crate) fn page(&self, model: &str, progress: &Progress) -> String {
        let mut page = Page::new(&[("engine", "0"), ("model_name", model)]);
        if let Some((figures, settings)) = self.figures() {
            engine(&mut page, &figures, &settings);
        }
        self.counters(&mut page);
        self.histograms(&mut page);
        self.own(&mut page, progress);
        page.finish()
    }

    fn counters(&self, page: &mut Page) {
        page.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", self.prompt_tokens.get());
        let cached = self.prompt_tokens_cached.get();
        page.counter("vllm:prompt_tokens_cached_total", "Number of prompt tokens that were in the cache.", cached);
        let by = |names: &[&str], counters: &[Counter]| -> Vec<(String, u64)> {
            names.iter().zip(counters).map(|(name, counter)| ((*name).to_string(), counter.get())).collect()
        };
        let finished = by(&FINISHED, &self.finished);
        page.counters(
            "vllm:request_success_total",
            "Count of successfully processed requests.",
            "finished_reason",
            &finished,
        );
        let refused = by(&REFUSED, &self.refused);
        page.counters("vllm:admission_rejections_total", "Requests that were not taken.", "reason", &refused);
    }

    fn histograms(&self, page: &mut Page) {
        let all: [(&str, &str, &Histogram); 16] = [
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &self.first_token),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &self.between_tokens),
            ("request_time_per_output_token_seconds", "Time per output token of requests.", &self.per_token),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &self.end_to_end),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase.", &self.queue),
            ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase.", &self.inference),
            ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase.", &self.prefill),
            ("request_decode_time_seconds", "Histogram of time spent in DECODE phase.", &self.decode),
            ("iteration_tokens_total", "Histogram of number of tokens per engine step.", &self.step_tokens),
            ("request_prompt_tokens", "Number of prefill tokens processed.", &self.prompt_length),
            ("request_generation_tokens", "Number of generation tokens processed.", &self.answer_length),
            ("request_max_num_generation_tokens", "Most generation tokens of a choice.", &self.answer_max),
            ("request_params_n", "Histogram of the n request parameter.", &self.params_n),
            ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", &self.params_max_tokens),
            ("request_prefill_kv_computed_tokens", "New KV tokens of a prompt.", &self.prefill_computed),
            ("request_num_preemptions", "Times that a request was preempted.", &self.preemptions),
        ];
        for (name, help, histogram) in all {
            page.histogram(&format!("vllm:{name}"), help, histogram);
        }
    }

    fn own(&self, page: &mut Page, progress: &Progress) {
        let fine = &self.between_tokens_fine;
        page.histogram("tombolo:inter_token_latency_seconds", "The same in finer buckets.", fine);
        page.histogram("tombolo:step_schedule_seconds", "Choosing a step and handing it out.", &self.schedule);
        page.histogram("tombolo:step_run_seconds", "From there until the ranks are done.", &self.run);
        page.histogram("tombolo:step_commit_seconds", "Taking in what came of it.", &self.commit);
        page.gauge("tombolo:engine_last_progress_seconds", "Since a sign of life.", progress.age().as_secs_f64());
        page.gauge("tombolo:engine_stalled_seconds", "The same while there is work.", progress.stalled().as_secs_f64());
        page.gauge("tombolo:connections", "Open connections.", self.connections.get());
        page.counter("tombolo:slow_readers_total", "Answers nobody read in time.", self.slow_readers.get());
    }
}

/// What the engine itself counts.
fn engine(page: &mut Page, figures: &Figures, settings: &Settings) {
    let blocks = figures.blocks.max(1);
    let usage = 1.0 - figures.free_blocks as f64 / blocks as f64;
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", figures.running as f64);
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", figures.waiting as f64);
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage);
    let (block_tokens, blocks) = (BLOCK_TOKENS.to_string(), figures.blocks.to_string());
    let prefix = if settings.prefix_cache { "True" } else { "False" };
    page.info(
        "vllm:cache_config_info",
        "Information of the LLMEngine CacheConfig",
        &[("block_size", &block_tokens), ("num_gpu_blocks", &blocks), ("enable_prefix_caching", prefix)],
    );
    let queries = figures.prefix_queries;
    page.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", queries);
    page.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", figures.prefix_hits);
    page.counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", figures.preemptions);
    page.counter("vllm:generation_tokens_total", "Number of generation tokens processed.", figures.generated);
    if settings.drafts.most() > 0 {
        page.counter("vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts.", figures.draft_steps);
        page.counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.", figures.drafted);
        let accepted = figures.accepted.iter().sum();
        page.counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.", accepted);
        let place = |at: usize| (at.to_string(), figures.accepted.get(at).copied().unwrap_or(0));
        let places: Vec<_> = (0..settings.drafts.most()).map(place).collect();
        page.counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted tokens per draft position.",
            "position",
            &places,
        );
    }
    page.gauge("tombolo:num_requests_waiting_max", "Most requests that may wait.", settings.waiting_max as f64);
    page.gauge("tombolo:choices_max", "Most answers of one request.", limits::CHOICES as f64);
}
