//! Calls of tools that a model must make, as grammars in its own way of writing them: what comes out is what
//! [`output`](crate::output) reads back, with arguments that the tools' schemas allow.

use super::check::check_size;
use super::schema::{self, Place};
use super::source::{prepared, set_space};
use super::{GrammarError, Source};
use crate::Tokenizer;
use crate::output::Dialect;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A line's end, or none.
const LINE: &str = "\"\\n\"?";

/// A way of writing calls, as a chat template teaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// A JSON object in tags.
    Hermes,
    /// Qwen3-Coder's tags for the function and every parameter.
    Coder,
    /// GLM-4.5 and later: tags for keys and values.
    Glm,
    /// DeepSeek V3 and R1, with JSON in a fence.
    DeepSeekFenced,
    /// DeepSeek V3.1 and later.
    DeepSeek,
    /// Kimi K2.
    Kimi,
    /// Llama 3: a JSON object that is the whole answer.
    Llama,
}

impl CallForm {
    /// The one of a chat template; `None` where it teaches none that is known.
    pub(crate) fn of_template(template: &str) -> Option<Self> {
        match Dialect::of_template(template) {
            Dialect::Plain => None,
            Dialect::Glm => Some(Self::Glm),
            Dialect::Hermes if template.contains("<function=") => Some(Self::Coder),
            Dialect::Hermes => Some(Self::Hermes),
            Dialect::DeepSeek if template.contains("```json") => Some(Self::DeepSeekFenced),
            Dialect::DeepSeek => Some(Self::DeepSeek),
            Dialect::Kimi => Some(Self::Kimi),
            Dialect::Llama => Some(Self::Llama),
        }
    }
}

/// What is to be called.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    /// How the model writes it.
    pub form: CallForm,
    /// The tools of the request, as OpenAI's API describes them.
    pub tools: &'a [Value],
    /// The one that must be called, once; `None`: at least one, whichever.
    pub named: Option<&'a str>,
    /// Where none is named: there may be several calls.
    pub several: bool,
}

impl Source {
    /// Calls of tools and nothing else.
    ///
    /// # Errors
    /// [`GrammarError::Calls`] where there is no such tool, or none whose parameters this model's way of writing can be
    /// held to; [`GrammarError::TooMany`] and [`GrammarError::Invalid`] for their schemas.
    pub fn calls(calls: &Calls<'_>, tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let mut writer = Writer { form: calls.form, tokenizer, rules: String::new() };
        let functions = calls.tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
        let named = functions.filter_map(|function| Some((function.get("name")?.as_str()?, function)));
        let wanted = |name: &str| calls.named.is_none_or(|wanted| wanted == name);
        let mut names = Vec::new();
        for (index, (name, function)) in named.filter(|(name, _)| wanted(name)).enumerate() {
            writer.tool(index, name, function.get("parameters").unwrap_or(&Value::Null))?;
            names.push(format!("call_{index}"));
        }
        match (names.is_empty(), calls.named) {
            (true, Some(name)) => {
                let name = crate::error::shorten(name);
                return Err(GrammarError::Calls(format!("there is no tool called `{name}`")));
            }
            (true, None) => return Err(GrammarError::Calls("there are no tools to call".into())),
            _ => {}
        }
        let any = names.join(" | ");
        let several = calls.several && calls.named.is_none();
        let start = writer.start(several);
        Self::of_calls(&format!("start: {start}\ncall: {any}\n{}", writer.rules))
    }
}

/// Writes the rules.
struct Writer<'a> {
    form: CallForm,
    tokenizer: &'a Tokenizer,
    rules: String,
}

