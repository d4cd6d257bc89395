//! `tombolo serve`: the model behind OpenAI's API. What is said over HTTP is the server's; here is decided what it is
//! loaded for.

use crate::args::{DeviceArgs, DraftArgs, ModelArgs, Source, SplitArgs, check_key, count};
use crate::backend::Place;
use crate::commands::run::{CPU_ROWS, check_vocabulary};
use crate::demo;
use crate::drafts;
use crate::error::{Error, failure, input};
use crate::limits::SEQUENCES_MAX;
use crate::load::{self, Loaded, ROWS, at_file};
use crate::log::LogArgs;
use crate::memory;
use crate::output;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use tombolo_engine::{Runner, Settings};
use tombolo_gguf::Gguf;
use tombolo_model::{BLOCK_TOKENS, Capacity, Config};
use tombolo_server::{Model, Options, Server, ServerError, Timeouts, limits};
use tombolo_text::{ChatTemplate, TextError, Tokenizer};

/// Sequences at once on the processor, and on GPUs.
const SEQUENCES: [usize; 2] = [8, 64];
/// Rows with logits on the processor: prompts whose log-probabilities are asked for run so many rows a step.
const CPU_LOGITS: usize = 32;
/// Of the memory that is free, the part that weights and cache may take.
const MEMORY_SHARE: f64 = 0.8;
/// Tokens that the cache of GPUs holds where nothing else is asked for, if the context is not longer.
const GPU_CACHE_TOKENS: usize = 1 << 17;

/// Options of `serve`.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    net: NetArgs,
    /// Name of the model in the API; may be given several times [default: the file's name]
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// Tokens that a context holds; 0: as many as the model was trained for [default: 4096 at most]
    #[arg(short = 'c', long = "ctx-size", visible_alias = "max-model-len", value_name = "N", value_parser = count)]
    context: Option<usize>,
    /// Sequences that are run at once [default: 8 on the processor, 64 on GPUs]
    #[arg(long, value_name = "N", value_parser = count)]
    max_num_seqs: Option<usize>,
    /// Tokens that a step runs at most [default: 128 on the processor, 512 on GPUs]
    #[arg(long, value_name = "N", value_parser = count)]
    max_num_batched_tokens: Option<usize>,
    /// How many times as long a step may take when it reads prompts beside running answers as without, so that these do not
    /// stutter; more: prompts are read sooner. 0: as long as it takes
    #[arg(long, value_name = "X", value_parser = factor, default_value_t = 2.0)]
    max_itl_factor: f32,
    /// Tokens that the KV cache holds [default: what memory allows, and what all sequences can use]
    #[arg(long, value_name = "N", value_parser = count)]
    kv_cache_tokens: Option<usize>,
    /// Requests that may wait
    #[arg(long, value_name = "N", value_parser = count, default_value_t = limits::WAITING)]
    max_waiting: usize,
    /// Run every prompt from its beginning, whatever was run before
    #[arg(long)]
    no_enable_prefix_caching: bool,
    #[command(flatten)]
    pub(super) log: LogArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    split: SplitArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Where to listen, and to whom.
#[derive(clap::Args)]
struct NetArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: String,
    /// Port to listen on; 0: any that is free
    #[arg(long, default_value_t = 8000, value_name = "N")]
    port: u16,
    /// Only who has this key may ask; may be given several times
    #[arg(long, value_name = "KEY", env = "TOMBOLO_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// Listen for other machines without a key
    #[arg(long)]
    allow_unauthenticated: bool,
    /// Origin whose pages may read answers (CORS), scheme and all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Name under which a server without a key may be reached beside localhost; may be given several times
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Connections at once
    #[arg(long, value_name = "N", value_parser = count, default_value_t = limits::CONNECTIONS)]
    max_connections: usize,
    /// Bytes of a request's body
    #[arg(long, value_name = "N", value_parser = count, default_value_t = limits::BODY_BYTES)]
    max_body_bytes: usize,
    /// Seconds for a request's head
    #[arg(long, value_name = "S", default_value_t = 10)]
    header_timeout: u32,
    /// Seconds that a connection is kept for a next request
    #[arg(long, value_name = "S", default_value_t = 75)]
    keep_alive_timeout: u32,
    /// Seconds for a request's body, and one more for every 16 KiB
    #[arg(long, value_name = "S", default_value_t = 20)]
    body_timeout: u32,
    /// Seconds after which a reader that takes nothing is left
    #[arg(long, value_name = "S", default_value_t = 30)]
    write_timeout: u32,
    /// Seconds without progress after which the server is not ready
    #[arg(long, value_name = "S", default_value_t = 60)]
    stall_timeout: u32,
    /// Seconds that running requests may take when the server is told to end
    #[arg(long, value_name = "S", default_value_t = 60)]
    shutdown_timeout: u32,
}

