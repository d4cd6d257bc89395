//! A tokenizer as toktrie wants it. Control tokens, and those that end an answer, are no text: no grammar allows them but
//! by their name.

use crate::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// Longer tokens are never allowed: a trie has room for paths of a thousand bytes.
const TOKEN_BYTES: usize = 512;

/// What must come is cut into tokens so far.
const FORCED_BYTES: usize = 512;

/// See the module's head.
pub(super) struct Vocabulary {
    tokenizer: &'static Tokenizer,
    trie: TokTrie,
}

impl Vocabulary {
    /// The tokenizer has tokens that end an answer.
    ///
    /// # Panics
    /// The tokens make no trie: there are too many.
    pub(super) fn new(tokenizer: &'static Tokenizer) -> Self {
        let ends = tokenizer.end_of_generation();
        let word = |id: u32| {
            let piece = tokenizer.piece(id);
            match () {
                () if piece.is_empty() || piece.len() > TOKEN_BYTES => Vec::new(),
                () if tokenizer.is_control(id) || ends.contains(&id) => {
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat()
                }
                () => piece.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..tokenizer.vocabulary() as u32).map(word).collect();
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        Self { tokenizer, trie }
    }

    pub(super) fn into_env(self) -> TokEnv {
        Arc::new(self)
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Nothing is forced, the model chooses how what must come is cut: bytes that must come can be without end, as after
    /// `/x*/ "x"`, and would be collected before the first of them.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }

    /// Text in the middle of a text. What the tokenizer does not give back as it was is cut by the trie. A mask asks for
    /// the first token of what must come, however long that is, so not all of it is cut.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let mut end = bytes.len().min(FORCED_BYTES);
        while end < bytes.len() && bytes[end] & 0xc0 == 0x80 {
            end += 1;
        }
        let bytes = &bytes[..end];
        let encoded = std::str::from_utf8(bytes).ok().and_then(|text| self.tokenizer.encode_inside(text));
        encoded.unwrap_or_else(|| {
            let mut ids = self.trie.greedy_tokenize(bytes);
            // It skips bytes that no token has: what comes behind them does not come next.
            let mut rest = bytes;
            let spelt = ids.iter().take_while(|id| {
                let behind = rest.strip_prefix(self.tokenizer.piece(**id));
                rest = behind.unwrap_or(rest);
                behind.is_some()
            });
            let spelt = spelt.count();
            ids.truncate(spelt);
            ids
        })
    }
}
