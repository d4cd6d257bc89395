//! Constraints: whatever is drawn under a mask is what was asked for, and what cannot be is refused in time.

mod schema;

use serde_json::{Value, json};
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tombolo_gguf::Gguf;
use tombolo_text::Tokenizer;
use tombolo_text::grammar::{CallForm, Calls, Grammar, GrammarError, Grammars, Matcher, Reasoning, Source};
use tombolo_text::output::{Dialect, OutputParser, Piece, Tools};

struct Vocabulary {
    tokenizer: &'static Tokenizer,
    grammars: Grammars,
}

fn vocabulary(name: &str) -> Vocabulary {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.gguf"));
    let file = Gguf::open(&path).unwrap();
    let tokenizer = Box::leak(Box::new(Tokenizer::from_metadata(file.metadata()).unwrap()));
    Vocabulary { tokenizer, grammars: Grammars::new(tokenizer).unwrap() }
}

/// A byte-level one, and one of SentencePiece, whose first tokens have a space.
static BYTES: LazyLock<Vocabulary> = LazyLock::new(|| vocabulary("qwen2"));
static PIECES: LazyLock<Vocabulary> = LazyLock::new(|| vocabulary("llama-spm"));

impl Vocabulary {
    #[track_caller]
    fn compile(&self, source: &Source) -> Grammar {
        self.grammars.compile(source).unwrap()
    }

    /// What comes of drawing blindly among the tokens that are allowed; `None`: too long.
    #[track_caller]
    fn draw(&self, matcher: &mut Matcher, seed: u64, most: usize) -> Option<String> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut tokens = Vec::new();
        for _ in 0..most {
            let words = matcher.allowed().to_vec();
            assert_eq!(matcher.fault(), None);
            let bit = |id: &u32| words.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
            let allowed: Vec<u32> = (0..words.len() as u32 * 32).filter(bit).collect();
            assert!(!allowed.is_empty(), "stuck behind {:?}", self.text(&tokens));
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let ends = allowed.iter().find(|id| self.tokenizer.is_end_of_generation(**id));
            assert_eq!(ends.is_some(), matcher.is_complete(), "behind {:?}", self.text(&tokens));
            let token = match ends {
                // As soon as it may end, it does so in half of the cases.
                Some(end) if state.is_multiple_of(2) => *end,
                _ => allowed[(state >> 20) as usize % allowed.len()],
            };
            matcher.accept(token);
            if self.tokenizer.is_end_of_generation(token) {
                assert!(matcher.is_over());
                return Some(self.text(&tokens));
            }
            tokens.push(token);
        }
        None
    }

    fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|id| self.tokenizer.piece(*id)).copied().collect();
        String::from_utf8(bytes).expect("answers are text")
    }

    /// Feeds a text, and says whether it is allowed and may end there.
    fn takes(&self, source: &Source, text: &str) -> bool {
        let mut matcher = self.compile(source).matcher(Reasoning::None);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let words = matcher.allowed().to_vec();
            let is_allowed = |id: &u32| words.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
            let fits = |id: &u32| !self.tokenizer.piece(*id).is_empty() && rest.starts_with(self.tokenizer.piece(*id));
            let ids = (0..self.tokenizer.vocabulary() as u32).filter(|id| is_allowed(id) && fits(id));
            let ids = ids.filter(|id| !self.tokenizer.is_control(*id));
            let Some(id) = ids.max_by_key(|id| self.tokenizer.piece(*id).len()) else { return false };
            rest = &rest[self.tokenizer.piece(id).len()..];
            matcher.accept(id);
        }
        matcher.is_complete()
    }
}

fn of_schema(schema: &Value) -> Source {
    Source::json_schema(schema, true).unwrap()
}

#[test]
fn answers_are_of_their_schema() {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
            "next": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "next"],
        "additionalProperties": false,
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number", "minimum": -9, "maximum": 1e3}}, "required": ["x"],
            "additionalProperties": false}},
    });
    for vocabulary in [&*BYTES, &*PIECES] {
        let grammar = vocabulary.compile(&of_schema(&person));
        let mut whole = 0;
        for seed in 0..40 {
            let Some(text) = vocabulary.draw(&mut grammar.matcher(Reasoning::None), seed, 2000) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
            whole += 1;
            assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 12), "{text}");
            assert!(value["age"].as_u64().is_some_and(|age| age <= 150), "{text}");
            assert!(value["tags"].as_array().unwrap().iter().all(|tag| tag == "a" || tag == "b"), "{text}");
            assert!(value["next"].is_null() || value["next"]["x"].is_number(), "{text}");
            assert_eq!(value.as_object().unwrap().len(), 4);
        }
        assert!(whole > 10, "{whole}");
    }
}

