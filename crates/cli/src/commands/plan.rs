//! `tombolo plan`: where a model can be put on a machine and what the machine can do with it at best, term by term, from
//! the model's header alone.

mod machine;
mod model;
mod print;

pub(super) use machine::name_cards;

use crate::args::{KvCacheType, count};
use crate::error::{Error, failure, input};
use crate::output;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use tombolo_ceiling::advice::{Advice, advice, best};
use tombolo_ceiling::compare::{self, Compared, Inference};
use tombolo_ceiling::links::{Fabric, assumed_access, calibrate, rows};
use tombolo_ceiling::outside::{self, Outside};
use tombolo_ceiling::placement::{Basis, Illegal, Model, Placement, Wish, chosen, placements};
use tombolo_model::{Config, KvType};
use tombolo_topology::Machine;

/// Options of `plan`.
#[derive(clap::Args)]
pub(crate) struct PlanArgs {
    /// GGUF file or its first megabytes, dummy:NAME, a Hugging Face config.json, or GLM-5, GLM-5.2, DeepSeek-V3, Kimi-K2,
    /// Qwen3-235B, Qwen3-30B-A3B, Llama-70B
    #[arg(value_name = "MODEL", required_unless_present = "accuracy")]
    model: Option<PathBuf>,
    /// The machine: files with what nvidia-smi and others print or with its JSON, directories of them, or - for standard
    /// input [default: this machine]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    machine: Vec<PathBuf>,
    /// The card, where the files do not name it
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Do not measure the all-reduce of this machine's GPUs: predict it
    #[arg(long, conflicts_with = "machine")]
    no_measure: bool,
    /// Types of the weights of a model without a file: ud-q4_k_xl, q4_k_m, q8_0, bf16, bf16-q4
    #[arg(long, value_name = "RECIPE")]
    quant: Option<String>,
    /// Tokens of context; 0: as many as the model was trained for [default: 4096 at most]
    #[arg(short = 'c', long = "ctx-size", visible_alias = "max-model-len", value_name = "N", value_parser = count)]
    context: Option<usize>,
    /// Sequences at once, where many are served
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = count)]
    max_num_seqs: usize,
    /// How keys and values are kept
    #[arg(long, default_value = "auto", value_enum, value_name = "TYPE")]
    kv_cache_dtype: KvCacheType,
    /// Tokens that the model's own drafting block drafts in a step
    #[arg(long, value_name = "N", value_parser = count)]
    speculate: Option<usize>,
    /// Share of drafts that are right
    #[arg(long, default_value_t = 0.7, value_name = "P")]
    acceptance: f64,
    /// Tokens of a prompt that the time of prefill is told for
    #[arg(short = 'p', long = "n-prompt", default_value_t = 2048, value_name = "N", value_parser = count)]
    prompt: usize,
    /// A step that somebody observed, beside the ceiling: JSON with tok_s or step_ms, all_reduce_us, all_reduce_calls
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Print how far predictions were off where something was measured
    #[arg(long)]
    accuracy: bool,
    /// Write a page to open in a browser too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// All that is found out.
#[derive(Serialize)]
struct Plan {
    /// Where figures are from that are not marked otherwise.
    figures: &'static str,
    model: ModelFacts,
    machine: MachineFacts,
    wish: WishFacts,
    placements: Vec<Placement>,
    illegal: Vec<Illegal>,
    advice: Vec<Advice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<Accuracy>,
}

#[derive(Serialize)]
struct ModelFacts {
    name: String,
    architecture: String,
    parameters: u64,
    bytes: u64,
    layers: usize,
    /// All-reduces of a step, and one gather; an engine that cuts the embedding has one all-reduce more.
    all_reduces: usize,
    other_collectives: usize,
    all_reduce_bytes: usize,
    /// What the GPU backend has no kernel for yet.
    gpus_cannot_run: Option<&'static str>,
}

