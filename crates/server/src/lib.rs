//! The server: OpenAI's API over HTTP, metrics, limits, and an orderly end.
//!
//! Here live everything that knows HTTP and JSON bodies, the thread that runs the engine, and what becomes of connections.
//! Not here: how a step is chosen (`engine`), what text is made of (`text`), and which backend runs (`cli`).
//!
//! A request's way: `accept` takes the connection and `gate` says whether it may come in; `body` reads it within
//! limits; `wire` gives it types and `ask` makes engine requests of it; `engine` runs them; `answer` turns tokens into
//! text, reasoning and calls, and `sse` or a whole body carries them out.
#![forbid(unsafe_code)]

mod accept;
mod allowed;
mod answer;
mod app;
mod ask;
mod auth;
mod body;
mod constraint;
mod conversation;
mod drain;
mod engine;
mod error;
mod gate;
mod generating;
mod grammars;
mod handlers;
mod io;
mod json;
pub mod limits;
mod metrics;
mod model;
mod openapi;
mod options;
mod progress;
mod ranges;
mod routes;
mod server;
mod sse;
mod web;
mod wire;

pub use error::ServerError;
pub use model::Model;
pub use options::{Options, Timeouts};
pub use server::Server;
