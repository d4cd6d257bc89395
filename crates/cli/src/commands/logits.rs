//! `tombolo logits`: what a model thinks of every position, written to a file or compared with a reference.

use crate::args::{DeviceArgs, ModelArgs, SplitArgs, TokenList, token_list};
use crate::error::{Error, failure, input};
use crate::limits::REFERENCE_BYTES_MAX;
use crate::load::{self, ROWS, capacity};
use crate::output;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tombolo_model::Sampling;

/// Rows of logits that one step gives: whole vocabularies are large.
const LOGITS_ROWS: usize = 64;

/// Options of `logits`.
#[derive(clap::Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, as 1,2,3 [default: the tensor 'tokens' of --compare]
    #[arg(long, value_name = "IDS", value_parser = token_list)]
    tokens: Option<TokenList>,
    /// File to write: F32 tensor 'logits', positions by vocabulary, and I32 tensor 'tokens', one per position
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// File with reference logits of the same tokens, as --out writes it; one that does not fit ends with exit code 2
    #[arg(long, value_name = "FILE.safetensors")]
    compare: Option<PathBuf>,
    /// Fail, with exit code 1, where any logit differs from the reference by more than this
    #[arg(long, value_name = "X", requires = "compare")]
    tolerance: Option<f64>,
    /// Print the comparison as JSON
    #[arg(long, requires = "compare")]
    json: bool,
    #[command(flatten)]
    split: SplitArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Logits `[positions, vocabulary]`, row-major.
