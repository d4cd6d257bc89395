//! What the compiler of grammars says is wrong, in words for those who wrote the schema, expression or grammar. What is not
//! known here is told without the compiler's words.

use super::Grammars;
use super::schema::{self, Place};
use crate::error::shorten;
use serde_json::Value;

/// Parts of a schema that are compiled alone to find the one that is wrong.
const TRIES_MAX: usize = 64;

const TOO_MUCH: &str = "it is too large, or takes too much work: make it simpler";
const NO_ANSWER: &str = "no answer can match it";

/// What the compiler says.
pub(super) struct Fault(String);

impl Fault {
    /// Of the compiler's message, its first lines, without its state.
    pub(super) fn of(message: &str) -> Self {
        let end = ["<state>", "<non-verbose/>", "<backtrace>"].iter().filter_map(|mark| message.find(mark)).min();
        let text = &message[..end.unwrap_or(message.len())];
        Self(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn has(&self, part: &str) -> bool {
        self.0.contains(part)
    }

    /// What stands between two marks; `to` may be missing.
    fn between(&self, from: &str, to: &str) -> Option<String> {
        let start = self.0.find(from)? + from.len();
        let rest = &self.0[start..];
        Some(shorten(&rest[..rest.find(to).unwrap_or(rest.len())]))
    }

    fn is_too_much(&self) -> bool {
        let marks =
            ["too big", "too large", "fuel", "max is", "too many", "stack level", "Unable to determine", "panic"];
        marks.iter().any(|mark| self.has(mark)) && !self.is_unsatisfiable()
    }

    fn is_unsatisfiable(&self) -> bool {
        self.0.starts_with("Unsatisfiable schema")
    }

    fn is_of_expression(&self) -> bool {
        ["regex parse error", "lookarounds not supported", "patternProperty"].iter().any(|mark| self.has(mark))
    }

    /// Of a regular expression.
    pub(super) fn of_regex(&self) -> String {
        if self.has("lookarounds not supported") {
            return "`^`, `$` and `\\b` within a regular expression, and look-around, are not supported".into();
        }
        // The message of the crate that parses them, whose syntax this is, and not what the compiler puts behind it.
        match self.0.rsplit_once("error: ").filter(|_| self.has("regex parse error")) {
            Some((_, what)) => what.split(" 1 | ").next().unwrap_or(what).to_string(),
            None => self.of_any(),
        }
    }

    fn of_any(&self) -> String {
        match () {
            () if self.has("NoExtensionBias") => NO_ANSWER.into(),
            () if self.is_too_much() => TOO_MUCH.into(),
            () => "it cannot be compiled".into(),
        }
    }

    /// Of a JSON schema, behind its place.
    pub(super) fn of_schema(&self) -> String {
        if let Some((_, why)) = self.0.split_once("Unsatisfiable schema: ") {
            return format!("no value is valid: {}", self.unsatisfiable(why));
        }
        match () {
            () if self.has("patternProperty") => {
                "`patternProperties`: two of its expressions match the same names, or may; they must exclude each other"
                    .into()
            }
            () if self.is_of_expression() => format!("the regular expression: {}", self.of_regex()),
            () if self.has("circular references") => {
                "a reference leads back to itself beside other keywords: leave them out, or put them where it leads"
                    .into()
            }
            () if self.has("min/maxProperties") => {
                "`minProperties` or `maxProperties` beside properties that may be left out, from several schemas: \
                 make them required, or leave it out"
                    .into()
            }
            () => self.of_any(),
        }
    }

    fn unsatisfiable(&self, why: &str) -> String {
        let numbers = ["minimum", "maximum", "exclusive", "minLength", "minItems", "minProperties ("];
        match () {
            () if self.has("incompatible types") => "its parts want different types".into(),
            () if self.has("incompatible boolean") => "its parts want true and false".into(),
            () if self.has("multiple of") => "there is no such multiple within its bounds".into(),
            () if self.has("Regex is empty") => "no text matches its pattern, format and length together".into(),
            () if self.has("Constant") => "its constant is not within its length".into(),
            () if self.has("anyOf") || self.has("oneOf") => "none of its alternatives is".into(),
            () if self.has("schema is false") => "it is false".into(),
            () if self.has("required >") => "it requires more properties than `maxProperties`".into(),
            () if self.has("required item") || self.has("prefixItems[") => "an item must be there, and none is".into(),
            () if self.has("minProperties >") => "`minProperties` is more than `maxProperties`".into(),
            () => match self.between("required property '", "' is unsatisfiable") {
                Some(name) => format!("the required property `{name}` cannot be"),
                None if numbers.iter().any(|start| why.starts_with(start)) => why.into(),
                None => "its parts exclude each other".into(),
            },
        }
    }

    /// Of a grammar, with the line where one is known.
    pub(super) fn of_grammar(&self) -> String {
        let text = self.0.strip_prefix("at ").unwrap_or(&self.0);
        let place = text.split_once("): ").and_then(|(place, _)| place.split_once('('));
        let place = place.filter(|(line, column)| [line, column].iter().all(|n| n.parse::<u32>().is_ok()));
        let what = self.in_grammar();
        match place {
            Some((line, column)) => format!("line {line}, column {column}: {what}"),
            None => what,
        }
    }

    /// Of calls of tools.
    pub(super) fn of_calls(&self) -> String {
        let what = self.in_grammar();
        format!("the parameters of a tool: {}", what.strip_prefix("its JSON schema: ").unwrap_or(&what))
    }

    fn in_grammar(&self) -> String {
        let named = |from: &str, to: &str, what: &str| self.between(from, to).map(|name| what.replace("{}", &name));
        let json = self.0.split_once("JSON schema: ").map(|(_, rest)| rest.split(" 1 | ").next().unwrap_or(rest));
        if let Some(json) = json {
            return format!("its JSON schema: {}", Self(json.into()).of_schema());
        }
        let found = [
            named("unknown name: \"", "\"", "there is no `{}`"),
            named("unknown special token: \"", "\"", "this vocabulary has no control token `{}`"),
            named("Token range end too large: ", " ", "this vocabulary has no token {}"),
            named("duplicate rule: \"", "\"", "the rule `{}` stands twice"),
            named("duplicate token: \"", "\"", "the terminal `{}` stands twice"),
            named(
                "circular reference in token \"",
                "\"",
                "the terminal `{}` holds itself, which only rules (in lower case) may",
            ),
            named("Unknown common regex: ", ";", "there is no `{}` to import"),
            named("unknown grammar ", " ", "there is no grammar `{}`"),
            named("Expected token '", "'", "`{}` is expected").filter(|what| !what.contains("\\n")),
            named("Unknown attribute: ", " ", "there is no attribute `{}`"),
        ];
        if let Some(what) = found.into_iter().flatten().next() {
            return what;
        }
        match () {
            () if self.has("invalid regex") => format!("the regular expression: {}", self.of_regex()),
            () if self.has("rule found") => "there is no rule `start`".into(),
            () if self.has("lexer error") => {
                "a text or an expression is not closed, or a character has no meaning here".into()
            }
            () if self.has("& is only") => "`&` stands in terminals only, whose names are in upper case".into(),
            () if self.has("range end must be") => "a repetition ends before it begins".into(),
            () if self.has("failed to parse \"%json\"") => "what follows `%json` is no JSON".into(),
            () if self.has("failed to parse") => "what follows `%` is not as it must be".into(),
            () if self.has("deeply nested") => "it nests too deep".into(),
            () if self.has("not supported") || self.has("cannot be used") => "this is not supported here".into(),
            () if self.has("xpect") || self.has("at EOF") => "it is no grammar here, or ends too early".into(),
            () => self.of_any(),
        }
    }

    /// Of a mask that could not be computed.
    pub(super) fn of_mask(&self) -> String {
        match () {
            () if self.has("NoExtensionBias") => "the vocabulary has no token to go on with".into(),
            () if self.is_too_much() => "it takes too much work to say what may come next: make it simpler".into(),
            () if self.has("cancelled") => "it was given up".into(),
            () => "it cannot be said what may come next".into(),
        }
    }
}

/// Says where in a schema the fault lies, as far as compiling parts of it alone shows.
pub(super) fn in_schema(grammars: &Grammars, root: &Value, fault: Fault) -> String {
    let (mut place, mut fault, mut tries) = (Place::default(), fault, 0);
    if !fault.is_unsatisfiable() && !fault.is_of_expression() {
        return fault.of_schema();
    }
    'down: loop {
        for part in schema::parts(root, &place, fault.is_unsatisfiable()) {
            tries += 1;
            if tries > TRIES_MAX {
                break 'down;
            }
            let Ok(prepared) = schema::prepared(root, &part) else { continue };
            if let Err(found) = grammars.compile_schema(prepared)
                && found.is_unsatisfiable() == fault.is_unsatisfiable()
            {
                (place, fault) = (part, found);
                continue 'down;
            }
        }
        break;
    }
    format!("{}: {}", place.at(), fault.of_schema())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_told_without_the_compilers_words() {
        for message in ["DNF fiddle exhausted", "Internal error: row_infos=7", "", "at 1(8): frobnicated"] {
            let fault = Fault::of(message);
            for told in [fault.of_regex(), fault.of_schema(), fault.of_grammar()] {
                assert!(told.ends_with("it cannot be compiled"), "{told}");
            }
            assert_eq!(fault.of_mask(), "it cannot be said what may come next");
        }
        assert_eq!(
            Fault::of("at 3(14): unknown name: \"x\"\n 1 | start: x").of_grammar(),
            "line 3, column 14: there is no `x`"
        );
        assert_eq!(Fault::of("NoExtensionBias").of_schema(), NO_ANSWER);
    }
}
