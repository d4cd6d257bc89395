//! `tombolo bench serve`: load on any server of OpenAI's API, and what its clients would have seen. Options, output and
//! keys are those of `vllm bench serve`.
//!
//! One thread sends and listens: clocks are read where bytes arrive, and the server keeps the other cores.

mod body;
mod drive;
mod events;
mod figures;
mod http;
mod print;
mod prompts;
mod random;
mod speculation;
mod tls;
mod words;

use crate::args::{check_key, count, maybe_path};
use crate::error::{Error, failure, input};
use crate::limits::{CLIENTS_MAX, PROMPTS_MAX};
use crate::output;
use body::{Api, Ask, Manner, Prompt};
use drive::{Load, Outcome};
use figures::{Figures, Metric};
use http::{Address, Client, Fault};
use hyper::Method;
use hyper::body::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use print::Run;
use prompts::Shape;
use random::Random;
use serde_json::{Map, Value};
use speculation::Speculation;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tls::Tls;
use words::Pool;

/// Options of `bench serve`.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL")]
    base_url: String,
    /// Certificates to trust where its address begins with https, as PEM [default: the system's]
    #[arg(long, value_name = "FILE", env = "SSL_CERT_FILE", value_parser = maybe_path())]
    ca_file: Option<PathBuf>,
    /// Path of the API: /v1/completions or /v1/chat/completions
    #[arg(long, default_value = "/v1/completions", value_name = "PATH")]
    endpoint: String,
    /// Model to ask for [default: the first that the server lists]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// Key that goes with every request
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Temperature; 0: always the most likely token
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f64,
    /// Answers are as long as asked for, whatever the model says
    #[arg(long)]
    ignore_eos: bool,
    /// JSON whose fields go into every request
    #[arg(long, value_name = "JSON")]
    extra_body: Option<String>,
    /// Seconds without a byte after which a request has failed
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    request_timeout: u64,
    /// Seconds to wait for a server that is not there yet or still loads
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=86_400))]
    ready_check_timeout_sec: u64,
    #[command(flatten)]
    report: ReportArgs,
}

/// When requests are sent.
#[derive(clap::Args)]
struct LoadArgs {
    /// Requests
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = count)]
    num_prompts: usize,
    /// Requests a second, however the server keeps up (open loop); inf: all at once
    #[arg(long, default_value_t = f64::INFINITY, value_name = "R")]
    request_rate: f64,
    /// How even arrivals are: 1 a Poisson process, less in bursts, more evener
    #[arg(long, default_value_t = 1.0, value_name = "B")]
    burstiness: f64,
    /// Requests under way at most; the next one waits for the end of another (closed loop)
    #[arg(long, value_name = "N", value_parser = count)]
    max_concurrency: Option<usize>,
    /// Seed of prompts and arrivals
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dataset {
    /// Common words by chance, exactly as many tokens as asked for
    Random,
    /// JSON Lines with a `prompt` and perhaps `output_tokens`
    #[value(alias = "file")]
    Custom,
    /// Conversations as ShareGPT has them: the first turn, answered as long as there
    Sharegpt,
}

/// What is sent.
#[derive(clap::Args)]
struct DataArgs {
    /// Where prompts come from
    #[arg(long, default_value = "random", value_enum, value_name = "WHAT")]
    dataset_name: Dataset,
    /// File of prompts
    #[arg(long, value_name = "FILE")]
    dataset_path: Option<PathBuf>,
    /// Tokens of an answer, instead of what the file says
    #[arg(long, visible_aliases = ["custom-output-len", "sharegpt-output-len"], value_name = "N", value_parser = count)]
    output_len: Option<usize>,
    /// Tokens of a random prompt, beside its prefix
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = count)]
    random_input_len: usize,
    /// Tokens of its answer
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = count)]
    random_output_len: usize,
    /// Tokens that all random prompts begin with
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count)]
    random_prefix_len: usize,
    /// Lengths lie evenly from this part of themselves below to as much above: 0 to below 1
    #[arg(long, default_value_t = 0.0, value_name = "R")]
    random_range_ratio: f64,
    /// Send random prompts as text where token ids could be sent
    #[arg(long)]
    random_text: bool,
}

