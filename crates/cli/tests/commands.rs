//! Every command, on small models, as somebody would type it.
#![allow(missing_docs)]

mod common;

use common::{
    Ran, fail, golden, respelt_model, run, scratch, speaking_model, speaking_model_of, speaking_model_with, succeed,
    text, tombolo,
};
use std::io::{Read, Write};
use std::process::Stdio;

#[test]
fn ids_in_ids_out() {
    let model = golden("tiny-llama.gguf");
    let args = ["run", text(&model), "--tokens", "1,2,3", "-n", "8", "--temp", "0"];
    let ran = succeed(&args);
    let ids: Vec<u32> = ran.out.trim_end().split(',').map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 8);
    assert!(ids.iter().all(|&id| id < 256));
    assert!(ran.err.contains("loaded tiny-llama"), "{}", ran.err);
    let last = ran.err.lines().last().unwrap();
    assert!(last.starts_with("prompt 3 tokens ") && last.contains("generated 8 tokens "), "{last}");
    assert_eq!(succeed(&args).out, ran.out);
}

#[test]
fn a_seed_repeats_an_answer() {
    let model = golden("tiny-qwen3.gguf");
    let draw = |seed: &str| {
        succeed(&["run", text(&model), "--tokens", "7,8", "-n", "16", "--temp", "1.5", "--top-k", "0", "--seed", seed])
            .out
    };
    assert_eq!(draw("1"), draw("1"));
    assert!((2..6).any(|seed| draw(&seed.to_string()) != draw("1")));
}

#[test]
fn splitting_changes_no_token() {
    for model in ["tiny-llama.gguf", "tiny-qwen3.gguf", "tiny-gemma3.gguf", "tiny-gpt-oss.gguf"] {
        let model = golden(model);
        let with = |ranks: &str| {
            let options = ["-n", "12", "--temp", "0", "--arith", "f32", "--device", "cpu", "-tp", ranks];
            succeed(&[["run", text(&model), "--tokens", "5,6,7,8"].as_slice(), &options].concat()).out
        };
        let whole = with("1");
        assert_eq!(with("2"), whole);
        assert_eq!(with("4"), whole);
    }
}

#[test]
fn logits_match_the_reference() {
    for name in ["tiny-llama", "tiny-llama-q8_0", "tiny-llama-q4_0", "tiny-qwen3"] {
        let (model, reference) = (golden(&format!("{name}.gguf")), golden(&format!("{name}.safetensors")));
        for ranks in ["1", "2", "4"] {
            let args = ["logits", text(&model), "--compare", text(&reference), "--arith", "f32", "--tolerance", "1e-4"];
            let ran = succeed(&[args.as_slice(), &["--device", "cpu", "-tp", ranks, "--json"]].concat());
            let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            assert_eq!(json["positions"], 64);
            assert_eq!(json["same_top_percent"], 100.0);
        }
    }
}

/// Two bytes a value less than four, and one: each is said, and costs a little precision.
#[test]
fn the_cache_has_the_type_that_was_asked_for() {
    let (model, reference) = (golden("tiny-gemma3.gguf"), golden("tiny-gemma3.safetensors"));
    let args = ["logits", text(&model), "--compare", text(&reference), "--arith", "f32", "--device", "cpu", "--json"];
    let difference = |kind: &str| {
        let ran = succeed(&[args.as_slice(), &["--kv-cache-dtype", kind]].concat());
        let said = if kind == "auto" { "KV in f32".to_string() } else { format!("KV in {kind}") };
        assert!(ran.err.contains(&said), "{kind}: {}", ran.err);
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["mean_abs_diff"].as_f64().unwrap()
    };
    let by_type = ["auto", "f32", "f16", "bf16", "q8_0"].map(difference);
    assert_eq!(by_type[0], by_type[1]);
    assert!(by_type.windows(2).all(|w| w[0] <= w[1]) && by_type[4] < 0.1, "{by_type:?}");
    let ran = run(&[args.as_slice(), &["--kv-cache-dtype", "q3"]].concat());
    assert_eq!(ran.code, Some(2), "{}", ran.err);
}

