//! Answers as events while they are generated (`text/event-stream`, WHATWG HTML 9.2): `data:` and JSON, and `[DONE]` last.

use crate::answer::{End, News};
use crate::error::ApiError;
use crate::generating::Generating;
use crate::wire::Usage;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::timeout;

/// After so long without an event a comment shows that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What an API makes of an answer's parts.
pub(crate) trait Format: Send + 'static {
    /// The first event of a choice, where it has one of its own.
    fn open(&mut self, choice: usize) -> Option<String>;

    /// What is new of a choice; `end`: it is over.
    fn part(&mut self, choice: usize, news: News, end: Option<&End>) -> String;

    /// The last event, where it is asked for.
    fn usage(&mut self, usage: Usage) -> Option<String>;

    /// Whether parts without text but with log-probabilities are worth an event.
    fn tells_logprobs(&self) -> bool {
        false
    }
}

struct Stream<F> {
    generating: Generating,
    format: F,
    /// Of each choice: its end was told.
    ended: Vec<bool>,
    is_open: bool,
    is_done: bool,
}

/// The response that streams.
pub(crate) fn respond<F: Format>(generating: Generating, format: F) -> Response {
    let ended = vec![false; generating.choices.len()];
    let stream = Stream { generating, format, ended, is_open: false, is_done: false };
    let body = stream::unfold(stream, |mut stream| async {
        let bytes = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), stream))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<F: Format> Stream<F> {
    /// The next events; `None`: that was all.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let mut out = String::new();
        if !self.is_open {
            self.is_open = true;
            for choice in 0..self.generating.choices.len() {
                if let Some(json) = self.format.open(choice) {
                    event(&mut out, &json);
                }
            }
            // What stands before the answer needs no token to come.
            self.parts(&mut out);
            if !out.is_empty() {
                return Some(out.into());
            }
        }
        while out.is_empty() {
            match timeout(KEEP_ALIVE, self.generating.advance()).await {
                Err(_) => out.push_str(": waiting\n\n"),
                Ok(Ok(true)) => self.parts(&mut out),
                Ok(Ok(false)) => {
                    if let Some(json) = self.format.usage(self.generating.usage()) {
                        event(&mut out, &json);
                    }
                    self.done(&mut out);
                }
                Ok(Err(error)) => self.fail(&mut out, &error),
            }
        }
        Some(out.into())
    }

    fn parts(&mut self, out: &mut String) {
        for (at, choice) in self.generating.choices.iter_mut().enumerate() {
            if self.ended[at] {
                continue;
            }
            let is_whole = choice.is_whole();
            if is_whole || choice.has_news(self.format.tells_logprobs()) {
                self.ended[at] = is_whole;
                let news = choice.take_news();
                let json = self.format.part(at, news, choice.end().filter(|_| is_whole));
                event(out, &json);
            }
        }
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        event(out, &error.json());
        self.done(out);
    }

    fn done(&mut self, out: &mut String) {
        event(out, "[DONE]");
        self.is_done = true;
    }
}

fn event(out: &mut String, data: &str) {
    out.push_str("data: ");
    out.push_str(data);
    out.push_str("\n\n");
}
