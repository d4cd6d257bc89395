//! `cargo xtask synth`: GGUF files of any shape with random weights, for speed work and for tests that need no sense.
//! Same arguments and seed, same bytes. What the weights are made of is in [`weights`].

mod weights;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tombolo_gguf::{Gguf, TensorType, Writer};

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
            Types::Q6K => TensorType::Q6_K,
            Types::Q4KM if large => TensorType::Q6_K,
            Types::Q4K | Types::Q4KM => TensorType::Q4_K,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    ff: u64,
    vocab: u64,
}

impl Shape {
    fn preset(preset: Preset, architecture: Architecture) -> Self {
        let (hidden, layers, heads, kv_heads, head_dim, ff) = match (preset, architecture) {
            (Preset::Tiny, _) => (256, 2, 8, 4, 64, 512),
            (Preset::B1, Architecture::Llama) => (2048, 16, 32, 8, 64, 8192),
            (Preset::B1, Architecture::Qwen3) => (2048, 28, 16, 8, 128, 6144),
            (Preset::B8, Architecture::Llama) => (4096, 32, 32, 8, 128, 14336),
            (Preset::B8, Architecture::Qwen3) => (4096, 36, 32, 8, 128, 12288),
        };
        let vocab = match (preset, architecture) {
            (Preset::Tiny, _) => 512,
            (_, Architecture::Llama) => 128_256,
            (_, Architecture::Qwen3) => 151_936,
        };
        Self { hidden, layers, heads, kv_heads, head_dim, ff, vocab }
    }

    fn of(args: &SynthArgs, tokens: Option<u64>) -> Result<Self> {
        let mut shape = Self::preset(args.preset, args.architecture);
        let given = [
            (&mut shape.hidden, args.hidden),
            (&mut shape.layers, args.layers),
            (&mut shape.heads, args.heads),
            (&mut shape.kv_heads, args.kv_heads),
            (&mut shape.head_dim, args.head_dim),
            (&mut shape.ff, args.ff),
            (&mut shape.vocab, args.vocab.or(tokens)),
        ];
        for (value, given) in given {
            *value = given.unwrap_or(*value);
            ensure!(*value > 0 && *value <= u64::from(u32::MAX), "shape flags take 1 to {}", u32::MAX);
        }
        Ok(shape)
    }
}

/// A tensor of the model.
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
}

/// Writes the file that the arguments describe.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let start = Instant::now();
    let tokenizer = args.tokenizer_from.as_deref().map(Gguf::open).transpose()?;
    let tokens = tokenizer.as_ref().and_then(|t| t.metadata().strings("tokenizer.ggml.tokens"));
    if let (Some(path), None) = (&args.tokenizer_from, tokens) {
        bail!("{} has no tokenizer.ggml.tokens", path.display());
    }
    let shape = Shape::of(args, tokens.map(|t| t.len() as u64))?;
    let tensors = tensors(args, &shape);
    // Under another name until it is whole.
    let mut part = args.out.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = write(args, &shape, &tensors, tokenizer.as_ref(), &part)
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
        tensors.len(),
        bytes / 1e9,
        bytes / 1e9 / seconds
    );
    Ok(())
}

fn write(args: &SynthArgs, shape: &Shape, tensors: &[Tensor], tokenizer: Option<&Gguf>, to: &Path) -> Result<()> {
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, File::create(to)?));
    metadata(&mut writer, args, shape)?;
    match tokenizer {
        None => {
            writer.metadata("tokenizer.ggml.model", "no_vocab")?;
        }
        Some(file) => {
            for (key, value) in file.metadata().iter().filter(|(k, _)| k.starts_with("tokenizer.")) {
                writer.metadata(key, value.clone())?;
            }
        }
    }
    for t in tensors {
        writer.tensor(&t.name, &t.dims, t.ty)?;
    }
    writer.finish_header()?;
    for t in tensors {
        weights::write(&mut writer, &t.name, &t.dims, t.ty, args.seed)?;
    }
    writer.finish()?;
    Ok(())
}

fn metadata<W: std::io::Write>(writer: &mut Writer<W>, args: &SynthArgs, shape: &Shape) -> Result<()> {
    let (arch, eps, theta) = match args.architecture {
        Architecture::Llama => ("llama", 1e-5f32, 500_000f32),
        Architecture::Qwen3 => ("qwen3", 1e-6, 1_000_000.0),
    };
    writer.metadata("general.architecture", arch)?;
    writer.metadata("general.name", format!("synthetic {arch}, {} layers of {}", shape.layers, shape.hidden))?;
    let counts = [
        ("block_count", shape.layers),
        ("context_length", u64::from(args.context)),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.ff),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.vocab),
    ];
    for (key, count) in counts {
        writer.metadata(&format!("{arch}.{key}"), u32::try_from(count)?)?;
    }
    writer.metadata(&format!("{arch}.attention.layer_norm_rms_epsilon"), eps)?;
    writer.metadata(&format!("{arch}.rope.freq_base"), theta)?;
    Ok(())
}

fn tensors(args: &SynthArgs, s: &Shape) -> Vec<Tensor> {
    let matrix = |name: String, cols: u64, rows: u64, large: bool| Tensor {
        name,
        dims: vec![cols, rows],
        ty: args.types.of(large),
    };
    let norm = |name: String, width: u64| Tensor { name, dims: vec![width], ty: TensorType::F32 };
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let mut all = vec![matrix("token_embd.weight".into(), s.hidden, s.vocab, false)];
    all.push(norm("output_norm.weight".into(), s.hidden));
    if !args.tied {
        all.push(matrix("output.weight".into(), s.hidden, s.vocab, true));
    }
    for layer in 0..s.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let large = layer % 2 == 1;
        all.push(norm(name("attn_norm"), s.hidden));
        all.push(matrix(name("attn_q"), s.hidden, q, false));
        all.push(matrix(name("attn_k"), s.hidden, kv, false));
        all.push(matrix(name("attn_v"), s.hidden, kv, large));
        if matches!(args.architecture, Architecture::Qwen3) {
            all.push(norm(name("attn_q_norm"), s.head_dim));
            all.push(norm(name("attn_k_norm"), s.head_dim));
        }
        all.push(matrix(name("attn_output"), q, s.hidden, false));
        all.push(norm(name("ffn_norm"), s.hidden));
        all.push(matrix(name("ffn_gate"), s.hidden, s.ff, false));
        all.push(matrix(name("ffn_up"), s.hidden, s.ff, false));
        all.push(matrix(name("ffn_down"), s.ff, s.hidden, large));
    }
    all
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
        for types in ["f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "q4_k_m"] {
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
