//! Answers of models, taken apart.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tombolo_text::output::{Dialect, OutputParser, Piece, Tools};

fn tools() -> Tools {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"},
        "unit": {"enum": ["c", "f"]}, "note": {"type": ["string", "null"]}, "wind": {"anyOf": [{"type": "string"}]},
    });
    let parameters = json!({"type": "object", "properties": properties});
    Tools::of(&[
        json!({"type": "function", "function": {"name": "weather", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ])
}

/// The whole answer at once, and byte by byte as far as characters allow: both must say the same.
fn parse(dialect: Dialect, reasoning: bool, text: &str) -> Vec<Piece> {
    let whole = run(dialect, reasoning, [text]);
    let letters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(run(dialect, reasoning, letters.iter().map(String::as_str)), whole, "{text}");
    whole
}

fn run<'t>(dialect: Dialect, reasoning: bool, parts: impl IntoIterator<Item = &'t str>) -> Vec<Piece> {
    let mut parser = OutputParser::new(dialect, tools(), reasoning);
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    // What streams in several pieces is one.
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Content(a)), Piece::Content(b)) | (Some(Piece::Reasoning(a)), Piece::Reasoning(b)) => {
                a.push_str(&b);
            }
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn call(name: &str, arguments: Value) -> Piece {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Piece::Call(tombolo_text::output::ToolCall { name: name.into(), arguments })
}

fn content(text: &str) -> Piece {
    Piece::Content(text.into())
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.into())
}

#[test]
fn reasoning_has_its_own_channel() {
    for dialect in [Dialect::Plain, Dialect::Glm, Dialect::DeepSeek] {
        assert_eq!(parse(dialect, true, "hm\n</think>\n\nyes"), [reasoning("hm\n"), content("\n\nyes")]);
        assert_eq!(parse(dialect, false, "<think>hm</think>yes"), [reasoning("hm"), content("yes")]);
        assert_eq!(parse(dialect, true, "never closed"), [reasoning("never closed")]);
        assert_eq!(parse(dialect, false, "</think>yes"), [content("yes")]);
        assert_eq!(parse(dialect, false, "a <think> b </think>"), [content("a <think> b </think>")]);
    }
}

#[test]
fn glm_calls_take_their_types_from_the_schema() {
    let text = "so\n</think>I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>42</arg_value>\n\
                <arg_key>days</arg_key>\n<arg_value>3</arg_value><arg_key>tags</arg_key><arg_value>[\"a\"]</arg_value>\
                <arg_key>unit</arg_key><arg_value>1</arg_value><arg_key>note</arg_key><arg_value>null</arg_value>\
                <arg_key>wind</arg_key><arg_value>5</arg_value></tool_call>\n<tool_call>now</tool_call>";
    let arguments = json!({"city": "42", "days": 3, "tags": ["a"], "unit": "1", "note": null, "wind": "5"});
    assert_eq!(
        parse(Dialect::Glm, true, text),
        [reasoning("so\n"), content("I look.\n"), call("weather", arguments), call("now", json!({}))]
    );
}

#[test]
fn glm_calls_are_understood_with_their_known_faults() {
    let weather = |city: &str| call("weather", json!({"city": city}));
    let cases = [
        ("<tool_call>weather<arg_key>city</arg_key>Rome</arg_value></tool_call>", "Rome"),
        ("<tool_call></arg_value>weather\n<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>", "Rome"),
        ("<tool_call>weather<arg_key>city</arg_key><arg_value>Rome", "Rome"),
        ("<tool_call>weather<arg_key>city</arg_key><arg_value>a < b\n</arg_value></tool_call>", "a < b\n"),
    ];
    for (text, city) in cases {
        assert_eq!(parse(Dialect::Glm, false, text), [weather(city)], "{text}");
    }
    // Reasoning that was not closed.
    let text = "hm<tool_call>now</tool_call>";
    assert_eq!(parse(Dialect::Glm, true, text), [reasoning("hm"), call("now", json!({}))]);
}

#[test]
fn what_is_no_call_is_text() {
    for text in [
        "<tool_call></tool_call>",
        "<tool_call>no such tool</tool_call>",
        "<tool_call>weather<arg_key>city</tool_call>",
        "a <tool_cal",
        "<tool_call>{\"name\": 1}</tool_call>",
    ] {
        assert_eq!(parse(Dialect::Glm, false, text), [content(text)], "{text}");
    }
    for text in ["<tool_call>{\"name\": \"weather\", </tool_call>", "<tool_call>[]</tool_call> and more"] {
        assert_eq!(parse(Dialect::Hermes, false, text), [content(text)], "{text}");
    }
    assert_eq!(parse(Dialect::Llama, false, "{\"name\": \"weather\""), [content("{\"name\": \"weather\"")]);
}

#[test]
fn qwen_writes_json_or_tags() {
    let text = "<think>\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"now\"}\n</tool_call>";
    assert_eq!(
        parse(Dialect::Hermes, false, text),
        [reasoning("\n"), call("weather", json!({"days": 2})), call("now", json!({}))]
    );
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n7\n</parameter>\n\
                </function>\n</tool_call>";
    assert_eq!(parse(Dialect::Hermes, false, text), [call("weather", json!({"city": "7", "days": 7}))]);
}

#[test]
fn deepseek_has_two_ways() {
    let old = "ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"days\": 1}\n```\
               <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>\
               <｜tool▁calls▁end｜>";
    assert_eq!(
        parse(Dialect::DeepSeek, false, old),
        [content("ok"), call("weather", json!({"days": 1})), call("now", json!({}))]
    );
    let new = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜>";
    assert_eq!(parse(Dialect::DeepSeek, false, new), [call("weather", json!({"days": 1}))]);
}

