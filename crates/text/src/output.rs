//! What a model's answer is made of: reasoning, text for the reader, and calls of tools, taken apart while it streams.
//!
//! [`OutputParser`] cuts at the markers of a [`Dialect`]; what stands inside a call is read by a file per dialect. Nothing
//! is ever lost: what is no proper call comes out as text. The work is linear in the answer's length.
//!
//! Not here: how a conversation becomes a prompt (`template`), and the shapes of any API (the server's).

mod arguments;
mod deepseek;
mod dialect;
mod glm;
mod hermes;
mod kimi;
mod llama;

pub use arguments::Tools;
pub use dialect::Dialect;

use crate::limits::TOOL_CALL_BYTES;
use dialect::Section;

/// A part of an answer, in the order in which it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Part of the reasoning before the answer.
    Reasoning(String),
    /// Part of the answer.
    Content(String),
    /// A tool that is to be called.
    Call(ToolCall),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// By name, in the order in which they were written.
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// Takes an answer apart as it comes.
pub struct OutputParser {
    dialect: Dialect,
    tools: Tools,
    state: State,
    /// What came; from `taken` on it is not decided yet.
    held: String,
    taken: usize,
    /// Bytes behind `taken` in which no marker begins.
    searched: usize,
    /// Nothing but white space has come since the reasoning ended, or since the start.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// Inside the markers of a call, or of a group of them.
    Calls(Section),
}

/// White space between the parts of an answer; more is text.
const BLANK_BYTES: usize = 4096;
/// What the parser looks for.
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

impl OutputParser {
    /// For an answer in `dialect`. `tools` are those that the request offers; `reasoning`: the prompt has opened the
    /// reasoning already, so that the answer starts inside it.
    pub fn new(dialect: Dialect, tools: Tools, reasoning: bool) -> Self {
        let state = if reasoning { State::Reasoning } else { State::Content };
        Self { dialect, tools, state, held: String::new(), taken: 0, searched: 0, fresh: true }
    }

    /// Takes the next part of the answer, and gives what is decided by it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.drain(..self.taken);
        self.taken = 0;
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The answer has ended: gives what is left.
    pub fn finish(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        let rest = self.take(self.rest().len(), 0);
        match self.state {
            State::Reasoning => say(&mut pieces, Piece::Reasoning(rest)),
            // A bare call has no marker at its end, and others may have been cut off behind their last argument.
            State::Calls(section) => self.calls(section, &rest, "", &mut pieces),
            State::Content if self.dialect.may_be_bare() && self.fresh => self.bare(&rest, &mut pieces),
            State::Content => say(&mut pieces, Piece::Content(rest)),
        }
        pieces
    }