impl NetArgs {
    fn options(&self) -> Result<Options, Error> {
        let ip = match self.host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.trim_matches(['[', ']']).parse().map_err(|_| {
                input(format!("--host {}: an IP address is needed, as 127.0.0.1", output::one_line(host)))
            })?,
        };
        if self.api_key.iter().any(|key| key.is_empty() || key.len() > limits::KEY_BYTES) {
            return Err(input(format!("--api-key: a key has 1 to {} bytes", limits::KEY_BYTES)));
        }
        self.api_key.iter().try_for_each(|key| check_key("--api-key", key))?;
        if !ip.is_loopback() && self.api_key.is_empty() && !self.allow_unauthenticated {
            return Err(input(format!(
                "--host {ip} opens the server to other machines: give --api-key, or --allow-unauthenticated to do so without"
            )));
        }
        let positive =
            |name: &str, n: usize| if n > 0 { Ok(n) } else { Err(input(format!("--{name} 0: at least 1 is needed"))) };
        let seconds = |name: &str, s: u32| positive(name, s as usize).map(|_| Duration::from_secs(s.into()));
        Ok(Options {
            keys: self.api_key.clone(),
            origins: self.cors_origin.clone(),
            hosts: self.allowed_host.clone(),
            connections_max: positive("max-connections", self.max_connections)?,
            body_bytes_max: positive("max-body-bytes", self.max_body_bytes)?,
            timeouts: Timeouts {
                header: seconds("header-timeout", self.header_timeout)?,
                idle: seconds("keep-alive-timeout", self.keep_alive_timeout)?,
                body: seconds("body-timeout", self.body_timeout)?,
                write: seconds("write-timeout", self.write_timeout)?,
                progress: seconds("stall-timeout", self.stall_timeout)?,
                drain: Duration::from_secs(self.shutdown_timeout.into()),
            },
            ..Options::new(SocketAddr::new(ip, self.port))
        })
    }
}

