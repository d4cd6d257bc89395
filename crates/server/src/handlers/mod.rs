//! One file per kind of question. Each reads a body, checks it, and answers.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod status;
pub(crate) mod text;

use crate::answer::{End, TokenLogprob};
use crate::error::{ApiError, echo};
use crate::model::Model;
use crate::wire::{FinishReason, StopReason};
use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What every answer begins with.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: &'static str,
}

impl Head {
    pub(crate) fn new(prefix: &str, model: &'static Model) -> Self {
        Self { id: id(prefix), created: crate::app::now(), model: model.name() }
    }
}

/// Unlike any other.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}-{:016x}", crate::ask::random())
}

/// A whole answer.
pub(crate) fn whole(body: &impl Serialize) -> Result<Response, ApiError> {
    serde_json::to_string(body).map(json_text).map_err(|error| ApiError::internal(error.to_string()))
}

/// The same, of text that is JSON already.
pub(crate) fn json_text(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Refuses a model that is not here.
pub(crate) fn check_model(model: &Model, asked: Option<&str>) -> Result<(), ApiError> {
    let Some(name) = asked.filter(|asked| !model.names.iter().any(|name| name == asked)) else { return Ok(()) };
    let message = format!("the model `{}` is not served here; `{}` is", echo(name), model.name());
    let mut error = ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
    error.body.error.param = Some("model".into());
    Err(error)
}

/// How an end is told: why, and by what of the request.
pub(crate) fn ended(end: &End) -> (FinishReason, Option<StopReason>) {
    match end {
        End::Stop { text: Some(text), .. } => (FinishReason::Stop, Some(StopReason::Text(text.clone()))),
        End::Stop { id, .. } => (FinishReason::Stop, id.map(StopReason::Token)),
        End::Length | End::NotNumbers | End::Mask(_) | End::Cancelled => (FinishReason::Length, None),
    }
}

/// A number of 32 bits as it is spelled everywhere: its own digits, and not those of its value in 64.
pub(crate) fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// vLLM's shape for log-probabilities of prompts: by token id, null for the first.
pub(crate) fn prompt_logprobs(all: &[TokenLogprob]) -> Vec<Value> {
    let of = |logprob: f32, rank: usize, text: &str| json!({"logprob": number(logprob), "rank": rank, "decoded_token": text});
    let entry = |token: &TokenLogprob| {
        let Some(logprob) = token.logprob else { return Value::Null };
        let tops = token.top.iter().enumerate();
        let mut map: Map<String, Value> =
            tops.map(|(i, top)| (top.token.to_string(), of(top.logprob, i + 1, &top.text))).collect();
        map.entry(token.token.to_string()).or_insert_with(|| of(logprob, token.rank, &token.text));
        Value::Object(map)
    };
    all.iter().map(entry).collect()
}
