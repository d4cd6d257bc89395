//! `cargo xtask`: chores of the project that are not part of the product. One file per chore; nothing in `crates/`
//! depends on anything here.
#![forbid(unsafe_code)]

mod kernels;
mod quantize;
mod synth;
mod tidy;
mod whole;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the tombolo project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Compiles the CUDA kernels into crates/cuda/prebuilt (needs no GPU)
    Kernels(kernels::Args),
    /// Writes a GGUF file's weights in other types, by a plan
    Quantize(quantize::QuantizeArgs),
    /// Writes a GGUF of any shape with random weights
    Synth(synth::SynthArgs),
    /// Checks the rules of ARCHITECTURE.md that a program can check
    Tidy,
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Kernels(args) => kernels::run(&root(), &args),
        Chore::Quantize(args) => quantize::run(&args),
        Chore::Synth(args) => synth::run(&args),
        Chore::Tidy => tidy::run(&root()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}
