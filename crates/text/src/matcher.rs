//! Tokens that are found in a text by their spelling, before anything is merged.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::TextError;
use crate::vocabulary::{Kind, Vocabulary};

/// Finds tokens by their spelling, the longest at the leftmost place.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    /// None where there is nothing to find.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Matcher {
    /// Of the tokens whose kind is `wanted`.
    pub(crate) fn new(vocabulary: &Vocabulary<'_>, wanted: impl Fn(Kind) -> bool) -> Result<Self, TextError> {
        let tokens = (0u32..).zip(vocabulary.tokens).zip(&vocabulary.kinds);
        let found = tokens.filter(|((_, token), kind)| wanted(**kind) && !token.is_empty());
        Self::of(found.map(|((id, token), _)| (id, token.as_bytes())))
    }

    /// Of tokens by id and spelling, none of them empty.
    pub(crate) fn of<'s>(tokens: impl Iterator<Item = (u32, &'s [u8])>) -> Result<Self, TextError> {
        let (ids, spellings): (Vec<u32>, Vec<&[u8]>) = tokens.unzip();
        if ids.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&spellings);
        Ok(Self { automaton: Some(automaton.map_err(|e| TextError::Tokenizer(e.to_string()))?), ids })
    }

    /// Start, end and id of what is found.
    pub(crate) fn find(&self, text: &str) -> impl Iterator<Item = (usize, usize, u32)> {
        let found = self.automaton.iter().flat_map(move |a| a.find_iter(text.as_bytes()));
        found.map(|m| (m.start(), m.end(), self.ids[m.pattern().as_usize()]))
    }
}