#[derive(Serialize)]
struct MachineFacts {
    gpus: Vec<String>,
    islands: Option<Vec<Vec<usize>>>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct WishFacts {
    context: usize,
    sequences: usize,
    kv: &'static str,
    prompt: usize,
}

#[derive(Serialize)]
struct Comparison {
    placement: String,
    observations: Vec<Compared>,
    inferences: Vec<Inference>,
    predictions: Vec<Outside>,
}

#[derive(Serialize)]
struct Accuracy {
    links: Vec<calibrate::Point>,
    median_error: f64,
    steps: Vec<Outside>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Error> {
    let mut out = std::io::stdout().lock();
    let basis = Basis::stored();
    let Some(name) = &args.model else {
        print::accuracy(&accuracy(&basis), args.json, &mut out)?;
        return Ok(ExitCode::SUCCESS);
    };
    let gguf = model::open(name, args.quant.as_deref())?;
    let config = Config::from_gguf(&gguf).map_err(|e| input(format!("{}: {e}", name.display())))?;
    let wish = wish(args, &config)?;
    // Observations often name the cards that the other files only number.
    let record = args.compare.iter().filter(|path| !args.machine.is_empty() && machine::is_record(path));
    let mut files = args.machine.clone();
    let among = |path: &&PathBuf| args.machine.iter().any(|m| m == *path || path.parent() == Some(m.as_path()));
    files.extend(record.filter(|path| !among(path)).cloned().collect::<Vec<_>>());
    let machine = machine::read(&files, args.gpu.as_deref(), !args.no_measure)?;
    let plan = plan(args, &Model::new(&gguf, &config), &machine, &wish, &basis)?;
    if let Some(path) = &args.report {
        let page = print::page(&plan, &machine);
        std::fs::write(path, page).map_err(|error| failure(format!("{}: {error}", path.display())))?;
    }
    if args.json {
        print::json(&plan, &mut out)?;
    } else {
        print::text(&plan, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wish(args: &PlanArgs, config: &Config) -> Result<Wish, Error> {
    let within = |name: &str, value: usize, most: usize| match (1..=most).contains(&value) {
        true => Ok(value),
        false => Err(input(format!("{name} {value} is not between 1 and {most}"))),
    };
    if !(0.0..=1.0).contains(&args.acceptance) {
        return Err(input(format!("--acceptance {} is not between 0 and 1", output::number(args.acceptance))));
    }
    let drafts = args.speculate.filter(|&n| n > 0).map(|n| within("--speculate", n, 16)).transpose()?;
    if drafts.is_some() && config.draft_layers == 0 {
        return Err(input("--speculate: this model has no block that drafts"));
    }
    Ok(Wish {
        context: crate::load::context(args.context, config)?,
        batch: within("--max-num-seqs", args.max_num_seqs, 4096)?,
        kv: args.kv_cache_dtype.kind().unwrap_or(KvType::F16),
        speculation: drafts.map(|n| (n, args.acceptance)),
        prompt: args.prompt.min(tombolo_model::limits::CONTEXT),
        chunk: crate::load::ROWS,
    })
}

fn plan(args: &PlanArgs, model: &Model, machine: &Machine, wish: &Wish, basis: &Basis) -> Result<Plan, Error> {
    let (placed, illegal) = placements(model, machine, wish, basis).map_err(input)?;
    let advice = advice(model, machine, wish, basis, &placed).map_err(input)?;
    let compare = match &args.compare {
        Some(path) => Some(compare(path, machine, &placed, basis)?),
        None => None,
    };
    let (gguf, config) = (model.gguf, model.config);
    let budget = placed.first().map(|p| &p.budget);
    Ok(Plan {
        figures: "predicted, from published and measured constants, unless marked",
        model: ModelFacts {
            name: config.name.clone(),
            architecture: config.architecture.clone(),
            parameters: gguf.tensors().iter().map(|t| t.dims.iter().product::<u64>()).sum(),
            bytes: gguf.tensors().iter().map(|t| t.bytes).sum(),
            layers: config.layers(),
            all_reduces: budget.map_or(0, |b| b.all_reduces),
            other_collectives: 2,
            all_reduce_bytes: 2 * config.hidden,
            gpus_cannot_run: model.whole_program().and_then(tombolo_cuda::fuse::unsupported),
        },
        machine: MachineFacts {
            gpus: machine.gpus.iter().map(|g| g.name.clone().unwrap_or_else(|| "unnamed GPU".into())).collect(),
            islands: machine.islands(),
            notes: notes(machine),
        },
        wish: WishFacts { context: wish.context, sequences: wish.batch, kv: wish.kv.name(), prompt: wish.prompt },
        placements: placed,
        illegal,
        advice,
        compare,
        accuracy: args.accuracy.then(|| accuracy(basis)),
    })
}

/// What must be known about the machine.
fn notes(machine: &Machine) -> Vec<String> {
    machine.notes.iter().cloned().chain(assumed_access(machine)).collect()
}

/// Observations are held against the placement that uses all GPUs for one model, if it fits; else the best.
fn compare(
    path: &std::path::Path,
    machine: &Machine,
    placed: &[Placement],
    basis: &Basis,
) -> Result<Comparison, Error> {
    let text = machine::text_of(path)?;
    let observed = compare::read(&text).map_err(|e| input(format!("{}: {e}", path.display())))?;
    let whole = |p: &&Placement| p.tensor_parallel == machine.len() && p.fits && !p.experts_whole;
    let at = placed.iter().find(whole).or_else(|| best(placed));
    let at = at.ok_or_else(|| failure("the model fits in no placement, so there is no ceiling to compare with"))?;
    let calls = at.budget.all_reduces + 2;
    let fabric = Fabric::of(machine, &chosen(machine, at.tensor_parallel)).map_err(input)?;
    let (bytes, params) = (at.budget.all_reduce_bytes, &basis.params);
    Ok(Comparison {
        placement: at.name.clone(),
        inferences: compare::infer(&observed, &at.one, calls, &fabric, bytes, params),
        observations: observed.iter().map(|o| compare::compare(o, &at.one, calls)).collect(),
        predictions: outside::predictions(basis),
    })
}

fn accuracy(basis: &Basis) -> Accuracy {
    let links = calibrate::left_out(&rows::stored(), &basis.params);
    let median_error = calibrate::median_error(links.iter()).unwrap_or(f64::NAN);
    Accuracy { links, median_error, steps: outside::predictions(basis) }
}
