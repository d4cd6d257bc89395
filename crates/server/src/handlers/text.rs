//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use super::{check_model, whole};
use crate::app::App;
use crate::conversation;
use crate::error::ApiError;
use crate::limits::DETOKENIZE_TOKENS;
use crate::model::Model;
use crate::wire::{ChatRequest, DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized};
use crate::{body, json};
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;
use tombolo_text::Tokenizer;

/// Text, or a conversation, to tokens.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let model = app.serving()?.model;
    let bytes = body::read(&app, request).await?;
    let tokenized = app.work(move || tokens_of(model, &bytes)).await?;
    whole(&tokenized)
}

fn tokenizer(model: &Model) -> Result<&Tokenizer, ApiError> {
    model.tokenizer.as_ref().ok_or_else(|| ApiError::bad("this model has no vocabulary: it knows token ids only"))
}

fn tokens_of(model: &Model, bytes: &[u8]) -> Result<Tokenized, ApiError> {
    let value = json::parse(bytes)?;
    let request: TokenizeRequest = json::typed(&value)?;
    check_model(model, request.model.as_deref())?;
    let tokenizer = tokenizer(model)?;
    let tokens = match (&request.prompt, value.get("messages")) {
        (Some(text), None) => {
            let bos = tokenizer.bos().filter(|_| request.add_special_tokens != Some(false));
            let mut tokens: Vec<u32> = bos.into_iter().collect();
            tokens.extend(tokenizer.encode(text, true)?);
            tokens
        }
        (None, Some(_)) => conversation::prompt(model, &json::typed::<ChatRequest>(&value)?)?.tokens,
        _ => return Err(ApiError::field("prompt", "either `prompt` or `messages` is needed")),
    };
    let spell = |tokens: &[u32]| tokens.iter().map(|&token| model.spelling(token)).collect();
    let token_strs = (request.return_token_strs == Some(true)).then(|| spell(&tokens));
    Ok(Tokenized { count: tokens.len(), max_model_len: model.context, tokens, token_strs })
}

/// Tokens to text.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let model = app.serving()?.model;
    let bytes = body::read(&app, request).await?;
    let text = app.work(move || text_of(model, &bytes)).await?;
    whole(&Detokenized { prompt: text })
}

fn text_of(model: &Model, bytes: &[u8]) -> Result<String, ApiError> {
    let request: DetokenizeRequest = json::typed(&json::parse(bytes)?)?;
    check_model(model, request.model.as_deref())?;
    let tokenizer = tokenizer(model)?;
    if request.tokens.len() > DETOKENIZE_TOKENS {
        return Err(ApiError::field("tokens", format!("at most {DETOKENIZE_TOKENS} tokens are possible")));
    }
    if let Some(token) = request.tokens.iter().find(|&&token| token as usize >= model.vocabulary) {
        return Err(ApiError::field("tokens", format!("`tokens`: {token} is no token of this model")));
    }
    Ok(tokenizer.decode_whole(&request.tokens))
}
