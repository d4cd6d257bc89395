//! Vocabularies that do not fit together are refused, each by its own error; odd but sound ones are not.

use tombolo_gguf::{Array, Gguf, Value, Writer};
use tombolo_text::{ChatTemplate, Conversation, Message, TextError, TextWarning, Tokenizer, limits};

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

/// A file may name three tokens that end a generation: none of them is forgotten, whichever is which.
#[test]
fn three_tokens_end_a_generation() {
    for ids in [[4u32, 1, 6], [6, 4, 1], [1, 6, 4], [4, 4, 4]] {
        let mut pairs = sound();
        pairs.retain(|(key, _)| *key != "tokenizer.ggml.eos_token_id");
        let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
        pairs.extend(keys.into_iter().zip(ids.map(Value::U32)));
        let tokenizer = read(pairs).unwrap();
        // <|im_end|>, 4, ends one in any case, as its spelling says.
        let mut want = ids.to_vec();
        want.sort_unstable();
        want.dedup();
        assert_eq!(tokenizer.end_of_generation(), want);
        assert!((0..7).all(|id| tokenizer.is_end_of_generation(id) == ids.contains(&id)));
    }
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

/// A SentencePiece vocabulary that is in order.
fn scored() -> Pairs {
    vec![
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.tokens", strings(&["<unk>", "<s>", "<0x41>", "▁", "a", "▁a", "b", "ab"])),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, 0.0, 0.0, -3.0, -4.0, -2.0, -5.0, -1.0]))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![2, 3, 6, 1, 1, 1, 1, 1]))),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
    ]
}

fn scored_with(key: &'static str, value: Option<Value>) -> Result<Tokenizer, TextError> {
    let mut pairs = scored();
    pairs.retain(|(k, _)| *k != key);
    pairs.extend(value.map(|value| (key, value)));
    read(pairs)
}

#[test]
fn scores_say_what_merges_first() {
    let tokenizer = read(scored()).unwrap();
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [3, 7], "ab is better than ▁a");
    assert_eq!(tokenizer.encode("a b", false).unwrap(), [5, 3, 6]);
    assert_eq!(tokenizer.encode("A", false).unwrap(), [3, 2], "A is a byte");
    assert_eq!(tokenizer.encode("é<s>", false).unwrap(), [3, 0, 0, 0, 0], "not every byte has a token");
    assert_eq!(tokenizer.encode("<s>a", true).unwrap(), [1, 5]);
    let plain = scored_with("tokenizer.ggml.add_space_prefix", Some(Value::Bool(false))).unwrap();
    assert_eq!(plain.encode("ab", false).unwrap(), [7]);
}

/// Lists with an entry for every token: of another length, or of another type (reliability case G41).
#[test]
fn lists_fit_the_tokens() {
    const SCORES: &str = "tokenizer.ggml.scores";
    let error = |value| scored_with(SCORES, value).unwrap_err();
    let floats = |n: usize| Some(Value::Array(Array::F32(vec![0.0; n])));
    assert_eq!(error(floats(7)), TextError::Length { key: SCORES, entries: 7, tokens: 8 });
    assert_eq!(error(floats(9)), TextError::Length { key: SCORES, entries: 9, tokens: 8 });
    assert_eq!(error(floats(0)), TextError::Length { key: SCORES, entries: 0, tokens: 8 });
    assert_eq!(error(Some(Value::Array(Array::F32(vec![f32::NAN; 8])))), TextError::Score { id: 0 });
    let missing = TextError::Key { key: SCORES, expected: "an array of numbers" };
    for value in [None, Some(strings(&["0"; 8])), Some(Value::F32(0.0)), Some(Value::Array(Array::Bool(vec![true; 8])))]
    {
        assert_eq!(error(value), missing);
    }
    // Numbers of another width are read by value, not by their bytes.
    assert!(scored_with(SCORES, Some(Value::Array(Array::U8(vec![0; 8])))).is_ok());
    const TYPES: &str = "tokenizer.ggml.token_type";
    let error = |value| scored_with(TYPES, Some(value)).unwrap_err();
    assert_eq!(error(Value::Array(Array::I32(vec![1; 4]))), TextError::Length { key: TYPES, entries: 4, tokens: 8 });
    let fractions = TextError::Key { key: TYPES, expected: "an array of integers" };
    assert_eq!(error(Value::Array(Array::F32(vec![1.0; 8]))), fractions);
    for ty in [0, 7, 255] {
        assert_eq!(error(Value::Array(Array::U8(vec![ty; 8]))), TextError::TokenType { id: 0, ty: ty.into() });
    }
    assert_eq!(error(Value::Array(Array::I64(vec![i64::MIN; 8]))), TextError::TokenType { id: 0, ty: i64::MIN });
}

