//! `POST /v1/chat/completions`: conversations, answered.

use super::{Head, check_model, ended, id, whole};
use crate::answer::{Choice, End, News, TokenLogprob};
use crate::app::App;
use crate::ask::{Plan, max_tokens, top};
use crate::auth::Caller;
use crate::conversation::{self, Chat};
use crate::error::ApiError;
use crate::generating::{Generating, Prepared};
use crate::model::Model;
use crate::ranges::{MAX_COMPLETION_TOKENS, MAX_TOKENS, TOP_LOGPROBS};
use crate::sse::{self, Format};
use crate::wire::{
    Call, ChatChoice, ChatChunk, ChatCompletion, ChatLogprob, ChatLogprobs, ChatMessage, ChatRequest, ChunkChoice,
    Delta, FinishReason, Function, Generation, StopReason, TopLogprob, Usage,
};
use crate::{body, json};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;
use tombolo_text::output::{Dialect, OutputParser, ToolCall};

/// What is told of an answer beside its text.
#[derive(Clone, Copy, Debug, Default)]
struct Telling {
    logprobs: bool,
    reasoning: bool,
    include_usage: bool,
    streams: bool,
}

/// The handler.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let model = app.take_work()?.model;
    let bytes = body::read(&app, request).await?;
    let (prepared, telling) = app.work(move || prepare(model, caller, &bytes)).await?;
    let head = Head::new("chatcmpl", model);
    let mut generating = Generating::start(&app, prepared).await?;
    if telling.streams {
        let calls = vec![0; generating.choices.len()];
        return Ok(sse::respond(generating, ChatEvents { head, telling, calls }));
    }
    while generating.advance().await? {}
    let usage = generating.usage();
    let choice = |(index, choice): (usize, &mut Choice)| {
        let news = choice.take_news();
        let (finish_reason, stop_reason) = finish(choice.end(), choice.calls > 0);
        let logprobs = telling.logprobs.then(|| logprobs(&news.logprobs));
        ChatChoice { index, message: message(news, telling), logprobs, finish_reason, stop_reason }
    };
    let choices = generating.choices.iter_mut().enumerate().map(choice).collect();
    whole(&ChatCompletion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        choices,
        usage,
    })
}

