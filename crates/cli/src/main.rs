//! The `tombolo` binary: arguments in, text out, one line on errors. One file per command under `commands/`; what a
//! command computes lives in the crates below. Only here is it decided which backend runs a model.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod backend;
mod certificates;
mod child;
mod commands;
mod config;
mod demo;
mod drafts;
mod error;
mod form;
mod interrupt;
mod limits;
mod load;
mod log;
mod machine_texts;
mod memory;
mod output;
mod progress;
mod self_check;
mod small_file;
mod tools;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use commands::Command;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs large language models from GGUF files, split over GPUs that have only PCIe between them, or on the processor.
#[derive(Parser)]
#[command(name = "tombolo", version, disable_help_subcommand = true, arg_required_else_help = true)]
struct Cli {
    /// File of options: a table for each command, names as here; none: no file [default: tombolo/config.toml in
    /// $XDG_CONFIG_HOME or ~/.config, where there is one]
    #[arg(long, global = true, value_name = "FILE", env = config::VARIABLE, hide_env = true,
        value_parser = args::maybe_path())]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// The whole command line, as it is parsed.
fn command_line() -> clap::Command {
    args::taking_negative_numbers(Cli::command())
}

fn main() -> ExitCode {
    error::one_line_panics();
    // Where the system takes no handler, a cut file ends the program without an explanation.
    let _ = tombolo_gguf::exit_when_a_file_is_cut();
    let args = args::rewritten(std::env::args_os());
    if log::is_asked_for(&args) {
        log::as_json();
    }
    let parsed = match command_line().try_get_matches_from(&args) {
        // The file may have it.
        Err(wrong) if wrong.kind() == ErrorKind::MissingRequiredArgument => {
            command_line().ignore_errors(true).try_get_matches_from(&args)
        }
        parsed => parsed,
    };
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(wrong) => return error::usage(&wrong),
    };
    let (args, taken) = match config::with_file(args, &parsed) {
        Ok(both) => both,
        Err(error) => {
            error.print();
            return error.exit_code();
        }
    };
    let matches = command_line().try_get_matches_from(args);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(wrong) => return error::usage(&wrong),
    };
    if cli.command.tells_as_json() {
        log::as_json();
    }
    taken.say();
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => {
            let error = taken.located(error);
            error.print();
            error.exit_code()
        }
    }
}
