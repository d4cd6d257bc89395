//! `tombolo bench`: how fast, in the formats that people compare.

mod collective;
mod decode;
mod serve;
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
    /// A server under load, as its clients see it, measured and printed as `vllm bench serve` does
    Serve(Box<serve::ServeArgs>),
}

pub(crate) fn run(bench: &Bench) -> Result<ExitCode, Error> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Collective(args) => collective::run(args),
        Bench::Serve(args) => serve::run(args),
    }
}