#[test]
fn logits_that_were_written_compare_as_equal() {
    let (model, out) = (golden("tiny-llama.gguf"), scratch("logits.safetensors"));
    succeed(&["logits", text(&model), "--tokens", "1,2,3", "--out", text(&out)]);
    let ran = succeed(&["logits", text(&model), "--compare", text(&out), "--tolerance", "0"]);
    assert!(ran.out.starts_with("positions 3, max abs diff 0.000e0"), "{}", ran.out);
    // Other arithmetic gives other logits, and a tolerance of nothing must notice.
    let ran = run(&["logits", text(&model), "--compare", text(&out), "--tolerance", "0", "--arith", "f32"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.lines().last().unwrap().starts_with("error: the logits differ by"), "{}", ran.err);
}

#[test]
fn bench_prints_llama_benchs_formats() {
    let model = golden("tiny-llama.gguf");
    let args = ["bench", "decode", text(&model), "-p", "8", "-n", "4,2", "-r", "2", "--device", "cpu"];
    let with = |more: &[&str]| succeed(&[args.as_slice(), more].concat()).out;
    let table = with(&[]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("| model ") && lines[0].ends_with("|                  t/s |"), "{table}");
    let tests = ["pp8", "tg4", "tg2"];
    for (line, test) in lines[2..].iter().zip(tests) {
        assert!(line.contains(&format!(" {test} |")), "{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&with(&["-o", "json", "-d", "0,16", "-tp", "1,2"])).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.len(), 12);
    let last = &rows[11];
    assert_eq!((&last["n_gen"], &last["n_depth"], &last["tensor_parallel_size"]), (&2.into(), &16.into(), &2.into()));
    assert_eq!(last["samples_ns"].as_array().unwrap().len(), 2);
    assert!(rows.iter().all(|row| row["avg_ts"].as_f64().unwrap() > 0.0));
    assert_eq!(with(&["-o", "csv"]).lines().count(), 4);
    let several = with(&["-o", "jsonl", "--n-parallel", "1,3", "-p", "0"]);
    let counts = several.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["n_parallel"].clone());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 1, 1, 3, 3]);
    assert_eq!(with(&["-o", "jsonl"]).lines().count(), 3);
}

