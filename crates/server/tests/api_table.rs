//! `docs/api.md`: the API field by field, beside OpenAI's and vLLM's. Made of `docs/openapi.json`, which a test of the
//! crate holds to the code, and of what is known here of the others. To write it anew:
//! `WRITE_DOCS=1 cargo test -p tombolo-server --test api_table`.
#![allow(missing_docs)]

use serde_json::Value;
use std::fmt::Write;

/// Fields of requests in OpenAI's reference, by path.
const OPENAI: [(&str, &[&str]); 2] = [
    (
        "/v1/chat/completions",
        &[
            "audio",
            "frequency_penalty",
            "function_call",
            "functions",
            "logit_bias",
            "logprobs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "metadata",
            "modalities",
            "model",
            "n",
            "parallel_tool_calls",
            "prediction",
            "presence_penalty",
            "prompt_cache_key",
            "reasoning_effort",
            "response_format",
            "safety_identifier",
            "seed",
            "service_tier",
            "stop",
            "store",
            "stream",
            "stream_options",
            "temperature",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
            "user",
            "verbosity",
            "web_search_options",
        ],
    ),
    (
        "/v1/completions",
        &[
            "best_of",
            "echo",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "max_tokens",
            "model",
            "n",
            "presence_penalty",
            "prompt",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "suffix",
            "temperature",
            "top_p",
            "user",
        ],
    ),
];
/// Fields that only the other path takes.
const REFUSED: [(&str, &str); 1] = [("/v1/chat/completions", "prompt_logprobs")];
/// Paths of OpenAI's that are not there: 404.
const ABSENT: [&str; 12] = [
    "/v1/assistants",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/batches",
    "/v1/embeddings",
    "/v1/files",
    "/v1/fine_tuning/jobs",
    "/v1/images/generations",
    "/v1/moderations",
    "/v1/realtime",
    "/v1/responses",
    "/v1/threads",
];
/// Where paths that are not OpenAI's come from.
const PATHS: [(&str, &str); 6] = [
    ("/tokenize", "vLLM"),
    ("/detokenize", "vLLM"),
    ("/health", "vLLM, llama-server"),
    ("/metrics", "vLLM (names too), llama-server"),
    ("/live", "Kubernetes's habit"),
    ("/ready", "Kubernetes's habit"),
];

