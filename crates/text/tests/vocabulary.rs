//! Vocabularies that do not fit together are refused, each by its own error; odd but sound ones are not.

use tombolo_gguf::{Array, Gguf, Value, Writer};
use tombolo_text::{ChatTemplate, TextError, Tokenizer};

type Pairs = Vec<(&'static str, Value)>;

fn strings(items: &[&str]) -> Value {
    Value::Array(Array::String(items.iter().map(|s| (*s).to_owned()).collect()))
}

/// A vocabulary that is in order: a, b, ab, abb and an end token.
fn sound() -> Pairs {
    vec![
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("qwen2".into())),
        ("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "abb", "<|im_end|>", "Ġ", ""])),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 1, 3, 1, 5]))),
        ("tokenizer.ggml.merges", strings(&["a b", "ab b"])),
        ("tokenizer.ggml.eos_token_id", Value::U32(4)),
        ("tokenizer.ggml.bos_token_id", Value::I32(-1)),
    ]
}

fn with(key: &'static str, value: Option<Value>) -> Result<Tokenizer, TextError> {
    let mut pairs = sound();
    pairs.retain(|(k, _)| *k != key);
    pairs.extend(value.map(|value| (key, value)));
    read(pairs)
}

fn file(pairs: Pairs) -> Gguf {
    let mut writer = Writer::new(Vec::new());
    for (key, value) in pairs {
        writer.metadata(key, value).unwrap();
    }
    writer.finish_header().unwrap();
    Gguf::from_bytes(writer.finish().unwrap()).unwrap()
}

fn read(pairs: Pairs) -> Result<Tokenizer, TextError> {
    Tokenizer::from_metadata(file(pairs).metadata())
}

#[test]
fn a_sound_one_works() {
    let tokenizer = read(sound()).unwrap();
    assert_eq!(tokenizer.encode("abb ab", false).unwrap(), [3, 5, 2]);
    assert_eq!(tokenizer.encode("xa", false).unwrap(), [0], "x has no token and is left out");
    assert_eq!(tokenizer.end_of_generation(), [4]);
    assert_eq!((tokenizer.bos(), tokenizer.vocabulary()), (None, 7));
    assert_eq!(tokenizer.decode(&[3, 5, 6, 4, 0]), "abb a");
    assert!(with("tokenizer.ggml.token_type", None).is_ok(), "types are optional");
    assert_eq!(
        tokenizer.encode(&"a".repeat((16 << 20) + 1), false).unwrap_err().to_string(),
        "text to encode, bytes: 16777217 is more than the 16777216 accepted"
    );
}

#[test]
fn faults_are_named() {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const MERGES: &str = "tokenizer.ggml.merges";
    const TYPES: &str = "tokenizer.ggml.token_type";
    const EOS: &str = "tokenizer.ggml.eos_token_id";
    let string = |s: &str| Some(Value::String(s.into()));
    let types = |t: &[i32]| Some(Value::Array(Array::I32(t.to_vec())));
    let cases: [(&'static str, Option<Value>, &str); 18] = [
        ("tokenizer.ggml.model", None, "this file has no vocabulary"),
        ("tokenizer.ggml.model", string("none"), "this file has no vocabulary"),
        (
            "tokenizer.ggml.model",
            string("bert"),
            "tokenizer.ggml.model `bert` is not supported (supported: gpt2, llama",
        ),
        ("tokenizer.ggml.model", string("llama"), "metadata key `tokenizer.ggml.scores` is missing or not an array of"),
        (TOKENS, None, "metadata key `tokenizer.ggml.tokens` is missing or not an array of strings"),
        (TOKENS, types(&[1]), "metadata key `tokenizer.ggml.tokens` is missing or not"),
        (TOKENS, Some(strings(&["a", "b", "ab", "abb", "e", "a", ""])), "tokens 0 and 5 are both spelled \"a\""),
        (TYPES, types(&[1, 1]), "tokenizer.ggml.token_type has 2 entries for 7 tokens"),
        (TYPES, types(&[1, 1, 1, 1, 3, 9, 1]), "token 5 has type 9"),
        (TYPES, string("x"), "metadata key `tokenizer.ggml.token_type` is missing or not an array of integers"),
        (MERGES, None, "metadata key `tokenizer.ggml.merges` is missing"),
        (MERGES, Some(strings(&["a b", "ab"])), "merge 1 (\"ab\") has no space"),
        (MERGES, Some(strings(&["a c"])), "merge 0 (\"a c\") names a token that the vocabulary does not have"),
        (MERGES, Some(strings(&["abb abb"])), "merge 0 (\"abb abb\") makes a token that the vocabulary does not have"),
        (MERGES, Some(strings(&["a "])), "merge 0 (\"a \") names a token"),
        (MERGES, Some(strings(&[""])), "merge 0 (\"\") has no space"),
        (EOS, Some(Value::U32(7)), "tokenizer.ggml.eos_token_id is 7, but the vocabulary has 7 tokens"),
        (EOS, Some(Value::I64(-2)), "tokenizer.ggml.eos_token_id is -2, but the vocabulary has 7 tokens"),
    ];
    for (key, value, message) in cases {
        let error = with(key, value).expect_err(message).to_string();
        assert!(error.starts_with(message), "{error}\nshould start with\n{message}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_file_may_have_no_template() {
    let tokenizer = read(sound()).unwrap();
    assert!(ChatTemplate::from_metadata(file(sound()).metadata(), &tokenizer).unwrap().is_none());
    let mut pairs = sound();
    pairs.push(("tokenizer.chat_template", Value::String("{{ eos_token }}{{ bos_token }}.".into())));
    let template = ChatTemplate::from_metadata(file(pairs).metadata(), &tokenizer).unwrap().unwrap();
    assert_eq!(template.render(&[], false).unwrap(), "<|im_end|>.");
}
