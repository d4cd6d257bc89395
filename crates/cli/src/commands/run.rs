//! `tombolo run`: one answer to a prompt, streamed; without a prompt, a chat, or texts to go on with.

use crate::answer::Writer;
use crate::args::{DeviceArgs, DraftArgs, ModelArgs, SamplingArgs, Source, SplitArgs, TokenList, count, token_list};
use crate::backend::Place;
use crate::commands::chat::{self, Chat};
use crate::demo;
use crate::drafts;
use crate::error::{Error, failure, input};
use crate::form::{Form, FormArgs};
use crate::interrupt::{self, Answer};
use crate::limits::PROMPT_BYTES_MAX;
use crate::load::{self, Loaded, ROWS, at_file, capacity};
use crate::output::{self, per_second};
use crate::progress::OfPrompt;
use crate::tools;
use serde::Serialize;
use std::io::{IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tombolo_engine::{EngineError, Event, Reason, Request, Runner, Tally};
use tombolo_gguf::Gguf;
use tombolo_model::{Capacity, Config, Sampling};
use tombolo_text::grammar::Reasoning;
use tombolo_text::output::{Dialect, OutputParser, ToolCall, Tools};
use tombolo_text::{ChatTemplate, Conversation, Message, TextError, Tokenizer};

/// Rows of a step on the processor: between steps Ctrl-C ends a prompt, and more rows are hardly quicker there.
pub(crate) const CPU_ROWS: usize = 128;

/// Options of `run`.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to answer or go on with; without it, a chat, or the text on standard input
    #[arg(short, long, value_name = "TEXT", conflicts_with = "tokens", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Token ids instead of a text, as 1,2,3; the answer is printed as ids too
    #[arg(long, value_name = "IDS", value_parser = token_list, conflicts_with_all = ["chat", "system"])]
    tokens: Option<TokenList>,
    /// Most tokens of an answer [default: until it ends or the context is full; the demo model: 256]
    #[arg(short = 'n', long = "predict", value_name = "N", value_parser = count)]
    predict: Option<usize>,
    /// Tokens that the context holds; 0: as many as the model was trained for [default: 4096 at most]
    #[arg(short = 'c', long = "ctx-size", value_name = "N", value_parser = count)]
    context: Option<usize>,
    /// Put the prompt through the model's chat template [default where it has one, except for the demo model]
    #[arg(long, conflicts_with = "no_chat")]
    chat: bool,
    /// Take the prompt as it is and go on with it
    #[arg(long, alias = "raw")]
    no_chat: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat", allow_hyphen_values = true)]
    system: Option<String>,
    /// JSON file with the tools that the model may call, as a request's "tools"; their calls are shown, not carried out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "no_chat"])]
    tools: Option<PathBuf>,
    #[command(flatten)]
    form: FormArgs,
    /// Do not stop at the tokens that end an answer
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object with the answer and its timings instead of streaming
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    split: SplitArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl RunArgs {
    /// Whether a prompt is a message. The demo model goes on with texts, and its template does nothing else.
    fn chats(&self, source: &Source) -> bool {
        let asked = self.chat || self.system.is_some() || self.tools.is_some();
        !self.no_chat && self.tokens.is_none() && (asked || *source != Source::Demo)
    }
}

/// What a model's answer was made of, and how long it took.
#[derive(Serialize)]
pub(crate) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// What was thought before it.
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning: String,
    /// What it wants to be called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    tokens: Vec<u32>,
    finish: &'static str,
    prompt_tokens: usize,
    /// Of the prompt, what the context held already.
    cached_tokens: usize,
    /// Of the rest, what was run: less than all where an interrupt came first.
    #[serde(skip)]
    run_tokens: usize,
    prompt_seconds: f64,
    generated_seconds: f64,
    /// How drafts fared, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafted>,
}

/// Speculative decoding in one answer.
#[derive(Serialize)]
struct Drafted {
    drafted: usize,
    accepted: usize,
    /// Tokens that a step with drafts gave on average: one, and the accepted ones.
    tokens_per_step: f64,
}

impl Drafted {
    fn of(tally: &Tally) -> Option<Self> {
        let Tally { draft_steps, drafted, accepted, .. } = *tally;
        let tokens_per_step = 1.0 + accepted as f64 / draft_steps as f64;
        (draft_steps > 0).then_some(Self { drafted, accepted, tokens_per_step })
    }

