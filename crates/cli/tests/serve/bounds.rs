//! The description says what values fields may have, and the server means it: what lies on a bound is taken, what lies just
//! beyond is refused, of every bound that is described.

use crate::client::Served;
use serde_json::{Map, Value, json};

/// What else a field needs to be taken, where it is on its bound.
fn beside(path: &str, field: &str, value: &Value, fits: bool) -> Value {
    match (path, field) {
        ("/v1/completions" | "/v1/chat/completions", "best_of") if fits => json!({"n": value}),
        ("/v1/chat/completions", "top_logprobs") => json!({"logprobs": true}),
        ("/v1/completions", "max_tokens") if value == 0 => json!({"echo": true}),
        _ => json!({}),
    }
}

/// Fields whose values are taken or not by what else the model can.
const BY_MODEL: [(&str, &str); 2] =
    [("/v1/chat/completions", "tool_choice"), ("/v1/chat/completions", "prompt_logprobs")];

/// Values on the bounds of a schema and just beyond: numbers as JSON spells them, because not all fit a type.
fn cases(schema: &Value) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    let is_whole =
        schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("integer"))) || schema["type"] == "integer";
    for (keyword, outwards) in [("minimum", -1), ("maximum", 1)] {
        let Some(bound) = schema.get(keyword) else { continue };
        let whole = bound.as_i64().map(i128::from).or(bound.as_u64().map(i128::from));
        let beyond = match whole.filter(|_| is_whole) {
            Some(bound) => (bound + outwards).to_string(),
            None => (bound.as_f64().unwrap() + outwards as f64 * 1e-3).to_string(),
        };
        all.extend([(bound.to_string(), true), (beyond, false)]);
    }
    let number = |keyword: &str| schema[keyword].as_u64().map(|count| count as usize);
    let text = |count: usize| json!("x".repeat(count)).to_string();
    for (keyword, beyond) in [("minLength", -1), ("maxLength", 1)] {
        let Some(count) = number(keyword) else { continue };
        all.extend([(text(count), true), (text(count.saturating_add_signed(beyond)), false)]);
    }
    let list = |count: usize| {
        let items: Vec<String> = (0..count).map(|at| example(&schema["items"], at)).collect();
        format!("[{}]", items.join(","))
    };
    for (keyword, beyond) in [("minItems", -1), ("maxItems", 1)] {
        let Some(count) = number(keyword) else { continue };
        all.extend([(list(count), true), (list(count.saturating_add_signed(beyond)), false)]);
    }
    if let Some(most) = number("maxProperties") {
        let map =
            |count: usize| json!((0..count).map(|i| (i.to_string(), json!(1))).collect::<Map<_, _>>()).to_string();
        all.extend([(map(most), true), (map(most + 1), false)]);
    }
    if let Some(values) = schema["enum"].as_array() {
        all.extend(values.iter().map(|value| (value.to_string(), true)));
        all.push((if values.contains(&json!(false)) { "true" } else { "\"another\"" }.into(), false));
    }
    if schema["items"].is_object() {
        all.extend(cases(&schema["items"]).into_iter().map(|(value, fits)| (format!("[{value}]"), fits)));
    }
    if schema["additionalProperties"].is_object() {
        all.extend(
            cases(&schema["additionalProperties"])
                .into_iter()
                .map(|(value, fits)| (format!("{{\"1\":{value}}}"), fits)),
        );
    }
    for part in schema["anyOf"].as_array().into_iter().flatten() {
        all.extend(cases(part));
    }
    all
}

/// A value of a schema; tools are called differently.
fn example(schema: &Value, at: usize) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values[0].to_string();
    }
    match schema["type"].as_str() {
        Some("integer" | "number") => "1".into(),
        Some("string") => "\"x\"".into(),
        Some("array") => format!("[{}]", example(&schema["items"], at)),
        _ if schema["properties"]["function"].is_object() => {
            json!({"type": "function", "function": {"name": format!("f{at}")}}).to_string()
        }
        _ => json!({"role": "user", "content": "x"}).to_string(),
    }
}

/// A body with one field of a value that is spelled like this.
fn body(path: &str, field: &str, value: &str, fits: bool) -> String {
    let mut body = match path {
        "/v1/completions" => json!({"prompt": "a", "max_tokens": 1}),
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        _ => json!({}),
    };
    let parsed = serde_json::from_str(value).unwrap_or_default();
    let (body, beside) = (body.as_object_mut().unwrap(), beside(path, field, &parsed, fits));
    body.extend(beside.as_object().unwrap().clone());
    body.remove(field);
    if field == "max_completion_tokens" {
        body.remove("max_tokens");
    }
    let rest = Value::Object(body.clone()).to_string();
    let comma = if body.is_empty() { "" } else { "," };
    format!("{{\"{field}\":{value}{comma}{}", &rest[1..])
}

#[test]
fn what_is_described_is_what_is_taken() {
    let served = Served::start(&["--max-model-len", "64"]);
    let description = served.get("/openapi.json").json();
    let mut tried = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let request = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let parts = request["allOf"].as_array().cloned().unwrap_or_else(|| vec![request.clone()]);
        for part in parts.iter().filter_map(|part| part["$ref"].as_str()) {
            let schema = description.pointer(&part[1..]).unwrap();
            for (field, schema) in schema["properties"].as_object().unwrap() {
                if BY_MODEL.contains(&(path, field)) {
                    continue;
                }
                for (value, fits) in cases(schema) {
                    let answer = served.post(path, body(path, field, &value, fits));
                    let shown: String = value.chars().take(60).collect();
                    let status = if fits { 200 } else { 400 };
                    assert_eq!(answer.status, status, "{path}: {field} {shown}: {}", answer.body);
                    if !fits {
                        assert!(
                            answer.json()["error"]["param"].as_str().is_some_and(|param| param.starts_with(field)),
                            "{}",
                            answer.body
                        );
                    }
                    tried.push((path.clone(), field.clone(), fits));
                }
            }
        }
    }
    for (path, field) in [
        ("/v1/completions", "temperature"),
        ("/v1/completions", "logprobs"),
        ("/v1/completions", "stop"),
        ("/v1/completions", "logit_bias"),
        ("/v1/completions", "seed"),
        ("/v1/chat/completions", "top_logprobs"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/chat/completions", "messages"),
        ("/detokenize", "tokens"),
    ] {
        for fits in [true, false] {
            assert!(tried.contains(&(path.into(), field.into(), fits)), "{path}: {field}");
        }
    }
    assert!(tried.len() > 150, "{}", tried.len());
}
