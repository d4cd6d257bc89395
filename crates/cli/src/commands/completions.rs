//! `tombolo completions`: a script that teaches a shell the commands and options.

use crate::error::Error;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Options of `completions`.
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the command for the program that `command` describes.
pub(crate) fn run(args: &CompletionsArgs, mut command: clap::Command) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tombolo", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
