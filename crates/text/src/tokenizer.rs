//! Text to tokens and back: byte-level BPE. The `tokenizers` crate merges; what surrounds it is here, so that control
//! tokens cannot come out of plain text and no text takes more than linear time to cut.

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model;
use tokenizers::models::bpe::BPE;
use tombolo_gguf::Metadata;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::pre::{Pass, Pre};
use crate::vocabulary::{Kind, Special, Vocabulary};
use crate::{DecodeStream, TextError, bytes, limits};

/// Tokens that end a turn or a text in some family of models, by spelling: files often name only one of theirs.
const END_TOKENS: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
];

/// A tokenizer as a model file describes it.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: BPE,
    passes: Vec<Pass>,
    composes: bool,
    kinds: Vec<Kind>,
    /// The bytes of all tokens, one after the other.
    pieces: Vec<u8>,
    /// Where each token's bytes start in `pieces`, and one more for the end.
    starts: Vec<u32>,
    /// Tokens that are matched in any text.
    added: Matcher,
    /// Those and the control tokens.
    added_and_control: Matcher,
    special: Special,
    adds_bos: bool,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model file: `tokenizer.ggml.model` `gpt2` with one of the pre-tokenizers `smollm`,
    /// `llama-bpe` (also `llama3`, `llama-v3`) and `qwen2`.
    ///
    /// # Errors
    /// [`TextError::NoVocabulary`] if the file has none; another kind if it is unsupported or its counts, ids or merges
    /// do not fit together.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TextError> {
        match metadata.str("tokenizer.ggml.model") {
            None | Some("none" | "no_vocab" | "") => return Err(TextError::NoVocabulary),
            Some("gpt2") => {}
            Some(other) => return Err(TextError::UnsupportedModel { model: crate::error::shorten(other) }),
        }
        let pre = Pre::from_name(metadata.str("tokenizer.ggml.pre").unwrap_or(""))?;
        let vocabulary = Vocabulary::read(metadata)?;
        let (pieces, starts) = spell_out(&vocabulary)?;
        let special = vocabulary.special.clone();
        Ok(Self {
            bpe: bpe(&vocabulary, pre)?,
            passes: pre.passes()?,
            composes: pre.composes(),
            pieces,
            starts,
            added: Matcher::new(&vocabulary, |kind| kind == Kind::UserDefined)?,
            added_and_control: Matcher::new(&vocabulary, |kind| {
                matches!(kind, Kind::UserDefined | Kind::Control | Kind::Unknown)
            })?,
            adds_bos: metadata.bool("tokenizer.ggml.add_bos_token").unwrap_or(pre.adds_bos()),
            ends: ends(&vocabulary, &special),
            kinds: vocabulary.kinds,
            special,
        })
    }

    /// How many tokens there are; ids are below.
    pub fn vocabulary(&self) -> usize {
        self.kinds.len()
    }

    /// The tokens of `text`. With `special`, the spelling of a control token (`<|im_start|>`) becomes that token, as
    /// rendered chat templates need; without, it is text like any other and no control token can come out. Tokens that
    /// the model's makers added by hand are matched in either case.
    ///
    /// A BOS token is never added here; see [`bos`](Self::bos). Bytes that the vocabulary has no token for are left
    /// out, as the reference does.
    ///
    /// # Errors
    /// [`TextError::TooMany`] for a text beyond [`limits::TEXT_BYTES_MAX`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        if text.len() > limits::TEXT_BYTES_MAX {
            let (count, limit) = (text.len(), limits::TEXT_BYTES_MAX);
            return Err(TextError::TooMany { what: "text to encode, bytes", count, limit });
        }
        let matcher = if special { &self.added_and_control } else { &self.added };
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        let mut at = 0;
        for (start, end, id) in matcher.find(text) {
            self.encode_plain(&text[at..start], &mut ids)?;
            ids.push(id);
            at = end;
        }
        self.encode_plain(&text[at..], &mut ids)?;
        Ok(ids)
    }

    /// The token that a text which is no rendered template starts with, where this model wants one.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos.filter(|_| self.adds_bos)
    }

    /// The text of `tokens`, without control tokens. Bytes that are no UTF-8 become U+FFFD; an id outside the
    /// vocabulary is nothing.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let shown = tokens.iter().filter(|id| !self.is_control(**id));
        let bytes: Vec<u8> = shown.flat_map(|id| self.piece(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of one token, control tokens by their spelling; empty for an id outside the vocabulary.
    pub fn piece(&self, token: u32) -> &[u8] {
        let at = token as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(start), Some(end)) => &self.pieces[*start as usize..*end as usize],
            _ => &[],
        }
    }

    /// Whether a token steers the model and is not shown to people.
    pub fn is_control(&self, token: u32) -> bool {
        matches!(self.kinds.get(token as usize), Some(Kind::Control | Kind::Unknown))
    }

    /// Whether the model ends its turn or its text with this token.
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// The tokens that end a generation, ascending: the file's `eos`, `eot` and `eom`, and those known by spelling.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.ends
    }

    /// Starts incremental detokenisation.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    /// The ids that the file names by key.
    pub(crate) fn special(&self) -> &Special {
        &self.special
    }

    /// The spelling of a token, for templates.
    pub(crate) fn spelling(&self, token: u32) -> String {
        String::from_utf8_lossy(self.piece(token)).into_owned()
    }

    /// Encodes text between special tokens.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.composes && !is_nfc(text) {
            let composed: String = text.nfc().collect();
            return self.encode_pieces(&composed, &self.passes, &mut String::new(), ids);
        }
        self.encode_pieces(text, &self.passes, &mut String::new(), ids)
    }

    /// Cuts `text` by the first of `passes`, its pieces by the rest, and merges within what is left.
    fn encode_pieces(
        &self,
        text: &str,
        passes: &[Pass],
        spelled: &mut String,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let Some((pass, rest)) = passes.split_first() else {
            bytes::spell(text, spelled);
            let tokens = self.bpe.tokenize(spelled).map_err(|e| TextError::Tokenizer(e.to_string()))?;
            ids.extend(tokens.iter().map(|token| token.id));
            return Ok(());
        };
        pass.pieces(text, &mut |piece| self.encode_pieces(piece, rest, spelled, ids))
    }
}