    fn summary(&self) -> String {
        let Self { drafted, accepted, tokens_per_step } = self;
        let share = 100.0 * *accepted as f64 / *drafted as f64;
        format!("{accepted} of {drafted} drafts accepted ({share:.0} %, {tokens_per_step:.2} tokens a step)")
    }
}

/// A call of a tool.
#[derive(Serialize)]
pub(crate) struct Call {
    /// Its number in this answer.
    id: String,
    name: String,
    arguments: serde_json::Map<String, serde_json::Value>,
}

impl Call {
    fn all(calls: Vec<ToolCall>) -> Vec<Self> {
        let numbered = calls.into_iter().enumerate();
        numbered.map(|(i, ToolCall { name, arguments })| Self { id: format!("call_{i}"), name, arguments }).collect()
    }
}

impl Report {
    /// Speeds, of what was done; the first token comes out of the prompt's own pass.
    fn summary(&self) -> String {
        let rate = |count: usize, seconds: f64| {
            let is_known = count > 0 && seconds > 0.0;
            if is_known { format!(" {:.1} tok/s", per_second(count, seconds)) } else { String::new() }
        };
        let (new, run, generated) = (self.prompt_tokens - self.cached_tokens, self.run_tokens, self.tokens.len());
        let run_of = if run < new { format!("{run} of ") } else { String::new() };
        let cached =
            if self.cached_tokens > 0 { format!(" (and {} cached)", self.cached_tokens) } else { String::new() };
        let prompt_rate = rate(run, self.prompt_seconds);
        let rate = rate(generated.saturating_sub(1), self.generated_seconds);
        let drafts = self.drafts.as_ref().map(|drafts| format!(", {}", drafts.summary())).unwrap_or_default();
        format!("prompt {run_of}{new} tokens{cached}{prompt_rate}, generated {generated} tokens{rate}{drafts}")
    }

    pub(crate) fn print_summary(&self) {
        output::say(&self.summary());
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.finish == "interrupted"
    }