#[test]
fn inspect_shows_what_is_there() {
    let model = golden("tiny-llama-q4_0.gguf");
    let out = succeed(&["inspect", text(&model), "--tensors"]).out;
    for part in ["general.architecture", "Q4_0", "Q8_0", "blk.0.attn_q.weight", "token ids only"] {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
    let out = succeed(&["inspect", text(&model)]).out;
    for part in ["blk.*.attn_q.weight", "by rows", "by columns", "copied", "weights a rank"] {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
    let json: serde_json::Value = serde_json::from_str(&succeed(&["inspect", text(&model), "--json"]).out).unwrap();
    assert_eq!(json["version"], 3);
    assert_eq!(json["file_bytes"], std::fs::metadata(&model).unwrap().len());
    assert_eq!(json["tensor_parallel_sizes"], serde_json::json!([1, 2, 4]));
    let weights = |i: usize| json["ranks"][i]["weight_bytes"].as_u64().unwrap();
    assert!(weights(0) > weights(1) && weights(1) > weights(2) && json["ranks"][0]["copied_bytes"] == 0);
}

#[test]
fn without_a_model_there_is_the_demo() {
    for args in [["inspect", "--json"].as_slice(), &["inspect", "demo", "--json"]] {
        let ran = succeed(args);
        let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((&json["file"], &json["parameters"]), (&"demo".into(), &5_949_536.into()));
        assert!(ran.err.contains("demo model") && ran.err.contains("not for answers"), "{}", ran.err);
    }
    assert_eq!(run(&["inspect", "./demo"]).code, Some(2));
}

#[test]
fn text_goes_in_and_out() {
    let model = speaking_model("speaks.gguf");
    let prompt = ["run", text(&model), "-p", "hello", "-n", "6", "--temp", "0", "--json"];
    let with = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&succeed(&[prompt.as_slice(), more].concat()).out).unwrap()
    };
    // The template's "user: hello\n" has 12 bytes, each a token; the text alone has 5.
    let chat = with(&[]);
    assert_eq!((&chat["prompt_tokens"], &chat["finish"]), (&12.into(), &"length".into()));
    assert_eq!(chat["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(with(&["--no-chat"])["prompt_tokens"], 5);
    assert_eq!(with(&["--system", "x"])["prompt_tokens"], 12 + 10);
    assert!(chat["text"].is_string());
}

/// Each of three tokens ends an answer, by whichever key the file names it.
#[test]
fn three_tokens_end_an_answer() {
    let json = |model: &std::path::Path, more: &[&str]| -> serde_json::Value {
        let args = ["run", text(model), "--no-chat", "-p", "hello", "-n", "8", "--temp", "2", "--seed", "3", "--json"];
        serde_json::from_str(&succeed(&[args.as_slice(), more].concat()).out).unwrap()
    };
    let free = json(&speaking_model("endless.gguf"), &[]);
    let ids: Vec<u32> = free["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    assert_eq!((ids.len(), &free["finish"]), (8, &"length".into()));
    // The first place of a token that did not come before it, and two that never come.
    let at = (1..8).rev().find(|&at| !ids[..at].contains(&ids[at])).expect("it does not repeat itself at once");
    let mut others = (0..256).filter(|id| !ids.contains(id));
    let (one, other) = (others.next().unwrap(), others.next().unwrap());
    let keys = ["eos_token_id", "eot_token_id", "eom_token_id"];
    for turn in 0..3 {
        let special = [0, 1, 2].map(|i| (keys[(turn + i) % 3], [ids[at], one, other][i]));
        let model = speaking_model_of(&format!("ends-{turn}.gguf"), &[], "x", &special);
        let ended = json(&model, &[]);
        assert_eq!((&ended["finish"], &ended["tokens"]), (&"stop".into(), &ids[..at].into()), "{special:?}");
        assert_eq!(json(&model, &["--ignore-eos"])["tokens"], free["tokens"]);
    }
}

#[test]
fn a_pipe_brings_the_prompt() {
    let model = speaking_model("piped.gguf");
    let mut child = tombolo(&["run", text(&model), "--no-chat", "-n", "1", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"seven b").unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("\"prompt_tokens\":7"), "{}", ran.out);
}

#[test]
fn the_context_ends_an_answer() {
    let model = golden("tiny-llama.gguf");
    let ran = succeed(&["run", text(&model), "--tokens", "1,2,3", "-c", "40", "--json", "--temp", "0"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["finish"], "context full");
    // The last token is drawn when the context is full, and needs no room itself.
    assert_eq!(json["tokens"].as_array().unwrap().len(), 40 - 3 + 1);
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_an_answer_cleanly() {
    let model = golden("tiny-qwen3.gguf");
    let mut child = tombolo(&["run", text(&model), "--tokens", "1", "--temp", "0", "-t", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0u8; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    assert!(ran.err.lines().last().unwrap().starts_with("prompt 1 tokens"), "{}", ran.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let model = golden("tiny-llama.gguf");
    let mut child =
        tombolo(&["inspect", text(&model), "--tensors"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_error_does_not_end_the_work() {
    let model = golden("tiny-llama.gguf");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let args = ["run", text(&model), "--tokens", "1,2", "-n", "4", "--temp", "0"];
    let output = tombolo(&args).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), succeed(&args).out);
    let output = tombolo(&["run", "no/such/model"]).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_prompt_may_begin_with_a_hyphen() {
    let model = speaking_model("hyphen.gguf");
    let tokens = |args: &[&str]| -> serde_json::Value {
        let always = ["run", text(&model), "--no-chat", "--json", "-n", "1", "--device", "cpu"];
        let ran = succeed(&[always.as_slice(), args].concat());
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["prompt_tokens"].clone()
    };
    assert_eq!(tokens(&["-p", "-x 1"]), 4);
    assert_eq!(tokens(&["-p", "-tp", "-tp2"]), 3);
}

#[test]
fn no_speed_is_said_of_work_not_done() {
    let model = golden("tiny-llama.gguf");
    let last = |n: &str| {
        let ran = succeed(&["run", text(&model), "--tokens", "1,2,3", "-n", n]);
        ran.err.lines().last().unwrap().to_string()
    };
    assert_eq!(last("0"), "prompt 0 of 3 tokens, generated 0 tokens");
    assert!(last("1").ends_with("generated 1 tokens"), "{}", last("1"));
}

#[test]
fn the_transport_of_a_bench_is_the_one_in_force() {
    let model = golden("tiny-llama.gguf");
    let args = ["bench", "decode", text(&model), "-p", "2", "-n", "0", "-r", "1", "--device", "cpu", "-tp", "2"];
    let ran = succeed(&[args.as_slice(), &["-o", "jsonl"]].concat());
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["transport"], "-");
}

/// Begins `args`, lets them work for a moment, and presses Ctrl-C.
#[cfg(unix)]
fn interrupted(args: &[&str]) -> Ran {
    let child = tombolo(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
#[cfg(unix)]
fn an_interrupt_leaves_whole_json() {
    let model = golden("tiny-llama.gguf");
    // It would go on for hours.
    let ran = interrupted(&["bench", "decode", text(&model), "-n", "0", "-r", "9999999", "-p", "2", "-o", "json"]);
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.out).unwrap(), serde_json::json!([]));
}

#[test]
fn a_dummy_needs_no_file() {
    let ids = |seed: &str| {
        let args = ["run", "dummy:tiny", "--tokens", "1,2,3", "-n", "4", "--temp", "0", "--device", "cpu", "-s", seed];
        succeed(&args).out
    };
    assert_eq!(ids("1"), ids("2"));
    // Its header alone is looked at: it has 404 GiB.
    let json: serde_json::Value = serde_json::from_str(&succeed(&["inspect", "dummy:glm5", "--json"]).out).unwrap();
    assert!(json["parameters"].as_u64().is_some_and(|n| n / 10_000_000 == 75_386), "{}", json["parameters"]);
    assert_eq!(json["tensor_parallel_sizes"], serde_json::json!([1, 2, 4, 8]));
    // What one of eight ranks reads for a token, added up by hand from the published shapes: 6.36 GB.
    let read = json["ranks"][3]["weight_bytes_per_token"].as_f64().unwrap() / 1e9;
    assert!((read / 6.36 - 1.0).abs() < 0.01, "{read}");
    let ran = run(&["run", "dummy:huge"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("dummy:glm5-tp8-rank") && ran.err.trim_end().lines().count() == 1, "{}", ran.err);
}

/// A model that says what we want: the first token of its greedy answer is spelt so.
#[test]
fn calls_of_tools_are_told_from_the_answer() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<arg_key>";
    let tools = scratch("tools.json");
    let list = r#"[{"type": "function", "function": {"name": "weather", "parameters":
        {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]"#;
    std::fs::write(&tools, list).unwrap();
    let with_tools = ["--tools", text(&tools)];
    let answer = |model: &std::path::Path, more: &[&str]| {
        let args = ["run", text(model), "-p", "hello", "-n", "1", "--temp", "0", "--json"];
        let ran = succeed(&[args.as_slice(), more].concat());
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()
    };
    let silent = answer(&speaking_model_with("silent.gguf", &[], template), &with_tools);
    assert!(silent.get("tool_calls").is_none(), "{silent}");
    let first = silent["tokens"][0].as_u64().unwrap() as u8;
    assert!(!"hello<arg_key>".as_bytes().contains(&first), "the prompt needs this byte as it is");
    let spelling = "Ċ<think>hm</think>Ċ<tool_call>weatherĊ<arg_key>city</arg_key>Ċ<arg_value>42</arg_value>Ċ\
        <arg_key>days</arg_key>Ċ<arg_value>3</arg_value>Ċ</tool_call>";
    let model = respelt_model("calls.gguf", template, (first, spelling));
    let called = answer(&model, &with_tools);
    assert_eq!((&called["reasoning"], &called["text"]), (&"hm".into(), &"".into()), "{called}");
    let call = serde_json::json!({"id": "call_0", "name": "weather", "arguments": {"city": "42", "days": 3}});
    assert_eq!(called["tool_calls"], serde_json::json!([call]));
    // Without the list there is no schema: what looks like a number is one.
    let untyped = answer(&model, &[]);
    assert_eq!(untyped["tool_calls"][0]["arguments"], serde_json::json!({"city": 42, "days": 3}));
    let ran = succeed(&["run", text(&model), "-p", "hello", "-n", "1", "--temp", "0"]);
    assert_eq!(ran.out.trim(), r#"[calls weather with {"city":42,"days":3}]"#);
    // A template is told of the tools.
    let lists = speaking_model_with("lists.gguf", &[], "{% if tools %}{{ tools[0].function.name }}{% endif %}x");
    assert_eq!(
        (&answer(&lists, &[])["prompt_tokens"], &answer(&lists, &with_tools)["prompt_tokens"]),
        (&1.into(), &8.into())
    );
}

#[test]
fn answers_are_held_to_a_form() {
    let person = r#"{"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["age"], "additionalProperties": false}"#;
    let (schema, grammar) = (scratch("person.json"), scratch("sum.gbnf"));
    std::fs::write(&schema, person).unwrap();
    std::fs::write(&grammar, "root ::= [0-9] \"+\" [0-9]").unwrap();
    let answer = |form: [&str; 2]| {
        let args = ["run", "-p", "And God said", "-n", "60", "-s", "3", "--device", "cpu", "--json", form[0], form[1]];
        let json: serde_json::Value = serde_json::from_str(&succeed(&args).out).unwrap();
        assert_eq!(json["finish"], "stop", "{json}");
        json["text"].as_str().unwrap().to_string()
    };
    for form in [["-j", person], ["--json-schema-file", text(&schema)]] {
        let age: serde_json::Value = serde_json::from_str(&answer(form)).unwrap();
        assert!((1..=99).contains(&age["age"].as_u64().unwrap()), "{age}");
    }
    for form in [["--grammar", "start: /[0-9]\\+[0-9]/"], ["--grammar-file", text(&grammar)]] {
        let sum = answer(form);
        assert!(sum.len() == 3 && sum.as_bytes()[1] == b'+', "{sum}");
    }
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let model = speaking_model_of("form.gguf", &[], template, &[("eos_token_id", 0)]);
    for (form, part) in [
        (["-j", "{"], "--json-schema: no JSON"),
        (["-j", "{\"type\": 7}"], "--json-schema: `type` at the schema's root: 7 is no type"),
        (["--grammar", "root ::= x"], "--grammar: there is no rule `x`"),
        (["--grammar-file", "/nowhere"], "--grammar-file /nowhere"),
    ] {
        fail(&["run", text(&model), "-p", "a", form[0], form[1]], 2, &[part]);
    }
}

#[test]
fn reasoning_is_told_from_the_answer() {
    // The template opens the reasoning, and the tiny model never closes it.
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    let model = speaking_model_with("thinks.gguf", &[], template);
    let args = ["run", text(&model), "-p", "hello", "-n", "4", "--temp", "0"];
    let json: serde_json::Value = serde_json::from_str(&succeed(&[&args[..], &["--json"]].concat()).out).unwrap();
    assert_eq!(json["text"], "");
    let thought = json["reasoning"].as_str().unwrap();
    assert!(!thought.is_empty());
    // In a pipe the answer stands alone.
    let ran = succeed(&args);
    assert_eq!(ran.out.trim(), "");
    assert!(ran.err.contains(thought), "{} has no {thought:?}", ran.err);
}

#[test]
fn drafts_by_ngrams_change_nothing_but_the_time() {
    let model = golden("tiny-llama.gguf");
    let with = |more: &[&str]| {
        let args = [
            "run",
            text(&model),
            "--tokens",
            "1,2,3,1,2,3,1,2",
            "-n",
            "24",
            "--temp",
            "0",
            "--device",
            "cpu",
            "--json",
        ];
        let ran = succeed(&[args.as_slice(), more].concat());
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()
    };
    let (plain, guessed) = (with(&["--draft-max", "0"]), with(&["--draft-by", "ngram"]));
    assert_eq!(plain["tokens"], guessed["tokens"], "{guessed}");
    assert!(plain["tokens"].as_array().is_some_and(|tokens| tokens.len() == 24), "{plain}");
    assert!(guessed["drafts"]["drafted"].as_u64() > Some(0), "{guessed}");
    let refused = run(&["run", text(&model), "--tokens", "1", "--draft-by", "block", "--device", "cpu"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("--draft-by ngram"), "{}", refused.err);
}