fn at(path: &str) -> String {
    format!("{}/../../docs/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// A description's field as one line of a table.
fn cell(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// `integer`, `list of string`, …
fn kind(schema: &Value) -> String {
    if let Some(target) =
        schema["oneOf"].as_array().and_then(|parts| parts.iter().find_map(|part| part["$ref"].as_str()))
    {
        return format!("`{}`", target.rsplit('/').next().unwrap_or_default());
    }
    let names = |kind: &Value| -> Vec<String> {
        let one = |kind: &Value| kind.as_str().unwrap_or_default().to_string();
        kind.as_array().map_or_else(|| vec![one(kind)], |kinds| kinds.iter().map(one).collect())
    };
    let kinds: Vec<String> =
        names(&schema["type"]).into_iter().filter(|kind| kind != "null" && !kind.is_empty()).collect();
    let items = names(&schema["items"]["type"]).join("");
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|kind| match (kind.as_str(), items.as_str()) {
            ("array", "") => "list".into(),
            ("array", items) => format!("list of {items}"),
            _ => kind,
        })
        .collect();
    if kinds.is_empty() { "any".into() } else { kinds.join(" or ") }
}

/// What of such values is taken: `0 to 1`, `at most 32`, … Bounds that are those of a type say nothing.
fn bounds(schema: &Value) -> String {
    let bound = |value: &Value| value.as_f64().filter(|bound| bound.abs() < 1e9);
    let of = |least: &Value, most: &Value, unit: &str| match (bound(least), bound(most)) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
        (Some(least), None) => Some(format!("at least {least}{unit}")),
        (None, Some(most)) => Some(format!("at most {most}{unit}")),
        (None, None) => None,
    };
    let each = &schema["additionalProperties"];
    let parts = [
        of(&schema["minimum"], &schema["maximum"], ""),
        of(&schema["minItems"], &schema["maxItems"], " of them"),
        of(&Value::Null, &schema["maxProperties"], " of them"),
        of(&each["minimum"], &each["maximum"], " each"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The rows of a path's request.
fn fields(openapi: &Value, path: &str, known: &[&str]) -> String {
    let request = &openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let parts = request["allOf"].as_array().cloned().unwrap_or_else(|| vec![request.clone()]);
    let mut rows = std::collections::BTreeMap::new();
    for part in &parts {
        let name = part["$ref"].as_str().and_then(|target| target.strip_prefix("#/components/schemas/")).unwrap();
        for (field, schema) in openapi["components"]["schemas"][name]["properties"].as_object().unwrap() {
            let meaning = cell(schema);
            let here = match meaning.as_str() {
                _ if REFUSED.contains(&(path, field.as_str())) => "refused (400)",
                text if text.starts_with("Not supported") || text.starts_with("Refused") => "refused (400)",
                _ => "yes",
            };
            let of = if known.contains(&field.as_str()) { "OpenAI" } else { "vLLM and others" };
            rows.insert(field.clone(), format!("{of} | {here} | {} | {} | {meaning}", kind(schema), bounds(schema)));
        }
    }
    for field in known {
        rows.entry((*field).to_string()).or_insert_with(|| "OpenAI | ignored | | |".into());
    }
    rows.into_iter().fold(String::new(), |mut text, (field, row)| {
        let _ = writeln!(text, "| `{field}` | {} |", row.trim_end());
        text
    })
}

fn page(openapi: &Value) -> String {
    let mut text = String::from(
        "# The API, field by field\n\n\
         Generated; [serving.md](serving.md) explains it, [openapi.json](openapi.json) has the types of answers, too. Fields \
         that are not listed are ignored, as OpenAI's own clients send some that no server needs.\n\n\
         ## Paths\n\n| path | | whose | what |\n|---|---|---|---|\n",
    );
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let whose = PATHS.iter().find(|(name, _)| name == path).map_or("OpenAI", |(_, whose)| whose);
            let summary = operation["summary"].as_str().unwrap_or_default();
            let _ = writeln!(text, "| `{path}` | {} | {whose} | {summary} |", method.to_uppercase());
        }
    }
    let absent: Vec<String> = ABSENT.iter().map(|path| format!("`{path}`")).collect();
    let _ = writeln!(text, "\nOpenAI's that are not there (404): {}.", absent.join(", "));
    for (path, known) in OPENAI {
        let _ = write!(
            text,
            "\n## What `{path}` is asked\n\n| field | whose | here | type | range | meaning |\n|---|---|---|---|---|---|\n{}",
            fields(openapi, path, known)
        );
    }
    text
}

#[test]
fn the_page_is_current() {
    let openapi: Value = serde_json::from_str(&std::fs::read_to_string(at("openapi.json")).unwrap()).unwrap();
    let page = page(&openapi);
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(at("api.md"), &page).unwrap();
    }
    let written = std::fs::read_to_string(at("api.md")).unwrap_or_default();
    assert!(written == page, "docs/api.md: WRITE_DOCS=1 cargo test -p tombolo-server --test api_table writes it anew");
}

#[test]
fn nothing_absent_is_there() {
    let openapi: Value = serde_json::from_str(&std::fs::read_to_string(at("openapi.json")).unwrap()).unwrap();
    for path in ABSENT {
        assert!(openapi["paths"].get(path).is_none(), "{path}");
    }
    for (path, _) in OPENAI.iter().map(|(path, _)| (path, ())).chain(PATHS.iter().map(|(path, _)| (path, ()))) {
        assert!(openapi["paths"].get(*path).is_some(), "{path}");
    }
}
