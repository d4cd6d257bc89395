//! What constraints cost on a model's vocabulary: `cargo run --release --example grammars -- MODEL.gguf [FILE]`. FILE (or
//! standard input) has a line for each, `KIND VALUE`: `json`, `regex` or `lark` and its text, the last two as JSON strings.
//! Tokens are drawn blindly from what is allowed, up to 200 for each of 5 answers.

use std::io::Read;
use std::time::{Duration, Instant};
use tombolo_gguf::Gguf;
use tombolo_text::Tokenizer;
use tombolo_text::grammar::{Grammars, Matcher, Reasoning, Source};

const ANSWERS: u64 = 5;
const TOKENS: usize = 200;

fn main() {
    let mut args = std::env::args().skip(1);
    let model = args.next().expect("a model's file");
    let file = Gguf::open(std::path::Path::new(&model)).expect("a model");
    let tokenizer: &'static Tokenizer =
        Box::leak(Box::new(Tokenizer::from_metadata(file.metadata()).expect("a vocabulary")));
    let started = Instant::now();
    let grammars = Grammars::new(tokenizer).expect("a vocabulary that is fit for it");
    println!("{} tokens: trie in {:.1?}", tokenizer.vocabulary(), started.elapsed());
    let mut text = String::new();
    match args.next() {
        Some(path) => text = std::fs::read_to_string(path).expect("a file of constraints"),
        None => drop(std::io::stdin().read_to_string(&mut text).expect("constraints")),
    }
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        measure(&grammars, tokenizer, line);
    }
}

fn source(line: &str) -> Result<Source, String> {
    let (kind, value) = line.split_once(' ').ok_or("a line is KIND VALUE")?;
    let value: serde_json::Value = serde_json::from_str(value).map_err(|error| error.to_string())?;
    let text = value.as_str().unwrap_or_default();
    match kind {
        "json" => Source::json_schema(&value, true),
        "regex" => Source::regex(text),
        _ => Source::grammar(text),
    }
    .map_err(|error| error.to_string())
}

fn measure(grammars: &Grammars, tokenizer: &Tokenizer, line: &str) {
    let shown: String = line.chars().take(70).collect();
    let started = Instant::now();
    let grammar = match source(line).and_then(|source| grammars.compile(&source).map_err(|error| error.to_string())) {
        Ok(grammar) => grammar,
        Err(error) => return println!("{shown}\n    refused in {:.1?}: {error}", started.elapsed()),
    };
    let compiled = started.elapsed();
    let (mut times, mut begun) = (Vec::new(), Vec::new());
    let (mut fault, mut work) = (None, 0);
    for seed in 0..ANSWERS {
        let started = Instant::now();
        let mut matcher = grammar.matcher(Reasoning::None);
        begun.push(started.elapsed());
        draw(&mut matcher, tokenizer, seed + 1, &mut times);
        work = work.max(matcher.work());
        fault = matcher.fault().map(str::to_string).or(fault);
    }
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let most = times.last().copied().unwrap_or_default();
    let begun = begun.into_iter().max().unwrap_or_default();
    println!(
        "{shown}\n    compiled in {compiled:.1?}, begun in {begun:.1?}; {} masks: mean {mean:.1?}, median {:.1?}, p99 {:.1?}, most {most:.1?}; work {work}{}",
        times.len(),
        at(50),
        at(99),
        fault.map(|fault| format!("; ended: {fault}")).unwrap_or_default()
    );
}

/// Times of a mask with the token that is drawn from it.
fn draw(matcher: &mut Matcher, tokenizer: &Tokenizer, seed: u64, times: &mut Vec<Duration>) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..TOKENS {
        let started = Instant::now();
        let words = matcher.allowed();
        let mut took = started.elapsed();
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        if count == 0 {
            return;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut left = (state >> 20) as u32 % count;
        let bits = words.iter().enumerate().flat_map(|(at, word)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 32 + bit)
        });
        let mut token = 0;
        for id in bits {
            token = id;
            // An answer that may end goes on where it can.
            if left == 0 && (count == 1 || !tokenizer.is_end_of_generation(id)) {
                break;
            }
            left = left.saturating_sub(1);
        }
        let started = Instant::now();
        matcher.accept(token);
        took += started.elapsed();
        times.push(took);
        if tokenizer.is_end_of_generation(token) {
            return;
        }
    }
}
