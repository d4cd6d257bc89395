//! The chat of `tombolo run` without a prompt: lines from the terminal, answers with the conversation so far in the
//! context.

use crate::commands::run::{Session, rendered};
use crate::error::{Error, input};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::output;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use tombolo_text::{ChatTemplate, Message, Tokenizer};

/// A terminal hands over this much of a line at most, without its end, and drops the rest.
const TERMINAL_LINE_BYTES: usize = 4095;

/// One side of the conversation speaks.
pub(crate) fn message(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into() }
}

/// A conversation.
pub(crate) struct Chat<'a> {
    session: Session,
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    messages: Vec<Message>,
}

impl<'a> Chat<'a> {
    pub(crate) fn new(
        session: Session,
        tokenizer: &'a Tokenizer,
        template: ChatTemplate,
        system: Option<String>,
    ) -> Self {
        let messages = system.iter().map(|text| message("system", text)).collect();
        Self { session, tokenizer, template, messages }
    }

    /// Talks until the input ends.
    pub(crate) fn talk(&mut self) -> Result<ExitCode, Error> {
        output::say(
            "Write a message; /clear forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C ends an answer.",
        );
        let first = self.messages.len();
        loop {
            let Some(line) = ask()? else { return Ok(ExitCode::SUCCESS) };
            let Line::Whole(line) = line else {
                input(format!(
                    "the terminal cut this line at {TERMINAL_LINE_BYTES} bytes, so it was not sent: give long texts in a \
                     file on standard input"
                ))
                .print();
                continue;
            };
            match line.trim() {
                "" => {}
                "/exit" => return Ok(ExitCode::SUCCESS),
                "/clear" => self.messages.truncate(first),
                text => self.reply(text)?,
            }
        }
    }

    /// Answers one message. What does not fit the context is refused, and the conversation stays as it was; so it does
    /// where an interrupt came before the answer.
    fn reply(&mut self, text: &str) -> Result<(), Error> {
        self.messages.push(message("user", text));
        let gguf = self.session.loaded.gguf.clone();
        let answer = rendered(&gguf, &self.template, self.tokenizer, &self.messages)
            .and_then(|ids| self.session.answer(&ids, Some(self.tokenizer), true));
        match answer {
            Ok(report) => {
                if report.was_interrupted() && report.is_empty() {
                    self.messages.pop();
                } else {
                    self.messages.push(message("assistant", report.text()));
                }
                report.print_summary();
                Ok(())
            }
            Err(wrong @ Error::Input(_)) => {
                wrong.print();
                self.messages.pop();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// A line from the terminal.
enum Line {
    Whole(String),
    /// The terminal has probably dropped its end.
    Cut,
}

/// The next line; `None` where the input ended.
fn ask() -> Result<Option<Line>, Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(b"> ").and_then(|()| out.flush())?;
    drop(out);
    let mut line = Vec::new();
    let mut stdin = std::io::stdin().lock();
    loop {
        let chunk = stdin.fill_buf().map_err(|e| input(format!("standard input: {e}")))?;
        let end = chunk.iter().position(|&b| b == b'\n');
        let taken = end.map_or(chunk.len(), |n| n + 1);
        line.extend_from_slice(&chunk[..taken]);
        let is_over = end.is_some() || chunk.is_empty();
        stdin.consume(taken);
        if line.len() > MESSAGE_BYTES_MAX {
            return Err(input(format!("a message has at most {MESSAGE_BYTES_MAX} bytes")));
        }
        if is_over {
            let is_cut = line.strip_suffix(b"\n").is_some_and(|text| text.len() == TERMINAL_LINE_BYTES);
            let whole = || Line::Whole(String::from_utf8_lossy(&line).into_owned());
            return Ok((!line.is_empty()).then(|| if is_cut { Line::Cut } else { whole() }));
        }
    }
}
