//! The commands, one file each.

mod bench;
mod chat;
mod completions;
mod doctor;
mod inspect;
mod logits;
mod plan;
mod pull;
mod run;
mod serve;

use crate::error::Error;
use std::process::ExitCode;

/// What `tombolo` can be told to do.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Complete a prompt, or chat
    Run(run::RunArgs),
    /// Serve a model over OpenAI's API
    Serve(Box<serve::ServeArgs>),
    /// Measure speed
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Say what connects the GPUs, what that permits and what mends it
    Doctor(doctor::DoctorArgs),
    /// Show what is in a GGUF file
    Inspect(inspect::InspectArgs),
    /// Show what a machine can do with a model at best, and which placement does it
    Plan(plan::PlanArgs),
    /// Download a model's GGUF files from a hub
    Pull(pull::PullArgs),
    /// Compute the logits of given tokens, for comparisons
    Logits(logits::LogitsArgs),
    /// Print a script that completes commands and options in a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Whether what it says beside its output is for machines.
    pub(crate) fn tells_as_json(&self) -> bool {
        matches!(self, Command::Serve(args) if args.log.log_json)
    }

    pub(crate) fn run(self) -> Result<ExitCode, Error> {
        match self {
            Command::Run(args) => run::run(&args),
            Command::Serve(args) => serve::run(&args),
            Command::Bench(bench) => bench::run(&bench),
            Command::Doctor(args) => doctor::run(&args),
            Command::Inspect(args) => inspect::run(&args),
            Command::Plan(args) => plan::run(&args),
            Command::Pull(args) => pull::run(&args),
            Command::Logits(args) => logits::run(&args),
            Command::Completions(args) => completions::run(&args, crate::command_line()),
        }
    }
}