struct Logits {
    values: Vec<f32>,
    vocabulary: usize,
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> Result<ExitCode, Error> {
    if args.out.is_none() && args.compare.is_none() {
        return Err(input("nothing to do: give --out to write the logits, or --compare to compare them"));
    }
    if let Some(most) = args.tolerance.filter(|most| most.is_nan() || *most < 0.0) {
        return Err(input(format!("--tolerance {}: a number from 0 is needed", output::number(most))));
    }
    let model = args.model.source();
    let out = args.out.as_deref().map(|path| Target::new(path, model.path())).transpose()?;
    let reference = args.compare.as_deref().map(read).transpose()?;
    let from_reference = reference.as_ref().and_then(|r| r.tokens.clone());
    if let (Some(asked), Some(held)) = (&args.tokens, &from_reference)
        && asked.0 != *held
    {
        return Err(input("--tokens are not those of the --compare file, which has its own; leave --tokens out"));
    }
    let tokens = args.tokens.as_ref().map(|t| t.0.clone()).or(from_reference);
    let tokens = tokens.ok_or_else(|| input("--tokens is missing, and --compare brings no tensor 'tokens'"))?;
    let gguf = load::open(&model)?;
    let config = load::config(&gguf, args.device.dense_attention)?;
    if let Some(reference) = &reference {
        reference.check(tokens.len(), config.vocabulary, args)?;
    }
    if let Some(token) = tokens.iter().find(|t| **t as usize >= config.vocabulary) {
        return Err(input(format!("--tokens: {token} is outside the vocabulary of {}", config.vocabulary)));
    }
    if tokens.is_empty() {
        return Err(input("no tokens: there is nothing to compute"));
    }
    if tokens.len() > config.context {
        let (count, most) = (tokens.len(), config.context);
        return Err(input(format!("{count} tokens, but the model was trained for a context of {most} at most")));
    }
    let capacity = capacity(ROWS.min(LOGITS_ROWS), LOGITS_ROWS, tokens.len());
    let mut loaded = load::load(&gguf, &config, &args.device, &args.split, capacity)?.by_hand();
    loaded.print_summary();
    let mut context = loaded.engine.open();
    let output = loaded.engine.prefill(&mut context, &tokens, &Sampling::GREEDY, true).map_err(failure)?;
    let logits = Logits { values: output.logits, vocabulary: config.vocabulary };
    if let Some(target) = &out {
        write(target, &logits, &tokens)?;
    }
    match reference {
        Some(reference) => report(&compare(&logits, &reference.logits), args),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn report(comparison: &Comparison, args: &LogitsArgs) -> Result<ExitCode, Error> {
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(comparison).map_err(failure)?)?;
    } else {
        let c = comparison;
        writeln!(
            out,
            "positions {}, max abs diff {:.3e}, mean abs diff {:.3e}, mean KL {:.3e}, same top {:.1} %",
            c.positions, c.max_abs_diff, c.mean_abs_diff, c.mean_kl, c.same_top_percent
        )?;
    }
    match args.tolerance {
        _ if comparison.max_abs_diff.is_nan() => {
            Err(failure("some logits are no numbers, here or in the reference: nothing can be said of them"))
        }
        Some(most) if comparison.max_abs_diff > most => {
            Err(failure(format!("the logits differ by {:.3e}; {most:e} is tolerated", comparison.max_abs_diff)))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

struct Reference {
    logits: Logits,
    positions: usize,
    tokens: Option<Vec<u32>>,
}

impl Reference {
    fn check(&self, positions: usize, vocabulary: usize, args: &LogitsArgs) -> Result<(), Error> {
        if (self.positions, self.logits.vocabulary) == (positions, vocabulary) {
            return Ok(());
        }
        let name = args.compare.as_deref().unwrap_or(Path::new("")).display();
        Err(input(format!(
            "{name}: 'logits' is [{}, {}], but {positions} tokens of this model give [{positions}, {vocabulary}]",
            self.positions, self.logits.vocabulary
        )))
    }
}

fn read(path: &Path) -> Result<Reference, Error> {
    let wrong = |what: &dyn std::fmt::Display| input(format!("{}: {what}", path.display()));
    // Before opening: to open a pipe would wait for its other end.
    let found = std::fs::metadata(path).map_err(|e| wrong(&e))?;
    if !found.is_file() {
        return Err(wrong(&"not a regular file"));
    }
    let too_long = || wrong(&format!("a reference has at most {}", output::bytes(REFERENCE_BYTES_MAX)));
    if found.len() > REFERENCE_BYTES_MAX {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| wrong(&e))?;
    file.take(REFERENCE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| match e.kind() {
        ErrorKind::OutOfMemory => failure(format!("{}: {e}", path.display())),
        _ => wrong(&e),
    })?;
    if bytes.len() as u64 > REFERENCE_BYTES_MAX {
        return Err(too_long());
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(&format!("not a safetensors file: {e}")))?;
    let logits = file.tensor("logits").map_err(|_| wrong(&"has no tensor 'logits'"))?;
    let &[positions, vocabulary] = logits.shape() else {
        return Err(wrong(&"'logits' is not [positions, vocabulary]"));
    };
    if logits.dtype() != Dtype::F32 || vocabulary == 0 {
        return Err(wrong(&"'logits' is not of type F32, or is empty"));
    }
    let values: Vec<f32> = logits.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    if values.chunks(vocabulary).any(|row| !row.iter().any(|value| value.is_finite())) {
        return Err(wrong(&"'logits' has a position without a number"));
    }
    let tokens = match file.tensor("tokens") {
        Ok(tokens) if tokens.dtype() == Dtype::I32 => {
            let ids = tokens.data().as_chunks::<4>().0.iter().map(|b| u32::try_from(i32::from_le_bytes(*b)));
            Some(ids.collect::<Result<_, _>>().map_err(|_| wrong(&"'tokens' has a negative id"))?)
        }
        Ok(_) => return Err(wrong(&"'tokens' is not of type I32")),
        Err(_) => None,
    };
    Ok(Reference { logits: Logits { values, vocabulary }, positions, tokens })
}

/// Where logits are written to: checked before anything is computed.
struct Target {
    path: PathBuf,
    /// Beside it: what is not whole never has its name.
    unfinished: PathBuf,
}

impl Target {
    fn new(path: &Path, model: Option<&Path>) -> Result<Self, Error> {
        let wrong = |what: &dyn std::fmt::Display| input(format!("--out {}: {what}", path.display()));
        // Through a link, so that what it points to is replaced and not the link.
        let path = match std::fs::canonicalize(path) {
            Ok(found) if model.is_some_and(|model| std::fs::canonicalize(model).is_ok_and(|model| model == found)) => {
                return Err(wrong(&"that is the model"));
            }
            Ok(found) if !found.is_file() => return Err(wrong(&"not a regular file")),
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_path_buf(),
            Err(error) => return Err(wrong(&error)),
        };
        let name = path.file_name().ok_or_else(|| wrong(&"not a file name"))?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(wrong(&format!("there is no folder {}", folder.display())));
        }
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        Ok(Self { unfinished: folder.join(hidden), path })
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let written = File::create_new(&self.unfinished)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| std::fs::rename(&self.unfinished, &self.path));
        written.map_err(|error| {
            if error.kind() != ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(&self.unfinished);
            }
            failure(format!("writing {}: {error}", self.path.display()))
        })
    }
}

fn write(target: &Target, logits: &Logits, tokens: &[u32]) -> Result<(), Error> {
    let values: Vec<u8> = logits.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let ids: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let shape = vec![tokens.len(), logits.vocabulary];
    let views = HashMap::from([
        ("logits", TensorView::new(Dtype::F32, shape, &values).map_err(failure)?),
        ("tokens", TensorView::new(Dtype::I32, vec![tokens.len()], &ids).map_err(failure)?),
    ]);
    let bytes = safetensors::serialize(views, None).map_err(failure)?;
    target.write(&bytes)
}

/// How far two sets of logits lie apart.
#[derive(Debug, Serialize)]
struct Comparison {
    positions: usize,
    max_abs_diff: f64,
    mean_abs_diff: f64,
    /// Mean over positions of the Kullback-Leibler divergence from the reference, in nats.
    mean_kl: f64,
    same_top_percent: f64,
}

fn compare(ours: &Logits, reference: &Logits) -> Comparison {
    let (mut max, mut sum, mut kl, mut same, mut positions) = (0f64, 0f64, 0f64, 0usize, 0usize);
    let rows = ours.values.chunks(ours.vocabulary).zip(reference.values.chunks(reference.vocabulary));
    for (ours, reference) in rows {
        for (a, b) in ours.iter().zip(reference) {
            let diff = (f64::from(*a) - f64::from(*b)).abs();
            sum += diff;
            max = if diff.is_nan() || max.is_nan() { f64::NAN } else { max.max(diff) };
        }
        kl += divergence(reference, ours);
        same += usize::from(top(ours) == top(reference));
        positions += 1;
    }
    let n = positions.max(1) as f64;
    Comparison {
        positions,
        max_abs_diff: max,
        mean_abs_diff: sum / (n * ours.vocabulary as f64),
        mean_kl: kl / n,
        same_top_percent: 100.0 * same as f64 / n,
    }
}

/// `Σ p ln(p / q)` with p = softmax(reference), q = softmax(other).
fn divergence(reference: &[f32], other: &[f32]) -> f64 {
    let normaliser = |logits: &[f32]| {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - best).exp()).sum();
        f64::from(best) + sum.ln()
    };
    let (p_norm, q_norm) = (normaliser(reference), normaliser(other));
    let term = |(&p, &q): (&f32, &f32)| {
        let (p, q) = (f64::from(p) - p_norm, f64::from(q) - q_norm);
        p.exp() * (p - q)
    };
    let sum: f64 = reference.iter().zip(other).map(term).sum();
    // Never below nothing but by rounding; not-a-number stays what it is.
    if sum < 0.0 { 0.0 } else { sum }
}

