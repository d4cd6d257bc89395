//! Bodies: JSON, no larger than allowed, and not slower.

use crate::app::App;
use crate::error::ApiError;
use crate::options::Timeouts;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{HeaderMap, StatusCode};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What is refused is read for so long, so far, and no longer after a pause.
const SKIP: Duration = Duration::from_secs(1);
const SKIP_BYTES: usize = 8 << 20;
const SKIP_PAUSE: Duration = Duration::from_millis(100);

/// Reads a request's body.
pub(crate) async fn read(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let (parts, mut body) = request.into_parts();
    let most = app.options.body_bytes_max;
    let read = match check(&parts.headers, most) {
        Ok(()) => collect(&mut body, most, app.options.timeouts.body).await,
        Err(error) => Err(error),
    };
    if read.is_err() {
        skip(&mut body).await;
    }
    read
}

/// Reads on for a moment: a connection that is closed over unread bytes is reset, and the answer with it.
async fn skip(body: &mut Body) {
    let deadline = Instant::now() + SKIP;
    let mut left = SKIP_BYTES;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline.min(Instant::now() + SKIP_PAUSE), body.frame()).await {
        match frame.data_ref().map_or(Some(left), |data| left.checked_sub(data.len())) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Refuses by its head what need not be read.
fn check(headers: &HeaderMap, most: usize) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
    if text(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        let message = "compressed bodies are not taken";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message).closing());
    }
    let kind = text(CONTENT_TYPE).map(|kind| kind.split(';').next().unwrap_or_default().trim());
    // Pages of other origins can send forms and plain text unasked, and no JSON.
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        let message = "the body must be JSON, with `Content-Type: application/json`";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message).closing());
    }
    let length = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) { Err(too_large(most)) } else { Ok(()) }
}

fn too_large(most: usize) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, None, format!("a body has at most {most} bytes")).closing()
}

async fn collect(body: &mut Body, most: usize, patience: Duration) -> Result<Bytes, ApiError> {
    let started = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let share = bytes.len() as u64 / Timeouts::BODY_BYTES_PER_SECOND;
        let deadline = started + patience + Duration::from_secs(share);
        let frame = timeout_at(deadline, body.frame())
            .await
            .map_err(|_| ApiError::new(StatusCode::REQUEST_TIMEOUT, None, "the body did not come in time").closing())?;
        let Some(frame) = frame else { return Ok(bytes.into()) };
        let frame = frame.map_err(|_| ApiError::bad("the body is broken off or malformed").closing())?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > most {
                return Err(too_large(most));
            }
            bytes.extend_from_slice(data);
        }
    }
}
