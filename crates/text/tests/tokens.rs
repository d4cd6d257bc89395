//! The tokenizer against Python's `tokenizers` and `sentencepiece`, on tiny vocabularies of every kind.
//! `tools/reference/tokenizer_cases.py` made the data.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use tombolo_gguf::Gguf;
use tombolo_text::Tokenizer;

/// Byte-level BPE, by pre-tokenizer.
const BYTE_LEVEL: [&str; 10] =
    ["smollm", "llama-bpe", "qwen2", "qwen35", "glm4", "deepseek-v3", "gpt-2", "gpt-4o", "kimi-k2", "tekken"];
/// SentencePiece, with and without a space before texts.
const SCORED: [&str; 2] = ["llama-spm", "gemma3"];

fn all() -> impl Iterator<Item = &'static str> {
    BYTE_LEVEL.into_iter().chain(SCORED)
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn tokenizer(pre: &str) -> Tokenizer {
    let file = Gguf::open(&data(&format!("{pre}.gguf"))).unwrap();
    Tokenizer::from_metadata(file.metadata()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn gives_the_tokens_that_python_gives() {
    for pre in all() {
        let tokenizer = tokenizer(pre);
        assert_eq!(tokenizer.warnings(), []);
        let cases: Value =
            serde_json::from_str(&std::fs::read_to_string(data(&format!("{pre}.json"))).unwrap()).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() > 100);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            for (special, expected) in [(false, &case["plain"]), (true, &case["special"])] {
                assert_eq!(tokenizer.encode(text, special).unwrap(), ids(expected), "{pre}, {special}: {text:?}");
            }
        }
    }
}

#[test]
fn control_tokens_come_only_on_request_and_are_not_shown() {
    for pre in all() {
        let tokenizer = tokenizer(pre);
        let text = "<|im_start|>user\nhi<|im_end|>";
        let control = |ids: &[u32]| ids.iter().filter(|id| tokenizer.is_control(**id)).count();
        let plain = tokenizer.encode(text, false).unwrap();
        let special = tokenizer.encode(text, true).unwrap();
        assert_eq!((control(&plain), control(&special)), (0, 2));
        if pre != "smollm" {
            assert_eq!(tokenizer.decode_whole(&plain), text); // smollm has no token for `|`
        }
        if pre == "llama-spm" {
            assert_eq!(tokenizer.decode(&special), " user\nhi", "a space is put behind control tokens");
            continue;
        }
        assert_eq!(tokenizer.decode(&special), "user\nhi");
        let mut all = tokenizer.stream().with_control();
        let shown: String = special.iter().map(|id| all.push(*id)).collect();
        assert_eq!(shown + &all.finish(), text);
    }
}

#[test]
fn ends_and_starts_are_known() {
    let tokenizer = tokenizer("smollm");
    let id = |text: &str| tokenizer.encode(text, true).unwrap()[0];
    // The file names <|im_end|> only; <|endoftext|> is known by its spelling.
    let mut ends = [id("<|im_end|>"), id("<|endoftext|>")];
    ends.sort_unstable();
    assert_eq!(tokenizer.end_of_generation(), ends);
    assert!(tokenizer.is_end_of_generation(ends[1]) && !tokenizer.is_end_of_generation(id("<|im_start|>")));
    assert_eq!(tokenizer.bos(), None, "the file does not ask for one");
    assert!(self::tokenizer("llama-bpe").bos().is_some(), "llama-bpe has one by default");
}

#[test]
fn ids_outside_the_vocabulary_are_nothing() {
    let tokenizer = tokenizer("qwen2");
    let outside = tokenizer.vocabulary() as u32;
    assert_eq!(tokenizer.piece(outside), b"");
    assert_eq!(tokenizer.decode(&[outside, u32::MAX]), "");
    assert_eq!(tokenizer.stream().push(u32::MAX), "");
}

#[test]
fn a_space_before_texts_is_no_part_of_them() {
    let tokenizer = tokenizer("llama-spm");
    let ids = tokenizer.encode("the tide", false).unwrap();
    assert_eq!(tokenizer.decode(&ids), " the tide", "as it goes on from a text before");
    assert_eq!(tokenizer.decode_whole(&ids), "the tide");
    assert_eq!(tokenizer.decode_whole(&tokenizer.encode("  the", false).unwrap()), "  the");
    let mut stream = tokenizer.stream();
    assert_eq!(ids.iter().map(|id| stream.push(*id)).collect::<String>(), " the tide");
    assert!(tokenizer.bos().is_some(), "SentencePiece has one by default");
    let gemma = self::tokenizer("gemma3");
    assert_eq!(gemma.decode_whole(&gemma.encode(" the tide", false).unwrap()), " the tide");
}

/// What no token spells becomes bytes, and comes back; text that looks like a byte token is text.
#[test]
fn bytes_stand_in_for_what_has_no_token() {
    let tokenizer = tokenizer("gemma3");
    let dna = "\u{1f9ec}";
    let ids = tokenizer.encode(dna, false).unwrap();
    let bytes: Vec<&[u8]> = ids.iter().map(|id| tokenizer.piece(*id)).collect();
    assert_eq!(bytes, [[0xf0], [0x9f], [0xa7], [0xac]]);
    assert_eq!(tokenizer.decode(&ids), dna);
    assert_eq!(tokenizer.decode(&ids[..3]), "\u{fffd}");
    let text = "<0x41><0xF0>";
    let ids = tokenizer.encode(text, false).unwrap();
    assert!(ids.len() > 2);
    assert_eq!(tokenizer.decode(&ids), text);
}