/// Ids with a meaning lie within the vocabulary, or are none (G42).
#[test]
fn special_ids_lie_within() {
    const KEYS: [&str; 6] = [
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.padding_token_id",
    ];
    for key in KEYS {
        for (value, id) in [
            (Value::U32(8), 8),
            (Value::U64(u64::MAX), i64::MAX),
            (Value::I32(-2), -2),
            (Value::U32(u32::MAX - 1), i64::from(u32::MAX - 1)),
            (Value::I64(i64::MIN), i64::MIN),
        ] {
            assert_eq!(scored_with(key, Some(value)).unwrap_err(), TextError::SpecialId { key, id, vocabulary: 8 });
        }
        for value in [Value::String("1".into()), Value::F32(1.0), Value::Bool(true)] {
            assert_eq!(scored_with(key, Some(value)).unwrap_err(), TextError::Key { key, expected: "an integer" });
        }
        // Both are how writers say that there is none.
        for value in [Value::I32(-1), Value::U32(u32::MAX)] {
            assert!(scored_with(key, Some(value)).is_ok());
        }
    }
}

/// A token that stands for a byte says which (G43).
#[test]
fn byte_tokens_name_a_byte() {
    for spelling in
        ["<0x-1>", "<0xZZ>", "<0x1>", "<0x>", "<0x100>", "<0x+1>", "0x41", "<0X41>", "A", "<0x41", "<0x４１>"]
    {
        let tokens = strings(&["<unk>", "<s>", spelling, "▁", "a", "▁a", "b", "ab"]);
        let error = scored_with("tokenizer.ggml.tokens", Some(tokens)).unwrap_err();
        assert_eq!(error, TextError::ByteToken { id: 2, spelling: spelling.into() });
    }
    assert!(
        scored_with("tokenizer.ggml.tokens", Some(strings(&["<unk>", "<s>", "<0x4a>", "▁", "a", "▁a", "b", "ab"])))
            .is_ok()
    );
}

/// Odd tokens and counts without end (G44; merges that do not fit are above).
#[test]
fn tokens_have_limits() {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let long = "x".repeat(1 << 20);
    let error =
        scored_with(TOKENS, Some(strings(&["<unk>", "<s>", "<0x41>", "▁", &long, "▁a", "b", "ab"]))).unwrap_err();
    let (count, limit) = (1 << 20, limits::TOKEN_BYTES_MAX);
    assert_eq!(error, TextError::TooMany { what: "a token's spelling, bytes", count, limit });
    let error = scored_with(TOKENS, Some(strings(&["<unk>", "<s>", "<0x41>", "▁", "a", "a", "b", "ab"]))).unwrap_err();
    assert_eq!(error, TextError::DuplicateToken { first: 4, second: 5, spelling: "a".into() });
    // Ids that are reserved have no spelling: nothing becomes them, and they say nothing.
    let holes = scored_with(TOKENS, Some(strings(&["<unk>", "<s>", "<0x41>", "▁", "a", "", "", ""]))).unwrap();
    assert_eq!(holes.encode("a", false).unwrap(), [3, 4]);
    assert_eq!(holes.decode(&[4, 5, 6, 7]), "a");
    // Merges in a circle cannot be: what is merged is longer than its halves. The same merge twice is one.
    let twice = with("tokenizer.ggml.merges", Some(strings(&["a b", "a b", "ab b"]))).unwrap();
    assert_eq!(twice.encode("abab", false).unwrap(), [2, 2]);
}

#[test]
fn text_merges_into_no_control_token() {
    let types = Value::Array(Array::I32(vec![1, 1, 1, 3, 3, 1, 5]));
    let tokenizer = with("tokenizer.ggml.token_type", Some(types)).unwrap();
    assert_eq!(tokenizer.encode("abb", false).unwrap(), [2, 1]);
    assert_eq!(tokenizer.encode("abb", true).unwrap(), [3]);
}

#[test]
fn an_unknown_rule_is_told() {
    for (value, shown) in [(Some("glm9"), "glm9"), (Some("default"), "default"), (None, "")] {
        let tokenizer = with("tokenizer.ggml.pre", value.map(|v| Value::String(v.into()))).unwrap();
        assert_eq!(tokenizer.warnings(), [TextWarning::UnknownPre { pre: shown.into(), used: "glm4" }]);
        assert_eq!(tokenizer.encode("abb", false).unwrap(), [3]);
        let told = tokenizer.warnings()[0].to_string();
        assert!(told.starts_with(&format!("tokenizer.ggml.pre `{shown}` is not known")) && !told.contains('\n'));
    }
    assert_eq!(read(sound()).unwrap().warnings(), []);
    assert_eq!(read(scored()).unwrap().warnings(), [], "SentencePiece has no such rule");
}

