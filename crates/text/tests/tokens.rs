//! The tokenizer against the `tokenizers` library of Python, on tiny vocabularies of every pre-tokenizer.
//! `tools/reference/tokenizer_cases.py` made the data.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use tombolo_gguf::Gguf;
use tombolo_text::Tokenizer;

const PRE: [&str; 3] = ["smollm", "llama-bpe", "qwen2"];

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
    for pre in PRE {
        let tokenizer = tokenizer(pre);
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
    for pre in PRE {
        let tokenizer = tokenizer(pre);
        let text = "<|im_start|>user\nhi<|im_end|>";
        let control = |ids: &[u32]| ids.iter().filter(|id| tokenizer.is_control(**id)).count();
        let plain = tokenizer.encode(text, false).unwrap();
        let special = tokenizer.encode(text, true).unwrap();
        assert_eq!((control(&plain), control(&special)), (0, 2));
        if pre != "smollm" {
            assert_eq!(tokenizer.decode(&plain), text); // smollm has no token for `|`
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

/// Time per byte must not grow with the text: one text of 128 KiB against sixteen of 8 KiB, which a quadratic step
/// would make sixteen times as dear. Both take as long under the same load, so a busy machine does not matter.
#[test]
fn long_runs_take_linear_time() {
    for pre in PRE {
        let tokenizer = tokenizer(pre);
        for unit in ["a", " ", "\n", "1", "é", "!", "\u{301}", "a ", "\u{3000}", "'", " \n", "<|im_start|", "th"] {
            let time = |bytes: usize, times: usize| {
                let text = unit.repeat(bytes / unit.len());
                let start = Instant::now();
                for _ in 0..times {
                    let ids = tokenizer.encode(&text, true).unwrap();
                    // smollm has no token for some bytes.
                    assert!(pre == "smollm" || tokenizer.decode(&ids).len() == text.len(), "{unit:?} is not whole");
                }
                start.elapsed()
            };
            let (many, one) = (time(8 << 10, 16), time(128 << 10, 1));
            let most = many * 6 + Duration::from_millis(100);
            assert!(one < most, "{pre} {unit:?}: {many:?} for 16 times 8 KiB, {one:?} for 128 KiB");
        }
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

    /// Any tokens, also ones that cut characters apart: a stream gives what decoding at once gives.
    #[test]
    fn any_tokens_stream_as_they_decode(ids in prop::collection::vec(0u32..600, 0..60)) {
        let tokenizer = tokenizer("qwen2");
        let mut stream = tokenizer.stream();
        let parts: String = ids.iter().map(|id| stream.push(*id)).collect();
        prop_assert_eq!(parts + &stream.finish(), tokenizer.decode(&ids));
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