/// What is told, and where.
#[derive(clap::Args)]
struct ReportArgs {
    /// Metrics of the table
    #[arg(long, value_delimiter = ',', value_enum, default_values = ["ttft", "tpot", "itl", "e2el"], value_name = "M,…")]
    percentile_metrics: Vec<Metric>,
    /// Percentiles of each
    #[arg(long, value_delimiter = ',', default_value = "99", value_name = "P,…")]
    metric_percentiles: Vec<f64>,
    /// Milliseconds that a request keeps to be a good one, as ttft:200 tpot:50 e2el:2000
    #[arg(long, num_args = 1.., value_parser = limit, value_name = "M:MS")]
    goodput: Vec<(Metric, f64)>,
    /// Name of this run in the saved result
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Save the result as JSON
    #[arg(long)]
    save_result: bool,
    /// With every request's own figures
    #[arg(long)]
    save_detailed: bool,
    /// Folder to save it in
    #[arg(long, value_name = "DIR")]
    result_dir: Option<PathBuf>,
    /// File to save it in [default: named by what was run]
    #[arg(long, value_name = "FILE")]
    result_filename: Option<PathBuf>,
    /// No progress bar
    #[arg(long)]
    disable_tqdm: bool,
}

/// `ttft:200`.
fn limit(text: &str) -> Result<(Metric, f64), String> {
    let wrong = || "a metric and milliseconds are needed, as ttft:200".to_string();
    let (name, limit) = text.split_once(':').ok_or_else(wrong)?;
    let metric = Metric::ALL.into_iter().find(|metric| metric.key() == name).ok_or_else(wrong)?;
    let limit = limit.parse().ok().filter(|limit: &f64| *limit >= 0.0).ok_or_else(wrong)?;
    Ok((metric, limit))
}

impl ServeArgs {
    /// A variable that is there and empty says nothing.
    fn key(&self) -> Option<&str> {
        self.api_key.as_deref().filter(|key| !key.is_empty())
    }
}

/// Runs the command. Exit code 1 where any request failed.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Error> {
    check(args)?;
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failure)?;
    runtime.block_on(measure(args))
}

fn check(args: &ServeArgs) -> Result<(), Error> {
    let LoadArgs { num_prompts, request_rate, burstiness, max_concurrency, .. } = args.load;
    args.api_key.iter().try_for_each(|key| check_key("--api-key, OPENAI_API_KEY", key))?;
    if num_prompts == 0 || num_prompts > PROMPTS_MAX {
        return Err(input(format!("--num-prompts {num_prompts}: 1 to {PROMPTS_MAX} are possible")));
    }
    if max_concurrency.is_some_and(|most| most == 0 || most > CLIENTS_MAX) {
        return Err(input(format!("--max-concurrency: 1 to {CLIENTS_MAX} are possible")));
    }
    let bounds = [
        ("request-rate", request_rate > 0.0, "more than 0 is needed"),
        ("burstiness", burstiness > 0.0 && burstiness.is_finite(), "more than 0 is needed"),
        ("temperature", args.temperature >= 0.0 && args.temperature.is_finite(), "at least 0 is needed"),
        ("random-range-ratio", (0.0..1.0).contains(&args.data.random_range_ratio), "0 to below 1 is needed"),
        (
            "metric-percentiles",
            args.report.metric_percentiles.iter().all(|p| (0.0..=100.0).contains(p)),
            "0 to 100 is needed",
        ),
    ];
    if let Some((name, _, needed)) = bounds.iter().find(|(_, holds, _)| !holds) {
        return Err(input(format!("--{name}: {needed}")));
    }
    let DataArgs { random_input_len, random_output_len, random_prefix_len, .. } = args.data;
    let most = tombolo_model::limits::CONTEXT;
    let lengths = [
        ("random-input-len", random_input_len),
        ("random-output-len", random_output_len),
        ("random-prefix-len", random_prefix_len),
    ];
    if let Some((name, length)) = lengths.iter().find(|(_, length)| *length > most) {
        return Err(input(format!("--{name} {length}: more than {most} tokens fit no context")));
    }
    let is_random = args.data.dataset_name == Dataset::Random;
    match (&args.data.dataset_path, is_random) {
        (None, false) => Err(input("--dataset-name custom and sharegpt need --dataset-path")),
        (Some(_), true) => Err(input("--dataset-path: which --dataset-name is it, custom or sharegpt?")),
        _ => Ok(()),
    }
}

