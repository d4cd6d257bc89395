//! Text: the tokenizer, incremental detokenisation and the chat template, all read from a model file's metadata.
//!
//! The metadata are untrusted input: every id, count and length in them is checked before anything is built on it, and
//! whatever a template does is metered. [`limits`] holds every bound.
//!
//! Not here: reading the file (`gguf`), and requests, stops or streaming (`engine` and above).
#![forbid(unsafe_code)]

mod byte_level;
mod bytes;
mod clock;
mod conversation;
mod error;
pub mod grammar;
mod json;
pub mod limits;
mod matcher;
mod merge;
mod meter;
pub mod output;
mod pre;
mod sentencepiece;
mod spellings;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use conversation::{Conversation, Message, Prompt};
pub use error::{TextError, TextWarning};
pub use stream::DecodeStream;
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
