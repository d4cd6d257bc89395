//! SentencePiece's BPE: a whole text, its spaces spelled `▁`, starts as characters, and of all neighbours that make a
//! token those with the highest score are merged first (Kudo and Richardson 2018). What no token spells becomes the
//! tokens of its bytes, `<0x00>` to `<0xFF>`.
//!
//! `gemma4` vocabularies do the same by a list of merges instead of scores.

use std::sync::Arc;

use crate::TextError;
use crate::byte_level::{Merges, by_pair, key};
use crate::merge::{Merged, Merger, NONE, Symbol};
use crate::spellings::Spellings;
use crate::vocabulary::{Kind, Merge, Vocabulary, byte_of};

/// How a vocabulary spells a space.
pub(crate) const SPACE: char = '▁';

/// The model of one file.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    ids: Arc<Spellings>,
    kinds: Vec<Kind>,
    order: Order,
    /// The token of every byte, or [`NONE`].
    bytes: [u32; 256],
    unknown: Option<u32>,
    adds_prefix: bool,
    /// The longest token, in bytes.
    longest: usize,
    /// Whether no token holds a space behind another character, so that text can be cut there.
    cuts_at_spaces: bool,
}

/// Which merge comes first.
#[derive(Debug)]
enum Order {
    /// Every token's rank by its score.
    Scores(Vec<u32>),
    /// The file's list.
    Merges(Merges),
}

impl SentencePiece {
    /// By the scores of all tokens, the highest first.
    pub(crate) fn by_scores(vocabulary: &Vocabulary<'_>, scores: &[f32], adds_prefix: bool) -> Result<Self, TextError> {
        Self::new(vocabulary, Order::Scores(scores.iter().map(|score| rank(*score)).collect()), adds_prefix)
    }

    /// By a list of merges.
    pub(crate) fn by_merges(vocabulary: &Vocabulary<'_>, merges: &[Merge]) -> Result<Self, TextError> {
        Self::new(vocabulary, Order::Merges(by_pair(vocabulary, merges)), false)
    }

    fn new(vocabulary: &Vocabulary<'_>, order: Order, adds_prefix: bool) -> Result<Self, TextError> {
        let mut bytes = [NONE; 256];
        let (mut longest, mut cuts_at_spaces) = (0, true);
        for (id, token) in (0u32..).zip(vocabulary.tokens) {
            match vocabulary.kinds[id as usize] {
                Kind::Byte => bytes[usize::from(byte_of(id, token)?)] = id,
                Kind::Normal | Kind::UserDefined | Kind::Unused => {
                    longest = longest.max(token.len());
                    cuts_at_spaces &= !token.trim_start_matches(SPACE).contains(SPACE);
                }
                Kind::Control | Kind::Unknown => {}
            }
        }
        Ok(Self {
            ids: vocabulary.ids.clone(),
            kinds: vocabulary.kinds.clone(),
            order,
            bytes,
            unknown: vocabulary.special.unknown,
            adds_prefix,
            longest,
            cuts_at_spaces,
        })
    }

    /// The token that text of this spelling is: none that steers the model, and none that stands for a byte.
    fn token(&self, spelling: &str) -> Option<u32> {
        let id = self.ids.get(spelling)?;
        matches!(self.kinds[id as usize], Kind::Normal | Kind::UserDefined | Kind::Unused).then_some(id)
    }

    /// Whether a text starts with a space that it does not have.
    pub(crate) fn adds_prefix(&self) -> bool {
        self.adds_prefix
    }

    /// Appends the tokens of `text`, which holds no special token; with `first`, as the beginning of a text.
    pub(crate) fn encode(&self, text: &str, first: bool, merger: &mut Merger, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut spelled = String::with_capacity(text.len() + text.len() / 4 + SPACE.len_utf8());
        if first && self.adds_prefix {
            spelled.push(SPACE);
        }
        spelled.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut rest = spelled.as_str();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(self.cut(rest));
            self.piece(piece, merger, ids);
            rest = behind;
        }
    }

    /// Where the first part of a text ends that no merge leaves: before a space behind another character.
    fn cut(&self, text: &str) -> usize {
        if !self.cuts_at_spaces {
            return text.len();
        }
        let word = text.find(|c| c != SPACE).unwrap_or(text.len());
        text[word..].find(SPACE).map_or(text.len(), |at| word + at)
    }

    fn piece(&self, piece: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        for (at, c) in piece.char_indices() {
            let end = at + c.len_utf8();
            merger.push(self.token(&piece[at..end]).unwrap_or(NONE), at, end);
        }
        match &self.order {
            Order::Scores(ranks) => merger.merge(|left, right| self.by_score(piece, ranks, left, right)),
            Order::Merges(merges) => merger.merge(|left, right| merges.get(&key(left.id, right.id)).copied()),
        }
        for symbol in merger.symbols() {
            if symbol.id == NONE {
                self.spell(&piece.as_bytes()[symbol.start as usize..symbol.end as usize], ids);
            } else {
                ids.push(symbol.id);
            }
        }
    }

    fn by_score(&self, piece: &str, ranks: &[u32], left: &Symbol, right: &Symbol) -> Option<Merged> {
        let (start, end) = (left.start as usize, right.end as usize);
        if end - start > self.longest {
            return None;
        }
        let id = self.token(&piece[start..end])?;
        Some(Merged { rank: ranks[id as usize], id })
    }

    /// A character that has no token: its bytes, or the unknown token where the vocabulary has no bytes.
    fn spell(&self, bytes: &[u8], ids: &mut Vec<u32>) {
        if bytes.iter().all(|byte| self.bytes[usize::from(*byte)] != NONE) {
            ids.extend(bytes.iter().map(|byte| self.bytes[usize::from(*byte)]));
        } else {
            ids.extend(self.unknown);
        }
    }
}

/// A number that is the lower the higher the score: of a float's bits the sign says how the others count.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0 is 0
    if bits >> 31 == 1 { bits } else { !bits & 0x7fff_ffff }
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::MAX, 2.0, 1.0, 1e-30, 0.0, -1e-30, -1.0, -2.0, -1e9, f32::MIN];
        assert!(scores.windows(2).all(|two| rank(two[0]) < rank(two[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