#[test]
fn space_is_where_people_put_it_and_nowhere_else() {
    let source = of_schema(&json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}));
    for (text, is_taken) in [
        ("{\"a\":1}", true),
        ("{\"a\": 1}", true),
        ("{\n  \"a\": 1\n}", true),
        ("{}", false),
        (" {\"a\":1}", false),
        ("{\"a\":   1}", false),
        ("{\"a\":1", false),
    ] {
        assert_eq!(BYTES.takes(&source, text), is_taken, "{text:?}");
    }
    let tight =
        Source::json_schema(&json!({"type": "object", "properties": {"a": {"type": "integer"}}}), false).unwrap();
    assert!(BYTES.takes(&tight, "{\"a\":1}") && !BYTES.takes(&tight, "{\"a\": 1}"));
    assert!(BYTES.takes(&Source::json_object(true), "{\"x\": [1, null, {}]}"));
    assert!(!BYTES.takes(&Source::json_object(true), "[1]"));
}

#[test]
fn regular_expressions_choices_and_grammars() {
    let date = Source::regex(r"\d{4}-(0[1-9]|1[0-2])/\w+").unwrap();
    assert!(BYTES.takes(&date, "2024-11/x") && !BYTES.takes(&date, "2024-13/x"));
    let choice = Source::choice(&["yes".into(), "no. (never)\n".into(), "\u{fc}/(".into()]).unwrap();
    for text in ["yes", "no. (never)\n", "\u{fc}/("] {
        assert!(BYTES.takes(&choice, text), "{text}");
        assert!(PIECES.takes(&choice, text), "{text}");
    }
    assert!(!BYTES.takes(&choice, "no"));
    let sums = Source::grammar("start: NUMBER (OP NUMBER)*\nOP: \"+\" | \"-\"\nNUMBER: /[0-9]{1,3}/").unwrap();
    assert!(BYTES.takes(&sums, "1+22-333") && !BYTES.takes(&sums, "1+"));
    for seed in 0..20 {
        let text = BYTES.draw(&mut BYTES.compile(&date).matcher(Reasoning::None), seed, 4000);
        assert!(text.is_none_or(|text| text.as_bytes()[4] == b'-'));
    }
}

/// SmolLM's vocabulary has no token for some bytes: nothing that needs one comes out, and nothing else in its place.
#[test]
fn what_cannot_be_spelt_is_not_drawn() {
    let vocabulary = vocabulary("smollm");
    let without = |text: &str| vocabulary.grammars.compile(&Source::choice(&[text.to_string()]).unwrap());
    assert_eq!(without("\\x").unwrap_err(), GrammarError::Invalid("no answer can match it".into()));
    for text in ["a\\x", "it is so \\ and so"] {
        let mut matcher = without(text).unwrap().matcher(Reasoning::None);
        let mut said = String::new();
        for _ in 0..text.len() + 1 {
            let words = matcher.allowed();
            let Some(at) = words.iter().position(|word| *word != 0) else { break };
            let id = at as u32 * 32 + words[at].trailing_zeros();
            said += &vocabulary.text(&[id]);
            matcher.accept(id);
        }
        assert!(matcher.fault().is_some() && text.starts_with(&said) && !said.contains('\\'), "{said:?}");
        assert!(!matcher.is_complete() && matcher.allowed().iter().all(|word| *word == 0));
    }
}

