//! Groups of options that several commands share, named as llama.cpp and vLLM name them.

use crate::demo;
use crate::error::{Error, input};
use crate::output;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tombolo_model::{KvType, Sampling};

/// clap knows short options of one letter only: `-tp N` is taken for `--tensor-parallel-size N`.
pub(crate) fn rewritten(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut literal, mut is_value) = (false, false);
    let mut rewrite = |arg: OsString| {
        literal |= arg == "--";
        // What follows these is text, whatever it looks like.
        let takes_text = arg == "-p" || arg == "--prompt" || arg == "--system";
        if std::mem::replace(&mut is_value, takes_text) {
            return arg;
        }
        match arg.to_str() {
            Some("-tp") if !literal => "--tensor-parallel-size".into(),
            // As clap takes the values of its short options: `-tp2`, `-tp=2`.
            Some(text) if !literal && text.starts_with("-tp") => {
                format!("--tensor-parallel-size={}", text[3..].trim_start_matches('=')).into()
            }
            _ => arg,
        }
    };
    args.map(&mut rewrite).collect()
}

/// A negative number after an option is its value, not another option: what is wrong with it is said where values are
/// checked.
pub(crate) fn taking_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(taking_negative_numbers)
}

/// A whole number from 0.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    number(text)
}

/// A path, or nothing, as a variable may be there and empty.
pub(crate) fn maybe_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Refuses a key that no header can carry; what is wrong with it is told without it.
pub(crate) fn check_key(option: &str, key: &str) -> Result<(), Error> {
    let is_whole = key.trim() == key && !key.chars().any(char::is_control);
    if is_whole {
        Ok(())
    } else {
        Err(input(format!("{option}: a line end, or a blank at an end, is no part of a key")))
    }
}

/// Any number of its type.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a whole number from 0 is needed".to_string())
}

/// Which model.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// GGUF file of the model, any file of a split one, a directory with one model, dummy:NAME for random weights (tiny, 8b,
    /// 30b-a3b, glm5, glm5-8l, glm5-tp8-rank), or demo, which is part of tombolo [default: demo]
    #[arg(value_name = "MODEL")]
    positional: Option<PathBuf>,
    /// The same, as an option
    #[arg(short = 'm', long = "model", value_name = "MODEL", conflicts_with = "positional")]
    option: Option<PathBuf>,
}

impl ModelArgs {
    /// Where it comes from.
    pub(crate) fn source(&self) -> Source {
        Source::of(self.positional.as_deref().or(self.option.as_deref()))
    }
}

/// What begins the name of a model with random weights.
const DUMMY: &str = "dummy:";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The one that is part of the binary.
    Demo,
    /// Random weights of that name's shape.
    Dummy(String),
    /// A file, a split set by any of its shards, or a directory with one model in it.
    File(PathBuf),
}

impl Source {
    /// What a name on the command line means, or none.
    pub(crate) fn of(name: Option<&Path>) -> Self {
        let Some(path) = name.filter(|path| path.as_os_str() != demo::NAME) else { return Self::Demo };
        match path.to_str().and_then(|path| path.strip_prefix(DUMMY)) {
            Some(name) => Self::Dummy(name.into()),
            None => Self::File(path.to_path_buf()),
        }
    }

    /// The file or directory, where there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Demo | Self::Dummy(_) => None,
            Self::File(path) => Some(path),
        }
    }

    /// As it is named on the command line.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Demo => demo::NAME.into(),
            Self::Dummy(name) => format!("{DUMMY}{name}"),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Where the model runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The GPUs where there are any, else the processor.
    Auto,
    Cpu,
    /// These GPUs, rank by rank; none named: the first ones.
    Cuda(Vec<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Device::Auto),
            "cpu" => return Ok(Device::Cpu),
            "cuda" => return Ok(Device::Cuda(Vec::new())),
            _ => {}
        }
        let list = text.strip_prefix("cuda:").ok_or("auto, cpu, cuda or cuda:0,1 are possible")?;
        let parse = |number: &str| number.trim().parse().map_err(|_| format!("'{number}' is no GPU number"));
        list.split(',').map(parse).collect::<Result<_, _>>().map(Device::Cuda)
    }
}

/// What carries the all-reduce between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Peer memory where it is proven sound, else pinned host memory
    Auto,
    /// Each other's memory
    Peer,
    /// Pinned host memory
    Host,
}

/// How numbers are kept and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arith {
    /// Activations in 8 bits where the weights are quantized
    Production,
    /// Everything in f32: slow, for comparisons with reference logits
    F32,
}

impl From<Arith> for tombolo_model::Arith {
    fn from(arith: Arith) -> Self {
        match arith {
            Arith::Production => Self::Production,
            Arith::F32 => Self::F32,
        }
    }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(non_camel_case_types)]
pub(crate) enum KvCacheType {
    /// f16; f32 with f32 arithmetic
    Auto,
    /// 4 bytes a value
    F32,
    /// 2 bytes
    F16,
    /// 2 bytes, less precise than f16 and never too large for it
    Bf16,
    /// 1 byte, and a scale for every 32
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvCacheType {
    /// `None`: as the backend thinks best.
    pub(crate) fn kind(self) -> Option<KvType> {
        match self {
            KvCacheType::Auto => None,
            KvCacheType::F32 => Some(KvType::F32),
            KvCacheType::F16 => Some(KvType::F16),
            KvCacheType::Bf16 => Some(KvType::BF16),
            KvCacheType::Q8_0 => Some(KvType::Q8_0),
        }
    }
}

/// Where and how the model runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// auto (GPUs where there are any, else the processor), cpu, cuda, or cuda:0,1 for these GPUs
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: Device,
    /// What carries the all-reduce between GPUs
    #[arg(long, default_value = "auto", value_enum, value_name = "WHAT")]
    pub(crate) transport: Transport,
    /// Arithmetic
    #[arg(long, default_value = "production", value_enum, value_name = "KIND")]
    pub(crate) arith: Arith,
    /// Attend to every token, not to those that an indexer chooses (GLM-5): for comparisons, and for files without one
    #[arg(long)]
    pub(crate) dense_attention: bool,
    /// How keys and values are kept
    #[arg(long, default_value = "auto", value_enum, value_name = "TYPE")]
    pub(crate) kv_cache_dtype: KvCacheType,
    /// On GPUs: an answer is the same, bit for bit, whatever is computed beside it; slower. The processor's always is
    #[arg(long)]
    pub(crate) batch_invariant: bool,
}

