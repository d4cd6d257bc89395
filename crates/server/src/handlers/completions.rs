//! `POST /v1/completions`: texts or tokens, gone on with.

use super::{Head, check_model, ended, number, prompt_logprobs, whole};
use crate::answer::{Choice, End, News, TokenLogprob};
use crate::app::App;
use crate::ask::{Plan, max_tokens, top};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::generating::{Generating, Prepared};
use crate::limits::CHOICES;
use crate::model::Model;
use crate::ranges::{LOGPROBS, MAX_TOKENS, PROMPT_LOGPROBS};
use crate::sse::{self, Format};
use crate::wire::{Completion, CompletionChoice, CompletionRequest, Generation, LegacyLogprobs, Prompt, Usage};
use crate::{body, json};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Map;
use std::sync::Arc;
use tombolo_text::grammar::Reasoning;

/// Tokens of an answer where none are asked for, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;

/// What is told of an answer beside its text.
#[derive(Clone, Copy, Debug, Default)]
struct Telling {
    logprobs: bool,
    include_usage: bool,
    streams: bool,
}

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let model = app.take_work()?.model;
    let bytes = body::read(&app, request).await?;
    let (prepared, telling) = app.work(move || prepare(model, caller, &bytes)).await?;
    let head = Head::new("cmpl", model);
    let mut generating = Generating::start(&app, prepared).await?;
    if telling.streams {
        let offsets = vec![0; generating.choices.len()];
        return Ok(sse::respond(generating, CompletionEvents { head, telling, offsets }));
    }
    while generating.advance().await? {}
    let usage = generating.usage();
    let choice = |(index, choice): (usize, &mut Choice)| {
        let prompt = choice.take_prompt_logprobs();
        let news = choice.take_news();
        let prompt_logprobs = prompt.as_deref().map(prompt_logprobs);
        CompletionChoice { prompt_logprobs, ..part(index, news, choice.end(), telling.logprobs, &mut 0) }
    };
    let choices = generating.choices.iter_mut().enumerate().map(choice).collect();
    whole(&Completion {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: head.model,
        choices,
        usage: Some(usage),
    })
}

fn prepare(model: &'static Model, caller: Caller, bytes: &[u8]) -> Result<(Prepared, Telling), ApiError> {
    let value = json::parse(bytes)?;
    let wanted: Generation = json::typed(&value)?;
    let request: CompletionRequest = json::typed(&value)?;
    check_model(model, wanted.model.as_deref())?;
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix"));
    }
    let told = top(&LOGPROBS, request.logprobs)?;
    let mut plan = Plan::new(&wanted, model, caller, told, None)?;
    let streams = wanted.stream == Some(true);
    let prompt_top = top(&PROMPT_LOGPROBS, wanted.prompt_logprobs)?;
    if streams && prompt_top.is_some() {
        let message = "`prompt_logprobs` are told with whole answers, not with `stream`";
        return Err(ApiError::field("prompt_logprobs", message));
    }
    let echoes = request.echo == Some(true);
    let needs_no_answer = echoes && request.max_tokens == Some(0);
    if echoes && (plan.tells_logprobs() || needs_no_answer) {
        plan.echo(needs_no_answer);
    }
    let prompts = request.prompt.0;
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "the prompt is empty"));
    }
    if prompts.len().saturating_mul(plan.n) > CHOICES {
        let message = format!("`n` times the number of prompts is more than {CHOICES}");
        return Err(ApiError::field(if plan.n > 1 { "n" } else { "prompt" }, message));
    }
    // Texts are gone on with as they are: they open no reasoning.
    let held = plan.held(Reasoning::None);
    let mut prepared = Prepared { requests: Vec::new(), choices: Vec::new(), prompt_tokens: 0, n: plan.n, held };
    for prompt in prompts {
        let (tokens, text) = encode(model, prompt)?;
        let most = match needs_no_answer {
            true => 0,
            false => max_tokens(&MAX_TOKENS, request.max_tokens, DEFAULT_TOKENS, tokens.len(), model)?,
        };
        plan.check_bytes(tokens.len(), most, !streams)?;
        prepared.prompt_tokens += tokens.len();
        for index in 0..plan.n {
            let mut choice = Choice::new(model, plan.style.clone(), None, false);
            choice.set_prompt(tokens.clone(), prompt_top);
            if echoes {
                choice.echo(&text, told);
            }
            prepared.choices.push(choice);
            prepared.requests.push(plan.request(tokens.clone(), most, index));
        }
    }
    let include_usage = wanted.stream_options.and_then(|options| options.include_usage) == Some(true);
    Ok((prepared, Telling { logprobs: plan.tells_logprobs(), include_usage, streams }))
}