/// Nothing, or at least 1.
fn factor(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|x: &f32| *x == 0.0 || (*x >= 1.0 && x.is_finite()));
    value.ok_or_else(|| "a number from 1 is needed, or 0 for no limit".to_string())
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Error> {
    let options = args.net.options()?;
    args.log.start();
    if args.served_model_name.iter().any(String::is_empty) {
        return Err(input("--served-model-name: a name is empty"));
    }
    let is_open = options.keys.is_empty();
    // A port that is taken shows before a minute of loading.
    let server = Server::start(options).map_err(|error| match error {
        ServerError::Bind { .. } => input(error),
        _ => failure(error),
    })?;
    let address = server.address();
    output::say(&format!("listening on http://{address}, not ready yet"));
    let source = args.model.source();
    let gguf = load::open(&source)?;
    let config = load::drafting_config(&gguf, args.device.dense_attention)?;
    let tokenizer = tokenizer(&gguf, &config)?;
    let (template, tool_template) = templates(&gguf, tokenizer.as_ref())?;
    let context = load::context(args.context, &config)?;
    let (choice, _) = load::plan(&gguf, &config, &args.device, &args.split)?;
    let is_cpu = matches!(choice.place, Place::Cpu { .. });
    let (drafts, config) = drafts::choose(&args.draft, &gguf, config, is_cpu)?;
    let capacity = capacity(args, &gguf, &config, is_cpu, context, drafts.most())?;
    let loaded = load::load(&gguf, &config, &args.device, &args.split, capacity)?;
    let max_itl_factor = Some(args.max_itl_factor).filter(|factor| *factor > 0.0);
    let loaded = loaded.scheduled(args.max_waiting.max(1), !args.no_enable_prefix_caching, drafts, max_itl_factor);
    loaded.print_summary();
    print_settings(&loaded);
    let names = if args.served_model_name.is_empty() { vec![name(&source)] } else { args.served_model_name.clone() };
    let access = if is_open { "no key needed" } else { "with a key" };
    output::say_safely(&format!("serving {} on http://{address}/v1, {access}; Ctrl-C ends", names[0]));
    let model = Model {
        names,
        tokenizer,
        template,
        tool_template,
        context,
        vocabulary: config.vocabulary,
        answer_tokens: (source == Source::Demo).then_some(demo::PREDICT),
    };
    server.serve(model, loaded.engine).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// What text is made of; a model without it is served for token ids.
fn tokenizer(gguf: &Gguf, config: &Config) -> Result<Option<Tokenizer>, Error> {
    let tokenizer = match Tokenizer::from_metadata(gguf.metadata()) {
        Ok(tokenizer) => tokenizer,
        Err(TextError::NoVocabulary) => {
            output::say("the model has no vocabulary: prompts and answers are token ids");
            return Ok(None);
        }
        Err(error) => return Err(at_file(gguf, &error)),
    };
    for warning in tokenizer.warnings() {
        output::say_safely(&format!("warning: {warning}"));
    }
    check_vocabulary(gguf, &tokenizer, config)?;
    Ok(Some(tokenizer))
}

/// The chat templates: for conversations, and for those with tools where there is another one for them.
fn templates(
    gguf: &Gguf,
    tokenizer: Option<&Tokenizer>,
) -> Result<(Option<ChatTemplate>, Option<ChatTemplate>), Error> {
    let Some(tokenizer) = tokenizer else { return Ok((None, None)) };
    let choose = |with_tools| ChatTemplate::choose(gguf.metadata(), tokenizer, None, with_tools);
    match choose(false).and_then(|plain| Ok((plain, choose(true)?))) {
        Ok(both) => Ok(both),
        Err(error @ TextError::NoThread(_)) => Err(failure(error)),
        Err(error) => {
            output::say_safely(&format!("warning: {error}; /v1/chat/completions takes nothing"));
            Ok((None, None))
        }
    }
}

/// What the ranks are loaded for.
fn capacity(
    args: &ServeArgs,
    gguf: &Gguf,
    config: &Config,
    is_cpu: bool,
    context: usize,
    drafts: usize,
) -> Result<Capacity, Error> {
    let sequences = args.max_num_seqs.unwrap_or(SEQUENCES[usize::from(!is_cpu)]);
    if sequences == 0 || sequences > SEQUENCES_MAX {
        return Err(input(format!("--max-num-seqs {sequences}: 1 to {SEQUENCES_MAX} are possible")));
    }
    let rows = args.max_num_batched_tokens.unwrap_or(if is_cpu { CPU_ROWS } else { ROWS });
    // Every sequence can bring a token and its drafts.
    let least = sequences * (1 + drafts);
    let rows = rows.max(least);
    let logits = if is_cpu { least.max(CPU_LOGITS.min(rows)) } else { least };
    let one = context.div_ceil(BLOCK_TOKENS);
    let all = one * sequences;
    let capacity = Capacity { rows, sequences, logits, context, blocks: one };
    let blocks = match args.kv_cache_tokens {
        Some(tokens) if tokens < context => {
            return Err(input(format!("--kv-cache-tokens {tokens}: one context has {context}; -c makes it smaller")));
        }
        Some(tokens) => tokens.div_ceil(BLOCK_TOKENS),
        None if is_cpu => {
            let needs =
                load::needs(gguf, config, &args.device, args.split.tensor_parallel_size.unwrap_or(1), capacity)?;
            let room = memory::available().map(|free| (free as f64 * MEMORY_SHARE) as u64);
            let per_block = (needs.cache / one as u64).max(1);
            let fit = room.map_or(all as u64, |room| room.saturating_sub(needs.weights) / per_block);
            usize::try_from(fit).unwrap_or(usize::MAX)
        }
        None => GPU_CACHE_TOKENS / BLOCK_TOKENS,
    };
    let blocks = if args.kv_cache_tokens.is_some() { blocks } else { blocks.min(all) };
    Ok(Capacity { blocks: blocks.max(one), ..capacity })
}

/// The name that a model has where none is given.
fn name(source: &Source) -> String {
    let stem = source.path().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy().into_owned());
    output::one_line(&stem.unwrap_or_else(|| source.name()))
}

fn print_settings(loaded: &Loaded<Runner>) {
    let Settings { capacity, prefix_cache, drafts, .. } = loaded.engine.settings();
    let Capacity { rows, sequences, context, blocks, .. } = capacity;
    let (tokens, prefix) = (blocks * BLOCK_TOKENS, if *prefix_cache { "on" } else { "off" });
    output::say(&format!(
        "{sequences} sequences of {context} tokens, {rows} tokens a step, {tokens} in the KV cache, prefix cache {prefix}, \
         drafts {}",
        drafts.most()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_as_their_files() {
        assert_eq!(name(&Source::Demo), "demo");
        assert_eq!(name(&Source::Dummy("8b".into())), "dummy:8b");
        assert_eq!(name(&Source::File("/a/b.Q4.gguf".into())), "b.Q4");
    }
}
