//! `tombolo run` without a prompt: lines from the terminal. With a chat template they are messages, answered with the
//! conversation so far in the context; without one each is the beginning of a text. The line editor is rustyline; what
//! is drawn and computed is [`Session`]'s.

use crate::commands::run::{Session, beginning, rendered};
use crate::error::{Error, failure, input};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::output;
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, config};
use std::process::ExitCode;
use tombolo_text::{ChatTemplate, Message, Tokenizer};

const HELP: &str = "\
/help           this list
/again          answer the last message anew
/system [TEXT]  set the system message, or take it away; the conversation starts anew
/clear          forget the conversation
/exit, Ctrl-D   end the chat
Ctrl-C          end the answer that is being written
Everything else is a message. The arrow keys bring earlier ones back.";

const HELP_WITHOUT_TEMPLATE: &str = "\
/help           this list
/again          go on with the last text anew
/exit, Ctrl-D   end
Ctrl-C          end the text that is being written
Everything else is the beginning of a text. The arrow keys bring earlier ones back.";

/// One side of the conversation speaks.
pub(crate) fn message(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into() }
}

/// A conversation, or texts one after the other.
pub(crate) struct Chat<'a> {
    session: Session,
    tokenizer: &'a Tokenizer,
    /// Without it every message is a text by itself.
    template: Option<ChatTemplate>,
    messages: Vec<Message>,
}

impl<'a> Chat<'a> {
    pub(crate) fn new(
        session: Session,
        tokenizer: &'a Tokenizer,
        template: Option<ChatTemplate>,
        system: Option<String>,
    ) -> Self {
        let messages = system.iter().map(|text| message("system", text)).collect();
        Self { session, tokenizer, template, messages }
    }

    /// Talks until the input ends.
    pub(crate) fn talk(&mut self) -> Result<ExitCode, Error> {
        let chats = self.template.is_some();
        let what = if chats { "Write a message" } else { "Write how a text begins, and the model goes on" };
        output::say(&format!("{what}; /help lists what else there is."));
        let settings = config::Builder::new().auto_add_history(true).build();
        let mut editor = DefaultEditor::with_config(settings).map_err(terminal)?;
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
                Err(ReadlineError::Interrupted) => {
                    output::say("/exit or Ctrl-D ends the chat");
                    continue;
                }
                Err(error) => return Err(terminal(error)),
            };
            if line.len() > MESSAGE_BYTES_MAX {
                input(format!("a message has at most {MESSAGE_BYTES_MAX} bytes")).print();
                continue;
            }
            let line = line.trim();
            let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match command {
                "" => {}
                "/exit" => return Ok(ExitCode::SUCCESS),
                "/help" => output::say(if chats { HELP } else { HELP_WITHOUT_TEMPLATE }),
                "/clear" if chats => self.forget(),
                "/system" if chats => self.set_system(rest.trim()),
                "/again" => self.again()?,
                unknown if is_command(unknown) => {
                    input(format!("there is no {}: /help lists what there is", output::one_line(unknown))).print();
                }
                _ => self.reply(line)?,
            }
        }
    }

    /// Keeps the system message only.
    fn forget(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    fn set_system(&mut self, text: &str) {
        self.messages.clear();
        if !text.is_empty() {
            self.messages.push(message("system", text));
        }
    }

    /// Takes the last answer back and asks again. With sampling it comes out otherwise: the draw goes on from a new seed.
    fn again(&mut self) -> Result<(), Error> {
        let Some(asked) = self.messages.iter().rposition(|m| m.role == "user") else {
            input("nothing was written yet").print();
            return Ok(());
        };
        let text = self.messages[asked].content.clone();
        self.messages.truncate(asked);
        self.session.sampling.seed = self.session.sampling.seed.wrapping_add(1);
        self.reply(&text)
    }

    /// Answers one message. What does not fit the context is refused, and the conversation stays as it was; so it does
    /// where an interrupt came before the answer.
    fn reply(&mut self, text: &str) -> Result<(), Error> {
        if self.template.is_none() {
            self.messages.clear();
        }
        self.messages.push(message("user", text));
        let gguf = self.session.loaded.gguf.clone();
        let question = match &self.template {
            Some(template) => rendered(&gguf, template, self.tokenizer, &self.messages, &self.session.tools),
            None => beginning(text, self.tokenizer),
        };
        let answer = question.and_then(|question| self.session.answer(&question, Some(self.tokenizer), true));
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

/// `/word`: a message may well begin with a path or a fraction.
fn is_command(word: &str) -> bool {
    word.strip_prefix('/').is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase()))
}

fn terminal(error: ReadlineError) -> Error {
    failure(format!("the terminal: {error}"))
}

#[cfg(test)]
mod tests {
    use super::is_command;

    #[test]
    fn paths_are_no_commands() {
        assert!(is_command("/quit"));
        assert!(!is_command("/etc/passwd") && !is_command("/") && !is_command("1/2") && !is_command("/2"));
    }
}
