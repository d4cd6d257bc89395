//! What an answer is to be, as a request has it: sizes are checked here, the rest when it is compiled.

use super::check::{check_schema, check_size, checked_grammar};
use super::faults::{self, Fault};
use super::schema::{self, Place};
use super::{GrammarError, Grammars, gbnf};
use crate::limits;
use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Value, json};

/// What an answer is to be. Equal ones compile to the same, so that they may be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Json {
        has_space: bool,
    },
    Regex,
    Lark,
    /// Lark, too, that nobody but us has written.
    Calls,
}

/// Where JSON may have space: one blank, or a line's end and an indentation. A model that likes space cannot fill its
/// answer with it.
const SPACE: &str = r"( |\n[ \t]{0,40})";

impl Source {
    /// JSON that a schema describes, in the keywords that llguidance knows; those that it does not know and that say
    /// something of values are refused when it is compiled. Properties come in the schema's order. With `has_space`
    /// there may be a blank or an indented line between the parts. References are looked up inside the schema, and
    /// nothing is ever fetched.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] for what is no object or refers to elsewhere; [`GrammarError::TooMany`] beyond
    /// [`limits`].
    pub fn json_schema(schema: &Value, has_space: bool) -> Result<Self, GrammarError> {
        if !schema.is_object() {
            return Err(GrammarError::Invalid("a JSON schema is an object".into()));
        }
        check_size(schema)?;
        let text = schema.to_string();
        at_most("JSON schema, bytes", text.len(), limits::SCHEMA_BYTES_MAX)?;
        Ok(Self { kind: Kind::Json { has_space }, text })
    }

    /// Any JSON object.
    pub fn json_object(has_space: bool) -> Self {
        Self { kind: Kind::Json { has_space }, text: r#"{"type":"object"}"#.into() }
    }

    /// A text that a regular expression matches as a whole, in the syntax of Rust's `regex`: without look-around and
    /// back-references. `\d`, `\w` and `\s` are those of ASCII.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] for an empty one; [`GrammarError::TooMany`] beyond [`limits`].
    pub fn regex(regex: &str) -> Result<Self, GrammarError> {
        if regex.is_empty() {
            return Err(GrammarError::Invalid("the regular expression is empty".into()));
        }
        if !(regex.len() - regex.trim_end_matches('\\').len()).is_multiple_of(2) {
            return Err(GrammarError::Invalid("the regular expression ends with a `\\` that escapes nothing".into()));
        }
        at_most("regular expression, bytes", regex.len(), limits::REGEX_BYTES_MAX)?;
        Ok(Self { kind: Kind::Regex, text: regex.into() })
    }

    /// One of some texts.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] for none, or an empty one; [`GrammarError::TooMany`] beyond [`limits`].
    pub fn choice(choices: &[String]) -> Result<Self, GrammarError> {
        if choices.is_empty() || choices.iter().any(String::is_empty) {
            return Err(GrammarError::Invalid("there must be at least one choice, and none that is empty".into()));
        }
        at_most("choices", choices.len(), limits::CHOICES_MAX)?;
        let bytes = choices.iter().map(String::len).sum();
        at_most("choices, bytes", bytes, limits::GRAMMAR_BYTES_MAX)?;
        let any = choices.iter().map(|choice| regex::escape(choice)).collect::<Vec<_>>().join("|");
        Ok(Self { kind: Kind::Regex, text: format!("(?:{any})") })
    }

    /// What a grammar derives. Either from `start`, in llguidance's variant of Lark: rules in lower case and terminals in
    /// upper case, with `|`, `( )`, `?`, `*`, `+`, `{m,n}`, texts in quotes, `/regular expressions/`, `%json {schema}`, and
    /// control tokens as `<spelling>`. Or from `root`, in GBNF, llama.cpp's: `root ::= …`, with the same operators, texts
    /// and classes of characters.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] for an empty one; [`GrammarError::TooMany`] beyond [`limits`].
    pub fn grammar(grammar: &str) -> Result<Self, GrammarError> {
        if grammar.trim().is_empty() {
            return Err(GrammarError::Invalid("the grammar is empty".into()));
        }
        at_most("grammar, bytes", grammar.len(), limits::GRAMMAR_BYTES_MAX)?;
        Ok(Self { kind: Kind::Lark, text: grammar.into() })
    }

    fn schema(&self) -> Result<Value, GrammarError> {
        serde_json::from_str(&self.text).map_err(|error| GrammarError::Invalid(error.to_string()))
    }

    /// What the compiler says of it, for people.
    pub(super) fn told(&self, grammars: &Grammars, fault: Fault) -> String {
        match self.kind {
            Kind::Regex => fault.of_regex(),
            Kind::Lark => fault.of_grammar(),
            Kind::Calls => fault.of_calls(),
            Kind::Json { .. } => match self.schema() {
                Ok(schema) => faults::in_schema(grammars, &schema, fault),
                Err(_) => fault.of_schema(),
            },
        }
    }

    /// What tools are called by, as a grammar in Lark.
    pub(super) fn of_calls(grammar: &str) -> Result<Self, GrammarError> {
        Ok(Self { kind: Kind::Calls, ..Self::grammar(grammar)? })
    }

    pub(super) fn grammar_of(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self.kind {
            Kind::Json { has_space } => {
                let mut schema = prepared(&self.schema()?)?;
                set_space(&mut schema, has_space);
                TopLevelGrammar::from_json_schema(schema)
            }
            // What people mean by digits is 0 to 9.
            Kind::Regex => TopLevelGrammar::from_lark(format!("start: /{}/", regex_to_lark(&self.text, "dws"))),
            Kind::Lark if gbnf::is_gbnf(&self.text) => TopLevelGrammar::from_lark(gbnf::to_lark(&self.text)?),
            Kind::Lark | Kind::Calls => TopLevelGrammar::from_lark(checked_grammar(&self.text)?),
        })
    }
}

/// A schema as the compiler knows it, its size checked before and after.
pub(super) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    check_size(schema)?;
    let prepared = schema::prepared(schema, &Place::default())?;
    check_schema(&prepared)?;
    Ok(prepared)
}

/// Says in a schema where space may be, in place of what it may say itself.
pub(super) fn set_space(schema: &mut Value, has_space: bool) {
    let options = match has_space {
        true => json!({"whitespace_pattern": SPACE}),
        false => json!({"whitespace_flexible": false}),
    };
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".into(), options);
    }
}

pub(super) fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), GrammarError> {
    if count > limit { Err(GrammarError::TooMany { what, count, limit }) } else { Ok(()) }
}
