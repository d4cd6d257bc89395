//! The API's description (OpenAPI 3.1), made of the types that requests are read into and answers written from.

use crate::error::ErrorBody;
use crate::ranges;
use crate::wire::{
    ChatChunk, ChatCompletion, ChatRequest, Completion, CompletionRequest, DetokenizeRequest, Detokenized, Generation,
    ModelList, TokenizeRequest, Tokenized,
};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(components(schemas(
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    DetokenizeRequest,
    Detokenized,
    ErrorBody,
    Generation,
    ModelList,
    TokenizeRequest,
    Tokenized,
)))]
struct Schemas;

/// A path: its method, what it is for, the parts of its request's body, and what it answers with.
struct Path {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    request: &'static [&'static str],
    answer: Option<&'static str>,
    /// As events, too.
    event: Option<&'static str>,
    needs_key: bool,
}

const fn get(path: &'static str, summary: &'static str, answer: Option<&'static str>, needs_key: bool) -> Path {
    Path { path, method: "get", summary, request: &[], answer, event: None, needs_key }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    request: &'static [&'static str],
    answer: &'static str,
    event: Option<&'static str>,
) -> Path {
    Path { path, method: "post", summary, request, answer: Some(answer), event, needs_key: true }
}

const PATHS: [Path; 9] = [
    post(
        "/v1/chat/completions",
        "Answers a conversation",
        &["ChatRequest", "Generation"],
        "ChatCompletion",
        Some("ChatChunk"),
    ),
    post(
        "/v1/completions",
        "Goes on with texts or tokens",
        &["CompletionRequest", "Generation"],
        "Completion",
        Some("Completion"),
    ),
    get("/v1/models", "The model that is served, by all its names", Some("ModelList"), true),
    post("/tokenize", "Text to tokens", &["TokenizeRequest"], "Tokenized", None),
    post("/detokenize", "Tokens to text", &["DetokenizeRequest"], "Detokenized", None),
    get("/live", "The process is there", None, false),
    get("/ready", "New requests are taken", None, false),
    get("/health", "The engine runs", None, false),
    get("/metrics", "What is measured, for Prometheus", None, true),
];

/// The description as text.
pub(crate) fn text() -> String {
    serde_json::to_string_pretty(&openapi()).unwrap_or_default() + "\n"
}

/// The description as JSON.
fn openapi() -> Value {
    let mut schemas = serde_json::to_value(Schemas::openapi()).unwrap_or_default()["components"]["schemas"].take();
    for (schema, field, keywords) in ranges::keywords() {
        bound(&mut schemas[schema]["properties"][field], keywords);
    }
    let messages = reference("ChatRequest/properties/messages");
    bound(&mut schemas["TokenizeRequest"]["properties"], json!({"messages": messages}));
    bound(&mut schemas["TokenizeRequest"], json!({"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}));
    let mut paths = Map::new();
    for path in &PATHS {
        paths.insert(path.path.into(), json!({path.method: operation(path)}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "tombolo", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// Adds what is said of a field's values to its type.
fn bound(field: &mut Value, keywords: Value) {
    let (Some(field), Value::Object(keywords)) = (field.as_object_mut(), keywords) else { return };
    for (keyword, value) in keywords {
        match value {
            Value::Null => field.remove(&keyword),
            value => field.insert(keyword, value),
        };
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn operation(path: &Path) -> Value {
    let mut content = Map::new();
    if let Some(answer) = path.answer {
        content.insert("application/json".into(), json!({"schema": reference(answer)}));
    }
    if let Some(event) = path.event {
        content.insert("text/event-stream".into(), json!({"schema": reference(event)}));
    }
    let error = json!({"description": "An error", "content": {"application/json": {"schema": reference("ErrorBody")}}});
    let mut operation = json!({
        "summary": path.summary,
        "responses": {"200": {"description": path.summary, "content": content}, "default": error},
    });
    if !path.request.is_empty() {
        let parts: Vec<Value> = path.request.iter().map(|schema| reference(schema)).collect();
        let schema = if let [only] = &parts[..] { only.clone() } else { json!({"allOf": parts}) };
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if path.needs_key {
        operation["security"] = json!([{}, {"key": []}]);
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference leads somewhere.
    #[test]
    fn nothing_is_missing() {
        fn walk(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        found.push(target.clone());
                    }
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let (description, mut found) = (openapi(), Vec::new());
        walk(&description, &mut found);
        assert!(found.len() > 20);
        for target in found {
            let pointer = target.strip_prefix('#').expect("within the description");
            assert!(description.pointer(pointer).is_some(), "{target}");
        }
    }

    /// Every bound is of a field that is there.
    #[test]
    fn bounds_are_of_fields() {
        let description = openapi();
        for (schema, field, keywords) in ranges::keywords() {
            let found = &description["components"]["schemas"][schema]["properties"][field];
            assert!(found.is_object(), "{schema}.{field}");
            for (keyword, value) in keywords.as_object().unwrap() {
                assert_eq!(found.get(keyword).unwrap_or(&Value::Null), value, "{schema}.{field}");
            }
        }
    }

    /// `docs/openapi.json` is what `/openapi.json` answers.
    #[test]
    fn the_file_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == text(), "docs/openapi.json: write into it what a server answers at /openapi.json");
    }
}
