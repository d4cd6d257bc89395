//! Masks: one that never changes, by which some tokens are allowed and no others, and one that follows a constraint.

use std::sync::{Arc, OnceLock};
use tombolo_engine::{Interrupt, Mask};
use tombolo_text::grammar::{Grammar, Interrupter, Matcher, Reasoning};

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

    fn is_fixed(&self) -> bool {
        true
    }
}

/// Why a constraint came to nothing, where it did; told by the engine's thread, read by who answers.
pub(crate) type Fault = Arc<OnceLock<String>>;

/// What a constraint allows, and of that the tokens that are allowed at all.
#[derive(Debug)]
pub(crate) struct Constrained {
    grammar: Arc<Grammar>,
    reasoning: Reasoning,
    /// Made with the first token: requests that wait have none.
    matcher: Option<Matcher>,
    interrupter: Arc<OnceLock<Interrupter>>,
    also: Option<AllowedTokens>,
    /// Tokens that end an answer, where it is not to end before it must.
    late: Option<AllowedTokens>,
    words: Vec<u32>,
    fault: Fault,
}

impl Constrained {
    pub(crate) fn new(
        grammar: Arc<Grammar>,
        reasoning: Reasoning,
        also: Option<AllowedTokens>,
        late: Option<AllowedTokens>,
        fault: Fault,
    ) -> Self {
        Self { grammar, reasoning, matcher: None, interrupter: Arc::default(), also, late, words: Vec::new(), fault }
    }

    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| {
            let matcher = self.grammar.matcher(self.reasoning);
            self.interrupter.get_or_init(|| matcher.interrupter());
            matcher
        })
    }
}

impl Mask for Constrained {
    fn allowed(&mut self) -> Option<&[u32]> {
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.extend_from_slice(self.matcher().allowed());
        self.words = words;
        if let Some(also) = &self.also {
            self.words.iter_mut().zip(also.words.iter()).for_each(|(word, also)| *word &= also);
        }
        if let Some(late) = &self.late {
            let without = |(word, late): (&u32, &u32)| word & !late;
            if self.words.iter().zip(late.words.iter()).any(|pair| without(pair) != 0) {
                self.words.iter_mut().zip(late.words.iter()).for_each(|(word, late)| *word &= !late);
            }
        }
        if self.words.iter().all(|word| *word == 0) {
            let why = self.matcher.as_ref().and_then(Matcher::fault);
            let why = why.unwrap_or("no token that it allows is among those that are allowed at all");
            // The first reason is the one.
            let _ = self.fault.set(why.to_string());
        }
        Some(&self.words)
    }

    fn accept(&mut self, token: u32) {
        self.matcher().accept(token);
    }

    fn interrupt(&mut self) -> Option<Interrupt> {
        let interrupter = self.interrupter.clone();
        Some(Box::new(move || interrupter.get().into_iter().for_each(Interrupter::interrupt)))
    }
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