/// A prompt as tokens, and as text.
fn encode(model: &Model, prompt: Prompt) -> Result<(Vec<u32>, String), ApiError> {
    let (tokens, text) = match (prompt, &model.tokenizer) {
        (Prompt::Text(text), Some(_)) if text.is_empty() => (Vec::new(), text),
        (Prompt::Text(text), Some(tokenizer)) => {
            let mut tokens: Vec<u32> = tokenizer.bos().into_iter().collect();
            tokens.extend(tokenizer.encode(&text, true)?);
            (tokens, text)
        }
        (Prompt::Text(_), None) => {
            return Err(ApiError::field("prompt", "this model has no vocabulary: give token ids instead of text"));
        }
        (Prompt::Tokens(tokens), Some(tokenizer)) => {
            let text = tokenizer.decode(&tokens);
            (tokens, text)
        }
        (Prompt::Tokens(tokens), None) => {
            let text = tokens.iter().map(|&token| model.spelling(token)).collect();
            (tokens, text)
        }
    };
    if tokens.is_empty() {
        return Err(ApiError::field("prompt", "the prompt is empty"));
    }
    Ok((tokens, text))
}

/// A part of a choice; `offset`: where its text begins in the choice's.
fn part(index: usize, news: News, end: Option<&End>, tells: bool, offset: &mut usize) -> CompletionChoice {
    let logprobs = tells.then(|| legacy(&news.logprobs, offset));
    let (finish_reason, stop_reason) = end.map(ended).map_or((None, None), |(reason, stop)| (Some(reason), stop));
    CompletionChoice { index, text: news.content, logprobs, finish_reason, stop_reason, prompt_logprobs: None }
}

fn legacy(tokens: &[TokenLogprob], offset: &mut usize) -> LegacyLogprobs {
    let mut lists = LegacyLogprobs::default();
    for token in tokens {
        lists.tokens.push(token.text.clone());
        lists.token_logprobs.push(token.logprob);
        lists.top_logprobs.push(token.logprob.map(|logprob| {
            let mut map = Map::new();
            // Bytes that are no text have one spelling between them: the likeliest keeps it.
            for top in &token.top {
                map.entry(top.text.clone()).or_insert_with(|| number(top.logprob));
            }
            map.entry(token.text.clone()).or_insert_with(|| number(logprob));
            map
        }));
        lists.text_offset.push(*offset);
        *offset += token.chars;
    }
    lists
}

struct CompletionEvents {
    head: Head,
    telling: Telling,
    /// Characters that each choice's text had so far.
    offsets: Vec<usize>,
}

impl CompletionEvents {
    fn event(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> String {
        let Head { id, created, model } = &self.head;
        let event = Completion { id, object: "text_completion", created: *created, model, choices, usage };
        serde_json::to_string(&event).unwrap_or_default()
    }
}

impl Format for CompletionEvents {
    fn open(&mut self, _choice: usize) -> Option<String> {
        None
    }

    fn part(&mut self, choice: usize, news: News, end: Option<&End>) -> String {
        let part = part(choice, news, end, self.telling.logprobs, &mut self.offsets[choice]);
        self.event(vec![part], None)
    }

    fn usage(&mut self, usage: Usage) -> Option<String> {
        self.telling.include_usage.then(|| self.event(Vec::new(), Some(usage)))
    }

    fn tells_logprobs(&self) -> bool {
        self.telling.logprobs
    }
}
