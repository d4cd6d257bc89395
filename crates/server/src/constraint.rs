//! What of a request says how its answers are to be: OpenAI's `response_format`, vLLM's `structured_outputs` and its older
//! names. Tools that must be called are in `conversation`.

use crate::error::{ApiError, echo};
use crate::ranges::RESPONSE_FORMATS;
use crate::wire::Generation;
use serde_json::{Map, Value};
use tombolo_engine::MaskFault;
use tombolo_text::grammar::{GrammarError, Source};

/// A constraint, and the field that asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    pub(crate) field: String,
    pub(crate) source: Source,
}

impl Constraint {
    /// The one that a request asks for, if it does.
    pub(crate) fn of(wanted: &Generation) -> Result<Option<Self>, ApiError> {
        let mut found = Vec::new();
        found.extend(wanted.response_format.as_ref().map(response_format).transpose()?.flatten());
        found.extend(wanted.structured_outputs.as_ref().map(structured_outputs).transpose()?.flatten());
        let guided = [
            ("guided_json", Form::Json, &wanted.guided_json),
            ("guided_regex", Form::Regex, &wanted.guided_regex),
            ("guided_choice", Form::Choice, &wanted.guided_choice),
            ("guided_grammar", Form::Grammar, &wanted.guided_grammar),
        ];
        for (field, form, value) in guided {
            found.extend(value.as_ref().map(|value| form.constraint(field, value, true)).transpose()?);
        }
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => {
                let [first, second] = [&found[0].field, &found[1].field];
                let message = format!("`{first}` and `{second}` both say how the answer is to be: one of them may");
                Err(ApiError::field(second, message))
            }
        }
    }

    /// An answer ended because there was no mask for its next token.
    pub(crate) fn no_mask(field: &str, fault: &MaskFault) -> ApiError {
        match fault {
            MaskFault::Late { .. } => ApiError::field(field, format!("`{field}`: {fault}: make it simpler")),
            MaskFault::Died => ApiError::internal(format!("`{field}`: {fault}")),
            MaskFault::NoThread { .. } => ApiError::unavailable("overloaded", format!("`{field}`: {fault}"), 1),
        }
    }

    /// Names the field in an error.
    pub(crate) fn wrong(field: &str, error: &GrammarError) -> ApiError {
        if matches!(error, GrammarError::NoThread(_)) {
            return ApiError::unavailable("overloaded", error.to_string(), 1);
        }
        ApiError::field(field, format!("`{field}`: {}", echo(&error.to_string())))
    }
}

/// What a value is.
#[derive(Clone, Copy)]
enum Form {
    Json,
    JsonObject,
    Regex,
    Choice,
    Grammar,
}

impl Form {
    fn constraint(self, field: &str, value: &Value, has_space: bool) -> Result<Constraint, ApiError> {
        let wrong = |what: &str| ApiError::field(field, format!("`{field}` must be {what}"));
        let text = || value.as_str().ok_or_else(|| wrong("a string"));
        let source = match self {
            Self::Json => {
                let parsed = value.as_str().map(|text| crate::json::parse(text.as_bytes()));
                let parsed = parsed.transpose().map_err(|_| wrong("a JSON schema"))?;
                Source::json_schema(parsed.as_ref().unwrap_or(value), has_space)
            }
            Self::JsonObject if value == true => Ok(Source::json_object(has_space)),
            Self::JsonObject => return Err(wrong("true")),
            Self::Regex => Source::regex(text()?),
            Self::Grammar => Source::grammar(text()?),
            Self::Choice => {
                let list = value.as_array().ok_or_else(|| wrong("a list of strings"))?;
                let texts: Option<Vec<String>> = list.iter().map(|text| text.as_str().map(str::to_string)).collect();
                Source::choice(&texts.ok_or_else(|| wrong("a list of strings"))?)
            }
        };
        let source = source.map_err(|error| Constraint::wrong(field, &error))?;
        Ok(Constraint { field: field.into(), source })
    }
}

