//! The `tombolo` binary: arguments in, text out, one line on errors. One file per command under `commands/`; what a
//! command computes lives in the crates below. Only here is it decided which backend runs a model.
#![forbid(unsafe_code)]

mod args;
mod backend;
mod commands;
mod error;
mod interrupt;
mod load;
mod output;

use clap::Parser;
use commands::Command;
use error::Error;
use std::process::ExitCode;

/// Serves large language models from GGUF files, tensor-parallel, on GPUs that have only PCIe between them.
#[derive(Parser)]
#[command(name = "tombolo", version, disable_help_subcommand = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    error::one_line_panics();
    let cli = match Cli::try_parse_from(args::rewritten(std::env::args_os())) {
        Ok(cli) => cli,
        Err(wrong) => return error::usage(&wrong),
    };
    match cli.command.run() {
        Ok(code) => code,
        Err(Error::ReaderGone) => ExitCode::SUCCESS,
        Err(error) => {
            error.print();
            error.exit_code()
        }
    }
}