/// Units of long texts that an engine which goes back, or merges by searching, is slow on.
const UNITS: [&str; 15] =
    ["a", " ", "\n", "1", "é", "!", "\u{301}", "a ", "\u{3000}", "'", " \n", "<|im_start|", "th", "海", "Aa海\u{301}"];

/// Time per byte must not grow with the text: one text of 128 KiB against sixteen of 8 KiB, which a quadratic step
/// would make sixteen times as dear. Both take as long under the same load, so a busy machine does not matter.
#[test]
fn long_runs_take_linear_time() {
    for pre in all() {
        let tokenizer = tokenizer(pre);
        for unit in UNITS {
            let time = |bytes: usize, times: usize| {
                let text = unit.repeat(bytes / unit.len());
                let start = Instant::now();
                for _ in 0..times {
                    let ids = tokenizer.encode(&text, true).unwrap();
                    // smollm has no token for some bytes, and Qwen's composes.
                    let whole = pre == "smollm" || unit.contains('\u{301}') || tokenizer.decode_whole(&ids) == text;
                    assert!(whole, "{pre} {unit:?} is not whole");
                }
                start.elapsed()
            };
            // Whatever else the machine does can only make one of several tries slow.
            let tries = (0..4).map(|_| (time(8 << 10, 16), time(128 << 10, 1)));
            let slow: Vec<_> = tries.take_while(|(many, one)| *one >= *many * 6 + Duration::from_millis(100)).collect();
            assert!(slow.len() < 4, "{pre} {unit:?}: 16 times 8 KiB against 128 KiB: {slow:?}");
        }
    }
}

/// The same in full, where the code is optimised.
#[test]
#[ignore = "takes seconds: a mebibyte for every kind of vocabulary and text"]
fn a_mebibyte_takes_less_than_a_second() {
    for pre in all() {
        let tokenizer = tokenizer(pre);
        for unit in UNITS {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = Instant::now();
            tokenizer.encode(&text, true).unwrap();
            let taken = start.elapsed();
            assert!(taken < Duration::from_secs(1), "{pre} {unit:?}: {taken:?}");
        }
        let start = Instant::now();
        tokenizer.encode(&"\u{301}".repeat(1_000_000), true).unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{pre}: {:?} for 10^6 combining marks", start.elapsed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With a token for every byte, any text comes back; and a stream gives what decoding at once gives.
    #[test]
    fn any_text_comes_back(text in r"(\PC|[ \n\ta-z0-9'<|>]|\p{M}|\p{So}){0,80}", special: bool) {
        let tokenizer = tokenizer("llama-bpe");
        let ids = tokenizer.encode(&text, special).unwrap();
        let mut stream = tokenizer.stream();
        let parts: String = ids.iter().map(|id| stream.push(*id)).collect();
        prop_assert_eq!(parts + &stream.finish(), tokenizer.decode(&ids));
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, false).unwrap()), text);
    }

    /// SentencePiece has bytes for all that it has no token for.
    #[test]
    fn any_text_comes_back_from_pieces(text in r"(\PC|[ \n\ta-z0-9'<|>]|\p{M}|\p{So}){0,80}", first in 0usize..2) {
        prop_assume!(!text.contains('▁'));
        let tokenizer = tokenizer(SCORED[first]);
        prop_assert_eq!(tokenizer.decode_whole(&tokenizer.encode(&text, false).unwrap()), text);
    }

    /// Any tokens, also ones that cut characters apart: a stream gives what decoding at once gives.
    #[test]
    fn any_tokens_stream_as_they_decode(ids in prop::collection::vec(0u32..600, 0..60)) {
        for name in ["qwen2", "gemma3"] {
        let tokenizer = tokenizer(name);
        let mut stream = tokenizer.stream();
        let parts: String = ids.iter().map(|id| stream.push(*id)).collect();
        prop_assert_eq!(parts + &stream.finish(), tokenizer.decode(&ids));
        }
    }
}

#[test]
#[ignore = "needs models/SmolLM2-135M-Instruct.Q4_1.gguf, which tools/fetch-smollm2 fetches"]
fn smollm2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let file = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    assert_eq!(tokenizer.encode("The capital of France is", false).unwrap(), [504, 3575, 282, 4649, 314]);
    assert_eq!(tokenizer.end_of_generation(), [0, 2]);
    let template = tombolo_text::ChatTemplate::from_metadata(file.metadata(), &tokenizer).unwrap().unwrap();
    let hi = tombolo_text::Message { role: "user".into(), content: "Hi".into() };
    let text = template.render(&[hi], true).unwrap();
    let system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    let turns =
        format!("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(text, turns);
    let ids = tokenizer.encode(&text, true).unwrap();
    assert_eq!((ids[0], ids.iter().filter(|id| **id == 2).count()), (1, 2));
}

#[test]
#[ignore = "needs models/gemma-3-270m-q4_k_m.gguf, which tools/fetch-gemma3 fetches"]
fn gemma3() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-3-270m-q4_k_m.gguf");
    let file = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    assert_eq!((tokenizer.vocabulary(), tokenizer.bos()), (262_144, Some(2)));
    let text = "The capital of France is";
    assert_eq!(tokenizer.encode(text, false).unwrap(), [818, 5279, 529, 7001, 563]);
    assert_eq!(tokenizer.decode(&[818, 5279, 529, 7001, 563]), text);
    assert_eq!(tokenizer.encode("<bos>", true).unwrap(), [2]);
    assert!(tokenizer.end_of_generation().contains(&106), "<end_of_turn>");
}
