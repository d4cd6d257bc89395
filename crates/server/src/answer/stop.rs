//! Stop strings, which tokens may cut anywhere: what could be the beginning of one is held back.

/// Looks for stop strings in a text that comes in parts.
#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    /// What came and could begin one of them.
    held: String,
}

impl StopStrings {
    /// None of them is empty.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next part: the text that is certain now, and which of them ends it, by its place in the list. With
    /// `keeps`, the text has the stop string at its end.
    pub(crate) fn push(&mut self, text: &str, keeps: bool) -> (String, Option<usize>) {
        if self.stops.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| self.held.find(stop).map(|at| (at, i)));
        // The one that was whole first, as if text came by the byte.
        if let Some((at, i)) = found.min_by_key(|&(at, i)| (at + self.stops[i].len(), at)) {
            let end = if keeps { at + self.stops[i].len() } else { at };
            let mut text = std::mem::take(&mut self.held);
            text.truncate(end);
            return (text, Some(i));
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// The text has ended: what was held back.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that begin `stop`, and are not all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let most = stop.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out of parts, and which stop string ended it.
    fn run(stops: &[&str], parts: &[&str], keeps: bool) -> (String, Option<usize>) {
        let mut strings = StopStrings::new(stops.iter().map(|stop| (*stop).to_string()).collect());
        let mut out = String::new();
        for part in parts {
            let (text, stop) = strings.push(part, keeps);
            out.push_str(&text);
            if stop.is_some() {
                return (out, stop);
            }
        }
        out.push_str(&strings.finish());
        (out, None)
    }

    #[test]
    fn parts_may_be_cut_anywhere() {
        let text = "one two\n\nthree";
        for cut in 0..=text.len() {
            let parts = [&text[..cut], &text[cut..]];
            assert_eq!(run(&["\n\n"], &parts, false), ("one two".into(), Some(0)));
            assert_eq!(run(&["\n\n"], &parts, true), ("one two\n\n".into(), Some(0)));
            assert_eq!(run(&["thr\u{e9}", "four"], &parts, false), (text.into(), None));
        }
    }

    #[test]
    fn the_first_to_be_whole_counts() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"], false), ("xa".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["ab", "c"], false), ("".into(), Some(1)));
        assert_eq!(run(&[], &["a", "b"], false), ("ab".into(), None));
        // A beginning that comes to nothing is text.
        assert_eq!(run(&["aab"], &["a", "a", "a", "c"], false), ("aaac".into(), None));
    }

    #[test]
    fn characters_are_not_cut() {
        let (a, b) = ("x\u{1f600}", "\u{1f601}y");
        assert_eq!(run(&["\u{1f602}"], &[a, b], false), (format!("{a}{b}"), None));
    }
}
