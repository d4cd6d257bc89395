//! Pre-tokenizers: how a text is cut into the pieces that BPE merges within. One rule per name in `tokenizer.ggml.pre`.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word behind it.
//! That look-ahead needs a backtracking engine, which is quadratic or gives up on long runs. Here the pattern ends in
//! `\s+` and [`Pass::pieces`] hands the last character back, so a linear-time engine does.

use regex::Regex;

use crate::TextError;

/// A pre-tokenizer by the name that files give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pre {
    /// Single digits first, then GPT-2's words (SmolLM, SmolLM2).
    Smollm,
    /// Llama 3: digits in threes; a piece that is a token is not merged.
    LlamaBpe,
    /// Qwen 2, 2.5 and 3: single digits, text in NFC.
    Qwen2,
}

/// The names that files use, for messages.
pub(crate) const SUPPORTED: &str = "smollm, llama-bpe (llama3, llama-v3), qwen2";

/// GPT-2's words, without the look-ahead.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Llama 3's and Qwen 2's words, without the look-ahead; they differ in how digits are grouped.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

impl Pre {
    /// The rule that a file names.
    pub(crate) fn from_name(name: &str) -> Result<Self, TextError> {
        match name {
            "smollm" => Ok(Self::Smollm),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(Self::LlamaBpe),
            "qwen2" => Ok(Self::Qwen2),
            _ => Err(TextError::UnsupportedPre { pre: crate::error::shorten(name), supported: SUPPORTED.to_owned() }),
        }
    }

    /// Whether a piece that is a token as a whole is taken as it is, even where merges would not reach it.
    pub(crate) fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether text starts with the BOS token where the file does not say.
    pub(crate) fn adds_bos(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether text is put in Unicode's composed form (NFC) first.
    pub(crate) fn composes(self) -> bool {
        self == Self::Qwen2
    }

    /// The passes, each cutting the pieces of the one before.
    pub(crate) fn passes(self) -> Result<Vec<Pass>, TextError> {
        match self {
            Self::Smollm => Ok(vec![Pass::new(r"\p{N}", Hand::Never)?, Pass::new(GPT2, Hand::Always)?]),
            Self::LlamaBpe => Ok(vec![Pass::new(words!(r"\p{N}{1,3}"), Hand::UnlessLine)?]),
            Self::Qwen2 => Ok(vec![Pass::new(words!(r"\p{N}"), Hand::UnlessLine)?]),
        }
    }
}

/// When a run of white space hands its last character back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Never,
    Always,
    /// A run that ends in a line break was matched by `\s*[\r\n]+`, which keeps it whole.
    UnlessLine,
}

/// One pattern over a text.
#[derive(Debug)]
pub(crate) struct Pass {
    pattern: Regex,
    hand: Hand,
}

impl Pass {
    fn new(pattern: &str, hand: Hand) -> Result<Self, TextError> {
        let pattern = Regex::new(pattern).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        Ok(Self { pattern, hand })
    }

    /// Calls `each` with the pieces of `text` in order; together they are the whole text.
    pub(crate) fn pieces<'t>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut at = 0;
        while at < text.len() {
            let Some(found) = self.pattern.find_at(text, at) else { return each(&text[at..]) };
            if found.start() > at {
                each(&text[at..found.start()])?;
            }
            let end = found.start() + self.kept(found.as_str(), found.end() == text.len());
            each(&text[found.start()..end])?;
            at = end;
        }
        Ok(())
    }

    /// How many bytes of a match stay in the piece, never none.
    fn kept(&self, found: &str, at_end: bool) -> usize {
        if at_end || self.hand == Hand::Never {
            return found.len();
        }
        let Some(last) = found.chars().next_back().filter(|c| c.is_whitespace()) else { return found.len() };
        let rest = found.len() - last.len_utf8();
        let keeps_line = self.hand == Hand::UnlessLine && matches!(last, '\r' | '\n');
        // Only the last alternative ends in white space other than a line break, and it matches nothing else.
        if rest == 0 || keeps_line || !found.starts_with(char::is_whitespace) { found.len() } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pre: Pre, text: &str) -> Vec<&str> {
        let mut pieces = vec![text];
        for pass in pre.passes().unwrap() {
            let mut next = Vec::new();
            for piece in pieces {
                pass.pieces(piece, &mut |p| {
                    next.push(p);
                    Ok(())
                })
                .unwrap();
            }
            pieces = next;
        }
        pieces
    }

    #[track_caller]
    fn check(pre: Pre, text: &str, pieces: &[&str]) {
        assert_eq!(cut(pre, text), pieces, "{pre:?} on {text:?}");
    }

    #[test]
    fn white_space_leaves_one_character_to_the_word_behind() {
        for pre in [Pre::Smollm, Pre::LlamaBpe, Pre::Qwen2] {
            check(pre, "a   b", &["a", "  ", " b"]);
            check(pre, "a   ", &["a", "   "]);
            check(pre, "   ", &["   "]);
            check(pre, "\u{3000}x", if pre == Pre::Smollm { &["\u{3000}", "x"] } else { &["\u{3000}x"] });
        }
        check(Pre::Smollm, "a\n\nb", &["a", "\n", "\n", "b"]);
        check(Pre::LlamaBpe, "a\n\nb", &["a", "\n\n", "b"]);
        check(Pre::Qwen2, "a \n \n  b", &["a", " \n \n", " ", " b"]);
        check(Pre::Qwen2, "x;\n\n\ty", &["x", ";\n\n", "\ty"]);
    }

    #[test]
    fn digits_group_as_each_model_wants() {
        check(Pre::Smollm, "in 12345", &["in", " ", "1", "2", "3", "4", "5"]);
        check(Pre::Qwen2, "in 123", &["in", " ", "1", "2", "3"]);
        check(Pre::LlamaBpe, "in 12345", &["in", " ", "123", "45"]);
    }

    #[test]
    fn a_cut_digit_ends_the_text_before_it() {
        // SmolLM's first pass isolates the digit, so the spaces before it are at their piece's end and stay together.
        check(Pre::Smollm, "a   1", &["a", "   ", "1"]);
        check(Pre::Qwen2, "a   1", &["a", "  ", " ", "1"]);
    }

    #[test]
    fn contractions() {
        check(Pre::Smollm, "we'LL we'll", &["we", "'", "LL", " we", "'ll"]);
        check(Pre::LlamaBpe, "we'LL we'll", &["we", "'LL", " we", "'ll"]);
    }
}