/// The merging model. Control tokens are not part of it, so that no text spells one, unless merges are made of them.
fn bpe(vocabulary: &Vocabulary<'_>, pre: Pre) -> Result<BPE, TextError> {
    let spelling = |id: u32| vocabulary.tokens[id as usize].clone();
    let mut merged = vec![false; vocabulary.tokens.len()];
    for id in vocabulary.merges.iter().flatten() {
        merged[*id as usize] = true;
    }
    let merges = vocabulary.merges.iter().map(|[left, right, _]| (spelling(*left), spelling(*right))).collect();
    let textual = |id: u32| match vocabulary.kinds[id as usize] {
        Kind::Control | Kind::Unknown => merged[id as usize],
        _ => true,
    };
    let ids = vocabulary.ids.iter().filter(|(_, id)| textual(**id));
    let ids: AHashMap<String, u32> = ids.map(|(spelling, id)| ((*spelling).to_owned(), *id)).collect();
    BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(pre.ignores_merges())
        .build()
        .map_err(|e| TextError::Tokenizer(e.to_string()))
}

/// The bytes of all tokens, and where each starts.
fn spell_out(vocabulary: &Vocabulary<'_>) -> Result<(Vec<u8>, Vec<u32>), TextError> {
    let (mut pieces, mut starts) = (Vec::new(), vec![0]);
    for (token, kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
        match (kind, byte_token(token)) {
            (Kind::Byte, Some(byte)) => pieces.push(byte),
            (Kind::Normal | Kind::Unused | Kind::Byte, _) => bytes::unspell(token, &mut pieces),
            (Kind::Control | Kind::UserDefined | Kind::Unknown, _) => pieces.extend_from_slice(token.as_bytes()),
        }
        let too_many =
            |_| TextError::TooMany { what: "all tokens, bytes", count: pieces.len(), limit: u32::MAX as usize };
        starts.push(u32::try_from(pieces.len()).map_err(too_many)?);
    }
    Ok((pieces, starts))
}

/// The byte of a token spelled `<0x41>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn ends(vocabulary: &Vocabulary<'_>, special: &Special) -> Vec<u32> {
    let named = [special.eos, special.eot, special.eom].into_iter().flatten();
    let known = END_TOKENS.iter().filter_map(|spelling| vocabulary.ids.get(spelling).copied());
    let mut ends: Vec<u32> = named.chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Finds tokens by their spelling, the longest at the leftmost place.
#[derive(Debug)]
struct Matcher {
    /// None where there is nothing to find.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Matcher {
    fn new(vocabulary: &Vocabulary<'_>, wanted: impl Fn(Kind) -> bool) -> Result<Self, TextError> {
        let tokens = (0u32..).zip(vocabulary.tokens).zip(&vocabulary.kinds);
        let found = tokens.filter(|((_, token), kind)| wanted(**kind) && !token.is_empty());
        let (ids, spellings): (Vec<u32>, Vec<&String>) = found.map(|(token, _)| token).unzip();
        if ids.is_empty() {
            return Ok(Self { automaton: None, ids });
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&spellings);
        Ok(Self { automaton: Some(automaton.map_err(|e| TextError::Tokenizer(e.to_string()))?), ids })
    }

    /// Start, end and id of what is found.
    fn find(&self, text: &str) -> impl Iterator<Item = (usize, usize, u32)> {
        let found = self.automaton.iter().flat_map(move |a| a.find_iter(text.as_bytes()));
        found.map(|m| (m.start(), m.end(), self.ids[m.pattern().as_usize()]))
    }
}