fn response_format(format: &Value) -> Result<Option<Constraint>, ApiError> {
    let kind = format
        .get("type")
        .and_then(Value::as_str)
        .ok_or_else(|| ApiError::field("response_format", "`response_format` must be an object with a `type`"))?;
    match kind {
        "text" => Ok(None),
        "json_object" => match format.get("schema") {
            None | Some(Value::Null) => {
                Form::JsonObject.constraint("response_format", &Value::Bool(true), true).map(Some)
            }
            Some(schema) => Form::Json.constraint("response_format.schema", schema, true).map(Some),
        },
        "json_schema" => {
            let field = "response_format.json_schema";
            let wrong = || ApiError::field(field, format!("`{field}` must be an object with a `schema`"));
            let schema = format.get("json_schema").and_then(|schema| schema.get("schema")).ok_or_else(wrong)?;
            if !schema.is_object() {
                return Err(wrong());
            }
            Form::Json.constraint(&format!("{field}.schema"), schema, true).map(Some)
        }
        other => {
            let message = format!(
                "`response_format.type`: `{}` is not supported; `{}` are",
                echo(other),
                RESPONSE_FORMATS.join("`, `")
            );
            Err(ApiError::field("response_format.type", message))
        }
    }
}

fn structured_outputs(wanted: &Value) -> Result<Option<Constraint>, ApiError> {
    let field = "structured_outputs";
    let empty = Map::new();
    let wrong = || ApiError::field(field, "`structured_outputs` must be an object");
    let fields = if wanted.is_null() { &empty } else { wanted.as_object().ok_or_else(wrong)? };
    let is_set = |key: &str| fields.get(key).is_some_and(|value| !value.is_null() && value != false);
    for key in ["structural_tag", "whitespace_pattern", "disable_additional_properties"] {
        if is_set(key) {
            return Err(ApiError::unsupported(&format!("{field}.{key}")));
        }
    }
    let has_space = !is_set("disable_any_whitespace");
    let forms = [
        ("json", Form::Json),
        ("json_object", Form::JsonObject),
        ("regex", Form::Regex),
        ("choice", Form::Choice),
        ("grammar", Form::Grammar),
    ];
    let asked: Vec<_> = forms.into_iter().filter(|(key, _)| is_set(key)).collect();
    match asked[..] {
        [] if fields.is_empty() => Ok(None),
        [(key, form)] => form.constraint(&format!("{field}.{key}"), &fields[key], has_space).map(Some),
        _ => {
            let message =
                "`structured_outputs` must have one of `json`, `json_object`, `regex`, `choice` and `grammar`";
            Err(ApiError::field(field, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(body: Value) -> Result<Option<Constraint>, ApiError> {
        Constraint::of(&serde_json::from_value(body).unwrap())
    }

    #[test]
    fn constraints_are_found_by_every_name() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        for (body, field) in [
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"response_format": {"type": "json_object", "schema": schema}}), "response_format.schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"json": schema.to_string(), "regex": null}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"regex": "a+"}}), "structured_outputs.regex"),
            (json!({"structured_outputs": {"choice": ["a"]}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), "structured_outputs.grammar"),
            (json!({"structured_outputs": {"json_object": true}}), "structured_outputs.json_object"),
            (json!({"guided_json": schema, "response_format": {"type": "text"}}), "guided_json"),
            (json!({"guided_choice": ["a", "b"]}), "guided_choice"),
        ] {
            assert_eq!(of(body.clone()).unwrap().unwrap().field, field, "{body}");
        }
        for body in [json!({}), json!({"response_format": null}), json!({"structured_outputs": {}})] {
            assert!(of(body).unwrap().is_none());
        }
    }

    #[test]
    fn what_is_none_is_named() {
        for (body, field) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}),
                "response_format.json_schema",
            ),
            (json!({"structured_outputs": 7}), "structured_outputs"),
            (json!({"structured_outputs": {"json": 7}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs"),
            (json!({"structured_outputs": {"disable_fallback": true}}), "structured_outputs"),
            (json!({"structured_outputs": {"whitespace_pattern": " "}}), "structured_outputs.whitespace_pattern"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": [1]}), "guided_choice"),
            (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex"),
        ] {
            let error = of(body.clone()).unwrap_err();
            assert_eq!(error.body.error.param.as_deref(), Some(field), "{body}");
        }
    }
}
