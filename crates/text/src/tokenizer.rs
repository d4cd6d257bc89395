//! Text to tokens and back. How a text is merged is in `byte_level` and `sentencepiece`; what surrounds it is here, so
//! that control tokens cannot come out of plain text.

use tombolo_gguf::Metadata;

use crate::byte_level::ByteLevel;
use crate::matcher::Matcher;
use crate::merge::Merger;
use crate::pre::Pre;
use crate::sentencepiece::{SPACE, SentencePiece};
use crate::vocabulary::{Kind, Special, Vocabulary, byte_of};
use crate::{DecodeStream, Prompt, TextError, TextWarning, bytes, limits};

/// Tokens that end a turn or a text in some family of models, by spelling: files often name only one of theirs.
const END_TOKENS: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<EOT>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",
];
/// Phi's end of a turn; in vocabularies that have [`END_OF_CHANNEL`]'s others it only ends a part of one.
const END: &str = "<|end|>";
/// Harmony's end of a turn, where [`END`] is not.
const END_OF_CHANNEL: &str = "<|return|>";

/// The kinds of `tokenizer.ggml.model` that are known, for messages.
const MODELS: &str = "gpt2, llama, gemma4";

/// A tokenizer as a model file describes it.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    kinds: Vec<Kind>,
    /// The bytes of all tokens, one after the other.
    pieces: Vec<u8>,
    /// Where each token's bytes start in `pieces`, and one more for the end.
    starts: Vec<u32>,
    /// Tokens that are matched in any text.
    added: Matcher,
    /// Those and the control tokens.
    added_and_control: Matcher,
    /// Whether control tokens swallow the white space behind them.
    strips_behind_control: bool,
    special: Special,
    adds_bos: bool,
    ends: Vec<u32>,
    warnings: Vec<TextWarning>,
}

/// How text between special tokens is merged.
#[derive(Debug)]
enum Model {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// Reads the tokenizer of a model file: by `tokenizer.ggml.model` byte-level BPE (`gpt2`, cut as
    /// `tokenizer.ggml.pre` says) or SentencePiece (`llama`, by scores; `gemma4`, by merges).
    ///
    /// # Errors
    /// [`TextError::NoVocabulary`] if the file has none; another kind if it is unsupported or its counts, ids, scores or
    /// merges do not fit together. What works, but may not be as meant, is in [`warnings`](Self::warnings).
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TextError> {
        let (is_bytes, is_scored) = match metadata.str("tokenizer.ggml.model") {
            None | Some("none" | "no_vocab" | "") => return Err(TextError::NoVocabulary),
            Some("gpt2") => (true, false),
            Some("llama") => (false, true),
            Some("gemma4") => (false, false),
            Some(other) => {
                let model = crate::error::shorten(other);
                return Err(TextError::UnsupportedModel { model, supported: MODELS });
            }
        };
        let vocabulary = Vocabulary::read(metadata)?;
        let (mut adds_bos, mut warnings) = (is_scored, Vec::new());
        let model = if is_bytes {
            let pre = pre(metadata, &mut warnings);
            adds_bos = pre.adds_bos();
            Model::ByteLevel(ByteLevel::new(&vocabulary, &vocabulary.merges(metadata)?, pre)?)
        } else if is_scored {
            let prefix = metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            Model::SentencePiece(SentencePiece::by_scores(&vocabulary, &vocabulary.scores(metadata)?, prefix)?)
        } else {
            Model::SentencePiece(SentencePiece::by_merges(&vocabulary, &vocabulary.merges(metadata)?)?)
        };
        let (pieces, starts) = spell_out(&vocabulary, is_bytes)?;
        let special = vocabulary.special.clone();
        Ok(Self {
            model,
            pieces,
            starts,
            added: Matcher::new(&vocabulary, |kind| kind == Kind::UserDefined)?,
            added_and_control: Matcher::new(&vocabulary, |kind| kind == Kind::UserDefined || kind.is_control())?,
            strips_behind_control: is_scored && metadata.str("general.architecture") == Some("phi3"),
            adds_bos: metadata.bool("tokenizer.ggml.add_bos_token").unwrap_or(adds_bos),
            ends: ends(&vocabulary, &special),
            kinds: vocabulary.kinds,
            special,
            warnings,
        })
    }

    /// What of the file works, but may not be as its makers meant: to be shown to whoever loads it.
    pub fn warnings(&self) -> &[TextWarning] {
        &self.warnings
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
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        self.encode_part(text, special, true, &mut Merger::default(), &mut ids);
        Ok(ids)
    }

    /// The tokens of a rendered conversation: control tokens where the template spells them, and none where the
    /// conversation does.
    ///
    /// # Errors
    /// [`TextError::TooMany`] for a prompt beyond [`limits::TEXT_BYTES_MAX`].
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, TextError> {
        let (mut ids, mut merger) = (Vec::new(), Merger::default());
        let (mut bytes, mut first) = (0, true);
        for (part, outside) in prompt.parts() {
            bytes += part.len();
            if bytes > limits::TEXT_BYTES_MAX {
                let limit = limits::TEXT_BYTES_MAX;
                return Err(TextError::TooMany { what: "prompt, bytes", count: bytes, limit });
            }
            // What a template left of marked text, cut and moved, is no longer a whole token.
            let is_whole =
                || self.added_and_control.find(part).next().is_some_and(|(s, e, _)| (s, e) == (0, part.len()));
            first = self.encode_part(part, outside || !is_whole(), first, &mut merger, &mut ids);
        }
        Ok(ids)
    }

