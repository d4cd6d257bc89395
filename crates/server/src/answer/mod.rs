//! From one choice's tokens to what a client is told of it: text, reasoning, calls, log-probabilities, and the end.

mod logprobs;
mod stop;

use crate::model::Model;
pub(crate) use logprobs::TokenLogprob;
use std::sync::Arc;
use stop::StopStrings;
use tombolo_engine::{Logprobs, MaskFault, Reason, Tally};
use tombolo_text::DecodeStream;
use tombolo_text::output::{OutputParser, Piece, ToolCall};

/// How the text of answers is treated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Style {
    /// Strings that end it.
    pub(crate) stops: Vec<String>,
    /// They stay at the end of the text.
    pub(crate) keeps_stop: bool,
    /// Stop strings are not looked for before so many tokens.
    pub(crate) min_tokens: usize,
    /// Control tokens are text, too.
    pub(crate) shows_control: bool,
    /// Tokens that end it and are not part of it.
    pub(crate) ends: Arc<[u32]>,
    /// Of them, those that the model ends by itself.
    pub(crate) own_ends: Arc<[u32]>,
}

/// Why an answer is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// By the model, or by a token (`id`) or a string (`text`) that the request names.
    Stop { id: Option<u32>, text: Option<String> },
    /// As many tokens as were asked for, or as fit.
    Length,
    /// The logits were no numbers.
    NotNumbers,
    /// What it is held to gave no mask.
    Mask(MaskFault),
    /// By nobody's wish: the server is stopping.
    Cancelled,
}

/// What is new since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) logprobs: Vec<TokenLogprob>,
}

impl News {
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

/// With no more than so many likeliest tokens each.
fn cut(mut tokens: Vec<TokenLogprob>, top: usize) -> Vec<TokenLogprob> {
    tokens.iter_mut().for_each(|token| token.top.truncate(top));
    tokens
}

/// One answer on its way.
pub(crate) struct Choice {
    model: &'static Model,
    style: Style,
    decoder: Option<DecodeStream<'static>>,
    stops: StopStrings,
    /// Without one, all is content.
    parser: Option<OutputParser>,
    news: News,
    end: Option<End>,
    /// A stop string came: the engine does not know yet.
    is_cut: bool,
    has_reasoned: bool,
    has_content: bool,
    is_reasoning: bool,
    pub(crate) tokens: usize,
    pub(crate) reasoning_tokens: usize,
    pub(crate) calls: usize,
    pub(crate) tally: Tally,
    is_over: bool,
    prompt: Vec<u32>,
    /// Of how many likeliest tokens is told, of the prompt that is part of the answer, and of the one that is not.
    echo_top: Option<usize>,
    prompt_top: Option<usize>,
    of_prompt: Option<Vec<TokenLogprob>>,
}

impl Choice {
    pub(crate) fn new(model: &'static Model, style: Style, parser: Option<OutputParser>, reasons: bool) -> Self {
        let decoder = model.tokenizer.as_ref().map(|tokenizer| {
            let stream = tokenizer.stream();
            if style.shows_control { stream.with_control() } else { stream }
        });
        let stops = StopStrings::new(style.stops.clone());
        Self {
            model,
            style,
            decoder,
            stops,
            parser,
            news: News::default(),
            end: None,
            is_cut: false,
            has_reasoned: false,
            has_content: false,
            is_reasoning: reasons,
            tokens: 0,
            reasoning_tokens: 0,
            calls: 0,
            tally: Tally::default(),
            is_over: false,
            prompt: Vec::new(),
            echo_top: None,
            prompt_top: None,
            of_prompt: None,
        }
    }

    /// Takes a token. True: a stop string ends the answer here, and no more tokens are wanted.
    pub(crate) fn token(&mut self, token: u32, logprobs: Option<Box<Logprobs>>) -> bool {
        if self.is_cut {
            return false;
        }
        self.tokens += 1;
        let is_end = self.style.ends.contains(&token);
        if let Some(logprobs) = logprobs {
            self.news.logprobs.push(TokenLogprob::new(self.model, token, &logprobs));
        }
        if is_end {
            let is_own = self.style.own_ends.contains(&token);
            self.end = Some(End::Stop { id: (!is_own).then_some(token), text: None });
        }
        let text = match &mut self.decoder {
            _ if is_end => String::new(),
            Some(decoder) => decoder.push(token),
            None => self.model.spelling(token),
        };
        let (text, stop) = if self.tokens <= self.style.min_tokens {
            (text, None)
        } else {
            self.stops.push(&text, self.style.keeps_stop)
        };
        self.say(&text);
        self.reasoning_tokens += usize::from(self.is_reasoning && !is_end);
        if let Some(at) = stop {
            self.end = Some(End::Stop { id: None, text: Some(self.style.stops[at].clone()) });
            self.is_cut = true;
            self.flush();
        }
        self.is_cut
    }