/// What a model of any family would write is read back as the call that was asked for.
#[test]
fn calls_are_read_back() {
    let forms = [
        (CallForm::Hermes, Dialect::Hermes),
        (CallForm::Coder, Dialect::Hermes),
        (CallForm::Glm, Dialect::Glm),
        (CallForm::DeepSeek, Dialect::DeepSeek),
        (CallForm::DeepSeekFenced, Dialect::DeepSeek),
        (CallForm::Kimi, Dialect::Kimi),
        (CallForm::Llama, Dialect::Llama),
    ];
    let parameters = json!({
        "type": "object",
        "properties": {
            "unit": {"enum": ["c", "f"]},
            "days": {"$ref": "#/$defs/days"},
            "note": {"type": "string", "maxLength": 4},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["unit", "days"],
        "additionalProperties": false,
        "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    });
    let tools = [
        json!({"type": "function", "function": {"name": "weather", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "now", "parameters": null}}),
    ];
    for (form, dialect) in forms {
        for named in [Some("weather"), Some("now"), None] {
            let calls = Calls { form, tools: &tools, named, several: true };
            let grammar = BYTES.compile(&Source::calls(&calls, BYTES.tokenizer).unwrap());
            let mut read = 0;
            for seed in 0..30 {
                let Some(text) = BYTES.draw(&mut grammar.matcher(Reasoning::None), seed, 600) else { continue };
                // A value that was drawn blindly may hold a marker of its own.
                if text.matches("</tool_call>").count() > text.matches("<tool_call>").count() {
                    continue;
                }
                let mut parser = OutputParser::new(dialect, Tools::of(&tools), false);
                let mut pieces = parser.push(&text);
                pieces.extend(parser.finish());
                read += 1;
                assert!(!pieces.is_empty(), "{form:?}: {text:?}");
                for piece in pieces {
                    let Piece::Call(call) = piece else { panic!("{form:?}: {text:?}: {piece:?}") };
                    assert!(named.is_none_or(|name| name == call.name), "{form:?}: {text:?}");
                    if call.name == "weather" {
                        let unit = call.arguments["unit"].as_str();
                        assert!(unit == Some("c") || unit == Some("f"), "{form:?}: {text:?}");
                        assert!((1..=9).contains(&call.arguments["days"].as_u64().unwrap()), "{form:?}: {text:?}");
                        assert!(call.arguments.get("note").is_none_or(Value::is_string), "{form:?}: {text:?}");
                    } else {
                        assert!(call.arguments.is_empty(), "{form:?}: {text:?}");
                    }
                }
            }
            assert!(read > 3, "{form:?} {named:?}: {read}");
        }
    }
    let unknown = Calls { form: CallForm::Glm, tools: &tools, named: Some("x"), several: true };
    assert!(matches!(Source::calls(&unknown, BYTES.tokenizer), Err(GrammarError::Calls(_))));
}

#[test]
fn reasoning_comes_before_what_is_constrained() {
    let grammar = BYTES.compile(&Source::choice(&["yes".into()]).unwrap());
    let mut matcher = grammar.matcher(Reasoning::Open);
    let ids = BYTES.tokenizer.encode("well, </think>", false).unwrap();
    let end = BYTES.tokenizer.end_of_generation()[0];
    for id in ids {
        let words = matcher.allowed();
        assert_eq!(words[end as usize / 32] >> (end % 32) & 1, 0, "it does not end in its reasoning");
        assert!(words.iter().map(|word| word.count_ones()).sum::<u32>() > 500 && !matcher.is_complete());
        matcher.accept(id);
    }
    assert_eq!(BYTES.draw(&mut matcher, 1, 10).as_deref(), Some("yes"));
}

/// JSON as llama.cpp's users write it, and what is regular by itself.
#[test]
fn gbnf_is_known_too() {
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # with escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let json = Source::grammar(json).unwrap();
    for (text, is_taken) in [
        ("{}", true),
        ("{\"a\": [1, -2.5, \"x\\\"y\", {\"b\": null}, []]}", true),
        ("{\n  \"a\": true\n}", true),
        ("{\"a\": 01}", false),
        ("[1]", false),
        ("{\"a\": [1}", false),
    ] {
        assert_eq!(BYTES.takes(&json, text), is_taken, "{text}");
    }
    let grammar = BYTES.compile(&json);
    let whole = (0..30).filter_map(|seed| BYTES.draw(&mut grammar.matcher(Reasoning::None), seed, 600));
    let whole: Vec<Value> = whole.map(|text| serde_json::from_str(&text).unwrap()).collect();
    assert!(whole.len() > 3 && whole.iter().all(Value::is_object));
    let nested = Source::grammar("root ::= \"(\" root? \")\" tail\ntail ::= [a-z]* \"z\"").unwrap();
    assert!(BYTES.takes(&nested, "(()az)bzz") && !BYTES.takes(&nested, "(()z)") && !BYTES.takes(&nested, "(()a)z"));
    let dates = Source::grammar("root ::= [0-9]{4} (\"-\" [0-9]{2}){2} | \"\\u00fc\"").unwrap();
    assert!(BYTES.takes(&dates, "2024-01-31") && BYTES.takes(&dates, "\u{fc}") && !BYTES.takes(&dates, "2024-1-31"));
}

fn takes_long(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

#[test]
fn what_cannot_be_is_refused_in_time() {
    let deep = |open: &str, close: &str| format!("{}a{}", open.repeat(60_000), close.repeat(60_000));
    let many = (0..10_000).map(|i| format!("c{i}")).collect::<Vec<_>>().join("\" | \"");
    let regexes = ["*a", "a(", "(?<=a)b", "(?=a)b", r"(a)\1", "[z-a]", "\\p{Nope}", &deep("(", ")")];
    let grammars = [
        "root ::= x",
        "start: nothing",
        "start: \"a",
        "start: start",
        "x: \"a\"",
        "start: <|no_such_token|>",
        "start: <[999999999]>",
        "start: %json {\"type\": \"strng\"}",
        &format!("start: {}", deep("(", ")")),
        &format!("start: {}", deep("[", "]")),
        &format!("start: /{}/", deep("(", ")")),
    ];
    let cycle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    let mut chain = json!({"$ref": "#/$defs/d0"});
    let links = (0..14_999).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})));
    chain["$defs"] = links.chain([("d14999".to_string(), json!({"type": "integer"}))]).collect();
    let schemas = [
        json!({"type": "strng"}),
        json!({"type": 7}),
        json!({"type": "integer", "minimum": 5, "maximum": 3}),
        json!({"enum": []}),
        json!({"$ref": "#/$defs/none"}),
        json!({"type": "string", "pattern": "(?=a)"}),
        json!({"not": {"type": "integer"}}),
        json!({"properties": 7}),
        json!({"allOf": [{"type": "integer"}, {"type": "string"}]}),
        cycle.clone(),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"type": "string", "pattern": deep("(", ")")}),
        json!({"x-guidance": 7, "type": "nothing"}),
    ];
    let sources = regexes.iter().map(|regex| Source::regex(regex));
    let sources = sources.chain(grammars.iter().map(|grammar| Source::grammar(grammar)));
    let sources = sources.chain(schemas.iter().map(|schema| Source::json_schema(schema, true)));
    let mut wrong = Vec::new();
    for source in sources {
        let shown: String = format!("{source:?}").chars().take(160).collect();
        let took = takes_long(|| match source.and_then(|source| BYTES.grammars.compile(&source)) {
            Ok(_) => wrong.push(format!("{shown}: taken")),
            Err(error) => {
                let message = error.to_string();
                if message.is_empty() || message.len() > 1500 || message.contains('\n') {
                    wrong.push(format!("{shown}: {message}"));
                }
            }
        });
        if took > Duration::from_secs(60) {
            wrong.push(format!("{shown}: {took:?}"));
        }
    }
    // What is large and can be.
    for source in [
        Source::regex("(a+)+b"),
        Source::grammar(&format!("start: \"{many}\"")),
        Source::json_schema(&json!({"enum": (0..10_000).map(|i| format!("entry {i}")).collect::<Vec<_>>()}), true),
        Source::json_schema(&json!({"type": "integer", "maximum": 2e10}), true),
        Source::json_schema(&json!({"type": "number", "minimum": -2e10, "maximum": 2e10}), true),
        Source::json_schema(&json!({"type": "string", "maxLength": 100_000}), true),
        Source::choice(&(0..10_000).map(|i| format!("choice {i}")).collect::<Vec<_>>()),
        Source::json_schema(&chain, true),
        Source::regex("a{1,1000000000}"),
        Source::grammar("start: \"a\" start"),
        Source::json_schema(&json!({"type": "string", "minLength": 1_000_000_000}), true),
        Source::json_schema(&json!({"type": "array", "minItems": 4_000_000_000u64}), true),
        Source::json_schema(&json!({"type": "string", "pattern": "a{1,1000000000}"}), true),
        Source::regex("(x+x+)+y"),
        Source::regex("(.*a.{0,200}){20}"),
        Source::regex("((a{0,500}){0,500}){0,500}"),
        Source::regex(&"(a|b)*a(a|b){60}".repeat(20)),
        Source::json_schema(&json!({"type": "string", "pattern": "(.*a.{0,200}){20}"}), true),
        Source::json_schema(
            &json!({"type": "object", "properties": (0..500).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()}),
            true,
        ),
        Source::json_schema(
            &json!({"type": "object", "patternProperties": (0..300).map(|i| (format!("^p{i}.*x"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()}),
            true,
        ),
        Source::json_schema(&json!({"type": "integer", "multipleOf": 1_000_003}), true),
        Source::json_schema(
            &json!({"allOf": (0..200).map(|i| json!({"type": "string", "pattern": format!("a.{{0,{i}}}b")})).collect::<Vec<_>>()}),
            true,
        ),
        Source::json_schema(
            &json!({"anyOf": (0..300).map(|i| json!({"type": "object", "properties": {format!("k{i}"): {"type": "integer"}}, "required": [format!("k{i}")]})).collect::<Vec<_>>()}),
            true,
        ),
        Source::json_schema(
            &json!({"oneOf": (0..300).map(|i| json!({"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]})).collect::<Vec<_>>()}),
            true,
        ),
    ] {
        let shown: String = format!("{source:?}").chars().take(100).collect();
        let took = takes_long(|| match source.and_then(|source| BYTES.grammars.compile(&source)) {
            Ok(grammar) => {
                let mut matcher = grammar.matcher(Reasoning::None);
                for _ in 0..30 {
                    let words = matcher.allowed();
                    let Some((at, word)) = words.iter().enumerate().find(|(_, word)| **word != 0) else { break };
                    let id = at as u32 * 32 + word.trailing_zeros();
                    matcher.accept(id);
                }
                if matcher.fault().is_some_and(|fault| fault.is_empty() || fault.contains('\n')) {
                    wrong.push(format!("{shown}: {:?}", matcher.fault()));
                }
            }
            Err(error) if error.to_string().contains('\n') => wrong.push(format!("{shown}: {error}")),
            Err(_) => {}
        });
        if took > Duration::from_secs(60) {
            wrong.push(format!("{shown}: {took:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What must come may be without end: it comes token by token, and each takes its little time.
#[test]
fn what_never_ends_is_no_endless_work() {
    for grammar in ["start: A B\nA: /x*/\nB: \"x\"", "start: A \"x\"\nA: /x*/", "start: A B\nA: /x+/\nB: \"x\""] {
        let grammar = BYTES.compile(&Source::grammar(grammar).unwrap());
        let took = takes_long(|| {
            let text = BYTES.draw(&mut grammar.matcher(Reasoning::None), 1, 40);
            assert!(text.is_none_or(|text| text.chars().all(|c| c == 'x')));
        });
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn numbers_that_would_become_others_are_refused() {
    let of = |schema: serde_json::Value| Source::json_schema(&schema, true).is_ok();
    for lost in [
        json!({"const": 9_007_199_254_740_993_i64}),
        json!({"enum": [1, u64::MAX]}),
        json!({"type": "integer", "minimum": 1e19}),
        json!({"properties": {"id": {"type": "integer", "maximum": 9_007_199_254_740_993_i64}}}),
    ] {
        assert!(!of(lost.clone()), "{lost}");
    }
    assert!(of(json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX})));
    assert!(of(json!({"default": u64::MAX, "maximum": 2e10})));
}

#[test]
fn sizes_are_limited() {
    let refused = |made: Result<Source, GrammarError>| matches!(made, Err(GrammarError::TooMany { .. }));
    assert!(refused(Source::regex(&"a".repeat(1 << 20))));
    assert!(refused(Source::grammar(&"a".repeat(1 << 20))));
    assert!(refused(Source::choice(&vec!["a".to_string(); 100_000])));
    assert!(refused(Source::json_schema(&json!({"enum": vec![1; 100_000]}), true)));
    assert!(refused(Source::json_schema(&json!({"description": "x".repeat(1 << 20)}), true)));
    for remote in ["http://169.254.169.254/x", "file:///etc/passwd", "other.json#/a", ""] {
        let source = Source::json_schema(&json!({"properties": {"a": {"$ref": remote}}}), true);
        assert!(matches!(source, Err(GrammarError::Invalid(_))), "{remote}");
    }
    assert!(
        Source::json_schema(&json!([]), true).is_err() && Source::choice(&[]).is_err() && Source::regex("").is_err()
    );
}
