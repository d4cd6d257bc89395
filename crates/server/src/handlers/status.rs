//! How the server is: `/live`, `/ready`, `/health`, `/metrics`, and which model it has.

use super::whole;
use crate::app::{App, Health};
use crate::error::{ApiError, echo};
use crate::wire::{ModelCard, ModelList};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use std::sync::Arc;

/// The process is there.
pub(crate) async fn live() -> Response {
    Response::new(Body::empty())
}

/// New requests will be taken.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.health() {
        Health::Serving => Ok(Response::new(Body::empty())),
        health => Err(not_ready(&app, health)),
    }
}

/// The model runs, or could: also while the server drains.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.health() {
        Health::Serving | Health::Draining => Ok(Response::new(Body::empty())),
        health => Err(not_ready(&app, health)),
    }
}

fn not_ready(app: &App, health: Health) -> ApiError {
    match health {
        Health::Loading => ApiError::unavailable("loading", "the model is being loaded", 2),
        Health::Draining => ApiError::stopping(),
        Health::Dead => ApiError::engine_dead(),
        Health::Serving | Health::Stalled => {
            let seconds = app.progress.stalled().as_secs();
            ApiError::unavailable("stalled", format!("the engine has made no progress for {seconds} s"), 10)
        }
    }
}

/// Everything that is measured.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let model = app.serving.get().map_or("", |serving| serving.model.name());
    app.metrics.connections.set(app.connections.load(std::sync::atomic::Ordering::Relaxed) as f64);
    let mut response = Response::new(Body::from(app.metrics.page(model, &app.progress)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn cards(app: &App) -> Result<Vec<ModelCard<'static>>, ApiError> {
    let model = app.serving()?.model;
    let card = |name: &'static String| ModelCard {
        id: name,
        object: "model",
        created: app.started,
        owned_by: "tombolo",
        root: model.name(),
        max_model_len: model.context,
        chat: model.template.is_some() && model.answer_tokens.is_none(),
    };
    Ok(model.names.iter().map(card).collect())
}

/// The models: one, under its names.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    whole(&ModelList { object: "list", data: cards(&app)? })
}

/// One of them.
pub(crate) async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    match cards(&app)?.into_iter().find(|card| card.id == name) {
        Some(card) => whole(&card),
        None => {
            let message = format!("the model `{}` is not served here", echo(&name));
            Err(ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message))
        }
    }
}