    /// Goes on to the next marker; false where more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Reasoning => self.reason(pieces),
            State::Content => self.answer(pieces),
            State::Calls(section) => self.close(section, pieces),
        }
    }

    fn reason(&mut self, pieces: &mut Vec<Piece>) -> bool {
        // A call may begin without the reasoning having been closed.
        let mut markers = vec![THINK_END];
        markers.extend(self.dialect.sections().iter().map(|s| s.open));
        let Some((at, marker)) = self.find(&markers) else {
            self.give(&markers, pieces, Piece::Reasoning);
            return false;
        };
        let before = self.take(at, marker.len());
        say(pieces, Piece::Reasoning(before));
        self.fresh = true;
        self.state = match self.dialect.section(marker) {
            Some(section) => State::Calls(section),
            None => State::Content,
        };
        true
    }

    fn answer(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let mut markers: Vec<&str> = self.dialect.sections().iter().map(|s| s.open).collect();
        // Elsewhere in an answer it is text like any other.
        if self.fresh {
            markers.push(THINK);
            markers.push(THINK_END);
        }
        if self.fresh && self.dialect.may_be_bare() && self.rest().trim_start().starts_with('{') {
            // It is a call or it is not when it has ended.
            return self.rest().len() > TOOL_CALL_BYTES && self.give_up("", pieces);
        }
        let Some((at, marker)) = self.find(&markers) else {
            self.give(&markers, pieces, Piece::Content);
            return false;
        };
        let is_blank = self.fresh && self.rest()[..at].trim().is_empty();
        if !is_blank && (marker == THINK || marker == THINK_END) {
            // Only a marker that the answer starts with is one.
            self.fresh = false;
            return true;
        }
        let before = self.take(at, marker.len());
        self.state = match self.dialect.section(marker) {
            Some(section) => State::Calls(section),
            None if marker == THINK => State::Reasoning,
            None => State::Content,
        };
        // White space between the parts of an answer is nobody's.
        if !is_blank {
            self.fresh = false;
            say(pieces, Piece::Content(before));
        }
        true
    }

    fn close(&mut self, section: Section, pieces: &mut Vec<Piece>) -> bool {
        let Some((at, marker)) = section.close.and_then(|close| self.find(&[close])) else {
            let undecided = section.close.map_or(0, str::len);
            let rest = self.rest();
            self.searched = rest.floor_char_boundary(rest.len().saturating_sub(undecided));
            return self.rest().len() > TOOL_CALL_BYTES && {
                self.state = State::Content;
                self.give_up(section.open, pieces)
            };
        };
        let body = self.take(at, marker.len());
        self.state = State::Content;
        self.calls(section, &body, marker, pieces);
        true
    }

    /// Too long for a call: text, and so is the marker before it. False, as all of it is gone.
    fn give_up(&mut self, marker: &str, pieces: &mut Vec<Piece>) -> bool {
        self.fresh = false;
        let rest = self.take(self.rest().len(), 0);
        say(pieces, Piece::Content(format!("{marker}{rest}")));
        false
    }

    /// The calls in a section, or its text where there are none.
    fn calls(&mut self, section: Section, body: &str, close: &str, pieces: &mut Vec<Piece>) {
        match self.dialect.calls(section, body, &self.tools) {
            Some(calls) => {
                self.fresh = true;
                pieces.extend(calls.into_iter().map(Piece::Call));
            }
            None => {
                self.fresh = false;
                say(pieces, Piece::Content(format!("{}{body}{close}", section.open)));
            }
        }
    }

    /// A whole answer that is one call without markers, or text.
    fn bare(&self, text: &str, pieces: &mut Vec<Piece>) {
        match llama::bare(text, &self.tools) {
            Some(calls) => pieces.extend(calls.into_iter().map(Piece::Call)),
            None => say(pieces, Piece::Content(text.into())),
        }
    }

    /// What is not decided yet.
    fn rest(&self) -> &str {
        &self.held[self.taken..]
    }

    /// The first of `markers` in what is not decided, the longer of two that begin in one place. One pass, however many
    /// there are: all begin with the same letter.
    fn find<'m>(&self, markers: &[&'m str]) -> Option<(usize, &'m str)> {
        let rest = self.rest();
        rest[self.searched..].match_indices('<').find_map(|(at, _)| {
            let here = &rest[self.searched + at..];
            let longest = markers.iter().filter(|marker| here.starts_with(**marker)).max_by_key(|marker| marker.len());
            longest.map(|marker| (self.searched + at, *marker))
        })
    }

    /// Gives away what cannot be the beginning of a marker.
    fn give(&mut self, markers: &[&str], pieces: &mut Vec<Piece>, piece: fn(String) -> Piece) {
        let keep = markers.iter().map(|marker| overlap(self.rest(), marker)).max().unwrap_or(0);
        let end = self.rest().len() - keep;
        if self.state == State::Content && self.fresh && end <= BLANK_BYTES && self.rest()[..end].trim().is_empty() {
            // White space before a marker is not the answer's; whether one comes is not known yet.
            self.searched = end;
            return;
        }
        let text = self.take(end, 0);
        if self.state == State::Content && !text.is_empty() {
            self.fresh = false;
        }
        say(pieces, piece(text));
    }

    /// Takes the text up to `at`, and leaves out `marker` bytes after it.
    fn take(&mut self, at: usize, marker: usize) -> String {
        let text = self.rest()[..at].to_owned();
        self.taken += at + marker;
        self.searched = 0;
        text
    }
}

/// Bytes at the end of `text` that are the beginning of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let most = marker.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&marker.as_bytes()[..n])).unwrap_or(0)
}

/// Adds a piece, joined to one of its kind before it; none that is empty.
fn say(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (_, Piece::Reasoning(text) | Piece::Content(text)) if text.is_empty() => {}
        (Some(Piece::Reasoning(before)), Piece::Reasoning(text))
        | (Some(Piece::Content(before)), Piece::Content(text)) => {
            before.push_str(&text);
        }
        (_, piece) => pieces.push(piece),
    }
}
