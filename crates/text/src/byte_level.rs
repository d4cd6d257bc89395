//! Byte-level BPE: a text is cut into pieces by the pre-tokenizer, and within a piece the tokens of single bytes are
//! merged in the order of the file's list of merges (Sennrich et al. 2016; GPT-2's bytes).

use std::sync::Arc;

use ahash::AHashMap;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use crate::merge::{Merged, Merger, NONE};
use crate::pre::{Pass, Pre};
use crate::spellings::Spellings;
use crate::vocabulary::{Kind, Merge, Vocabulary};
use crate::{TextError, bytes};

/// The model of one file.
#[derive(Debug)]
pub(crate) struct ByteLevel {
    passes: Vec<Pass>,
    composes: bool,
    /// The token of every byte, or [`NONE`].
    bytes: [u32; 256],
    merges: Merges,
    /// Where a piece that is a token as a whole is not merged.
    whole: Option<Whole>,
}

/// Finds pieces that are tokens.
#[derive(Debug)]
struct Whole {
    ids: Arc<Spellings>,
    kinds: Vec<Kind>,
}

/// What two tokens make, by both their ids.
pub(crate) type Merges = AHashMap<u64, Merged>;

impl ByteLevel {
    pub(crate) fn new(vocabulary: &Vocabulary<'_>, merges: &[Merge], pre: Pre) -> Result<Self, TextError> {
        let mut bytes = [NONE; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            let spelling = bytes::CHARS[byte].encode_utf8(&mut [0; 4]).to_owned();
            *id = vocabulary.ids.get(&spelling).unwrap_or(NONE);
        }
        Ok(Self {
            passes: pre.passes()?,
            composes: pre.composes(),
            bytes,
            merges: by_pair(vocabulary, merges),
            whole: pre.ignores_merges().then(|| Whole { ids: vocabulary.ids.clone(), kinds: vocabulary.kinds.clone() }),
        })
    }

    /// Appends the tokens of `text`, which holds no special token. A byte that no token spells is left out.
    pub(crate) fn encode(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.composes && !is_nfc(text) {
            let composed: String = text.nfc().collect();
            self.pieces(&composed, &self.passes, merger, ids);
        } else {
            self.pieces(text, &self.passes, merger, ids);
        }
    }

    /// Cuts `text` by the first of `passes`, its pieces by the rest, and merges within what is left.
    fn pieces(&self, text: &str, passes: &[Pass], merger: &mut Merger, ids: &mut Vec<u32>) {
        match passes.split_first() {
            Some((pass, rest)) => pass.pieces(text, &mut |piece| self.pieces(piece, rest, merger, ids)),
            None => self.piece(text.as_bytes(), merger, ids),
        }
    }

    fn piece(&self, piece: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if let Some(id) = self.whole.as_ref().and_then(|whole| whole.get(piece)) {
            ids.push(id);
            return;
        }
        merger.clear();
        for (at, byte) in piece.iter().enumerate() {
            let id = self.bytes[usize::from(*byte)];
            if id != NONE {
                merger.push(id, at, at + 1);
            }
        }
        merger.merge(|left, right| self.merges.get(&key(left.id, right.id)).copied());
        ids.extend(merger.symbols().map(|symbol| symbol.id));
    }
}

impl Whole {
    fn get(&self, piece: &[u8]) -> Option<u32> {
        let mut spelling = String::with_capacity(2 * piece.len());
        spelling.extend(piece.iter().map(|byte| bytes::CHARS[usize::from(*byte)]));
        let id = self.ids.get(&spelling)?;
        matches!(self.kinds[id as usize], Kind::Normal | Kind::Unused).then_some(id)
    }
}

/// Both ids in one.
pub(crate) fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The merges by their halves. One that makes a control token is left out, so that no text spells one; of two with the
/// same halves the first counts.
pub(crate) fn by_pair(vocabulary: &Vocabulary<'_>, merges: &[Merge]) -> Merges {
    let mut by_pair = Merges::with_capacity(merges.len());
    for (rank, [left, right, id]) in (0u32..).zip(merges) {
        if !vocabulary.kinds[*id as usize].is_control() {
            by_pair.entry(key(*left, *right)).or_insert(Merged { rank, id: *id });
        }
    }
    by_pair
}
