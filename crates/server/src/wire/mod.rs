//! The shapes of requests and answers, as OpenAI's API has them, with vLLM's additions. Types only: what they mean is in
//! [`ask`](crate::ask) and in the handlers. Names that are not here are ignored.

mod chat;
mod common;
mod completion;
mod text;

pub(crate) use chat::*;
pub(crate) use common::*;
pub(crate) use completion::*;
pub(crate) use text::*;
