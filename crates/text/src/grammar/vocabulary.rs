//! A tokenizer as toktrie wants it. Control tokens, and those that end an answer, are no text: no grammar allows them but
//! by their name.

use crate::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// Longer tokens are never allowed: a trie has room for paths of a thousand bytes.
const TOKEN_BYTES: usize = 512;

/// See the module's head.
pub(super) struct Vocabulary {
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
        Self { trie }
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

    /// Only what is forced would be cut here.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }
}
