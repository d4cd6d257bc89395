//! Which path is answered by what.

use crate::app::App;
use crate::error::{ApiError, echo};
use crate::handlers::{self, chat, completions, status, text};
use crate::{openapi, web};
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use std::sync::Arc;

/// Paths that need no key: whoever watches over the server has none, and they tell nothing else.
const OPEN: [&str; 3] = ["/live", "/ready", "/health"];

/// Whether a path needs no key.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || web::PATHS.contains(&path)
}

/// Whether a path is asked again and again by whoever watches.
pub(crate) fn is_watched(path: &str) -> bool {
    path == "/metrics" || OPEN.contains(&path)
}

/// All routes.
pub(crate) fn routes(app: Arc<App>) -> Router {
    let page = web::PATHS.iter().fold(Router::new(), |router, &path| router.route(path, get(async || web::page(path))));
    page.route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{*name}", get(status::model))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/live", get(status::live))
        .route("/ready", get(status::ready))
        .route("/health", get(status::health))
        .route("/openapi.json", get(async || handlers::json_text(openapi::text())))
        .route("/metrics", get(status::metrics))
        .fallback(async |uri: Uri| {
            let message = format!("there is nothing at {}", echo(uri.path()));
            ApiError::new(StatusCode::NOT_FOUND, Some("not_found"), message)
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message = format!("{} does not take {}", echo(uri.path()), echo(method.as_str()));
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
        })
        .with_state(app)
}
