//! The requests of a run: made by chance from a seed, or read from a file.

use super::body::{Ask, Prompt};
use super::random::Random;
use super::words::{self, Pool};
use crate::limits::DATASET_BYTES_MAX;
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// Bytes of English text for one token, where nobody counts.
const BYTES_PER_TOKEN: usize = 4;

/// Prompts of chance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Tokens of a prompt beside its prefix, and of an answer.
    pub(super) input: usize,
    pub(super) output: usize,
    /// Tokens that all prompts begin with.
    pub(super) prefix: usize,
    /// Both lengths lie evenly within this part of themselves around it: 0 to below 1.
    pub(super) range: f64,
    /// As text, where ids could be sent.
    pub(super) as_text: bool,
}

impl Shape {
    /// As many requests as are asked for, by a seed.
    pub(super) fn asks(&self, pool: &Pool, seed: u64, count: usize) -> Vec<Ask> {
        let mut random = Random::new(seed);
        let prefix = self.draw(pool, self.prefix, &mut random);
        let mut ask = |_| {
            let input = around(self.input, self.range, &mut random).max(usize::from(self.prefix == 0));
            let max_tokens = around(self.output, self.range, &mut random).max(1);
            let mut all = prefix.clone();
            all.extend(self.draw(pool, input, &mut random));
            let prompt_tokens = all.len();
            Ask { prompt: self.prompt(pool, &all), prompt_tokens, max_tokens }
        };
        (0..count).map(&mut ask).collect()
    }

    fn draw(&self, pool: &Pool, count: usize, random: &mut Random) -> Vec<usize> {
        let end = match pool {
            Pool::Exact { words, .. } => words.len(),
            Pool::Ids(end) => *end as usize,
            Pool::Words(words) => words.len(),
        };
        (0..count).map(|_| random.below(end.max(1))).collect()
    }

    fn prompt(&self, pool: &Pool, drawn: &[usize]) -> Prompt {
        match pool {
            Pool::Exact { words, begin } if self.as_text => {
                // What the server puts before the text counts.
                let kept = &drawn[(*begin).min(drawn.len() - 1)..];
                Prompt::Text(words::text(&kept.iter().map(|&at| words[at].0).collect::<Vec<_>>()))
            }
            Pool::Exact { words, .. } => Prompt::Tokens(drawn.iter().map(|&at| words[at].1).collect()),
            Pool::Ids(_) => Prompt::Tokens(drawn.iter().map(|&at| at as u32).collect()),
            Pool::Words(words) => Prompt::Text(words::text(&drawn.iter().map(|&at| words[at]).collect::<Vec<_>>())),
        }
    }
}

fn around(length: usize, range: f64, random: &mut Random) -> usize {
    let spread = (length as f64 * range) as usize;
    length - spread + random.below(2 * spread + 1)
}

/// A line of a file of prompts, or an entry of a list of conversations as ShareGPT has them.
#[derive(Deserialize)]
struct Entry {
    prompt: Option<String>,
    output_tokens: Option<usize>,
    #[serde(alias = "conversation")]
    conversations: Option<Vec<Turn>>,
}

#[derive(Deserialize)]
struct Turn {
    #[serde(alias = "content")]
    value: String,
}

/// Reads prompts: JSON Lines, or one JSON list. An entry has a `prompt` and perhaps `output_tokens`, or `conversations`,
/// of which the first turn is the prompt and the second says how long the answer is.
pub(super) fn from_file(path: &Path, output: Option<usize>) -> Result<Vec<Ask>, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| at(&error))?;
    file.take(DATASET_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| at(&error))?;
    if text.len() as u64 > DATASET_BYTES_MAX {
        return Err(at(&format!("is longer than {DATASET_BYTES_MAX} bytes")));
    }
    let asks = asks_of(&text, output).map_err(|error| at(&error))?;
    if asks.is_empty() { Err(at(&"has no prompts")) } else { Ok(asks) }
}