    /// The token that a text which is no rendered template starts with, where this model wants one.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos.filter(|_| self.adds_bos)
    }

    /// The text of `tokens`, without control tokens, as it goes on from a text before it. Bytes that are no UTF-8 become
    /// U+FFFD; an id outside the vocabulary is nothing.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let shown = tokens.iter().filter(|id| !self.is_control(**id));
        let bytes: Vec<u8> = shown.flat_map(|id| self.piece(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text of `tokens` that are a text from its beginning: [`decode`](Self::decode) without the space that some
    /// vocabularies put before it.
    pub fn decode_whole(&self, tokens: &[u32]) -> String {
        let mut text = self.decode(tokens);
        let is_prefixed = matches!(&self.model, Model::SentencePiece(model) if model.adds_prefix());
        if is_prefixed && text.starts_with(' ') {
            text.remove(0);
        }
        text
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
        self.kinds.get(token as usize).is_some_and(|kind| kind.is_control())
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

    /// The control token, or the one that ends an answer, that is spelt so.
    pub(crate) fn control_token(&self, spelling: &str) -> Option<u32> {
        let is_spelt = |id: &u32| self.piece(*id) == spelling.as_bytes();
        (0..self.vocabulary() as u32)
            .find(|id| is_spelt(id) && (self.is_control(*id) || self.is_end_of_generation(*id)))
    }

    /// The ids that the file names by key.
    pub(crate) fn special(&self) -> &Special {
        &self.special
    }

    /// What finds control tokens.
    pub(crate) fn control(&self) -> Result<Matcher, TextError> {
        let ids = (0u32..).zip(&self.kinds).filter(|(_, kind)| kind.is_control());
        Matcher::of(ids.map(|(id, _)| (id, self.piece(id))).filter(|(_, spelling)| !spelling.is_empty()))
    }

    /// The spelling of a token, for templates.
    pub(crate) fn spelling(&self, token: u32) -> String {
        String::from_utf8_lossy(self.piece(token)).into_owned()
    }

    /// Encodes text; with `first`, text at the beginning or behind a special token. Returns whether what comes next is.
    fn encode_part(&self, text: &str, special: bool, first: bool, merger: &mut Merger, ids: &mut Vec<u32>) -> bool {
        let matcher = if special { &self.added_and_control } else { &self.added };
        let (mut at, mut first) = (0, first);
        for (start, end, id) in matcher.find(text) {
            // White space that a control token swallowed can hold a token of its own.
            if start < at {
                continue;
            }
            self.encode_plain(&text[at..start], first, merger, ids);
            ids.push(id);
            // Tokens added by hand are part of their text, so no space is put behind them.
            (at, first) = (end, self.is_control(id));
            if self.strips_behind_control && self.is_control(id) {
                at = text.len() - text[end..].trim_ascii_start().len();
            }
        }
        self.encode_plain(&text[at..], first, merger, ids);
        first && at == text.len()
    }

    /// Encodes text between special tokens; with `first`, text at the beginning or behind such a token.
    fn encode_plain(&self, text: &str, first: bool, merger: &mut Merger, ids: &mut Vec<u32>) {
        match &self.model {
            Model::ByteLevel(model) => model.encode(text, merger, ids),
            Model::SentencePiece(model) => model.encode(text, first, merger, ids),
        }
    }
}

/// The rule that the file names, or what stands in for it, with a warning.
fn pre(metadata: &Metadata, warnings: &mut Vec<TextWarning>) -> Pre {
    let name = metadata.str("tokenizer.ggml.pre").unwrap_or("");
    Pre::from_name(name).unwrap_or_else(|| {
        let (used, rule) = Pre::fallback();
        warnings.push(TextWarning::UnknownPre { pre: crate::error::shorten(name), used });
        rule
    })
}

/// The bytes of all tokens, and where each starts.
fn spell_out(vocabulary: &Vocabulary<'_>, is_bytes: bool) -> Result<(Vec<u8>, Vec<u32>), TextError> {
    let (mut pieces, mut starts) = (Vec::new(), Vec::with_capacity(vocabulary.tokens.len() + 1));
    starts.push(0);
    for ((id, token), kind) in (0u32..).zip(vocabulary.tokens).zip(&vocabulary.kinds) {
        match kind {
            Kind::Byte => match byte_of(id, token) {
                Ok(byte) => pieces.push(byte),
                Err(_) => bytes::unspell(token, &mut pieces),
            },
            Kind::Normal | Kind::Unused if is_bytes => bytes::unspell(token, &mut pieces),
            Kind::Normal | Kind::Unused => {
                for (at, part) in token.split(SPACE).enumerate() {
                    pieces.extend_from_slice(if at > 0 { b" " } else { b"" });
                    pieces.extend_from_slice(part.as_bytes());
                }
            }
            Kind::UserDefined | Kind::Control | Kind::Unknown => pieces.extend_from_slice(token.as_bytes()),
        }
        let too_many =
            |_| TextError::TooMany { what: "all tokens, bytes", count: pieces.len(), limit: u32::MAX as usize };
        starts.push(u32::try_from(pieces.len()).map_err(too_many)?);
    }
    Ok((pieces, starts))
}

fn ends(vocabulary: &Vocabulary<'_>, special: &Special) -> Vec<u32> {
    let named = [special.eos, special.eot, special.eom].into_iter().flatten();
    // Text that merely spells an end, as a token that is shown, ends nothing.
    let by_spelling = |spelling: &&str| {
        let id = vocabulary.ids.get(spelling)?;
        let kind = vocabulary.kinds[id as usize];
        (kind.is_control() || kind == Kind::UserDefined).then_some(id)
    };
    let known = END_TOKENS.iter().filter_map(by_spelling);
    let end = if vocabulary.ids.get(END_OF_CHANNEL).is_some() { None } else { by_spelling(&END) };
    let mut ends: Vec<u32> = named.chain(known).chain(end).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
