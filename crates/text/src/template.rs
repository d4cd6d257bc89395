//! Chat templates: a conversation to the text that the model was trained on. The language is Jinja as transformers
//! runs it: blocks trimmed, Python's methods, `raise_exception`, `strftime_now`, a `tojson` of its own.

use minijinja::machinery::{self, CodeGenerator};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use tombolo_gguf::Metadata;

use crate::grammar::{CallForm, Reasoning};
use crate::matcher::Matcher;
use crate::output::Dialect;
use crate::{Conversation, Message, Prompt, TextError, Tokenizer, clock, json, limits, meter};

/// A model's chat template. It comes with the file and is as little trusted: what it may do is in [`limits`].
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
    /// The control tokens, by which the conversation's text is marked.
    control: Matcher,
}

/// The key of a file's default template; those with names have a dot and the name behind it.
const KEY: &str = "tokenizer.chat_template";
/// The name of the template that has none.
const DEFAULT: &str = "default";
/// The name that files give the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// The default template of a model file, or none if the file has no template.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        Self::choose(metadata, tokenizer, None, false)
    }

    /// The names of a model file's templates, `default` first if it has one, in the file's order.
    pub fn names(metadata: &Metadata) -> Vec<&str> {
        let default = metadata.get(KEY).map(|_| DEFAULT);
        let named = metadata.iter().filter_map(|(key, _)| key.strip_prefix(KEY)?.strip_prefix('.'));
        default.into_iter().chain(named).collect()
    }

    /// The template called `name`, or none if the file has no template at all. Where no name is given it is `tool_use`
    /// for a conversation `with_tools` if there is one of that name, else the default, else the only one.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if none has the name, or several have one and none was asked for;
    /// [`TextError::TemplateSyntax`] if it is not Jinja; [`TextError::TooMany`] if it is too long.
    pub fn choose(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
        name: Option<&str>,
        with_tools: bool,
    ) -> Result<Option<Self>, TextError> {
        let names = Self::names(metadata);
        let name = match (name, &names[..]) {
            (Some(name), _) => name,
            (None, []) => return Ok(None),
            (None, names) if with_tools && names.contains(&TOOL_USE) => TOOL_USE,
            (None, [only]) => only,
            (None, _) => DEFAULT,
        };
        if !names.contains(&name) {
            let names = crate::error::shorten(&names.join(", "));
            return Err(TextError::NoTemplate { name: crate::error::shorten(name), names });
        }
        let key = if name == DEFAULT { KEY.to_owned() } else { format!("{KEY}.{name}") };
        let source = metadata.str(&key).ok_or(TextError::Key { key: KEY, expected: "a string" })?;
        let special = tokenizer.special();
        let named = [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("unk_token", special.unknown),
            ("pad_token", special.padding),
        ];
        let spelled = named.iter().filter_map(|(name, id)| Some((*name, tokenizer.spelling((*id)?))));
        let mut template = Self::new(source, &spelled.collect::<Vec<_>>())?;
        template.control = tokenizer.control()?;
        Ok(Some(template))
    }

    /// A template from its source, with the spellings of special tokens by the names that it knows them by
    /// (`bos_token`, `eos_token`). It knows of no vocabulary, so its prompts mark no control tokens.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] if it is not Jinja; [`TextError::TooMany`] if it is too long.
    pub fn new(source: &str, tokens: &[(&'static str, String)]) -> Result<Self, TextError> {
        if source.len() > limits::TEMPLATE_BYTES_MAX {
            let (count, limit) = (source.len(), limits::TEMPLATE_BYTES_MAX);
            return Err(TextError::TooMany { what: "tokenizer.chat_template, bytes", count, limit });
        }
        let mut env = environment();
        for (name, spelling) in tokens {
            env.add_global(*name, spelling.as_str());
        }
        let template = Self { source: without_generation_tags(source)?, env, control: Matcher::default() };
        on_render_stack(|| template.parse().and_then(|tree| meter::metered(&tree).map(|_| ())))?
            .map_err(|error| TextError::TemplateSyntax(one_line(&error)))?;
        Ok(template)
    }

    /// How the models that it was written for mark reasoning and calls of tools.
    pub fn dialect(&self) -> Dialect {
        Dialect::of_template(&self.source)
    }

    /// How those models write calls, for whoever makes them call; `None` where the template does not tell.
    pub fn call_form(&self) -> Option<CallForm> {
        CallForm::of_template(&self.source)
    }

    /// Whether an answer to one of its prompts reasons before what it may be held to.
    pub fn reasoning(&self, prompt: &Prompt) -> Reasoning {
        match () {
            () if prompt.opens_reasoning() => Reasoning::Open,
            () if self.source.contains("think>") && !prompt.closes_reasoning() => Reasoning::Possible,
            () => Reasoning::None,
        }
    }

    /// The prompt that a conversation is, to be encoded by [`Tokenizer::encode_prompt`]. The template brings the BOS
    /// token where the model has one: put no other before it.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template refuses the conversation or fails; [`TextError::TemplateFuel`] if it
    /// does more than a template may; [`TextError::TooMany`] for a conversation beyond [`limits`];
    /// [`TextError::Setting`] for a setting that is none.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Prompt, TextError> {
        let (variables, size) = conversation.variables(&self.control)?;
        let share = limits::FUEL_COPIES * size.bytes as u64 / 64 + limits::FUEL_PER_VALUE * size.values as u64;
        let fuel = (limits::FUEL_BASE + share).min(limits::FUEL_MAX);
        let rendered = on_render_stack(|| self.render_within(variables, fuel))?;
        rendered.map(Prompt::new).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => TextError::TemplateFuel { fuel },
            _ => TextError::Template(one_line(&error)),
        })
    }

    /// The text of a conversation without tools; with `add_generation_prompt` it ends where the assistant's turn begins.
    /// Text that spells a control token is not told from the template's own: see [`prompt`](Self::prompt).
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt).
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        let conversation = Conversation { add_generation_prompt, ..Conversation::new(messages) };
        self.prompt(&conversation).map(|prompt| prompt.text())
    }

    fn parse(&self) -> Result<machinery::ast::Stmt<'_>, Error> {
        machinery::parse(&self.source, NAME, syntax()?)
    }

    fn render_within(&self, variables: Value, fuel: u64) -> Result<String, Error> {
        let mut code = CodeGenerator::new(NAME, &self.source);
        code.compile_stmt(&meter::metered(&self.parse()?)?);
        let (instructions, blocks) = code.finish();
        let mut env: Environment<'_> = self.env.clone();
        meter::install(&mut env, fuel);
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&env, &instructions, variables, &blocks, &mut output, AutoEscape::None)?;
        drop(output);
        Ok(text)
    }
}

