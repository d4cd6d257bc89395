//! The vocabulary as the file gives it, checked: tokens and their types, merges, and the ids with a meaning.
//! How a text becomes tokens is not here but in `byte_level` and `sentencepiece`.

use std::sync::Arc;

use tombolo_gguf::{Metadata, Value};

use crate::error::shorten;
use crate::spellings::{Spellings, at_most};
use crate::{TextError, limits};

/// What a token is for; the numbers are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    /// Steers the model; matched in a text only on request, and not shown to people.
    Control,
    /// Added to the vocabulary by hand: always matched verbatim, shown.
    UserDefined,
    Unused,
    /// Stands for one byte that no other token spells.
    Byte,
}

impl Kind {
    /// Whether a token steers the model and is not shown to people.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    fn from_id(id: i64) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// A merge: the ids of its two halves and of what they make. Its place in the list is its rank.
pub(crate) type Merge = [u32; 3];

/// The fewest merges that are worth a thread of their own.
const MERGES_PER_THREAD: usize = 1 << 15;

/// The vocabulary of one file.
#[derive(Debug)]
pub(crate) struct Vocabulary<'f> {
    /// Spellings by id.
    pub(crate) tokens: &'f [String],
    /// Kinds by id; all normal where the file does not say.
    pub(crate) kinds: Vec<Kind>,
    /// Ids by spelling.
    pub(crate) ids: Arc<Spellings>,
    /// Ids with a meaning.
    pub(crate) special: Special,
}

/// The ids of the tokens that a file names by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Special {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
    pub(crate) eom: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) padding: Option<u32>,
}

impl<'f> Vocabulary<'f> {
    /// Reads and checks what every kind of tokenizer has.
    pub(crate) fn read(metadata: &'f Metadata) -> Result<Self, TextError> {
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")
            .ok_or(TextError::Key { key: "tokenizer.ggml.tokens", expected: "an array of strings" })?;
        at_most("tokenizer.ggml.tokens, entries", tokens.len(), limits::VOCABULARY_TOKENS_MAX)?;
        let ids = Arc::new(Spellings::new(tokens)?);
        Ok(Self { tokens, kinds: kinds(metadata, tokens.len())?, ids, special: Special::read(metadata, tokens.len())? })
    }

    /// The merges, best first.
    pub(crate) fn merges(&self, metadata: &Metadata) -> Result<Vec<Merge>, TextError> {
        merges(metadata, &self.ids)
    }

    /// The score of every token.
    pub(crate) fn scores(&self, metadata: &Metadata) -> Result<Vec<f32>, TextError> {
        const KEY: &str = "tokenizer.ggml.scores";
        let scores = metadata.f32s(KEY).ok_or(TextError::Key { key: KEY, expected: "an array of numbers" })?;
        same_length(KEY, scores.len(), self.tokens.len())?;
        match (0u32..).zip(&scores).find(|(_, score)| score.is_nan()) {
            Some((id, _)) => Err(TextError::Score { id }),
            None => Ok(scores),
        }
    }
}

fn same_length(key: &'static str, entries: usize, tokens: usize) -> Result<(), TextError> {
    if entries == tokens { Ok(()) } else { Err(TextError::Length { key, entries, tokens }) }
}

/// The byte that token `id` stands for, spelled `<0x41>`.
pub(crate) fn byte_of(id: u32, token: &str) -> Result<u8, TextError> {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    let digits = digits.filter(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()));
    let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    byte.ok_or_else(|| TextError::ByteToken { id, spelling: shorten(token) })
}

fn kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<Kind>, TextError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    if metadata.get(KEY).is_none() {
        return Ok(vec![Kind::Normal; tokens]);
    }
    let types = metadata.i64s(KEY).ok_or(TextError::Key { key: KEY, expected: "an array of integers" })?;
    same_length(KEY, types.len(), tokens)?;
    let kind = |(id, ty)| Kind::from_id(ty).ok_or(TextError::TokenType { id, ty });
    (0u32..).zip(types).map(kind).collect()
}

fn merges(metadata: &Metadata, ids: &Spellings) -> Result<Vec<Merge>, TextError> {
    const KEY: &str = "tokenizer.ggml.merges";
    let lines = metadata.strings(KEY).ok_or(TextError::Key { key: KEY, expected: "an array of strings" })?;
    at_most("tokenizer.ggml.merges, entries", lines.len(), limits::MERGES_MAX)?;
    // Each asks for three tokens by spelling: long lists are shared out, so that a start takes less time.
    let parts = std::thread::available_parallelism().map_or(1, usize::from).min(lines.len() / MERGES_PER_THREAD).max(1);
    let per_part = lines.len().div_ceil(parts).max(1);
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (part, lines) in lines.chunks(per_part).enumerate() {
            let read = move || merges_of(lines, part * per_part, ids);
            let thread = std::thread::Builder::new().spawn_scoped(scope, read);
            running.push(thread.map_err(|_| read)); // without a thread it is read here
        }
        let mut merges = Vec::with_capacity(lines.len());
        for part in running {
            let part = match part {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(read) => read(),
            };
            merges.extend(part?);
        }
        Ok(merges)
    })
}

/// The merges that `lines` give, the first of them the one numbered `first`.
fn merges_of(lines: &[String], first: usize, ids: &Spellings) -> Result<Vec<Merge>, TextError> {
    let mut merged = String::new();
    let mut merge = |line: &str| {
        // The left half may itself be a space, so the first place for the separator is behind one character.
        let from = line.chars().next().map_or(0, char::len_utf8);
        let (left, right) = match line[from..].find(' ') {
            Some(at) => (&line[..from + at], &line[from + at + 1..]),
            None => return Err("has no space between its halves"),
        };
        let id = |half: &str| ids.get(half).ok_or("names a token that the vocabulary does not have");
        let (left_id, right_id) = (id(left)?, id(right)?);
        merged.clear();
        merged.push_str(left);
        merged.push_str(right);
        let whole = id(&merged).map_err(|_| "makes a token that the vocabulary does not have")?;
        Ok([left_id, right_id, whole])
    };
    let numbered = lines.iter().enumerate();
    let fault = |at: usize, line: &str, fault| TextError::Merge { index: first + at, merge: shorten(line), fault };
    numbered.map(|(at, line)| merge(line).map_err(|wrong| fault(at, line, wrong))).collect()
}

impl Special {
    fn read(metadata: &Metadata, vocabulary: usize) -> Result<Self, TextError> {
        let id = |key: &'static str| special_id(metadata, key, vocabulary);
        Ok(Self {
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            padding: id("tokenizer.ggml.padding_token_id")?,
        })
    }
}

fn special_id(metadata: &Metadata, key: &'static str, vocabulary: usize) -> Result<Option<u32>, TextError> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let id = match *value {
        Value::U8(id) => i64::from(id),
        Value::I8(id) => i64::from(id),
        Value::U16(id) => i64::from(id),
        Value::I16(id) => i64::from(id),
        Value::U32(id) => i64::from(id),
        Value::I32(id) => i64::from(id),
        Value::U64(id) => i64::try_from(id).unwrap_or(i64::MAX),
        Value::I64(id) => id,
        _ => return Err(TextError::Key { key, expected: "an integer" }),
    };
    // Some writers say "none" with -1, or with its 32 bits read as unsigned.
    if id == -1 || id == i64::from(u32::MAX) {
        return Ok(None);
    }
    match u32::try_from(id) {
        Ok(id) if (id as usize) < vocabulary => Ok(Some(id)),
        _ => Err(TextError::SpecialId { key, id, vocabulary }),
    }
}
