//! `tombolo doctor`: what connects the GPUs, what that permits and what mends it, from this machine or from pasted text.
//! What follows from the facts is `tombolo_topology`'s; here it is read, printed and turned into an exit code.

mod draw;
mod text;

use crate::error::{Error, failure, input};
use crate::machine_texts;
use crate::self_check::{self, SelfCheck};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tombolo_topology::{Look, Machine, Severity, Uplink, Verdict, read, verdicts};

/// Options of `doctor`.
#[derive(clap::Args)]
#[command(after_help = "Exit code: 0 nothing is broken, 1 at least one ERROR, 2 a text that cannot be read.\n\n\
    A machine elsewhere: paste what these print, one after the other, into a file or into `tombolo doctor --machine -`:\n\
    \x20 nvidia-smi; nvidia-smi topo -m; nvidia-smi topo -p2p r\n\
    \x20 nvidia-smi --query-gpu=index,name,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max --format=csv")]
pub(crate) struct DoctorArgs {
    /// Texts that describe a machine instead of this one: files, directories of them, or - for standard input. Understood:
    /// nvidia-smi, nvidia-smi -q, -L, topo -m, topo -p2p, --query-gpu as CSV, lspci -tv, NCCL's topology XML, p2pBandwidthLatencyTest,
    /// JSON of doctor
    #[arg(long, value_name = "FILE", num_args = 1..)]
    machine: Vec<PathBuf>,
    /// The card, where the texts do not name it
    #[arg(long, value_name = "NAME", requires = "machine")]
    gpu: Option<String>,
    /// Look only: do not try the all-reduce of this machine's GPUs
    #[arg(long, conflicts_with = "machine")]
    no_measure: bool,
    /// Write a page to open in a browser too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// As one JSON object, which --machine reads
    #[arg(long)]
    json: bool,
}

/// All that is known.
#[derive(Serialize)]
struct Report<'a> {
    tombolo: &'static str,
    healthy: bool,
    machine: &'a Machine,
    islands: Option<Vec<Vec<u32>>>,
    uplinks: Vec<Uplink>,
    fully_connected_by_nvlink: Option<bool>,
    verdicts: &'a [Verdict],
    looked: &'a [Look],
    #[serde(skip_serializing_if = "Option::is_none")]
    self_check: Option<&'a SelfCheck>,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Error> {
    let (machine, looked, check) = facts(args)?;
    let verdicts = verdicts(&machine);
    let broken = verdicts.iter().any(|verdict| verdict.severity == Severity::Error);
    let healthy = !broken && check.as_ref().is_none_or(|check| !check.broken);
    if let Some(path) = &args.report {
        let page = tombolo_report::doctor_page(&text::headline(&machine), &machine, &verdicts);
        std::fs::write(path, page).map_err(|error| failure(format!("{}: {error}", path.display())))?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let number = |island: Vec<usize>| island.iter().map(|&at| machine.gpus[at].index).collect();
        let report = Report {
            tombolo: env!("CARGO_PKG_VERSION"),
            healthy,
            machine: &machine,
            islands: machine.islands().map(|islands| islands.into_iter().map(number).collect()),
            uplinks: machine.uplinks(),
            fully_connected_by_nvlink: machine.fully_connected_by_nvlink(),
            verdicts: &verdicts,
            looked: &looked,
            self_check: check.as_ref(),
        };
        writeln!(out, "{}", serde_json::to_string_pretty(&report).map_err(failure)?)?;
    } else {
        let style = text::Style::of_stdout();
        text::print(&mut out, &machine, &verdicts, &looked, check.as_ref(), &style)?;
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The machine, what was looked at to know it, and what its all-reduce did.
fn facts(args: &DoctorArgs) -> Result<(Machine, Vec<Look>, Option<SelfCheck>), Error> {
    if !args.machine.is_empty() {
        let mut machine = read(&machine_texts::sources(&args.machine)?).map_err(input)?;
        if let Some(name) = &args.gpu {
            super::plan::name_cards(&mut machine, name)?;
        }
        return Ok((machine, Vec::new(), None));
    }
    let (found, check) = self_check::this_machine(!args.no_measure);
    Ok((found.machine, found.looked, check))
}
