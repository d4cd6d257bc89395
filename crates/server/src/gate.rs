//! What every request passes first: is it whole, does its page come from elsewhere, does it have a key. Nothing is open
//! unless [`routes::is_open`] names it. And what every answer bears.

use crate::app::App;
use crate::error::ApiError;
use crate::limits::PATH_BYTES;
use crate::routes;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode, Version};
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use tower_service::Service;
use tracing::Instrument;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Characters of a request's id that a client may choose.
const REQUEST_ID_BYTES: usize = 128;

/// Answers one request.
pub(crate) async fn answer(app: Arc<App>, routes: Router, peer: SocketAddr, request: Request) -> Response {
    let origin = allowed_origin(&app, request.headers());
    let id = request.headers().get(REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES).cloned();
    let fresh = || HeaderValue::from_str(&crate::handlers::id("req")).ok();
    let id = id.or_else(fresh);
    let started = Instant::now();
    // What strangers choose is escaped: nothing in it ends a line or colours a terminal.
    let shown = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().escape_debug();
    let (method, called) = (request.method().as_str().escape_debug(), request.uri().path().escape_debug());
    let span = tracing::info_span!("request", id = %shown, %method, path = %called, %peer);
    let (is_head, path) = (request.method() == Method::HEAD, request.uri().path().to_string());
    let mut response = match admit(&app, peer, request, origin.is_some()) {
        Ok(Admitted::Request(request)) => run(routes, request).instrument(span.clone()).await,
        Ok(Admitted::Preflight(response)) => response,
        Err(error) => error.into_response(),
    };
    let is_refused_method = response.status() == StatusCode::METHOD_NOT_ALLOWED;
    let headers = response.headers_mut();
    // What is taken at all, where a route does not say it more narrowly (RFC 9110, 15.5.6).
    if is_refused_method && !headers.contains_key(header::ALLOW) {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, OPTIONS"));
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    let status = response.status().as_u16();
    // Pages that watch ask for figures every second.
    if response.status().is_success() && routes::is_watched(&path) {
        tracing::debug!(parent: &span, status, ms = started.elapsed().as_millis() as u64, "answered");
    } else {
        tracing::info!(parent: &span, status, ms = started.elapsed().as_millis() as u64, "answered");
    }
    if is_head {
        *response.body_mut() = Body::empty();
    }
    response
}

enum Admitted {
    Request(Request),
    /// A browser asks whether a page may ask.
    Preflight(Response),
}

fn admit(app: &App, peer: SocketAddr, mut request: Request, from_allowed: bool) -> Result<Admitted, ApiError> {
    let headers = request.headers();
    if request.uri().path_and_query().is_some_and(|path| path.as_str().len() > PATH_BYTES) {
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, None, "the path is too long").closing());
    }
    // Two lengths are two readings of where a request ends (RFC 9112, 6.3).
    let is_framed_twice =
        headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH);
    if is_framed_twice || headers.get_all(header::HOST).iter().count() > 1 {
        return Err(ApiError::bad("the request's head contradicts itself").closing());
    }
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, None, "this method is not known here").closing());
    }
    check_host(app, request.version(), headers)?;
    let is_preflight =
        *request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if is_preflight && from_allowed {
        return Ok(Admitted::Preflight(preflight()));
    }
    let is_open = routes::is_open(request.uri().path());
    let Some(caller) = app.keys.caller(headers, peer.ip()) else {
        if is_open {
            return Ok(Admitted::Request(request));
        }
        let message = "a key is needed: `Authorization: Bearer KEY`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message));
    };
    request.extensions_mut().insert(caller);
    Ok(Admitted::Request(request))
}

/// The origin, where answers may be read by its pages.
fn allowed_origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_known = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
    app.options.origins.iter().any(is_known).then(|| origin.clone())
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("authorization, content-type, x-api-key"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// A server on the loopback that needs no key must not be reachable by another name: a page of `evil.example` whose address
/// turns to 127.0.0.1 would be of its own origin (DNS rebinding).
fn check_host(app: &App, version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    if !app.keys.is_empty() || !app.options.address.ip().is_loopback() {
        return Ok(());
    }
    let Some(host) = headers.get(header::HOST) else {
        // No browser sends none.
        return if version < Version::HTTP_11 { Ok(()) } else { Err(ApiError::bad("`Host` is missing").closing()) };
    };
    let name = host.to_str().map_or("", without_port);
    let is_own = name.eq_ignore_ascii_case("localhost")
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || app.options.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
    if is_own {
        return Ok(());
    }
    let message = "this server is not known by that name (`Host`); --allowed-host adds one";
    Err(ApiError::new(StatusCode::FORBIDDEN, Some("unknown_host"), message))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Runs a handler; one that panics is a fault of ours, and ends that request only.
async fn run(mut routes: Router, request: Request) -> Response {
    match AssertUnwindSafe(routes.call(request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Err(_) => ApiError::internal("a fault of the server").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn hosts(app: &App, host: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        check_host(app, Version::HTTP_11, &headers).is_ok()
    }

    #[test]
    fn a_loopback_has_few_names() {
        let options = Options::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let app = App::new(Options { hosts: vec!["box.local".into()], ..options.clone() });
        for host in ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "127.1.2.3", "[::1]:8000", "box.local:1"] {
            assert!(hosts(&app, host), "{host}");
        }
        for host in ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.x"] {
            assert!(!hosts(&app, host), "{host}");
        }
        assert!(check_host(&app, Version::HTTP_11, &HeaderMap::new()).is_err());
        let app = App::new(Options { keys: vec!["k".into()], ..options });
        assert!(hosts(&app, "evil.example"), "a key is proof enough");
    }

    #[test]
    fn origins_are_unknown_unless_named() {
        let options = Options::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://a.example"));
        assert_eq!(allowed_origin(&App::new(options.clone()), &headers), None);
        let app = App::new(Options { origins: vec!["https://a.example".into()], ..options });
        assert!(allowed_origin(&app, &headers).is_some());
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://a.example.evil"));
        assert_eq!(allowed_origin(&app, &headers), None);
    }
}
