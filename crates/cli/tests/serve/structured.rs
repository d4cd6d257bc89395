//! Answers that are held to a form: whatever is drawn is what was asked for, by every name and with everything else that a
//! request may say; and what cannot be is refused while somebody else's stream goes on.

use crate::client::{Answer, Served};
use crate::common::{respelt_model_of, speaking_model_of, text};
use crate::hostile::beside_a_stream;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn content(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let choice = answer.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_string()
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 2},
            "home": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
        "required": ["name", "age", "pets", "home"],
        "additionalProperties": false,
        "$defs": {"pet": {"enum": ["cat", "dog"]}},
    })
}

#[track_caller]
fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
    assert!(value["name"].as_str().is_some_and(|name| (1..=8).contains(&name.chars().count())), "{text}");
    assert!(value["age"].as_u64().is_some_and(|age| age <= 120), "{text}");
    let pets = value["pets"].as_array().unwrap();
    assert!(pets.len() <= 2 && pets.iter().all(|pet| pet == "cat" || pet == "dog"), "{text}");
    assert!(value["home"].is_boolean() || value["home"].is_null(), "{text}");
}

fn hi(more: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "And God said"}], "max_tokens": 400, "seed": 1}), more)
}

fn by_schema(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}})
}

#[test]
fn answers_are_of_their_schema() {
    let served = Served::start(&[]);
    for seed in 0..6 {
        let body = hi(with(by_schema(&person()), json!({"seed": seed, "temperature": 1})));
        check_person(&content(&served.chat(&body)));
    }
    let number = json!({"type": "array", "items": {"type": "integer", "multipleOf": 7, "minimum": -999, "maximum": 999}, "minItems": 2, "maxItems": 3});
    let text = content(&served.chat(&hi(by_schema(&number))));
    let list: Vec<i64> = serde_json::from_str(&text).unwrap();
    assert!((2..=3).contains(&list.len()) && list.iter().all(|n| n % 7 == 0), "{text}");
    let body = json!({"prompt": "a", "max_tokens": 300, "seed": 2, "structured_outputs": {"json": person(), "disable_any_whitespace": true}});
    let text = content(&served.complete(&body));
    check_person(&text);
    assert!(!text.contains(['\n']), "{text}");
    // Any object ends when it ends, or when there is no room.
    let object = served.chat(&hi(json!({"response_format": {"type": "json_object"}, "temperature": 0.7})));
    let choice = object.json()["choices"][0].clone();
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('{'), "{text}");
    if choice["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    }
}

#[test]
fn expressions_choices_and_grammars() {
    let served = Served::start(&[]);
    for seed in 0..4 {
        let ask = |more: Value| content(&served.chat(&hi(with(more, json!({"seed": seed})))));
        let code = ask(json!({"structured_outputs": {"regex": "[A-Z]{2}-\\d{3}"}}));
        assert!(code.len() == 6 && code.as_bytes()[2] == b'-', "{code}");
        let choice = ask(json!({"structured_outputs": {"choice": ["yes", "no", "maybe (later)"]}}));
        assert!(["yes", "no", "maybe (later)"].contains(&choice.as_str()), "{choice}");
        assert_eq!(ask(json!({"guided_regex": "a{3}"})), "aaa");
        let sum = ask(json!({"guided_grammar": "start: N (\"+\" N)\nN: /[1-9]/"}));
        assert!(sum.len() == 3 && sum.as_bytes()[1] == b'+', "{sum}");
    }
}

/// The same answer in one piece and in events, alone and among others, with all that needs the engine's attention.
#[test]
fn forms_go_together_with_everything() {
    let served = Served::start(&["--max-num-seqs", "4"]);
    let body = hi(with(by_schema(&person()), json!({"seed": 5})));
    let whole = content(&served.chat(&body));
    let events = served.chat(&with(body.clone(), json!({"stream": true}))).events();
    let parts: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(parts, whole);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    let several = served.chat(&with(body.clone(), json!({"n": 4, "logprobs": true, "top_logprobs": 2}))).json();
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert_eq!(choices[0]["message"]["content"], whole, "the first answer is that of the request alone");
    for choice in choices {
        check_person(choice["message"]["content"].as_str().unwrap());
        assert!(
            choice["logprobs"]["content"]
                .as_array()
                .unwrap()
                .iter()
                .all(|token| token["logprob"].as_f64() <= Some(0.0))
        );
    }
    // Nothing but the end is allowed behind it: neither the least length nor the wish to go on can hold it back.
    for more in [
        json!({"min_tokens": 300}),
        json!({"ignore_eos": true}),
        json!({"repetition_penalty": 1.3, "logit_bias": {"5": 3}}),
    ] {
        check_person(&content(&served.chat(&with(body.clone(), more))));
    }
    let cut = served.chat(&with(body.clone(), json!({"stop": "\"age\""}))).json();
    assert!(whole.starts_with(cut["choices"][0]["message"]["content"].as_str().unwrap()), "{cut}");
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!("\"age\""))
    );
    let short = served.chat(&with(body.clone(), json!({"max_tokens": 3}))).json();
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    // A prompt from the cache, and one that was not.
    let long =
        with(body, json!({"messages": [{"role": "user", "content": "And God said, let there be. ".repeat(20)}]}));
    let [first, second] = [0, 1].map(|_| served.chat(&long).json());
    assert_eq!(first["choices"], second["choices"]);
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    // What is allowed at all and by the form has to have something in common.
    let none = served.complete(&json!({"prompt": "a", "allowed_token_ids": [5], "guided_choice": ["yes"]}));
    assert_eq!((none.status, &none.json()["error"]["param"]), (400, &json!("guided_choice")), "{}", none.body);
    assert_eq!(served.when_idle(), 0.0);
}