/// Every connection is a file; shells allow few by default.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, connecting says so.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

async fn measure(args: &ServeArgs) -> Result<ExitCode, Error> {
    let address =
        Address::parse(&args.base_url).map_err(|why| input(format!("--base-url {}: {why}", args.base_url)))?;
    let Some(api) = Api::of(&args.endpoint).filter(|_| args.endpoint.starts_with('/')) else {
        return Err(input(format!("--endpoint {}: /v1/completions or /v1/chat/completions is needed", args.endpoint)));
    };
    let extra = extra(args.extra_body.as_deref())?;
    let tls = address.is_tls.then(|| Tls::new(address.host(), args.ca_file.as_deref())).transpose()?;
    let client = Client::new(address, tls, args.key().map(str::to_string), Duration::from_secs(args.request_timeout));
    let model = model(args, &client).await?;
    let manner = Manner { api, model, temperature: args.temperature, ignore_eos: args.ignore_eos, extra };
    let (asks, trial, note) = asks(args, &client, &manner).await?;
    if let Some(note) = note {
        output::say_safely(&format!("note: {note}"));
    }
    let LoadArgs { request_rate, burstiness, max_concurrency, seed, .. } = args.load;
    // Of its own, so that other lengths do not change when they are sent.
    let arrivals = Random::new(seed ^ 0xa441).arrivals(asks.len(), request_rate, burstiness);
    let load = Load {
        client,
        endpoint: args.endpoint.clone(),
        manner,
        asks,
        arrivals,
        concurrency: max_concurrency,
        keeps_text: args.report.save_detailed,
    };
    try_once(args, &load, &trial).await?;
    let before = Speculation::of(&load.client).await;
    let date = output::iso_time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()));
    let load = Arc::new(load);
    let bar = bar(args, load.asks.len());
    let ticks = bar.clone();
    let (outcomes, duration) = load.run(move || ticks.inc(1)).await;
    bar.finish_and_clear();
    let after = Speculation::of(&load.client).await;
    let speculation = before.zip(after).and_then(|(before, after)| after.since(&before));
    let figures =
        Figures::new(&outcomes, duration.as_secs_f64(), &args.report.metric_percentiles, &args.report.goodput);
    let run = Run {
        date: compact(&date),
        backend: api.name(),
        label: args.report.label.clone(),
        model: load.manner.model.clone(),
        num_prompts: load.asks.len(),
        request_rate,
        burstiness,
        concurrency: max_concurrency,
        figures,
        speculation,
        shown: args.report.percentile_metrics.clone(),
    };
    finish(args, &run, &outcomes)
}

/// `20261130-031500` from `2026-11-30T03:15:00Z`.
fn compact(date: &str) -> String {
    date.chars().filter(|c| c.is_ascii_digit() || *c == 'T').map(|c| if c == 'T' { '-' } else { c }).collect()
}

fn extra(text: Option<&str>) -> Result<Map<String, Value>, Error> {
    let Some(text) = text else { return Ok(Map::new()) };
    serde_json::from_str(text).map_err(|error| input(format!("--extra-body: a JSON object is needed: {error}")))
}

fn bar(args: &ServeArgs, count: usize) -> ProgressBar {
    if args.report.disable_tqdm {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} requests, {elapsed}, {eta} left");
    let bar = ProgressBar::new(count as u64);
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}

