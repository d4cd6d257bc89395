//! Incremental detokenisation: text as soon as its characters are whole.

use crate::Tokenizer;

/// Turns tokens into text one by one. A character may be spread over several tokens; its bytes are held back until it
/// is whole, and never more than three of them, so a stream of any length costs linear time.
///
/// What all [`push`](Self::push)es and [`finish`](Self::finish) return, put together, is what
/// [`Tokenizer::decode`] returns for the same tokens.
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    control: bool,
    /// The bytes of a character that is not whole yet.
    held: Vec<u8>,
}

impl<'t> DecodeStream<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, control: false, held: Vec::new() }
    }

    /// Shows control tokens by their spelling too, for whoever parses them.
    #[must_use]
    pub fn with_control(mut self) -> Self {
        self.control = true;
        self
    }

    /// Takes one token; returns the text that is whole now, empty while a character is not. Bytes that are no UTF-8
    /// become U+FFFD. An id outside the vocabulary is nothing.
    pub fn push(&mut self, token: u32) -> String {
        if !self.control && self.tokenizer.is_control(token) {
            return String::new();
        }
        self.held.extend_from_slice(self.tokenizer.piece(token));
        let mut text = String::new();
        let whole = take_whole(&self.held, &mut text);
        self.held.drain(..whole);
        text
    }

    /// Ends the stream: a character that never became whole is one U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Appends to `text` all of `bytes` but a character at the end that may still become whole; returns how many bytes.
fn take_whole(bytes: &[u8], text: &mut String) -> usize {
    let mut at = 0;
    loop {
        let fault = match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(fault) => fault,
        };
        let (valid, _) = bytes[at..].split_at(fault.valid_up_to());
        text.push_str(&String::from_utf8_lossy(valid));
        at += valid.len();
        match fault.error_len() {
            Some(len) => {
                text.push(char::REPLACEMENT_CHARACTER);
                at += len;
            }
            None => return at,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::take_whole;

    proptest! {
        /// Any bytes, cut anywhere: the parts add up to what the standard library makes of the whole.
        #[test]
        fn cuts_do_not_matter(parts in prop::collection::vec(prop::collection::vec(
            prop_oneof![any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80)], 0..6), 0..12))
        {
            let (mut held, mut text) = (Vec::new(), String::new());
            for part in &parts {
                held.extend_from_slice(part);
                let whole = take_whole(&held, &mut text);
                held.drain(..whole);
                prop_assert!(held.len() <= 3);
            }
            text.push_str(&String::from_utf8_lossy(&held));
            prop_assert_eq!(text, String::from_utf8_lossy(&parts.concat()).into_owned());
        }
    }
}