/// Whoever gives its blocks up to others and is run again goes on where it was in its form.
#[test]
fn forms_outlast_preemption() {
    let served = Served::start(&["-c", "512", "--kv-cache-tokens", "512", "--max-num-seqs", "4"]);
    let list = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 100, "maxItems": 100});
    let ask = |seed: usize| {
        let body = hi(with(by_schema(&list), json!({"seed": seed, "max_tokens": 480})));
        let text = content(&served.chat(&body));
        assert_eq!(serde_json::from_str::<Vec<u8>>(&text).unwrap().len(), 100, "{text}");
        text
    };
    let alone: Vec<String> = (0..4).map(ask).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let ask = &ask;
                    move || ask(seed)
                })
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    assert!(served.metric("vllm:num_preemptions_total") > 0.0);
    assert_eq!(served.when_idle(), 0.0);
}

const GLM: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<arg_key>";
const HERMES: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>";
const CODER: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call><function=";
const LLAMA: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<|python_tag|>";
const KIMI: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<|tool_call_begin|>";
const DEEPSEEK: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<｜tool▁call▁begin｜>";
const FENCED: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<｜tool▁call▁begin｜>```json";

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {
        "unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["unit", "days"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

#[track_caller]
fn check_call(call: &Value) {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "weather" => {
            assert!(["c", "f"].contains(&arguments["unit"].as_str().unwrap()), "{call}");
            assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{call}");
        }
        "now" => assert_eq!(arguments, json!({})),
        other => panic!("{other}"),
    }
}

/// A model of random weights makes calls that its own family would write, and that are read back.
#[test]
fn tools_are_called_where_they_must_be() {
    for (at, template) in [GLM, HERMES, CODER, LLAMA, KIMI, DEEPSEEK, FENCED].into_iter().enumerate() {
        let model = speaking_model_of(&format!("calls{at}.gguf"), &[], template, &[("eos_token_id", 0)]);
        let served = Served::start(&[text(&model)]);
        let named = json!({"type": "function", "function": {"name": "weather"}});
        for (seed, choice) in [(1, json!("required")), (2, named.clone()), (3, json!("required")), (4, named)] {
            let body = hi(
                json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "seed": seed, "max_tokens": 250}),
            );
            let answer = served.chat(&body).json();
            let told = &answer["choices"][0];
            assert_eq!(told["finish_reason"], "tool_calls", "{template}: {answer}");
            assert!(told["message"]["content"].is_null(), "{answer}");
            let calls = told["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            check_call(&calls[0]);
            if choice != "required" {
                assert_eq!(calls[0]["function"]["name"], "weather");
            }
            let events = served.chat(&with(body, json!({"stream": true}))).events();
            let streamed =
                events.iter().find_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0).cloned()).unwrap();
            assert_eq!(streamed["function"], calls[0]["function"]);
        }
        let unknown = hi(json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "none"}}}));
        assert_eq!(served.chat(&unknown).json()["error"]["param"], "tool_choice");
    }
    // The demo's template knows of no calls.
    let served = Served::start(&[]);
    let refused = served.chat(&hi(json!({"tools": tools(), "tool_choice": "required"})));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tool_choice")));
    // Nor are there always tools, which is said first.
    for (tools, choice, what) in [
        (json!([]), json!("required"), "there are no `tools`"),
        (tools(), json!({"type": "function", "function": {"name": "none"}}), "`none`, which is not among the `tools`"),
    ] {
        let refused = served.chat(&hi(json!({"tools": tools, "tool_choice": choice}))).json();
        assert_eq!(refused["error"]["param"], "tool_choice");
        assert!(refused["error"]["message"].as_str().unwrap().contains(what), "{refused}");
    }
}

/// What is held to a form begins where the reasoning ends.
#[test]
fn reasoning_comes_first() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    let model = respelt_model_of("reasons.gguf", template, (1, "</think>"), &[("eos_token_id", 0)]);
    let served = Served::start(&[text(&model)]);
    let mut reasoned = 0;
    for seed in 0..4 {
        let more = json!({"guided_choice": ["yes", "no"], "seed": seed, "max_tokens": 120, "logit_bias": {"1": 3}});
        let answer = served.chat(&hi(more)).json();
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "stop" {
            reasoned += usize::from(choice["message"]["reasoning_content"].is_string());
            assert!(["yes", "no"].contains(&choice["message"]["content"].as_str().unwrap()), "{answer}");
        } else {
            assert_eq!(choice["message"]["content"], "", "{answer}");
        }
    }
    assert!(reasoned > 0);
}

#[test]
fn what_cannot_be_is_refused_beside_a_stream() {
    let served = Served::start(&[]);
    let deep = |open: &str, close: &str| format!("{}a{}", open.repeat(60_000), close.repeat(60_000));
    let format = |schema: Value| by_schema(&schema);
    let regex = |regex: &str| json!({"structured_outputs": {"regex": regex}});
    let grammar = |grammar: &str| json!({"structured_outputs": {"grammar": grammar}});
    let schema = "response_format";
    let multiples = json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]});
    let patterns: Vec<Value> = (0..200).map(|i| json!({"pattern": format!("a.{{0,{i}}}b")})).collect();
    let refused = [
        (json!({"response_format": {"type": "json_schema", "json_schema": []}}), schema),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}), schema),
        (format(json!({"type": "strng"})), schema),
        (format(json!({"not": {"type": "integer"}})), schema),
        (format(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})), schema),
        (format(json!({"type": "integer", "minimum": 5, "maximum": 3})), schema),
        (format(json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})), schema),
        (format(json!({"$ref": "http://169.254.169.254/latest"})), schema),
        (format(json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}})), schema),
        (format(multiples), schema),
        (format(json!({"allOf": patterns})), schema),
        (json!({"structured_outputs": {"json": deep("[", "]")}}), "structured_outputs.json"),
        (regex("*"), "structured_outputs.regex"),
        (regex("(?<=a)b"), "structured_outputs.regex"),
        (regex("("), "structured_outputs.regex"),
        (regex(&deep("(", ")")), "structured_outputs.regex"),
        (grammar(&format!("start: {}", deep("(", ")"))), "structured_outputs.grammar"),
        (grammar("root ::= \u{1b}[31m"), "structured_outputs.grammar"),
        (json!({"structured_outputs": {"choice": vec!["x"; 100_000]}}), "structured_outputs.choice"),
    ];
    let either = [
        format(json!({"type": "integer", "maximum": 2e10})),
        format(json!({"enum": (0..10_000).map(|i| format!("entry {i}")).collect::<Vec<_>>()})),
        regex("(a+)+b"),
        regex("a{1,1000000000}"),
        regex("(?i)(\\w+\\s*){1,50}$"),
        grammar("start: \"a\" start"),
        grammar(&format!("start: \"{}\"", (0..10_000).map(|i| i.to_string()).collect::<Vec<_>>().join("\" | \""))),
    ];
    beside_a_stream(&served, || {
        for (more, field) in &refused {
            let started = Instant::now();
            let answer = served.complete(&with(json!({"prompt": "a", "max_tokens": 4}), more.clone()));
            let shown: String = more.to_string().chars().take(100).collect();
            assert_eq!(answer.status, 400, "{shown}: {}", answer.body);
            let error = &answer.json()["error"];
            assert!(error["param"].as_str().is_some_and(|param| param.starts_with(field)), "{shown}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.len() < 1000 && !message.contains(['\n', '\u{1b}']), "{shown}: {message}");
            assert!(started.elapsed() < Duration::from_secs(50), "{shown}: {:?}", started.elapsed());
        }
        for more in &either {
            let started = Instant::now();
            let answer = served.complete(&with(json!({"prompt": "a", "max_tokens": 8}), more.clone()));
            let shown: String = more.to_string().chars().take(100).collect();
            assert!([200, 400].contains(&answer.status), "{shown}: {}", answer.body);
            assert!(started.elapsed() < Duration::from_secs(50), "{shown}: {:?}", started.elapsed());
        }
        // Many, none like another: what is kept of them is bounded.
        let memory = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_string();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let ask = |i: usize| {
            let schema = json!({"type": "object", "properties": {format!("key{i}"): {"type": "string"}}, "required": [format!("key{i}")]});
            let answer = served.complete(&with(json!({"prompt": "a", "max_tokens": 1}), by_schema(&schema)));
            assert_eq!(answer.status, 200, "{}", answer.body);
        };
        (0..80).for_each(ask);
        let before = memory();
        (80..300).for_each(ask);
        let after = memory();
        assert!(after < before + 60_000, "{before} KB, then {after} KB");
    });
}