impl Writer<'_> {
    /// What holds the calls together. White space before them is nobody's: models put lines there.
    fn start(&self, several: bool) -> String {
        let begin = format!("{LINE} {LINE}");
        let more = |separator: &str| match several {
            true => format!("call ({separator} call)*"),
            false => "call".to_string(),
        };
        let pair = |open: &str, close: &str| (self.marker(open), self.marker(close));
        match self.form {
            CallForm::Hermes | CallForm::Coder | CallForm::Glm => format!("{begin} {}", more(LINE)),
            CallForm::Llama => "call".to_string(),
            CallForm::Kimi => {
                let (open, close) = pair("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
                format!("{begin} {open} {} {close}", more(""))
            }
            CallForm::DeepSeek | CallForm::DeepSeekFenced => {
                let (open, close) = pair("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
                format!("{begin} {open} {} {close}", more(LINE))
            }
        }
    }

    fn tool(&mut self, index: usize, name: &str, parameters: &Value) -> Result<(), GrammarError> {
        if name.trim() != name || name.contains(['<', '>', '\n', '"']) {
            let name = crate::error::shorten(name);
            return Err(GrammarError::Calls(format!("a tool called {name:?} cannot be called by force")));
        }
        let begin_and_end = |begin: &str, end: &str| (literal(begin), literal(end));
        let (before, after) = match self.form {
            CallForm::Hermes => {
                let (a, b) = begin_and_end(&format!("\n{{\"name\": {}, \"arguments\": ", json!(name)), "}\n");
                (format!("{} {a}", self.marker("<tool_call>")), format!("{b} {}", self.marker("</tool_call>")))
            }
            CallForm::Llama => begin_and_end(&format!("{{\"name\": {}, \"parameters\": ", json!(name)), "}"),
            CallForm::Kimi => {
                let [open, arguments, close] =
                    ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
                        .map(|marker| self.marker(marker));
                let id = literal(&format!("functions.{name}:"));
                (format!("{open} {id} /[0-9]{{1,3}}/ {arguments}"), close)
            }
            CallForm::DeepSeek | CallForm::DeepSeekFenced => {
                let [open, separator, close] = ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]
                    .map(|marker| self.marker(marker));
                if self.form == CallForm::DeepSeek {
                    (format!("{open} {} {separator}", literal(name)), close)
                } else {
                    let (a, b) = begin_and_end(&format!("{name}\n```json\n"), "\n```");
                    (format!("{open} \"function\" {separator} {a}"), format!("{b} {close}"))
                }
            }
            CallForm::Coder | CallForm::Glm => return self.tagged(index, name, parameters),
        };
        let schema = with_space(prepared(&object(parameters)).map_err(|error| of_tool(name, error))?);
        self.rule(format_args!("call_{index}: {before} args_{index} {after}\nargs_{index}: %json {schema}"));
        Ok(())
    }

    /// A call whose arguments stand one by one in tags: strings bare, and all else as JSON. They come in the schema's
    /// order; those that need not be there may be left out.
    fn tagged(&mut self, index: usize, name: &str, parameters: &Value) -> Result<(), GrammarError> {
        check_size(parameters)?;
        let empty = Map::new();
        let properties = match parameters.get("properties") {
            Some(Value::Object(properties)) => properties,
            None if parameters.get("$ref").is_none() => &empty,
            _ => {
                let message = format!("the parameters of `{}` must be an object with `properties`", echo(name));
                return Err(GrammarError::Calls(message));
            }
        };
        let required: Vec<&str> = parameters
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if let Some(missing) = required.iter().find(|key| !properties.contains_key(**key)) {
            let message = format!("`{}` requires `{}`, which is not among its properties", echo(name), echo(missing));
            return Err(GrammarError::Calls(message));
        }
        let [open, close] = ["<tool_call>", "</tool_call>"].map(|marker| self.marker(marker));
        let (head, foot) = match self.form {
            CallForm::Glm => (format!("{open} {} {LINE}", literal(name)), close),
            _ => {
                let head = literal(&format!("\n<function={name}>\n"));
                (format!("{open} {head}"), format!("{} {close}", literal("</function>\n")))
            }
        };
        let mut call = format!("call_{index}: {head}");
        for (at, (key, schema)) in properties.iter().enumerate() {
            if key.trim() != key || key.is_empty() || key.contains(['<', '>', '\n']) {
                return Err(GrammarError::Calls(format!("a parameter called {:?} cannot be written", echo(key))));
            }
            let is_required = required.contains(&key.as_str());
            let _ = write!(call, " arg_{index}_{at}{}", if is_required { "" } else { "?" });
            // What it refers to lies at the root.
            let place = Place::default().under("properties").under(key);
            let written = schema::prepared(parameters, &place).map_err(|error| of_tool(name, error))?;
            let value = self.value(&format!("{index}_{at}"), schema, written);
            let rule = match self.form {
                CallForm::Glm => {
                    let [a, b, c] = ["<arg_key>", "</arg_key>", "<arg_value>"].map(|marker| self.marker(marker));
                    format!("{a} {} {b} {LINE} {c} {value} {LINE}", literal(key))
                }
                _ => format!("{} {value} \"\\n\"", literal(&format!("<parameter={key}>\n"))),
            };
            self.rule(format_args!("arg_{index}_{at}: {rule}"));
        }
        self.rule(format_args!("{call} {foot}"));
        Ok(())
    }

    /// A value and the tag that closes it.
    fn value(&mut self, id: &str, schema: &Value, written: Value) -> String {
        let close = if self.form == CallForm::Glm { "</arg_value>" } else { "\n</parameter>" };
        let end = self.marker(close);
        let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.contains(close));
        let texts = match (schema.get("enum"), schema.get("const")) {
            (Some(Value::Array(list)), _) if !list.is_empty() && list.iter().all(is_text) => list.clone(),
            (None, Some(text)) if is_text(text) => vec![text.clone()],
            _ => Vec::new(),
        };
        if !texts.is_empty() {
            let any: Vec<String> = texts.iter().filter_map(Value::as_str).map(literal).collect();
            return format!("({}) {end}", any.join(" | "));
        }
        if is_string(schema) {
            let is_control = end.starts_with('<');
            match is_control {
                true => self.rule(format_args!("text_{id}: /(?s:.*)/")),
                false => self.rule(format_args!("text_{id}[suffix={end}]: /(?s:.*)/")),
            }
            return if is_control { format!("text_{id} {end}") } else { format!("text_{id}") };
        }
        self.rule(format_args!("json_{id}: %json {}", with_space(written)));
        format!("json_{id} {end}")
    }

    /// A marker: a token where the vocabulary has one that is no text, and its spelling otherwise.
    fn marker(&self, spelling: &str) -> String {
        match self.tokenizer.control_token(spelling) {
            Some(id) => format!("<[{id}]>"),
            None => literal(spelling),
        }
    }

    fn rule(&mut self, rule: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "{rule}");
    }
}