    /// The engine is done with it.
    pub(crate) fn finish(&mut self, reason: &Reason, tally: Tally) {
        self.tally = tally;
        self.is_over = true;
        let end = match reason {
            Reason::Stop => End::Stop { id: None, text: None },
            Reason::Length => End::Length,
            Reason::Cancelled => End::Cancelled,
            Reason::NotNumbers => End::NotNumbers,
            Reason::Mask(fault) => End::Mask(fault.clone()),
        };
        // What a stop string or a token said before goes first.
        self.end.get_or_insert(end);
        if !self.is_cut {
            let rest = self.decoder.take().map(DecodeStream::finish).unwrap_or_default();
            let (mut text, stop) = self.stops.push(&rest, self.style.keeps_stop);
            match stop {
                Some(at) => self.end = Some(End::Stop { id: None, text: Some(self.style.stops[at].clone()) }),
                None => text.push_str(&self.stops.finish()),
            }
            self.say(&text);
        }
        self.flush();
    }

    /// Nothing more comes: what the parser held back.
    fn flush(&mut self) {
        if let Some(parser) = self.parser.take() {
            let pieces = parser.finish();
            self.take(pieces);
        }
    }

    /// Whether the engine is done with it, too.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether nothing is missing of what a client sees.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_over || self.is_cut
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What came since the last call.
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Whether something did; log-probabilities alone count `with_logprobs` only.
    pub(crate) fn has_news(&self, with_logprobs: bool) -> bool {
        !self.news.is_empty() || (with_logprobs && !self.news.logprobs.is_empty())
    }

    /// The prompt is part of the answer, with the log-probabilities of its tokens and of the `top` likeliest where those are
    /// asked for.
    pub(crate) fn echo(&mut self, text: &str, top: Option<usize>) {
        self.news.content.push_str(text);
        self.echo_top = top;
    }

    /// The prompt's tokens, for their log-probabilities beside the answer.
    pub(crate) fn set_prompt(&mut self, tokens: Vec<u32>, top: Option<usize>) {
        self.prompt = tokens;
        self.prompt_top = top;
    }

    /// Takes those, of at least as many likeliest tokens as are told of.
    pub(crate) fn prompt_logprobs(&mut self, logprobs: &[Logprobs]) {
        let model = self.model;
        let Some((&first, rest)) = self.prompt.split_first() else { return };
        let others = rest.iter().zip(logprobs).map(|(&token, logprobs)| TokenLogprob::new(model, token, logprobs));
        let all: Vec<TokenLogprob> = std::iter::once(TokenLogprob::first(model, first)).chain(others).collect();
        if let Some(top) = self.echo_top {
            self.news.logprobs.extend(cut(all.clone(), top));
        }
        self.of_prompt = self.prompt_top.map(|top| cut(all, top));
    }

    /// Log-probabilities of a prompt that is not part of the answer.
    pub(crate) fn take_prompt_logprobs(&mut self) -> Option<Vec<TokenLogprob>> {
        self.of_prompt.take()
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.parser {
            None => self.news.content.push_str(text),
            Some(parser) => {
                let pieces = parser.push(text);
                self.take(pieces);
            }
        }
    }

    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            self.is_reasoning = matches!(piece, Piece::Reasoning(_));
            match piece {
                Piece::Reasoning(text) => {
                    self.has_reasoned = true;
                    self.news.reasoning.push_str(&text);
                }
                Piece::Content(text) => {
                    // What separates an answer from its reasoning is not part of it.
                    let is_first = self.has_reasoned && !self.has_content;
                    let text = if is_first { text.trim_start() } else { &text };
                    self.has_content |= !text.is_empty();
                    self.news.content.push_str(text);
                }
                Piece::Call(call) => {
                    self.calls += 1;
                    self.news.calls.push(call);
                }
            }
        }
    }
}
