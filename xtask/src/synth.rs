//! `cargo xtask synth`: GGUF files of any shape with random weights, for speed work and for tests that need no sense.
//! Same arguments and seed, same bytes. What the models and their weights are made of is in `tombolo_model::dummy`.

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tombolo_gguf::{Gguf, TensorType, Writer};
use tombolo_model::dummy::{Blueprint, Dense, Family, Glm, QwenMoe, weights};

/// Arguments of `cargo xtask synth`. Shape flags override the preset.
#[derive(clap::Args, Debug)]
pub(crate) struct SynthArgs {
    /// Architecture
    #[arg(value_enum)]
    architecture: Architecture,
    /// File to write
    #[arg(long)]
    out: PathBuf,
    /// Shape to start from
    #[arg(long, value_enum, default_value_t = Preset::B8)]
    preset: Preset,
    /// Width of the residual stream
    #[arg(long)]
    hidden: Option<u64>,
    /// Transformer blocks
    #[arg(long)]
    layers: Option<u64>,
    /// Query heads
    #[arg(long)]
    heads: Option<u64>,
    /// Key/value heads
    #[arg(long)]
    kv_heads: Option<u64>,
    /// Values per head
    #[arg(long)]
    head_dim: Option<u64>,
    /// Width of the feed-forward part
    #[arg(long)]
    ff: Option<u64>,
    /// Tokens [default: the preset's, or those of --tokenizer-from]
    #[arg(long)]
    vocab: Option<u64>,
    /// Context that the file declares
    #[arg(long, default_value_t = 8192)]
    context: u32,
    /// Types of the matrices; q4_k_m: Q4_K, with Q6_K for the output and every other layer's attn_v and ffn_down
    #[arg(long, value_enum, default_value_t = Types::Q4KM)]
    types: Types,
    /// No output matrix: the embedding serves as one
    #[arg(long)]
    tied: bool,
    /// Seed of the weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Copies the tokenizer of another GGUF; otherwise there is none and only token ids can be used
    #[arg(long, value_name = "FILE")]
    tokenizer_from: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Architecture {
    Llama,
    Qwen3,
    /// Qwen3-30B-A3B's shape; of the shape flags it takes --layers, --vocab and --context
    Qwen3moe,
    /// GLM-5's shape, Q8_0 with experts in Q4_K; of the shape flags it takes --layers, --vocab and --context
    GlmDsa,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// A few MB
    #[value(name = "tiny")]
    Tiny,
    /// The shape of the family's model of about one billion parameters
    #[value(name = "1b")]
    B1,
    /// The shape of the family's model of about eight billion parameters
    #[value(name = "8b")]
    B8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Types {
    F32,
    F16,
    Bf16,
    #[value(name = "q4_0")]
    Q40,
    #[value(name = "q4_1")]
    Q41,
    #[value(name = "q8_0")]
    Q80,
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q5_k")]
    Q5K,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q4_k_m")]
    Q4KM,
}

impl Types {
    /// The type of a matrix; `large` marks those that the mixed recipe keeps in more bits.
    fn of(self, large: bool) -> TensorType {
        match self {
            Types::F32 => TensorType::F32,
            Types::F16 => TensorType::F16,
            Types::Bf16 => TensorType::BF16,
            Types::Q40 => TensorType::Q4_0,
            Types::Q41 => TensorType::Q4_1,
            Types::Q80 => TensorType::Q8_0,
            Types::Q5K => TensorType::Q5_K,
            Types::Q6K => TensorType::Q6_K,
            Types::Q4KM if large => TensorType::Q6_K,
            Types::Q4K | Types::Q4KM => TensorType::Q4_K,
        }
    }
}

/// The model that the arguments describe; `tokens` of a tokenizer count as its vocabulary.
fn blueprint(args: &SynthArgs, tokens: Option<u64>) -> Result<Blueprint> {
    let given = [args.hidden, args.layers, args.heads, args.kv_heads, args.head_dim, args.ff, args.vocab];
    for value in given.into_iter().flatten() {
        ensure!(value > 0 && value <= u64::from(u32::MAX), "shape flags take 1 to {}", u32::MAX);
    }
    let vocabulary = args.vocab.or(tokens);
    match args.architecture {
        Architecture::Llama => Ok(dense(args, Family::Llama, vocabulary).blueprint()),
        Architecture::Qwen3 => Ok(dense(args, Family::Qwen3, vocabulary).blueprint()),
        Architecture::Qwen3moe | Architecture::GlmDsa
            if given[0].or(given[2]).or(given[3]).or(given[4]).or(given[5]).is_some() =>
        {
            bail!("of this architecture only --layers, --vocab and --context can be chosen")
        }
        Architecture::Qwen3moe => {
            let full = QwenMoe::QWEN3_30B_A3B;
            let (layers, vocabulary) = (args.layers.unwrap_or(full.layers), vocabulary.unwrap_or(full.vocabulary));
            Ok(QwenMoe { layers, vocabulary, context: args.context, ..full }.blueprint())
        }
        Architecture::GlmDsa => {
            let full = Glm::GLM_5;
            let (layers, vocabulary) = (args.layers.unwrap_or(full.layers), vocabulary.unwrap_or(full.vocabulary));
            // A model that was cut drafts nothing.
            Ok(Glm { layers, drafts: args.layers.is_none(), vocabulary, context: args.context, ..full }.blueprint())
        }
    }
}

fn dense(args: &SynthArgs, family: Family, vocabulary: Option<u64>) -> Dense {
    let preset = match (args.preset, family) {
        (Preset::Tiny, _) => Dense { family, ..Dense::TINY },
        (Preset::B1, Family::Llama) => Dense::LLAMA_1B,
        (Preset::B1, Family::Qwen3) => Dense::QWEN3_1B,
        (Preset::B8, Family::Llama) => Dense::LLAMA_8B,
        (Preset::B8, Family::Qwen3) => Dense::QWEN3_8B,
    };
    Dense {
        hidden: args.hidden.unwrap_or(preset.hidden),
        layers: args.layers.unwrap_or(preset.layers),
        heads: args.heads.unwrap_or(preset.heads),
        kv_heads: args.kv_heads.unwrap_or(preset.kv_heads),
        head_dim: args.head_dim.unwrap_or(preset.head_dim),
        feed_forward: args.ff.unwrap_or(preset.feed_forward),
        vocabulary: vocabulary.unwrap_or(preset.vocabulary),
        context: args.context,
        tied: args.tied,
        ty: args.types.of(false),
        large_ty: args.types.of(true),
        family,
    }
}

/// Writes the file that the arguments describe.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let start = Instant::now();
    let tokenizer = args.tokenizer_from.as_deref().map(Gguf::open).transpose()?;
    let tokens = tokenizer.as_ref().and_then(|t| t.metadata().strings("tokenizer.ggml.tokens"));
    if let (Some(path), None) = (&args.tokenizer_from, tokens) {
        bail!("{} has no tokenizer.ggml.tokens", path.display());
    }
    let blueprint = blueprint(args, tokens.map(|t| t.len() as u64))?;
    // Under another name until it is whole.
    let mut part = args.out.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = write(args, &blueprint, tokenizer.as_ref(), &part)
        .and_then(|()| Ok(std::fs::rename(&part, &args.out)?))
        .with_context(|| format!("cannot write {}", args.out.display()));
    if written.is_err() {
        // It may never have been there.
        let _ = std::fs::remove_file(&part);
    }
    written?;
    let bytes = std::fs::metadata(&args.out)?.len() as f64;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}: {} tensors, {:.2} GB in {seconds:.1} s ({:.2} GB/s)",
        args.out.display(),
        blueprint.tensors.len(),
        bytes / 1e9,
        bytes / 1e9 / seconds
    );
    Ok(())
}

