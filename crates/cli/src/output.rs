//! Text for terminals and pipes: escaping, units, colour.

use crate::limits::LINE_CHARS_MAX;
use crate::log;
use std::io::{IsTerminal, Write};

/// Colour on standard error: only on a terminal, and not where `NO_COLOR` (no-color.org) is set.
pub(crate) fn stderr_has_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The same for standard output.
pub(crate) fn stdout_has_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a line to standard error. Where that cannot be written to, there is nobody to tell, and work goes on.
pub(crate) fn say(line: &str) {
    match line.strip_prefix("warning: ") {
        Some(rest) if log::is_json() => write_line(&log::json_line("WARN", rest)),
        None if log::is_json() => write_line(&log::json_line("INFO", line)),
        _ => write_line(line),
    }
}

/// The same of what is wrong.
pub(crate) fn complain(line: &str) {
    if log::is_json() {
        return write_line(&log::json_line("ERROR", line));
    }
    let label = if stderr_has_colour() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    write_line(&format!("{label} {line}"));
}

fn write_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// As [`say`], of text that may hold anything and be of any length.
pub(crate) fn say_safely(text: &str) {
    say(&shortened(&one_line(text), LINE_CHARS_MAX));
}

/// Text from a file or an error, safe to print: control characters, among them line ends, are escaped, and so are
/// those that change lines or their direction without being control characters.
pub(crate) fn one_line(text: &str) -> String {
    let misleads = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// At most `most` characters: the middle of a longer text is left out, as its ends say what it is about and what to do.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_string();
    }
    let tail = most / 3;
    let head = most.saturating_sub(tail + 1);
    let kept = text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail));
    kept.collect()
}

/// Bytes as llama-bench prints a model's size.
pub(crate) fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

/// Bytes in the largest unit that leaves a number above 1.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => self::bytes(bytes),
    }
}

/// A count of parameters as llama-bench prints it.
pub(crate) fn parameters(count: u64) -> String {
    if count < 1_000_000_000 { format!("{:.2} M", count as f64 / 1e6) } else { format!("{:.2} B", count as f64 / 1e9) }
}

/// A number as somebody gave it, in few characters however large or small it is.
pub(crate) fn number(value: f64) -> String {
    let is_short = value == 0.0 || (1e-6..1e9).contains(&value.abs());
    if is_short { value.to_string() } else { format!("{value:e}") }
}

/// A rate; 0 where no time has passed.
pub(crate) fn per_second(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Mean and sample standard deviation.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// `2026-11-29T12:00:00Z` from seconds since 1970 (days to date: Howard Hinnant's algorithm, public domain).
pub(crate) fn iso_time(unix_seconds: u64) -> String {
    let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(one_line("a\nb\x1b[31m\u{9b}é"), "a\\nb\\u{1b}[31m\\u{9b}é");
    }

    #[test]
    fn direction_marks_are_escaped() {
        assert_eq!(one_line("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
    }

    #[test]
    fn long_text_keeps_both_ends() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 10), "abcdef…ijk");
        assert_eq!(shortened("ééééé", 4), "éé…é");
    }

    #[test]
    fn units_are_those_of_llama_bench() {
        assert_eq!(bytes(98_362_432), "93.81 MiB");
        assert_eq!(bytes(3 << 30), "3.00 GiB");
        assert_eq!([size(1023), size(1536), size(98_362_432)], ["1023 B", "1.5 KiB", "93.81 MiB"]);
        assert_eq!(parameters(134_515_008), "134.52 M");
        assert_eq!(parameters(8_030_261_248), "8.03 B");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([-1.0, 0.25, 1e308, 1e-300].map(number), ["-1", "0.25", "1e308", "1e-300"]);
        assert_eq!(number(f64::NAN), "NaN");
    }

    #[test]
    fn deviation_is_the_samples() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).0, 5.0);
        let deviation = mean_and_deviation(&[1.0, 3.0]).1;
        assert!((deviation - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[7.0]), (7.0, 0.0));
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(iso_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso_time(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso_time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso_time(1_772_323_200), "2026-03-01T00:00:00Z");
    }
}