/// The name that messages about a template give it.
const NAME: &str = "chat_template";

/// Runs `work` where deep recursion has room: values that a template builds lazily nest as deep as its fuel lasts.
fn on_render_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(limits::RENDER_STACK_BYTES);
        let running = thread.spawn_scoped(scope, work).map_err(|e| TextError::NoThread(e.to_string()))?;
        running.join().map_err(|_| TextError::Template("the template engine failed on it".into()))
    })
}

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    // It shows the state of the program, not of the conversation.
    env.remove_global("debug");
    env.set_recursion_limit(limits::CALL_DEPTH_MAX);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", json::tojson);
    env.add_test("iterable", is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env
}

/// As Python has it: `none` cannot be iterated over, though minijinja would. Templates ask this of absent tools.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> String {
    clock::strftime_now(format)
}

/// Python's methods of strings, lists and maps.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // A format string names widths, which nothing charges for.
    if name == "format" && value.as_str().is_some_and(has_wide_field) {
        return Err(Error::new(ErrorKind::InvalidOperation, "str.format: a field is too wide"));
    }
    unknown_method_callback(state, value, name, args)
}

/// Whether a format string holds a number of four digits, or a field whose width is a field.
fn has_wide_field(format: &str) -> bool {
    let digits = format.as_bytes().split(|b| !b.is_ascii_digit()).any(|run| run.len() > 3);
    let mut nested = format.split('{').skip(1).map(|field| !field.is_empty() && !field.contains('}'));
    digits || nested.any(|open| open)
}

/// transformers marks what the assistant said by `{% generation %}` tags for training. They print nothing; a condition
/// that always holds stands in, so that they trim white space as before.
fn without_generation_tags(source: &str) -> Result<String, TextError> {
    let syntax = |e: regex::Error| TextError::TemplateSyntax(e.to_string());
    let open = Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").map_err(syntax)?;
    let close = Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").map_err(syntax)?;
    let opened = open.replace_all(source, "{%${1} if true ${2}%}");
    Ok(close.replace_all(&opened, "{%${1} endif ${2}%}").into_owned())
}

/// An error of the engine without line breaks: what it is about, and where.
fn one_line(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
