//! The page: files that are part of the binary, and what browsers are told of them. What it shows it asks the API for, as
//! anybody would.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderValue};

/// Nothing from elsewhere, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($path:literal: $file:literal, $kind:literal;)*) => {
        /// Paths of the page's files: they need no key, and hold nothing that is not public.
        pub(crate) const PATHS: &[&str] = &[$($path),*];

        fn file(path: &str) -> Option<(&'static str, &'static str)> {
            match path {
                $($path => Some((include_str!(concat!("../web/", $file)), $kind)),)*
                _ => None,
            }
        }
    };
}

files! {
    "/": "index.html", "text/html; charset=utf-8";
    "/style.css": "style.css", "text/css; charset=utf-8";
    "/app.js": "app.js", "text/javascript; charset=utf-8";
    "/api.js": "api.js", "text/javascript; charset=utf-8";
    "/live.js": "live.js", "text/javascript; charset=utf-8";
    "/markdown.js": "markdown.js", "text/javascript; charset=utf-8";
    "/icon.svg": "icon.svg", "image/svg+xml";
}

/// One of [`PATHS`].
pub(crate) fn page(path: &str) -> Response {
    let (text, kind) = file(path).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