fn prepare(model: &'static Model, caller: Caller, bytes: &[u8]) -> Result<(Prepared, Telling), ApiError> {
    let value = json::parse(bytes)?;
    let wanted: Generation = json::typed(&value)?;
    let request: ChatRequest = json::typed(&value)?;
    check_model(model, wanted.model.as_deref())?;
    let tells = request.logprobs == Some(true);
    if request.top_logprobs.is_some_and(|top| top > 0) && !tells {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    if wanted.prompt_logprobs.is_some() {
        return Err(ApiError::unsupported("prompt_logprobs"));
    }
    let told = top(&TOP_LOGPROBS, tells.then(|| request.top_logprobs.unwrap_or(0)))?;
    let Chat { tokens, opens_reasoning, reasoning, tools, has_tools, calls } = conversation::prompt(model, &request)?;
    let mut plan = Plan::new(&wanted, model, caller, told, calls)?;
    let (range, asked) = match request.max_completion_tokens {
        Some(most) => (&MAX_COMPLETION_TOKENS, Some(most)),
        None => (&MAX_TOKENS, request.max_tokens),
    };
    let default = model.answer_tokens.unwrap_or(usize::MAX);
    let most = max_tokens(range, asked, default, tokens.len(), model)?;
    let streams = wanted.stream == Some(true);
    plan.check_bytes(tokens.len(), most, !streams)?;
    let dialect = model.dialect(has_tools);
    // The parser knows marks by their spelling.
    plan.style.shows_control |= dialect != Dialect::Plain;
    let (mut requests, mut choices) = (Vec::new(), Vec::new());
    for index in 0..plan.n {
        // Without tools there are no calls, whatever the text looks like.
        let dialect = if has_tools { dialect } else { Dialect::Plain };
        let parser = OutputParser::new(dialect, tools.clone(), opens_reasoning);
        choices.push(Choice::new(model, plan.style.clone(), Some(parser), opens_reasoning));
        requests.push(plan.request(tokens.clone(), most, index));
    }
    let include_usage = wanted.stream_options.and_then(|options| options.include_usage) == Some(true);
    let held = plan.held(reasoning);
    let reasoning = request.include_reasoning != Some(false);
    let prompt_tokens = tokens.len();
    Ok((
        Prepared { requests, choices, prompt_tokens, n: plan.n, held },
        Telling { logprobs: tells, reasoning, include_usage, streams },
    ))
}

/// Why an answer is over. One that calls tools is not the end of the conversation.
fn finish(end: Option<&End>, calls: bool) -> (FinishReason, Option<StopReason>) {
    match end.map(ended) {
        Some((FinishReason::Stop, stop)) if calls => (FinishReason::ToolCalls, stop),
        Some(told) => told,
        None => (FinishReason::Length, None),
    }
}

fn message(news: News, telling: Telling) -> ChatMessage {
    let tool_calls: Vec<Call> = news.calls.into_iter().map(|made| call(made, None)).collect();
    // OpenAI's answers have no content where they only call.
    let is_silent = news.content.is_empty() && !tool_calls.is_empty();
    let says_reasons = telling.reasoning && !news.reasoning.is_empty();
    ChatMessage {
        role: "assistant",
        content: (!is_silent).then_some(news.content),
        refusal: None,
        reasoning_content: says_reasons.then_some(news.reasoning),
        tool_calls,
    }
}

fn call(call: ToolCall, index: Option<usize>) -> Call {
    let arguments = serde_json::Value::Object(call.arguments).to_string();
    Call { index, id: id("call"), r#type: "function", function: Function { name: call.name, arguments } }
}

fn logprobs(tokens: &[TokenLogprob]) -> ChatLogprobs {
    let content = tokens.iter().map(|token| ChatLogprob {
        token: token.text.clone(),
        logprob: token.logprob.unwrap_or(0.0),
        bytes: token.bytes.clone(),
        top_logprobs: token
            .top
            .iter()
            .map(|top| TopLogprob { token: top.text.clone(), logprob: top.logprob, bytes: top.bytes.clone() })
            .collect(),
    });
    ChatLogprobs { content: content.collect() }
}

struct ChatEvents {
    head: Head,
    telling: Telling,
    /// Calls that were told of each choice.
    calls: Vec<usize>,
}

impl ChatEvents {
    fn event(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> String {
        let Head { id, created, model } = &self.head;
        let object = "chat.completion.chunk";
        let chunk = ChatChunk { id, object, created: *created, model, choices, usage };
        serde_json::to_string(&chunk).unwrap_or_default()
    }
}

impl Format for ChatEvents {
    fn open(&mut self, index: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None };
        Some(self.event(vec![choice], None))
    }

    fn part(&mut self, index: usize, news: News, end: Option<&End>) -> String {
        let first = self.calls[index];
        self.calls[index] += news.calls.len();
        let ended = end.map(|end| finish(Some(end), self.calls[index] > 0));
        let (finish_reason, stop_reason) = ended.map_or((None, None), |(reason, stop)| (Some(reason), stop));
        let logprobs = (self.telling.logprobs && !news.logprobs.is_empty()).then(|| logprobs(&news.logprobs));
        let some = |text: String| (!text.is_empty()).then_some(text);
        let delta = Delta {
            role: None,
            content: some(news.content),
            reasoning_content: some(news.reasoning).filter(|_| self.telling.reasoning),
            tool_calls: (first..).zip(news.calls).map(|(at, made)| call(made, Some(at))).collect(),
        };
        self.event(vec![ChunkChoice { index, delta, logprobs, finish_reason, stop_reason }], None)
    }

    fn usage(&mut self, usage: Usage) -> Option<String> {
        self.telling.include_usage.then(|| self.event(Vec::new(), Some(usage)))
    }

    fn tells_logprobs(&self) -> bool {
        self.telling.logprobs
    }
}