#[test]
fn kimi_numbers_its_calls() {
    let text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
                {\"days\": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}\
                <|tool_call_end|><|tool_calls_section_end|>done";
    assert_eq!(
        parse(Dialect::Kimi, false, text),
        [call("weather", json!({"days": 1})), call("now", json!({})), content("done")]
    );
}

#[test]
fn llama_s_whole_answer_is_a_call() {
    let weather = call("weather", json!({"days": 1}));
    let text = "{\"name\": \"weather\", \"parameters\": {\"days\": 1}}";
    assert_eq!(parse(Dialect::Llama, false, text), std::slice::from_ref(&weather));
    assert_eq!(parse(Dialect::Llama, false, &format!("<|python_tag|>{text}; {text}")), [weather.clone(), weather]);
    assert_eq!(parse(Dialect::Llama, false, "{1, 2} is a set"), [content("{1, 2} is a set")]);
    // Tools that come with the model are called like functions, and code is no call.
    let text = "<|python_tag|>weather.call(city=\"Åre, \"old\" town\", days=\"2\")";
    let arguments = json!({"city": "Åre, \"old\" town", "days": 2});
    assert_eq!(parse(Dialect::Llama, false, text), [call("weather", arguments)]);
    assert_eq!(parse(Dialect::Llama, false, "<|python_tag|>now.call()"), [call("now", json!({}))]);
    for text in ["<|python_tag|>print(1)", "<|python_tag|>weather.call(city=Rome)", "<|python_tag|>os.now.call()"] {
        assert_eq!(parse(Dialect::Llama, false, text), [content(text)]);
    }
}

#[test]
fn templates_tell_their_dialect() {
    for (template, dialect) in [
        ("…<tool_call>{name}<arg_key>…", Dialect::Glm),
        ("<tool_call>\n{\"name\": …", Dialect::Hermes),
        ("<｜tool▁calls▁begin｜>", Dialect::DeepSeek),
        ("<|tool_calls_section_begin|>", Dialect::Kimi),
        ("<|start_header_id|> {\"name\": …, \"parameters\": …}", Dialect::Llama),
        ("{{ m.content }}", Dialect::Plain),
    ] {
        assert_eq!(Dialect::of_template(template), dialect, "{template}");
    }
}

const DIALECTS: [Dialect; 6] =
    [Dialect::Plain, Dialect::Glm, Dialect::Hermes, Dialect::DeepSeek, Dialect::Kimi, Dialect::Llama];

/// The quickest of some runs over an answer that is `begin` and then `unit` again and again, in parts of `part` bytes.
fn quickest_after(begin: &str, dialect: Dialect, unit: &str, bytes: usize, part: usize) -> Duration {
    let text = format!("{begin}{}", unit.repeat(bytes / unit.len()));
    let run = || {
        let started = Instant::now();
        let mut parser = OutputParser::new(dialect, tools(), false);
        let mut said = 0;
        let mut count = |pieces: Vec<Piece>| {
            for piece in pieces {
                if let Piece::Content(text) | Piece::Reasoning(text) = piece {
                    said += text.len();
                }
            }
        };
        for part in text.as_bytes().chunks(part) {
            count(parser.push(std::str::from_utf8(part).unwrap()));
        }
        count(parser.finish());
        assert!(said <= text.len());
        started.elapsed()
    };
    (0..3).map(|_| run()).min().unwrap()
}

/// Eight times the text takes about eight times as long, not sixty-four times, in small parts and as a whole.
#[test]
fn time_is_linear_in_the_answer() {
    for dialect in DIALECTS {
        for unit in [
            "<tool_call>",
            "<think>",
            "<",
            "<tool_call><arg_key>",
            "</think><tool_call>x",
            "<tool_call>now</tool_call>",
            "<arg_key>k</arg_key>",
            "<parameter=k>",
            "{",
            "{}; ",
            " ",
            "<|tool_call_begin|>",
            "<｜tool▁call▁begin｜>x<｜tool▁sep｜>",
        ] {
            let ascii_part = if unit.is_ascii() { 5 } else { unit.len() };
            for (begin, part) in [("", ascii_part), ("", usize::MAX), ("<tool_call>weather", usize::MAX)] {
                let time = |bytes: usize| quickest_after(begin, dialect, unit, bytes, part);
                let (short, long) = (time(100_000), time(800_000));
                // A busy machine stretches either of them by some time.
                let most = 24 * short + Duration::from_secs(1);
                assert!(long <= most, "{dialect:?} {begin}{unit} by {part}: {short:?}, then {long:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_answer_is_too_odd(parts in proptest::collection::vec(
        prop_oneof![
            Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("<arg_key>"),
            Just("</arg_key>"), Just("<arg_value>"), Just("</arg_value>"), Just("weather"), Just("city"), Just("{"),
            Just("}"), Just("\"name\": \"now\""), Just("<｜tool▁calls▁begin｜>"), Just("<｜tool▁call▁begin｜>"),
            Just("<｜tool▁sep｜>"), Just("<|tool_call_begin|>"), Just("<|tool_call_argument_begin|>"), Just(" "),
            Just("\n"), Just("é"), Just("<|python_tag|>"),
        ], 0..12), reasoning: bool)
    {
        let text = parts.concat();
        for dialect in DIALECTS {
            parse(dialect, reasoning, &text);
        }
    }
}