    /// Whether there is no answer at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// A loaded model with what is needed to answer.
pub(crate) struct Session {
    pub(crate) loaded: Loaded<Runner>,
    pub(crate) sampling: Sampling,
    pub(crate) predict: usize,
    /// Tokens that end an answer.
    pub(crate) ends: Arc<[u32]>,
    /// How the model marks the parts of an answer; `None`: all is text.
    pub(crate) dialect: Option<Dialect>,
    /// What it may call.
    pub(crate) tools: Vec<serde_json::Value>,
    /// What its answers are held to.
    pub(crate) form: Option<Form>,
}

/// What an answer is to be given to.
pub(crate) struct Question {
    pub(crate) ids: Vec<u32>,
    /// It ends inside the reasoning that the answer goes on with.
    pub(crate) opens_reasoning: bool,
    /// Whether the answer reasons before what it may be held to.
    pub(crate) reasoning: Reasoning,
}

impl From<Vec<u32>> for Question {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, opens_reasoning: false, reasoning: Reasoning::None }
    }
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    interrupt::install()?;
    let sampling = args.sampling.sampling()?;
    let source = args.model.source();
    let gguf = load::open(&source)?;
    let config = load::drafting_config(&gguf, args.device.dense_attention)?;
    let tokenizer = match Tokenizer::from_metadata(gguf.metadata()) {
        // It lives as long as the program, as forms want it.
        Ok(tokenizer) => Some(&*Box::leak(Box::new(tokenizer))),
        // Ids need none.
        Err(_) if args.tokens.is_some() => None,
        Err(error) => return Err(at_file(&gguf, &error)),
    };
    for warning in tokenizer.into_iter().filter(|_| args.tokens.is_none()).flat_map(Tokenizer::warnings) {
        output::say_safely(&format!("warning: {warning}"));
    }
    let template = match tokenizer {
        Some(tokenizer) if args.chats(&source) => template(&gguf, tokenizer, args)?,
        _ => None,
    };
    if let Some(tokenizer) = tokenizer.filter(|_| args.tokens.is_none()) {
        check_vocabulary(&gguf, tokenizer, &config)?;
    }
    let prompt = prompt(args)?;
    let tools = args.tools.as_deref().map_or_else(|| Ok(Vec::new()), tools::read)?;
    if prompt.is_none() && args.tokens.is_none() && args.json {
        return Err(input("--json prints one answer, not a chat: give a prompt by -p, or on standard input"));
    }
    let form = tokenizer.map_or(Ok(None), |tokenizer| args.form.compiled(tokenizer))?;
    let question = match (&args.tokens, &prompt, tokenizer) {
        (Some(ids), _, _) => Some(ids.0.clone().into()),
        (None, Some(text), Some(tokenizer)) => Some(encode(text, &gguf, tokenizer, template.as_ref(), &tools, args)?),
        _ => None,
    };
    let context = load::context(args.context, &config)?;
    if let Some(question) = &question {
        check(&question.ids, &config, context)?;
    }
    let (choice, _) = load::plan(&gguf, &config, &args.device, &args.split)?;
    let is_cpu = matches!(choice.place, Place::Cpu { .. });
    let (drafts, config) = drafts::choose(&args.draft, &gguf, config, is_cpu)?;
    let rows = if is_cpu { CPU_ROWS } else { ROWS };
    let capacity = Capacity { logits: 1 + drafts.most(), ..capacity(rows, 1, context) };
    let loaded = load::load(&gguf, &config, &args.device, &args.split, capacity)?;
    let loaded = loaded.scheduled(1, true, drafts, None);
    loaded.print_summary();
    print_sampling(&sampling);
    let predict = args.predict.unwrap_or(if source == Source::Demo { demo::PREDICT } else { usize::MAX });
    let ends = tokenizer.filter(|_| !args.ignore_eos).map(|t| t.end_of_generation().to_vec());
    let dialect = template.as_ref().map(ChatTemplate::dialect);
    let ends = ends.unwrap_or_default();
    let mut session = Session { loaded, sampling, predict, ends: ends.into(), dialect, tools, form };
    let question = match (question, tokenizer, template) {
        (Some(question), _, template) => {
            if let Some(text) = prompt.filter(|_| template.is_none() && !args.json) {
                show_beginning(&text)?;
            }
            question
        }
        (None, Some(tokenizer), template) => {
            return Chat::new(session, tokenizer, template, args.system.clone()).talk();
        }
        (None, None, _) => unreachable!("without a tokenizer there are ids"),
    };
    let tokenizer = tokenizer.filter(|_| args.tokens.is_none());
    let report = session.answer(&question, tokenizer, !args.json)?;
    if args.json {
        let line = serde_json::to_string(&report).map_err(failure)?;
        writeln!(std::io::stdout(), "{line}")?;
    }
    report.print_summary();
    Ok(if report.was_interrupted() { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// What is in force; with the seed, so that an answer can be had again.
fn print_sampling(s: &Sampling) {
    if s.is_greedy() {
        output::say("sampling: always the most likely token");
    } else {
        let (temperature, top_k, top_p, min_p) = (s.temperature, s.top_k, s.top_p, s.min_p);
        output::say(&format!(
            "sampling: --temp {temperature} --top-k {top_k} --top-p {top_p} --min-p {min_p} --seed {}",
            s.seed
        ));
    }
}

/// Refuses a file whose text can become tokens that the model does not have.
pub(crate) fn check_vocabulary(gguf: &Gguf, tokenizer: &Tokenizer, config: &Config) -> Result<(), Error> {
    let (tokens, rows) = (tokenizer.vocabulary(), config.vocabulary);
    if tokens > rows {
        return Err(at_file(gguf, &format!("the tokenizer has {tokens} tokens, the embedding {rows} rows")));
    }
    Ok(())
}

/// Refuses, before anything is run, a prompt that cannot be.
fn check(ids: &[u32], config: &Config, context: usize) -> Result<(), Error> {
    if ids.is_empty() {
        return Err(input("the prompt has no tokens: it is empty, or the vocabulary can spell nothing of it"));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= config.vocabulary) {
        return Err(input(format!("--tokens: {id} is outside the model's vocabulary of {}", config.vocabulary)));
    }
    if ids.len() > context {
        let (tokens, most) = (ids.len(), config.context);
        let way = if context < most { format!("-c raises it, up to {most}") } else { "the most for this model".into() };
        return Err(input(format!("the prompt has {tokens} tokens; the context holds {context}: {way}")));
    }
    Ok(())
}

/// The prompt, if there is one: given, or what a pipe brings.
fn prompt(args: &RunArgs) -> Result<Option<String>, Error> {
    if args.prompt.as_deref() == Some("") && !args.no_chat {
        return Err(input("-p: the prompt is empty"));
    }
    if args.prompt.is_some() || args.tokens.is_some() {
        return Ok(args.prompt.clone());
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    let read = stdin.lock().take(PROMPT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            input("standard input is not UTF-8: convert it first, as iconv -t UTF-8 does")
        }
        _ => input(format!("standard input: {error}")),
    })?;
    if text.len() as u64 > PROMPT_BYTES_MAX {
        return Err(input(format!("standard input: a prompt has at most {PROMPT_BYTES_MAX} bytes")));
    }
    if text.is_empty() {
        return Err(input("no prompt: give one by -p, or on standard input"));
    }
    Ok(Some(text))
}

fn template(gguf: &Gguf, tokenizer: &Tokenizer, args: &RunArgs) -> Result<Option<ChatTemplate>, Error> {
    let template = ChatTemplate::from_metadata(gguf.metadata(), tokenizer).map_err(|e| match e {
        TextError::NoThread(_) => failure(e),
        _ => in_template(gguf, &e),
    })?;
    if template.is_none() && (args.chat || args.system.is_some() || args.tools.is_some()) {
        return Err(at_file(gguf, &"the model has no chat template; leave out --chat, --system and --tools"));
    }
    Ok(template)
}

/// A fault of the file's chat template, with the way around it.
fn in_template(gguf: &Gguf, error: &TextError) -> Error {
    at_file(gguf, &format!("{error}; --no-chat takes a prompt as it is, without the template"))
}

fn encode(
    text: &str,
    gguf: &Gguf,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    tools: &[serde_json::Value],
    args: &RunArgs,
) -> Result<Question, Error> {
    let Some(template) = template else { return beginning(text, tokenizer) };
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(chat::message("system", system));
    }
    messages.push(chat::message("user", text));
    rendered(gguf, template, tokenizer, &messages, tools)
}

