//! How likely a token was, with the spellings that clients are told.

use crate::model::Model;
use tombolo_engine::Logprobs;

/// Stands for a probability of zero, which JSON has no logarithm of; vLLM's number.
const LEAST: f32 = -9999.0;

/// A token of an answer or a prompt, and the likeliest in its place.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprob {
    pub(crate) token: u32,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
    /// `None`: the first of a prompt, which nothing comes before.
    pub(crate) logprob: Option<f32>,
    pub(crate) rank: usize,
    /// Characters of the text that it makes.
    pub(crate) chars: usize,
    pub(crate) top: Vec<TopToken>,
}

/// One of the likeliest.
#[derive(Clone, Debug)]
pub(crate) struct TopToken {
    pub(crate) token: u32,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprob: f32,
}

impl TokenLogprob {
    pub(crate) fn new(model: &Model, token: u32, logprobs: &Logprobs) -> Self {
        let top = |&(token, logprob): &(u32, f32)| TopToken {
            token,
            text: model.spelling(token),
            bytes: model.bytes(token),
            logprob: logprob.max(LEAST),
        };
        Self {
            logprob: Some(logprobs.logprob.max(LEAST)),
            rank: logprobs.rank,
            top: logprobs.top.iter().map(top).collect(),
            ..Self::first(model, token)
        }
    }

    /// A token that nothing comes before.
    pub(crate) fn first(model: &Model, token: u32) -> Self {
        let (text, bytes) = (model.spelling(token), model.bytes(token));
        let is_hidden = model.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_control(token));
        let chars = if is_hidden { 0 } else { text.chars().count() };
        Self { token, text, bytes, logprob: None, rank: 0, chars, top: Vec::new() }
    }
}