/// The names that the server lists.
async fn models(client: &Client) -> Result<Vec<String>, Fault> {
    let answer = client.send(Method::GET, "/v1/models", Bytes::new()).await?;
    if answer.status != 200 {
        return Err(answer.refusal().await);
    }
    let (_, body) = answer.whole().await?;
    let json: Value = serde_json::from_slice(&body).map_err(|error| Fault::Odd(error.to_string()))?;
    let names = json["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    Ok(names.map(str::to_string).collect())
}

/// The model to ask for, once the server is there.
async fn model(args: &ServeArgs, client: &Client) -> Result<String, Error> {
    let deadline = Instant::now() + Duration::from_secs(args.ready_check_timeout_sec);
    let names = loop {
        match models(client).await {
            Err(Fault::Connect(_) | Fault::Broken(_) | Fault::Status(503, _)) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            // It need not list them.
            Err(Fault::Status(404 | 405, _) | Fault::Odd(_)) => break Vec::new(),
            other => break other.map_err(|fault| explained(args, &fault, &[]))?,
        }
    };
    match (&args.model, names.first()) {
        (Some(name), None) => Ok(name.clone()),
        (Some(name), Some(_)) if names.contains(name) => Ok(name.clone()),
        (Some(name), Some(_)) => Err(input(format!("the server has no model '{name}'; it has {}", names.join(", ")))),
        (None, Some(name)) => Ok(name.clone()),
        (None, None) => Err(input("the server does not list its models: give --model")),
    }
}

/// What is sent, one request to try, and what should be known of it.
async fn asks(args: &ServeArgs, client: &Client, manner: &Manner) -> Result<(Vec<Ask>, Ask, Option<String>), Error> {
    let (data, count) = (&args.data, args.load.num_prompts);
    if let Some(path) = &data.dataset_path {
        let mut asks = prompts::from_file(path, data.output_len).map_err(input)?;
        let trial = asks[0].clone();
        let note = (asks.len() < count).then(|| format!("{} has {} prompts only", path.display(), asks.len()));
        asks.truncate(count);
        return Ok((asks, trial, note));
    }
    let pool = words::pool(client, &manner.model).await.map_err(|fault| explained(args, &fault, &[]))?;
    let as_text = data.random_text || manner.api == Api::Chat;
    let note = match (&pool, as_text) {
        (Pool::Ids(_), true) => {
            return Err(input("the model has no vocabulary: only /v1/completions with token ids works"));
        }
        (Pool::Words(_), _) => Some("the server does not tell its tokens (/tokenize): prompts have about one a word"),
        (Pool::Exact { .. }, _) if manner.api == Api::Chat => {
            Some("the chat template's tokens come on top of a prompt's")
        }
        _ => None,
    };
    let shape = Shape {
        input: data.random_input_len,
        output: data.random_output_len,
        prefix: data.random_prefix_len,
        range: data.random_range_ratio,
        as_text,
    };
    let mut asks = shape.asks(&pool, args.load.seed, count + 1);
    let trial = asks.swap_remove(count);
    Ok((asks, trial, note.map(str::to_string)))
}

/// A short request first, not timed: what is wrong with all of them shows once, and the server is warm.
async fn try_once(args: &ServeArgs, load: &Load, trial: &Ask) -> Result<(), Error> {
    let trial = Ask { max_tokens: trial.max_tokens.min(8), ..trial.clone() };
    let outcome = load.send(&trial, load.manner.body(&trial), Instant::now()).await;
    let Some(fault) = outcome.error else { return Ok(()) };
    let kind = if matches!(trial.prompt, Prompt::Tokens(_)) {
        " (a prompt of token ids; --random-text sends text)"
    } else {
        ""
    };
    let error = explained(args, &fault, &[404]);
    match (error, &fault) {
        (Error::Failure(line), Fault::Status(400 | 422, _)) => Err(Error::Failure(format!("{line}{kind}"))),
        (error, _) => Err(error),
    }
}

/// One line on a fault that all requests would have; `paths`: statuses that say that the endpoint is wrong.
fn explained(args: &ServeArgs, fault: &Fault, paths: &[u16]) -> Error {
    let url = &args.base_url;
    match fault {
        Fault::Connect(why) => failure(format!("no server at {url} ({why}): start one, or give --base-url")),
        Fault::Status(401 | 403, why) if args.key().is_none() => {
            failure(format!("the server wants a key ({why}): give --api-key"))
        }
        Fault::Status(401 | 403, why) => failure(format!("the server does not take the key: {why}")),
        Fault::Status(503, why) => failure(format!("the server is not ready ({why}): --ready-check-timeout-sec waits")),
        Fault::Status(status, why) if paths.contains(status) => {
            failure(format!("{url} has no {} for this model: {why}", args.endpoint))
        }
        Fault::Status(status, why) => failure(format!("the server answers {status}: {why}")),
        fault => failure(format!("{url}: {fault}")),
    }
}

/// Prints, saves, and judges.
fn finish(args: &ServeArgs, run: &Run, outcomes: &[Outcome]) -> Result<ExitCode, Error> {
    use std::io::Write;
    let figures = &run.figures;
    let faults = faults(outcomes);
    if figures.completed == 0 {
        let why = faults.first().map(|(why, _)| why.as_str()).unwrap_or_default();
        return Err(failure(format!("all {} requests failed: {why}", figures.failed)));
    }
    writeln!(std::io::stdout(), "{}", run.table())?;
    if figures.counted > 0 {
        output::say(&format!(
            "note: {} answers came without usage: events with text are counted as tokens",
            figures.counted
        ));
    }
    if figures.short > 0 && args.ignore_eos {
        output::say(&format!("note: {} answers are shorter than asked for", figures.short));
    }
    for (why, count) in &faults {
        output::say_safely(&format!("{count} requests failed: {why}"));
    }
    if args.report.save_result || args.report.save_detailed || args.report.result_filename.is_some() {
        save(args, run, outcomes)?;
    }
    Ok(if figures.failed > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// The most frequent reasons, with their counts.
fn faults(outcomes: &[Outcome]) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for fault in outcomes.iter().filter_map(|outcome| outcome.error.as_ref()) {
        let why = fault.to_string();
        match counts.iter().position(|(known, _)| *known == why) {
            Some(at) => counts[at].1 += 1,
            // Texts with a number of their own in each are all different.
            None if counts.len() < 16 => counts.push((why, 1)),
            None => counts[15].1 += 1,
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(4);
    counts
}

fn save(args: &ServeArgs, run: &Run, outcomes: &[Outcome]) -> Result<(), Error> {
    let name = args.report.result_filename.clone().unwrap_or_else(|| {
        let concurrency = run.concurrency.map(|most| format!("-concurrency{most}")).unwrap_or_default();
        let model = run.model.rsplit('/').next().unwrap_or_default();
        let label = run.label.as_deref().unwrap_or(run.backend);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = format!("{label}-{}qps{concurrency}-{model}-{}.json", run.request_rate, run.date);
        name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect::<String>().into()
    });
    let path = args.report.result_dir.clone().unwrap_or_default().join(name);
    let mut json = run.json(args.report.save_detailed.then_some(outcomes));
    json.insert("tombolo_version".into(), env!("CARGO_PKG_VERSION").into());
    let text = serde_json::to_string_pretty(&json).map_err(failure)? + "\n";
    std::fs::write(&path, text).map_err(|error| failure(format!("writing {}: {error}", path.display())))?;
    output::say(&format!("saved to {}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_goodput_are_read() {
        assert_eq!(limit("ttft:200"), Ok((Metric::Ttft, 200.0)));
        assert_eq!(limit("e2el:0.5"), Ok((Metric::E2el, 0.5)));
        for wrong in ["ttft", "ttft:", "x:1", "ttft:-1", "ttft:nan"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates_are_short_in_names() {
        assert_eq!(compact("2026-11-30T03:15:00Z"), "20261130-031500");
    }

    #[test]
    fn failures_are_told_by_their_number() {
        let failed = |why: &str| Outcome { error: Some(Fault::Broken(why.into())), ..Outcome::default() };
        let outcomes = [failed("a"), failed("b"), failed("b"), Outcome::default()];
        let faults = faults(&outcomes);
        assert_eq!(faults[0], ("the connection broke: b".to_string(), 2));
        assert_eq!(faults.len(), 2);
    }
}