/// Into how many parts the model is split, by how many threads.
#[derive(Args, Clone, Debug)]
pub(crate) struct SplitArgs {
    /// Threads on the processor [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,
    /// Ranks to split the model over, short -tp [default: 1, or one per GPU named in --device]
    #[arg(long, visible_alias = "tp", value_name = "N", value_parser = count)]
    pub(crate) tensor_parallel_size: Option<usize>,
}

/// Speculative decoding.
#[derive(Args, Clone, Debug)]
pub(crate) struct DraftArgs {
    /// Tokens that are guessed ahead of every step; 0: none. The output is the same [default: 1 where the model has a block
    /// for it, 3 by n-grams]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) draft_max: Option<usize>,
    /// What guesses [default: the model's block, where it has one]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) draft_by: Option<DraftBy>,
}

/// What guesses tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DraftBy {
    /// The model's own drafting block (MTP)
    Block,
    /// What followed the last tokens where they stood before: for answers that repeat their prompt, as edits of code do
    Ngram,
}

/// How tokens are drawn.
#[derive(Args, Clone, Debug)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0: always the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    temp: f32,
    /// Keep the K most likely tokens; 0: all
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: u32,
    /// Keep the most likely tokens up to this probability; 1: all
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    top_p: f32,
    /// Keep tokens at least this likely relative to the best; 0: all
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    min_p: f32,
    /// Seed of the draw [default: another each time]
    #[arg(short, long, value_name = "N", value_parser = number::<u64>)]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// Checked.
    pub(crate) fn sampling(&self) -> Result<Sampling, Error> {
        let within = |name: &str, value: f32, most: f32| {
            let range = (0.0..=most).contains(&value);
            if range {
                Ok(())
            } else {
                Err(input(format!("--{name} {} is not between 0 and {most}", output::number(value.into()))))
            }
        };
        within("temp", self.temp, 1000.0)?;
        within("top-p", self.top_p, 1.0)?;
        within("min-p", self.min_p, 1.0)?;
        Ok(Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or_else(random_seed),
        })
    }
}

/// Unlike any other run's; nothing secret hangs on it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Small enough to be typed.
    u64::from(std::collections::hash_map::RandomState::new().build_hasher().finish() as u32)
}

/// `1,2,3`.
pub(crate) fn token_list(text: &str) -> Result<TokenList, String> {
    let parse = |number: &str| number.trim().parse().map_err(|_| format!("'{number}' is no token id"));
    text.split(',').map(parse).collect::<Result<_, _>>().map(TokenList)
}

/// Token ids from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenList(pub(crate) Vec<u32>);

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(args: &[&str]) -> Vec<OsString> {
        rewritten(args.iter().map(OsString::from))
    }

    #[test]
    fn tp_is_one_option() {
        assert_eq!(rewrite(&["bench", "-tp", "2"]), ["bench", "--tensor-parallel-size", "2"]);
        assert_eq!(rewrite(&["-tp=4"]), ["--tensor-parallel-size=4"]);
        assert_eq!(rewrite(&["-tp2"]), ["--tensor-parallel-size=2"]);
        assert_eq!(rewrite(&["-tp1,2"]), ["--tensor-parallel-size=1,2"]);
        assert_eq!(rewrite(&["-t", "4", "-p", "x"]), ["-t", "4", "-p", "x"]);
        assert_eq!(rewrite(&["--", "-tp"]), ["--", "-tp"]);
        assert_eq!(rewrite(&["-p", "-tp", "-tp2"]), ["-p", "-tp", "--tensor-parallel-size=2"]);
    }

    #[test]
    fn the_demo_has_a_name_and_a_file_of_that_name_a_path() {
        assert_eq!([None, Some(Path::new("demo"))].map(Source::of), [Source::Demo, Source::Demo]);
        assert_eq!(Source::of(Some(Path::new("./demo"))), Source::File("./demo".into()));
        assert_eq!(Source::of(Some(Path::new("dummy:8b"))), Source::Dummy("8b".into()));
        for name in ["demo", "dummy:8b", "a.gguf"] {
            assert_eq!(Source::of(Some(Path::new(name))).name(), name);
        }
    }

    #[test]
    fn devices_are_read() {
        assert_eq!("cuda:1,0".parse(), Ok(Device::Cuda(vec![1, 0])));
        assert_eq!("cuda".parse(), Ok(Device::Cuda(vec![])));
        assert!("cuda:".parse::<Device>().is_err());
        assert!("gpu".parse::<Device>().is_err());
        assert!("cuda:-1".parse::<Device>().is_err());
    }

    #[test]
    fn tokens_are_read() {
        assert_eq!(token_list("1, 2,3"), Ok(TokenList(vec![1, 2, 3])));
        assert!(token_list("").is_err());
        assert!(token_list("1,-2").is_err());
    }
}
