//! The model as the server knows it: its names, and what turns text into tokens and back.

use tombolo_text::output::Dialect;
use tombolo_text::{ChatTemplate, Tokenizer};

/// A model that is served. It lives as long as the program.
#[derive(Debug)]
pub struct Model {
    /// What it is called: the first name is the one that answers bear.
    pub names: Vec<String>,
    /// Without one, prompts and answers are token ids.
    pub tokenizer: Option<Tokenizer>,
    /// For conversations.
    pub template: Option<ChatTemplate>,
    /// For conversations with tools, where the file has another one for them.
    pub tool_template: Option<ChatTemplate>,
    /// Tokens that a context holds.
    pub context: usize,
    /// Tokens that it knows.
    pub vocabulary: usize,
    /// Most tokens of an answer in a chat that says nothing of it; `None`: as many as fit.
    pub answer_tokens: Option<usize>,
}

impl Model {
    /// The name that answers bear.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// The template for a conversation.
    pub(crate) fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        self.tool_template.as_ref().filter(|_| with_tools).or(self.template.as_ref())
    }

    /// How its answers mark reasoning and calls.
    pub(crate) fn dialect(&self, with_tools: bool) -> Dialect {
        self.template(with_tools).map_or(Dialect::Plain, ChatTemplate::dialect)
    }

    /// Tokens that end an answer.
    pub(crate) fn ends(&self) -> &[u32] {
        self.tokenizer.as_ref().map_or(&[], Tokenizer::end_of_generation)
    }

    /// A token by itself; bytes that are no UTF-8 become U+FFFD.
    pub(crate) fn spelling(&self, token: u32) -> String {
        match &self.tokenizer {
            Some(tokenizer) => String::from_utf8_lossy(tokenizer.piece(token)).into_owned(),
            None => format!("{token} "),
        }
    }

    /// The bytes of a token.
    pub(crate) fn bytes(&self, token: u32) -> Vec<u8> {
        match &self.tokenizer {
            Some(tokenizer) => tokenizer.piece(token).to_vec(),
            None => format!("{token} ").into_bytes(),
        }
    }
}