fn write(args: &SynthArgs, blueprint: &Blueprint, tokenizer: Option<&Gguf>, to: &Path) -> Result<()> {
    // What the header says of the tensors is what their weights are made of.
    let described = blueprint.open(args.seed)?;
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, File::create(to)?));
    blueprint.describe(&mut writer, tokenizer)?;
    writer.finish_header()?;
    for info in described.tensors() {
        weights::each_chunk(info, args.seed, |bytes| -> Result<()> {
            writer.data(bytes)?;
            Ok(())
        })?;
    }
    writer.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tombolo_gguf::quant;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: SynthArgs,
    }

    fn synth(out: &Path, flags: &[&str]) -> Result<()> {
        let line = ["synth", flags[0], "--preset", "tiny", "--out"].map(String::from);
        let line = line.into_iter().chain([out.display().to_string()]);
        run(&Cli::parse_from(line.chain(flags[1..].iter().map(|f| f.to_string()))).args)
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tombolo-synth-{}-{name}.gguf", std::process::id()))
    }

    #[test]
    fn every_type_gives_finite_weights_of_unit_gain() {
        for types in ["f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "q4_k_m"] {
            let path = file(types);
            synth(&path, &["qwen3", "--types", types]).unwrap();
            let gguf = Gguf::open(&path).unwrap();
            let info = gguf.tensor("blk.1.ffn_down.weight").unwrap();
            let mut values = vec![0.0; info.values() as usize];
            quant::decode(info.ty, gguf.bytes(info), &mut values).unwrap();
            let mean_square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            let gain = mean_square * info.dims[0] as f32;
            assert!((0.8..1.25).contains(&gain), "{types}: {gain}");
            assert!(gguf.tensor("blk.1.attn_k_norm.weight").is_some());
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn the_seed_decides() {
        let bytes = |name: &str, seed: &str| {
            let path = file(name);
            synth(&path, &["llama", "--seed", seed]).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            bytes
        };
        let first = bytes("a", "3");
        assert_eq!(first, bytes("b", "3"));
        assert_ne!(first, bytes("c", "4"));
    }

    #[test]
    fn shapes_that_the_type_cannot_have_are_refused() {
        let path = file("shape");
        let error = synth(&path, &["llama", "--hidden", "100"]).unwrap_err();
        assert!(format!("{error:#}").contains("token_embd.weight"), "{error:#}");
        assert!(!path.exists());
    }
}
