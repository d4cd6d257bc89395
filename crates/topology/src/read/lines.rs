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
    let html = is_html(text);
    for (at, raw) in text.split('\n').enumerate() {
        if at >= LINES_MAX {
            return Err(ReadError::new(file, None, Fault::TooMany { what: "lines", found: last + 1, most: LINES_MAX }));
        }
        let text = if html { cleaned(&without_tags(raw)) } else { cleaned(raw) };
        lines.push(Line { number: at + 1, text, cut: at == last });
    }
    if let Some(bare) = without_numbers(&lines) {
        lines.iter_mut().zip(bare).for_each(|(line, text)| line.text = text);
    }
    for line in &mut lines {
        if let Some(text) = in_capitals(&line.text) {
            line.text = text;
        }
    }
    Ok(lines)
}

/// Whether a text is a piece of a web page.
pub(crate) fn is_html(text: &str) -> bool {
    let start: String = text.chars().take(LINE_CHARS_MAX).collect::<String>().to_ascii_lowercase();
    ["<pre", "<code", "<html", "<!doctype html", "<div", "<span", "<p>", "<br"].iter().any(|tag| start.contains(tag))
}

/// A line of a web page without its tags, its entities as characters.
fn without_tags(raw: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(raw.len()), raw);
    while let Some(open) = rest.find('<') {
        text.push_str(&rest[..open]);
        match rest[open..].find('>') {
            Some(close) if rest[open + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '!') => {
                rest = &rest[open + close + 1..];
            }
            _ => {
                text.push('<');
                rest = &rest[open + 1..];
            }
        }
    }
    text.push_str(rest);
    let entities = [("&nbsp;", " "), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    entities.iter().fold(text, |text, (entity, character)| text.replace(entity, character))
}

/// The lines without the numbers before them (`  12 | `, `12: `, as `cat -n` with a tab), if every line that is not empty has
/// one and they ascend.
fn without_numbers(lines: &[Line]) -> Option<Vec<String>> {
    let (mut last, mut count) = (None, 0);
    let mut bare = Vec::with_capacity(lines.len());
    for line in lines {
        if line.text.trim().is_empty() {
            bare.push(String::new());
            continue;
        }
        let text = line.text.trim_start_matches(' ');
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u32 = text[..digits].parse().ok()?;
        let after = &text[digits..];
        let rest = match after.trim_start_matches(' ').strip_prefix(['|', ':']) {
            Some(rest) => rest.strip_prefix(' ').unwrap_or(rest),
            None if after.is_empty() => "",
            None => after.strip_prefix('\t')?,
        };
        if last.is_some_and(|last| number <= last) {
            return None;
        }
        (last, count) = (Some(number), count + 1);
        bare.push(rest.to_string());
    }
    (count > 1).then_some(bare)
}

/// A line of a matrix that was typed or turned into small letters, as the driver prints it; `None` for any other line.
fn in_capitals(text: &str) -> Option<String> {
    let small = !text.contains(|c: char| c.is_ascii_uppercase());
    let starts = text.trim_start_matches([' ', '\t', '|']).strip_prefix("gpu");
    if !small || !starts.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return None;
    }
    let titles = [("cpu affinity", "CPU Affinity"), ("gpu numa id", "GPU NUMA ID"), ("numa affinity", "NUMA Affinity")];
    let text = titles.iter().fold(text.to_string(), |text, (small, title)| text.replace(small, title));
    let word = |word: &str| match word {
        "CPU" | "GPU" | "NUMA" | "ID" | "Affinity" => word.to_string(),
        // Names of adapters (`mlx5_0`) are small.
        _ if word.contains('_') || word.starts_with("ib") || word.starts_with("en") => word.to_string(),
        _ => word.to_ascii_uppercase(),
    };
    Some(text.split_inclusive(['\t', ' ', '|']).map(word).collect())
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
    fn numbers_tags_and_small_letters_go() {
        let texts = |text: &str| lines("a", text).unwrap_or_default().into_iter().map(|l| l.text).collect::<Vec<_>>();
        assert_eq!(texts("  1 | \tGPU0\n  2 | GPU0 X\n"), ["\tGPU0", "GPU0 X", ""]);
        assert_eq!(texts("     1\t\tGPU0\n     2\tGPU0\tX"), ["\tGPU0", "GPU0\tX"]);
        assert_eq!(texts("0, 4, 16\n1, 4, 16"), ["0, 4, 16", "1, 4, 16"]);
        assert_eq!(texts("<pre><code>GPU0 &lt;X&gt; a < b\n</code>"), ["GPU0 <X> a < b", ""]);
        assert_eq!(
            texts("\tgpu0\tmlx5_0\tcpu affinity\ngpu0\tx\tn/a"),
            ["\tGPU0\tmlx5_0\tCPU Affinity", "GPU0\tX\tN/A"]
        );
    }

    #[test]
    fn numbers_count_from_one() {
        let found = lines("a", "x\r\n\ny").unwrap_or_default();
        let found: Vec<_> = found.iter().map(|l| (l.number, l.text.as_str())).collect();
        assert_eq!(found, [(1, "x"), (2, ""), (3, "y")]);
        assert!(lines("a", &"\n".repeat(LINES_MAX)).is_err());
    }
}