/// The beginning of a text as tokens.
pub(crate) fn beginning(text: &str, tokenizer: &Tokenizer) -> Result<Question, Error> {
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    ids.extend(tokenizer.encode(text, true).map_err(input)?);
    Ok(ids.into())
}

/// Shows somebody at a terminal what the text that follows goes on with: it can be read as a whole then.
fn show_beginning(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// A conversation as tokens, ready for the next answer. The template brings its own special tokens.
pub(crate) fn rendered(
    gguf: &Gguf,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    tools: &[serde_json::Value],
) -> Result<Question, Error> {
    let conversation = Conversation { tools: tools.to_vec(), ..Conversation::new(messages) };
    let encoded = template.prompt(&conversation).and_then(|prompt| {
        let ids = tokenizer.encode_prompt(&prompt)?;
        if ids.is_empty() {
            return Err(TextError::Template("it makes nothing of the messages".into()));
        }
        Ok(Question { ids, opens_reasoning: prompt.opens_reasoning(), reasoning: template.reasoning(&prompt) })
    });
    encoded.map_err(|e| match e {
        TextError::NoThread(_) => failure(e),
        TextError::Template(_) | TextError::TemplateSyntax(_) | TextError::TemplateFuel { .. } => in_template(gguf, &e),
        // The conversation is too long.
        _ => input(e),
    })
}

impl Session {
    /// Generates an answer to `question`, written to standard output as it comes when `streaming`. With a tokenizer it is
    /// text, without one it is ids.
    pub(crate) fn answer<'t>(
        &mut self,
        question: &Question,
        tokenizer: Option<&'t Tokenizer>,
        streaming: bool,
    ) -> Result<Report, Error> {
        let ids = question.ids.as_slice();
        check(ids, &self.loaded.config, self.loaded.capacity.context)?;
        let parser = self.dialect.map(|d| OutputParser::new(d, Tools::of(&self.tools), question.opens_reasoning));
        // The parser knows marks by their spelling.
        let has_marks = self.dialect.is_some_and(|dialect| dialect != Dialect::Plain);
        let stream = |t: &'t Tokenizer| if has_marks { t.stream().with_control() } else { t.stream() };
        let mut decoder = tokenizer.map(stream);
        let mut writer = Writer::new(streaming, parser);
        let mut tokens = Vec::new();
        let (started, mut first) = (Instant::now(), None);
        let _answer = Answer::begin();
        let mut request = Request::new(ids.to_vec(), self.predict, self.sampling);
        let ends = self.ends.clone();
        request.stop = ends.clone();
        request.extra = self.form.as_ref().map(|form| form.extra(question.reasoning));
        let prompt_tokens = ids.len();
        let mut run_tokens = prompt_tokens;
        let ended = self.run(request, |happened| {
            match happened {
                Happened::Prompt(done) => run_tokens = done,
                Happened::Token(token) => {
                    first.get_or_insert_with(Instant::now);
                    if ends.contains(&token) {
                        return ControlFlow::Continue(());
                    }
                    tokens.push(token);
                    let piece = match &mut decoder {
                        Some(decoder) => decoder.push(token),
                        None if tokens.len() == 1 => token.to_string(),
                        None => format!(",{token}"),
                    };
                    writer.write(&piece);
                }
            }
            if writer.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let (reason, tally) = ended?;
        let ended = Instant::now();
        writer.write(&decoder.map(|d| d.finish()).unwrap_or_default());
        writer.end()?;
        let finish = match reason {
            Reason::Cancelled => "interrupted",
            Reason::Stop => "stop",
            Reason::Length if tokens.len() >= self.predict => "length",
            Reason::Length => "context full",
            Reason::NotNumbers if self.form.is_some() => {
                let count = tokens.len();
                return Err(failure(format!(
                    "after {count} tokens, the answer cannot be held to its form any further"
                )));
            }
            Reason::Mask(fault) => {
                let count = tokens.len();
                return Err(failure(format!("after {count} tokens of the answer, {fault}: make its form simpler")));
            }
            Reason::NotNumbers => {
                let (count, what) = (tokens.len(), EngineError::NotNumbers);
                return Err(failure(format!("after {count} tokens of the answer, {what}")));
            }
        };
        let first = first.unwrap_or(ended);
        let cached_tokens = tally.cached_tokens;
        Ok(Report {
            text: tokenizer.map(|_| writer.text),
            reasoning: writer.reasoning,
            tool_calls: Call::all(writer.calls),
            tokens,
            finish,
            prompt_tokens,
            cached_tokens,
            run_tokens: run_tokens.saturating_sub(cached_tokens),
            prompt_seconds: (first - started).as_secs_f64(),
            generated_seconds: (ended - first).as_secs_f64(),
            drafts: Drafted::of(&tally),
        })
    }

    /// Runs one request to its end, which Ctrl-C or `on` may bring about.
    fn run(
        &mut self,
        request: Request,
        mut on: impl FnMut(Happened) -> ControlFlow<()>,
    ) -> Result<(Reason, Tally), Error> {
        if request.max_tokens == 0 {
            let _ = on(Happened::Prompt(0));
            return Ok((Reason::Length, Tally::default()));
        }
        let runner = &mut self.loaded.engine;
        let total = request.prompt.len();
        let id = runner.add(request).map_err(input)?;
        let mut progress = OfPrompt::begin();
        loop {
            let mut is_wanted = !interrupt::is_pressed();
            if let Some(done) = runner.prompt_done(id) {
                progress.show(done, total);
                is_wanted &= on(Happened::Prompt(done)).is_continue();
            }
            for event in runner.take_events() {
                match event {
                    Event::Token { token, .. } => is_wanted &= on(Happened::Token(token)).is_continue(),
                    Event::Finished { reason, tally, .. } => {
                        progress.end();
                        return Ok((reason, tally));
                    }
                    Event::Started(_) | Event::PromptLogprobs(..) => {}
                }
            }
            if is_wanted { runner.step(|_| ()).map_err(failure)? } else { runner.cancel(id) }
        }
    }
}

/// While a request runs.
enum Happened {
    /// So many tokens of its prompt are run.
    Prompt(usize),
    /// It was given a token.
    Token(u32),
}

impl Report {
    /// The answer's text, empty where there are only ids.
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}