/// Whether a value is written bare, as [`Tools`](crate::output::Tools) reads it: where it may be a string.
fn is_string(schema: &Value) -> bool {
    let tool = json!({"name": "t", "parameters": {"properties": {"k": schema}}});
    // Digits are a string where a schema says so, and a number otherwise.
    crate::output::Tools::of(&[tool]).reads_as_text("t", "k")
}

/// The schema of arguments: an object in any case.
fn object(parameters: &Value) -> Value {
    match parameters.as_object() {
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(fields) => {
            let mut fields = fields.clone();
            if !fields.contains_key("$ref") {
                fields.entry("type").or_insert_with(|| json!("object"));
            }
            Value::Object(fields)
        }
    }
}

/// Says of which tool a schema is.
fn of_tool(name: &str, error: GrammarError) -> GrammarError {
    match error {
        GrammarError::Invalid(what) => GrammarError::Invalid(format!("the parameters of `{}`: {what}", echo(name))),
        other => other,
    }
}

fn with_space(mut schema: Value) -> Value {
    set_space(&mut schema, true);
    schema
}

/// A text as Lark spells it.
fn literal(text: &str) -> String {
    // The only character that JSON leaves as it is and Lark does not.
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

fn echo(text: &str) -> String {
    crate::error::shorten(text)
}
