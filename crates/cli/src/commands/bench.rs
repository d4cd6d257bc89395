//! `tombolo bench`: how fast, in the formats that people compare.

mod collective;
mod decode;
mod table;

use crate::error::Error;
use std::process::ExitCode;

/// What to measure.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Prefill and decode speed of one sequence, as llama-bench measures and prints it
    Decode(decode::DecodeArgs),
    /// The all-reduce between GPUs, beside NCCL's, as nccl-tests prints it
    Collective(collective::CollectiveArgs),
}

pub(crate) fn run(bench: &Bench) -> Result<ExitCode, Error> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Collective(args) => collective::run(args),
    }
}
