//! The spellings of all tokens, and which token a spelling is. They lie one behind the other and the table holds ids only,
//! so that a look-up finds them in the processor's caches: a vocabulary's list of merges asks for a million.

use ahash::RandomState;
use hashbrown::HashTable;

use crate::error::shorten;
use crate::{TextError, limits};

/// Tokens by spelling. Those without one are in no table.
#[derive(Debug)]
pub(crate) struct Spellings {
    text: String,
    /// Where each token's spelling starts, and one more for the end.
    starts: Vec<u32>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Spellings {
    /// Of tokens in the order of their ids.
    pub(crate) fn new(tokens: &[String]) -> Result<Self, TextError> {
        let mut text = String::with_capacity(tokens.iter().map(String::len).sum());
        let mut starts = Vec::with_capacity(tokens.len() + 1);
        starts.push(0);
        for token in tokens {
            at_most("a token's spelling, bytes", token.len(), limits::TOKEN_BYTES_MAX)?;
            text.push_str(token);
            at_most("all tokens, bytes", text.len(), u32::MAX as usize)?;
            starts.push(text.len() as u32);
        }
        let ids = HashTable::with_capacity(tokens.len());
        let mut spellings = Self { text, starts, ids, hasher: RandomState::new() };
        spellings.fill()?;
        Ok(spellings)
    }

    fn fill(&mut self) -> Result<(), TextError> {
        let Self { text, starts, ids, hasher } = self;
        let of = |id: u32| &text[starts[id as usize] as usize..starts[id as usize + 1] as usize];
        for second in 0..starts.len() as u32 - 1 {
            let spelling = of(second);
            if spelling.is_empty() {
                continue; // a hole: nothing encodes to it, and it decodes to nothing
            }
            let hash = hasher.hash_one(spelling);
            if let Some(first) = ids.find(hash, |id| of(*id) == spelling) {
                return Err(TextError::DuplicateToken { first: *first, second, spelling: shorten(spelling) });
            }
            ids.insert_unique(hash, second, |id| hasher.hash_one(of(*id)));
        }
        Ok(())
    }

    /// The token of a spelling.
    pub(crate) fn get(&self, spelling: &str) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(spelling), |id| self.of(*id) == spelling).copied()
    }

    /// The spelling of a token of this vocabulary.
    fn of(&self, id: u32) -> &str {
        &self.text[self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize]
    }
}

/// Refuses a count beyond its limit.
pub(crate) fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), TextError> {
    if count > limit { Err(TextError::TooMany { what, count, limit }) } else { Ok(()) }
}
