//! Errors: those of the server, one line each, and those that a client is told, as OpenAI's API shapes them.

use crate::limits::ECHO_CHARS;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde::Serialize;
use std::net::SocketAddr;
use tombolo_engine::Refused;
use tombolo_text::TextError;
use utoipa::ToSchema;

/// Why a server did not start, or why it ended.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("cannot start the server's threads: {0}")]
    Runtime(std::io::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("the engine stopped: {0}")]
    Engine(String),
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; --port takes another one",
        _ => "",
    }
}

/// What a client is told instead of an answer.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: ErrorBody,
    /// Seconds after which it may be tried again.
    pub(crate) retry_after: Option<u32>,
    /// What of the request is unread cannot be skipped.
    pub(crate) closes: bool,
}

/// `{"error": …}`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What went wrong.
    pub(crate) error: ErrorDetail,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// For people, one line.
    pub(crate) message: String,
    /// Its kind.
    pub(crate) r#type: &'static str,
    /// The field that is wrong.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let error = ErrorDetail { message: message.into(), r#type: kind, param: None, code };
        Self { status, body: ErrorBody { error }, retry_after: None, closes: false }
    }

    /// The request is wrong at this field.
    pub(crate) fn field(field: &str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, None, message);
        error.body.error.param = Some(echo(field));
        error
    }

    /// The request is wrong as a whole.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, None, message)
    }

    /// Something that exists elsewhere, and not here.
    pub(crate) fn unsupported(field: &str) -> Self {
        Self::field(field, format!("`{field}` is not supported"))
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    }

    /// Not now.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>, retry_after: u32) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, Some(code), message);
        Self { retry_after: Some(retry_after), ..error }
    }

    pub(crate) fn engine_dead() -> Self {
        Self::unavailable("engine_dead", "the engine has stopped", 30)
    }

    pub(crate) fn stopping() -> Self {
        Self::unavailable("stopping", "the server is stopping", 5)
    }

    pub(crate) fn busy() -> Self {
        let error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            Some("queue_full"),
            "too many requests wait already: try again later",
        );
        Self { retry_after: Some(1), ..error }
    }

    /// The connection ends with this answer.
    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// As an event of a stream that has begun.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(&self.body).unwrap_or_default()
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::QueueFull { .. } => Self::busy(),
            Refused::Closed => Self::stopping(),
            Refused::MasksLeft { .. } => Self::unavailable("overloaded", message, 1),
            Refused::PromptTooLong { .. } => {
                let mut error = Self::new(StatusCode::BAD_REQUEST, Some("context_length_exceeded"), message);
                error.body.error.param = Some("prompt".into());
                error
            }
            Refused::EmptyPrompt | Refused::Token { .. } => Self::field("prompt", message),
            Refused::NothingToDo => Self::field("max_tokens", message),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let message = echo(&error.to_string());
        match error {
            TextError::Setting { .. } => Self::field("chat_template_kwargs", message),
            TextError::Template(_) | TextError::TemplateFuel { .. } => Self::field("messages", message),
            TextError::NoVocabulary | TextError::TooMany { .. } => Self::bad(message),
            _ => Self::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A client's own words, made fit to be told back: short, and without control characters.
pub(crate) fn echo(text: &str) -> String {
    let mut out = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == ECHO_CHARS {
            out.push('…');
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