#[test]
fn a_file_may_have_several_templates() {
    let tokenizer = read(sound()).unwrap();
    let template = |named: &[(&str, &str)], name: Option<&str>, with_tools| {
        let mut writer = Writer::new(Vec::new());
        for (name, source) in named {
            let key = format!("tokenizer.chat_template{name}");
            writer.metadata(&key, Value::String((*source).into())).unwrap();
        }
        writer.finish_header().unwrap();
        let file = Gguf::from_bytes(writer.finish().unwrap()).unwrap();
        let chosen = ChatTemplate::choose(file.metadata(), &tokenizer, name, with_tools)?;
        Ok::<_, TextError>(chosen.map(|template| template.render(&[], false).unwrap()))
    };
    let some = |text: &str| Ok(Some(text.to_owned()));
    let files = [(".rag", "r"), ("", "d"), (".tool_use", "t")];
    assert_eq!(template(&files, None, false), some("d"));
    assert_eq!(template(&files, None, true), some("t"));
    assert_eq!(template(&files, Some("default"), true), some("d"));
    assert_eq!(template(&files, Some("rag"), true), some("r"));
    assert_eq!(template(&files[..2], None, true), some("d"));
    assert_eq!(template(&files[..1], None, false), some("r"), "the only one");
    assert_eq!(template(&[], None, true), Ok(None));
    let missing = |name: &str, names: &str| Err(TextError::NoTemplate { name: name.into(), names: names.into() });
    assert_eq!(template(&files, Some("x"), false), missing("x", "default, rag, tool_use"));
    assert_eq!(template(&[(".rag", "r"), (".x", "x")], None, false), missing("default", "rag, x"));
    assert_eq!(template(&[], Some("x"), false), missing("x", ""));
    // One that is broken is no fault of the others.
    let broken = [("", "d"), (".x", "{% if %}")];
    assert_eq!(template(&broken, None, false), some("d"));
    assert!(matches!(template(&broken, Some("x"), false), Err(TextError::TemplateSyntax(_))));
    let mut pairs = sound();
    pairs.push(("tokenizer.chat_template", Value::U32(1)));
    let error = ChatTemplate::from_metadata(file(pairs).metadata(), &tokenizer).unwrap_err();
    assert_eq!(error, TextError::Key { key: "tokenizer.chat_template", expected: "a string" });
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

/// The spelling of a control token in a conversation is text; in the template it is the token.
#[test]
fn a_conversation_spells_no_control_token() {
    let tokenizer = read(sound()).unwrap();
    let prompt = |source: &str, content: &str| {
        let mut pairs = sound();
        pairs.push(("tokenizer.chat_template", Value::String(source.into())));
        let template = ChatTemplate::from_metadata(file(pairs).metadata(), &tokenizer).unwrap().unwrap();
        let message = Message { role: "user".into(), content: content.into() };
        let prompt = template.prompt(&Conversation::new(&[message])).unwrap();
        (prompt.text(), tokenizer.encode_prompt(&prompt).unwrap())
    };
    let turn = "{{ messages[0].content }}<|im_end|>";
    assert_eq!(prompt(turn, "ab"), ("ab<|im_end|>".into(), vec![2, 4]));
    assert_eq!(
        prompt(turn, "a<|im_end|>b"),
        ("a<|im_end|>b<|im_end|>".into(), vec![0, 1, 4]),
        "< and | have no token here"
    );
    assert_eq!(prompt(turn, "\u{fdd0}a\u{fdd1}b"), ("ab<|im_end|>".into(), vec![2, 4]), "marks of its own are dropped");
    // A template still finds what it looks for; a mark that has lost its partner changes nothing.
    let split =
        "{{ messages[0].content.split('<|im_end|>')|join('-') }}{{ '<|im_end|>' in messages[0].content }}<|im_end|>";
    assert_eq!(prompt(split, "a<|im_end|>b"), ("a-bTrue<|im_end|>".into(), vec![0, 1, 4]));
    let cut = "{{ messages[0].content[:3] }}<|im_end|>{{ messages[0].content[3:] }}";
    assert_eq!(prompt(cut, "a<|im_end|>b").1, [0, 4, 1]);
}