fn asks_of(text: &str, output: Option<usize>) -> Result<Vec<Ask>, String> {
    let entries: Vec<Entry> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(number, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1));
        lines.map(read).collect::<Result<_, _>>()?
    };
    let ask = |(index, entry): (usize, Entry)| {
        let (prompt, answer) = match (entry.prompt, entry.conversations) {
            (Some(prompt), _) => (prompt, None),
            (None, Some(turns)) => {
                let mut turns = turns.into_iter().map(|turn| turn.value);
                // One without an answer says nothing of the length.
                let (Some(prompt), Some(answer)) = (turns.next(), turns.next()) else { return Ok(None) };
                (prompt, Some(answer.len().div_ceil(BYTES_PER_TOKEN)))
            }
            (None, None) => return Err(format!("entry {}: neither `prompt` nor `conversations`", index + 1)),
        };
        let max_tokens = output.or(entry.output_tokens).or(answer).unwrap_or(128).max(1);
        let prompt_tokens = prompt.len().div_ceil(BYTES_PER_TOKEN);
        Ok(Some(Ask { prompt: Prompt::Text(prompt), prompt_tokens, max_tokens }))
    };
    entries.into_iter().enumerate().filter_map(|entry| ask(entry).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { input: 20, output: 6, prefix: 5, range: 0.0, as_text: false };

    fn pool() -> Pool {
        Pool::Exact { words: vec![("a", 10), ("b", 11), ("c", 12), ("d", 13)], begin: 1 }
    }

    fn ids(ask: &Ask) -> &[u32] {
        match &ask.prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => panic!("text: {text}"),
        }
    }

    #[test]
    fn random_prompts_share_the_prefix_only() {
        let asks = SHAPE.asks(&pool(), 1, 3);
        assert!(asks.iter().all(|ask| ids(ask).len() == 25 && ask.prompt_tokens == 25 && ask.max_tokens == 6));
        assert_eq!(ids(&asks[0])[..5], ids(&asks[1])[..5]);
        assert_ne!(ids(&asks[0])[5..], ids(&asks[1])[5..]);
        assert_eq!(asks, SHAPE.asks(&pool(), 1, 3));
        assert_ne!(asks, SHAPE.asks(&pool(), 2, 3));
    }

    #[test]
    fn text_has_the_tokens_that_ids_have() {
        let asks = Shape { as_text: true, ..SHAPE }.asks(&pool(), 1, 1);
        let Prompt::Text(text) = &asks[0].prompt else { panic!("ids") };
        // One is what the server begins texts with.
        assert_eq!((text.split_whitespace().count(), asks[0].prompt_tokens), (24, 25));
    }

    #[test]
    fn lengths_spread_as_far_as_asked() {
        let asks = Shape { range: 0.5, prefix: 0, ..SHAPE }.asks(&Pool::Ids(7), 3, 500);
        let lengths: Vec<usize> = asks.iter().map(|ask| ids(ask).len()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&10), Some(&30)));
        assert!(asks.iter().all(|ask| (3..=9).contains(&ask.max_tokens)));
        let empty = Shape { input: 0, output: 0, prefix: 0, ..SHAPE }.asks(&Pool::Ids(7), 3, 1);
        assert_eq!((ids(&empty[0]).len(), empty[0].max_tokens), (1, 1));
    }

    #[test]
    fn files_are_lines_or_a_list() {
        let lines = "{\"prompt\": \"a b\", \"output_tokens\": 3}\n\n{\"prompt\": \"c\"}\n";
        let tokens = |text: &str, output| -> Vec<usize> {
            asks_of(text, output).unwrap().iter().map(|ask| ask.max_tokens).collect()
        };
        assert_eq!(tokens(lines, None), [3, 128]);
        assert_eq!(tokens(lines, Some(9)), [9, 9]);
        let list = r#"[{"id": 1, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "12345678"}]},
            {"conversations": [{"from": "human", "value": "q"}]}]"#;
        assert_eq!(tokens(list, None), [2]);
        assert!(asks_of("{\"prompt\": 1}", None).unwrap_err().contains("line 1"));
        assert!(asks_of("{}", None).unwrap_err().contains("entry 1"));
    }
}
