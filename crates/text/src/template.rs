//! Chat templates: a conversation to the text that the model was trained on. The language is Jinja as transformers
//! runs it: blocks trimmed, Python's methods, `raise_exception`, `strftime_now`, a `tojson` of its own.

use minijinja::machinery::{self, CodeGenerator};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use tombolo_gguf::Metadata;

use crate::{TextError, Tokenizer, clock, json, limits, meter};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A model's chat template. It comes with the file and is as little trusted: what it may do is in [`limits`].
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
}

impl ChatTemplate {
    /// The template of a model file, or none if the file has none.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] if it is not Jinja; [`TextError::TooMany`] if it is too long.
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        let Some(source) = metadata.str("tokenizer.chat_template") else { return Ok(None) };
        let special = tokenizer.special();
        let named = [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("unk_token", special.unknown),
            ("pad_token", special.padding),
        ];
        let spelled = named.iter().filter_map(|(name, id)| Some((*name, tokenizer.spelling((*id)?))));
        Self::new(source, &spelled.collect::<Vec<_>>()).map(Some)
    }

    /// A template from its source, with the spellings of special tokens by the names that it knows them by
    /// (`bos_token`, `eos_token`).
    ///
    /// # Errors
    /// As [`from_metadata`](Self::from_metadata).
    pub fn new(source: &str, tokens: &[(&'static str, String)]) -> Result<Self, TextError> {
        if source.len() > limits::TEMPLATE_BYTES_MAX {
            let (count, limit) = (source.len(), limits::TEMPLATE_BYTES_MAX);
            return Err(TextError::TooMany { what: "tokenizer.chat_template, bytes", count, limit });
        }
        let mut env = environment();
        for (name, spelling) in tokens {
            env.add_global(*name, spelling.as_str());
        }
        let template = Self { source: without_generation_tags(source)?, env };
        on_render_stack(|| template.parse().and_then(|tree| meter::metered(&tree).map(|_| ())))?
            .map_err(|error| TextError::TemplateSyntax(one_line(&error)))?;
        Ok(template)
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant's turn begins.
    ///
    /// The text spells control tokens, the first of them a BOS where the model has one: encode it with `special` and
    /// put no other BOS before it.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template refuses the conversation or fails; [`TextError::TemplateFuel`] if it
    /// does more than a template may; [`TextError::TooMany`] for a conversation beyond [`limits`].
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        let bytes: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        for (what, count, limit) in [
            ("conversation, messages", messages.len(), limits::MESSAGES_MAX),
            ("conversation, bytes", bytes, limits::TEXT_BYTES_MAX),
        ] {
            if count > limit {
                return Err(TextError::TooMany { what, count, limit });
            }
        }
        let share = limits::FUEL_COPIES * bytes as u64 / 64 + limits::FUEL_PER_MESSAGE * messages.len() as u64;
        let fuel = (limits::FUEL_BASE + share).min(limits::FUEL_MAX);
        on_render_stack(|| self.render_within(messages, add_generation_prompt, fuel))?.map_err(|error| {
            match error.kind() {
                ErrorKind::OutOfFuel => TextError::TemplateFuel { fuel },
                _ => TextError::Template(one_line(&error)),
            }
        })
    }

    fn parse(&self) -> Result<machinery::ast::Stmt<'_>, Error> {
        machinery::parse(&self.source, NAME, syntax()?)
    }

    fn render_within(&self, messages: &[Message], prompt: bool, fuel: u64) -> Result<String, Error> {
        let mut code = CodeGenerator::new(NAME, &self.source);
        code.compile_stmt(&meter::metered(&self.parse()?)?);
        let (instructions, blocks) = code.finish();
        let mut env: Environment<'_> = self.env.clone();
        meter::install(&mut env, fuel);
        let turn = |m: &Message| context! { role => m.role.as_str(), content => m.content.as_str() };
        // transformers passes `tools` and `documents` whether there are any or not, and templates test for none.
        let root = context! {
            messages => messages.iter().map(turn).collect::<Vec<_>>(),
            add_generation_prompt => prompt,
            tools => (),
            documents => (),
        };
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&env, &instructions, root, &blocks, &mut output, AutoEscape::None)?;
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
