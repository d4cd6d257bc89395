//! What can be wrong with the text parts of a model file, or with a request to encode or render.

/// A fault in the vocabulary or template of a file, or a request beyond the limits. Each prints as one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TextError {
    /// The file has no vocabulary: its model speaks token ids only.
    #[error("this file has no vocabulary (tokenizer.ggml.model is absent or `none`): give token ids instead of text")]
    NoVocabulary,
    /// The kind of tokenizer is not known here.
    #[error("tokenizer.ggml.model `{model}` is not supported (supported: {supported})")]
    UnsupportedModel {
        /// What the file says.
        model: String,
        /// The kinds that are supported.
        supported: &'static str,
    },
    /// A key that the tokenizer needs is missing or has another type.
    #[error("metadata key `{key}` is missing or not {expected}")]
    Key {
        /// The key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A count in the file is beyond what is accepted.
    #[error("{what}: {count} is more than the {limit} accepted")]
    TooMany {
        /// What was counted, with its unit.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// An array with an entry for every token has more or fewer.
    #[error("{key} has {entries} entries for {tokens} tokens")]
    Length {
        /// The array's key.
        key: &'static str,
        /// Its entries.
        entries: usize,
        /// Entries of `tokenizer.ggml.tokens`.
        tokens: usize,
    },
    /// A token's score is not a number.
    #[error("token {id} has a score that is not a number")]
    Score {
        /// The token.
        id: u32,
    },
    /// A token that stands for a byte does not say which.
    #[error("token {id} ({spelling:?}) should be a byte, spelled as <0x00> to <0xFF>")]
    ByteToken {
        /// The token.
        id: u32,
        /// Its spelling, cut short if long.
        spelling: String,
    },
    /// A token's type is none of 1 to 6.
    #[error("token {id} has type {ty}; types are 1 to 6")]
    TokenType {
        /// The token.
        id: u32,
        /// Its type in the file.
        ty: i64,
    },
    /// Two ids have the same spelling.
    #[error("tokens {first} and {second} are both spelled {spelling:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The spelling, cut short if long.
        spelling: String,
    },
    /// A merge is not two tokens that make a third.
    #[error("merge {index} ({merge:?}) {fault}")]
    Merge {
        /// Its place in `tokenizer.ggml.merges`, from 0.
        index: usize,
        /// The merge, cut short if long.
        merge: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A special token's id lies outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {vocabulary} tokens")]
    SpecialId {
        /// The key that holds the id.
        key: &'static str,
        /// The id in the file.
        id: i64,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// The library that merges refused a text or the vocabulary.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The file has no chat template of the name asked for.
    #[error("the file has no chat template `{name}` (it has: {names})")]
    NoTemplate {
        /// The name asked for.
        name: String,
        /// The names that there are, with commas.
        names: String,
    },
    /// A setting for the template that is a variable with another meaning, or no variable at all.
    #[error("`{name}` cannot be set for a chat template")]
    Setting {
        /// The setting's name.
        name: String,
    },
    /// The template is not valid Jinja.
    #[error("tokenizer.chat_template does not parse: {0}")]
    TemplateSyntax(String),
    /// The template stopped by its own `raise_exception`, or used something that is not there.
    #[error("chat template failed: {0}")]
    Template(String),
    /// A template runs on a thread of its own, and there was none to be had.
    #[error("the system gives no thread to run the chat template on: {0}")]
    NoThread(String),
    /// The template asked for more work or memory than a template may.
    #[error(
        "chat template stopped: it asked for more than {fuel} units of work, so it never ends or grows without bound"
    )]
    TemplateFuel {
        /// The budget it had.
        fuel: u64,
    },
}

/// Something in a file that works, but not as its makers meant. It is there for whoever loads the file to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextWarning {
    /// The rule by which text is cut into words is not known here, or the file does not name it.
    #[error(
        "tokenizer.ggml.pre `{pre}` is not known: text is cut into words as for `{used}`, so some of it can become other \
         tokens than the model was trained on, and answers can be worse"
    )]
    UnknownPre {
        /// What the file says, empty if nothing.
        pre: String,
        /// The rule that is used instead.
        used: &'static str,
    },
}

/// A spelling short enough for one line.
pub(crate) fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