fn top(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(values: &[f32]) -> Logits {
        Logits { values: values.to_vec(), vocabulary: 3 }
    }

    #[test]
    fn equal_logits_do_not_differ() {
        let a = logits(&[1.0, 2.0, 3.0, 0.5, 0.0, -1.0]);
        let c = compare(&a, &a);
        assert_eq!((c.positions, c.max_abs_diff, c.mean_kl, c.same_top_percent), (2, 0.0, 0.0, 100.0));
    }

    #[test]
    fn a_shift_of_all_logits_changes_no_distribution() {
        let c = compare(&logits(&[2.0, 3.0, 4.0]), &logits(&[1.0, 2.0, 3.0]));
        assert_eq!((c.max_abs_diff, c.mean_abs_diff, c.same_top_percent), (1.0, 1.0, 100.0));
        assert!(c.mean_kl.abs() < 1e-12);
    }

    #[test]
    fn divergence_is_that_of_two_coins() {
        let (p, q) = ([0.9f32.ln(), 0.1f32.ln(), f32::MIN], [0.5f32.ln(), 0.5f32.ln(), f32::MIN]);
        let expected = 0.9 * (0.9f64 / 0.5).ln() + 0.1 * (0.1f64 / 0.5).ln();
        assert!((divergence(&p, &q) - expected).abs() < 1e-6);
    }

    #[test]
    fn not_a_number_is_not_lost() {
        assert!(compare(&logits(&[f32::NAN, 2.0, 3.0]), &logits(&[1.0, 2.0, 3.0])).max_abs_diff.is_nan());
    }
}
