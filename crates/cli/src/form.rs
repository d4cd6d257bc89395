//! What an answer is held to: a JSON schema or a grammar, by options that are called as llama.cpp calls them.

use crate::error::{Error, input};
use crate::limits::FORM_BYTES_MAX;
use crate::small_file;
use clap::Args;
use std::path::{Path, PathBuf};
use tombolo_engine::{Extra, Interrupt, Mask};
use tombolo_text::Tokenizer;
use tombolo_text::grammar::{Grammar, Grammars, Matcher, Reasoning, Source};

/// The options; one of them may be given.
#[derive(Args)]
#[group(id = "form", multiple = false, conflicts_with_all = ["tokens", "ignore_eos"])]
pub(crate) struct FormArgs {
    /// JSON schema that the answer is held to; {} for any JSON object
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// File with that schema
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
    /// Grammar that the answer is held to, in GBNF (root ::= …) or Lark (start: …)
    #[arg(long, value_name = "GRAMMAR")]
    grammar: Option<String>,
    /// File with that grammar
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
}

/// What answers are held to, compiled.
pub(crate) struct Form(Grammar);

impl FormArgs {
    /// The form that is asked for, if one is.
    pub(crate) fn compiled(&self, tokenizer: &'static Tokenizer) -> Result<Option<Form>, Error> {
        let Some((option, source)) = self.source()? else { return Ok(None) };
        let grammars = Grammars::new(tokenizer).map_err(|error| input(format!("{option}: {error}")))?;
        let grammar = grammars.compile(&source).map_err(|error| input(format!("{option}: {error}")))?;
        Ok(Some(Form(grammar)))
    }

    fn source(&self) -> Result<Option<(&'static str, Source)>, Error> {
        let schema = |option: &str, text: &str| {
            let schema: serde_json::Value =
                serde_json::from_str(text).map_err(|error| input(format!("{option}: no JSON: {error}")))?;
            match schema.as_object().is_some_and(serde_json::Map::is_empty) {
                true => Ok(Source::json_object(true)),
                false => Source::json_schema(&schema, true).map_err(|error| input(format!("{option}: {error}"))),
            }
        };
        let grammar =
            |option: &str, text: &str| Source::grammar(text).map_err(|error| input(format!("{option}: {error}")));
        Ok(match self {
            Self { json_schema: Some(text), .. } => Some(("--json-schema", schema("--json-schema", text)?)),
            Self { json_schema_file: Some(path), .. } => {
                let option = "--json-schema-file";
                Some((option, schema(option, &read(option, path)?)?))
            }
            Self { grammar: Some(text), .. } => Some(("--grammar", grammar("--grammar", text)?)),
            Self { grammar_file: Some(path), .. } => {
                let option = "--grammar-file";
                Some((option, grammar(option, &read(option, path)?)?))
            }
            _ => None,
        })
    }
}

impl Form {
    /// What a request needs to be held to it.
    pub(crate) fn extra(&self, reasoning: Reasoning) -> Box<Extra> {
        Box::new(Extra { mask: Some(Box::new(Held(self.0.matcher(reasoning)))), ..Extra::default() })
    }
}

/// A form that one answer follows.
#[derive(Debug)]
struct Held(Matcher);

impl Mask for Held {
    fn allowed(&mut self) -> Option<&[u32]> {
        Some(self.0.allowed())
    }

    fn accept(&mut self, token: u32) {
        self.0.accept(token);
    }

    fn interrupt(&mut self) -> Option<Interrupt> {
        let interrupter = self.0.interrupter();
        Some(Box::new(move || interrupter.interrupt()))
    }
}

fn read(option: &str, path: &Path) -> Result<String, Error> {
    let wrong = |what: String| input(format!("{option} {}: {what}", path.display()));
    small_file::text(path, FORM_BYTES_MAX).map_err(wrong)
}
