//! A mask that never changes: some tokens are allowed, and no others.

use std::sync::Arc;
use tombolo_engine::Mask;

/// Which tokens are allowed.
#[derive(Clone, Debug)]
pub(crate) struct AllowedTokens {
    /// A bit per token, 32 to a word.
    words: Arc<[u32]>,
}

impl AllowedTokens {
    /// All ids are below `vocabulary`.
    pub(crate) fn new(ids: &[u32], vocabulary: usize) -> Self {
        let mut words = vec![0u32; vocabulary.div_ceil(32)];
        ids.iter().for_each(|&id| words[id as usize / 32] |= 1 << (id % 32));
        Self { words: words.into() }
    }
}

impl Mask for AllowedTokens {
    fn allowed(&mut self) -> Option<&[u32]> {
        Some(&self.words)
    }

    fn accept(&mut self, _token: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_stand_for_tokens() {
        let mut allowed = AllowedTokens::new(&[0, 33, 39], 40);
        assert_eq!(allowed.allowed(), Some([1, 0b1000_0010].as_slice()));
    }
}
