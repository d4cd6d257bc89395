//! An answer on its way to the reader: what the model thinks is told from what it says, and shown otherwise.

use crate::error::Error;
use std::io::{IsTerminal, Write};
use tombolo_text::output::{OutputParser, Piece, ToolCall};

/// Faint text, and back.
const FAINT: [&str; 2] = ["\x1b[2m", "\x1b[22m"];

/// Keeps an answer, and writes it through to standard output. Reasoning is faint on a terminal; where standard output is
/// none, it goes to standard error, so that a pipe brings the answer alone.
pub(crate) struct Writer {
    streaming: bool,
    /// Without one, all is text.
    parser: Option<OutputParser>,
    /// The answer's text.
    pub(crate) text: String,
    /// What was thought before it.
    pub(crate) reasoning: String,
    /// Calls of tools, in the order in which they came.
    pub(crate) calls: Vec<ToolCall>,
    is_terminal: bool,
    has_colour: bool,
    /// Whether the last that was written was reasoning.
    thinks: bool,
    pub(crate) failed: Option<std::io::Error>,
}

impl Writer {
    pub(crate) fn new(streaming: bool, parser: Option<OutputParser>) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let has_colour = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            streaming,
            parser,
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            is_terminal,
            has_colour,
            thinks: false,
            failed: None,
        }
    }

    /// Takes the next part of the answer.
    pub(crate) fn write(&mut self, part: &str) {
        match &mut self.parser {
            None => self.say(part),
            Some(parser) => {
                let pieces = parser.push(part);
                self.take(pieces);
            }
        }
    }

    /// The answer has ended.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        if let Some(parser) = self.parser.take() {
            self.take(parser.finish());
        }
        self.switch(false);
        if self.streaming && !self.text.ends_with('\n') {
            self.print("\n");
        }
        self.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.think(&text),
                Piece::Content(text) => self.say(&text),
                Piece::Call(call) => {
                    self.show(&call);
                    self.calls.push(call);
                }
            }
        }
    }

    fn think(&mut self, text: &str) {
        self.reasoning.push_str(text);
        self.switch(true);
        match self.is_terminal {
            true => self.print(text),
            false if self.streaming => {
                // Where it cannot be written to, there is nobody to tell.
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
            false => {}
        }
    }

    fn say(&mut self, text: &str) {
        // What separates the answer from the reasoning is not part of it.
        let text = if self.text.is_empty() && self.parser.is_some() { text.trim_start() } else { text };
        if !text.is_empty() {
            self.switch(false);
            self.text.push_str(text);
            self.print(text);
        }
    }

    /// A call of a tool, which nobody here can answer: it is shown and is no part of the text.
    fn show(&mut self, call: &ToolCall) {
        self.switch(false);
        let arguments = serde_json::Value::Object(call.arguments.clone());
        self.print(&format!("[calls {} with {arguments}]\n", call.name));
    }

    /// From reasoning to answer, or back.
    fn switch(&mut self, thinks: bool) {
        if self.thinks == thinks {
            return;
        }
        self.thinks = thinks;
        let streaming = self.streaming;
        match (self.is_terminal, thinks) {
            (true, true) if self.has_colour => self.print(FAINT[0]),
            (true, false) => {
                let back = if self.has_colour { FAINT[1] } else { "" };
                self.print(&format!("{back}\n\n"));
            }
            (false, false) if streaming => {
                let _ = std::io::stderr().write_all(b"\n");
            }
            _ => {}
        }
    }

    fn print(&mut self, text: &str) {
        if self.streaming && !text.is_empty() && self.failed.is_none() {
            let mut out = std::io::stdout().lock();
            self.failed = out.write_all(text.as_bytes()).and_then(|()| out.flush()).err();
        }
    }
}
