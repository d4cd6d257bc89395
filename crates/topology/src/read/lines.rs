//! A pasted text as clean lines: without colours, quoting marks, code fences and invisible characters, each with the
//! number that it has in the text. What the lines mean is not known here.

use super::error::{Fault, ReadError};
use crate::limits::{LINE_CHARS_MAX, LINES_MAX};

/// One line of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number, from 1.
    pub(crate) number: usize,
    /// The cleaned text. Tabs and leading spaces are kept.
    pub(crate) text: String,
    /// Whether it is the last and has no line end: its last word may be half of one.
    pub(crate) cut: bool,
}

impl Line {
    /// Its words.
    pub(crate) fn words(&self) -> Vec<&str> {
        self.text.split_whitespace().collect()
    }
}

/// The lines of a text.
pub(crate) fn lines(file: &str, text: &str) -> Result<Vec<Line>, ReadError> {
    let mut lines = Vec::new();
    let last = text.split('\n').count() - 1;
    for (at, raw) in text.split('\n').enumerate() {
        if at >= LINES_MAX {
            return Err(ReadError::new(file, None, Fault::TooMany { what: "lines", found: last + 1, most: LINES_MAX }));
        }
        lines.push(Line { number: at + 1, text: cleaned(raw), cut: at == last });
    }
    Ok(lines)
}

/// One line without what terminals, mail and chat add to it.
fn cleaned(raw: &str) -> String {
    let short: String = raw.chars().take(LINE_CHARS_MAX).collect();
    let mut text: String = without_escapes(&short)
        .chars()
        .filter(|c| *c == '\t' || !(c.is_control() || matches!(c, '\u{feff}' | '\u{200b}'..='\u{200f}')))
        .map(|c| if c == '\u{a0}' || c == '\u{2007}' || c == '\u{202f}' { ' ' } else { c })
        .collect();
    // Mail and forums quote with `>`, once for each level.
    while let Some(rest) = text.trim_start_matches(' ').strip_prefix('>') {
        text = rest.strip_prefix(' ').unwrap_or(rest).to_string();
    }
    if text.trim_start().starts_with("```") {
        text.clear();
    }
    text.truncate(text.trim_end().len());
    text
}

/// Without the sequences that set colours: `ESC [ … letter`, and what is left of them where the first character was
/// lost (`[4m`) or is shown as text (`^[[4m`).
fn without_escapes(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let intro = match chars[at..] {
            ['\u{1b}', '[', ..] => 2,
            ['^', '[', '[', ..] => 3,
            ['[', c, ..] if c.is_ascii_digit() => 1,
            _ => 0,
        };
        let end = (at + intro..chars.len()).find(|&i| !(chars[i].is_ascii_digit() || matches!(chars[i], ';' | '?')));
        match end {
            // A bare bracket is an escape only if it ends as a colour does: `[4m`, but not `[43-46]`.
            Some(end) if intro > 1 && chars[end].is_ascii_alphabetic() => at = end + 1,
            Some(end) if intro == 1 && chars[end] == 'm' => at = end + 1,
            _ => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_removed_and_content_is_kept() {
        let clean = [
            ("\t\u{1b}[4mGPU0\tGPU1\u{1b}[0m\r", "\tGPU0\tGPU1"),
            ("\t[4mGPU0\tGPU1\t[0m", "\tGPU0\tGPU1"),
            ("^[[4mGPU0 GPU1^[[0m", "GPU0 GPU1"),
            ("> > GPU0  X ", "GPU0  X"),
            (">GPU0", "GPU0"),
            ("```text", ""),
            ("GPU0\u{a0}\u{a0}X\u{200b}", "GPU0  X"),
            (" |  +-01.1-[41]----00.0-[42-46]--+-00.0", " |  +-01.1-[41]----00.0-[42-46]--+-00.0"),
            ("-[0000:00]-+-00.0", "-[0000:00]-+-00.0"),
            ("[m", "[m"),
            ("\u{1b}", ""),
            ("\u{1b}[", "["),
        ];
        for (raw, wanted) in clean {
            assert_eq!(cleaned(raw), wanted, "{raw:?}");
        }
    }

    #[test]
    fn numbers_count_from_one() {
        let found = lines("a", "x\r\n\ny").unwrap_or_default();
        let found: Vec<_> = found.iter().map(|l| (l.number, l.text.as_str())).collect();
        assert_eq!(found, [(1, "x"), (2, ""), (3, "y")]);
        assert!(lines("a", &"\n".repeat(LINES_MAX)).is_err());
    }
}
