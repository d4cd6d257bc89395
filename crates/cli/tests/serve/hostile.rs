//! What strangers send, and what they get for it: a clear answer at once, while somebody else's stream goes on and comes out
//! the same to the bit.

use crate::client::Served;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn bystander(served: &Served) -> String {
    let body =
        json!({"prompt": "And it came to pass", "max_tokens": 48, "seed": 3, "temperature": 0.9, "stream": true});
    served.complete(&body).streamed_text()
}

/// Says so when it goes, a failed assertion or not.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `work` beside a stream that is started again and again.
pub(crate) fn beside_a_stream(served: &Served, work: impl FnOnce()) {
    let expected = bystander(served);
    assert!(!expected.is_empty());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                assert_eq!(bystander(served), expected);
                rounds += 1;
            }
        });
        let ends = Ends(&is_done);
        work();
        drop(ends);
        stream.join().unwrap();
    });
    assert_eq!(served.when_idle(), 0.0, "blocks of the KV cache are lost");
}

/// A completion with this field.
fn with(field: &str, value: &str) -> (&'static str, String) {
    let rest = if field == "max_tokens" { "" } else { ", \"max_tokens\": 2" };
    (COMPLETIONS, format!("{{\"prompt\": \"a\"{rest}, \"{field}\": {value}}}"))
}

fn prompt(value: &str) -> (&'static str, String) {
    (COMPLETIONS, format!("{{\"prompt\": {value}, \"max_tokens\": 2}}"))
}

fn chat(rest: &str) -> (&'static str, String) {
    (CHAT, format!("{{\"max_tokens\": 2, {rest}}}"))
}

fn hi(rest: &str) -> (&'static str, String) {
    chat(&format!("\"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}], {rest}"))
}

/// What is wrong with an answer, if anything is.
fn check(served: &Served, id: &str, (path, body): &(&'static str, String), status: u16, param: &str) -> Option<String> {
    let started = Instant::now();
    let answer = served.post(path, body);
    let shown: String = body.chars().take(120).collect();
    let error = if status == 200 { Value::Null } else { answer.json()["error"].clone() };
    let message = error["message"].as_str().unwrap_or_default();
    let is_shaped = error["type"].is_string() && error.get("code").is_some() && (1..1000).contains(&message.len());
    // As near as it can be told: `prompt[0]` is in `prompt`.
    let is_named = error["param"].as_str().unwrap_or_default().starts_with(param);
    let is_quick = started.elapsed() < Duration::from_secs(10);
    let is_right = answer.status == status && is_quick && (status == 200 || (is_shaped && is_named));
    (!is_right).then(|| format!("{id} {shown}: {} {error} {:?}", answer.status, started.elapsed()))
}

#[test]
fn values_that_cannot_be() {
    let served = Served::start(&[]);
    let many = |n: usize, item: &str| vec![item; n].join(",");
    let long = "x".repeat(1 << 20);
    let refused = [
        ("A01", prompt("\"\""), "prompt"),
        ("A01", prompt("[]"), "prompt"),
        ("A01", prompt("[[]]"), "prompt"),
        ("A01", chat("\"messages\": []"), "messages"),
        ("A01", chat("\"messages\": [{\"role\": \"user\", \"content\": null}]"), "messages[0].content"),
        ("A02", prompt("[-1]"), "prompt"),
        ("A02", prompt("[3584]"), "prompt"),
        ("A02", prompt("[2147483648]"), "prompt"),
        ("A02", prompt("[4294967296]"), "prompt"),
        ("A02", prompt(&format!("[{}]", many(100_000, "1"))), "prompt"),
        ("A03", with("max_tokens", "0"), "max_tokens"),
        ("A03", with("max_tokens", "-1"), "max_tokens"),
        ("A03", with("max_tokens", "9223372036854775808000"), "max_tokens"),
        ("A04", with("n", "1000000000"), "n"),
        ("A04", with("n", "0"), "n"),
        ("A04", with("best_of", "1000000"), "best_of"),
        ("A05", with("seed", "18446744073709551616"), "seed"),
        ("A05", with("seed", "-9223372036854775809"), "seed"),
        ("A05", with("seed", "1.5"), "seed"),
        ("A05", with("seed", "\"x\""), "seed"),
        ("A06", with("temperature", "-1"), "temperature"),
        ("A06", with("temperature", "1e308"), "temperature"),
        ("A06", with("temperature", "NaN"), ""),
        ("A06", with("min_p", "2"), "min_p"),
        ("A06", with("presence_penalty", "1e9"), "presence_penalty"),
        ("A06", with("repetition_penalty", "0"), "repetition_penalty"),
        ("A07", with("top_k", "-2"), "top_k"),
        ("A07", with("top_k", "0.01"), "top_k"),
        ("A08", with("logit_bias", "{\"3584\": 1}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"-1\": 1}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"abc\": 1}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"+7\": 1}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"7\": 100, \"07\": 100}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"1\": \"x\"}"), "logit_bias"),
        ("A08", with("logit_bias", "{\"1\": -1e39}"), "logit_bias"),
        ("A09", with("stop_token_ids", "[3584]"), "stop_token_ids"),
        ("A09", with("stop_token_ids", "[-1]"), "stop_token_ids[0]"),
        ("A09", with("allowed_token_ids", "[9999999]"), "allowed_token_ids"),
        ("A10", with("stop", "\"\""), "stop"),
        ("A10", with("stop", &format!("[{}]", many(10_000, "\"x\""))), "stop"),
        ("A10", with("stop", &format!("\"{long}\"")), "stop"),
        ("A11", with("logprobs", "1000000"), "logprobs"),
        ("A11", with("prompt_logprobs", "-1"), "prompt_logprobs"),
        ("A11", with("prompt_logprobs", "3584"), "prompt_logprobs"),
        ("A12", with("min_tokens", "-1"), "min_tokens"),
        ("A12", with("priority", "1e30"), "priority"),
        ("A18", hi(&format!("\"tools\": [{}]", many(10_000, "{}"))), "tools"),
        ("A18", hi("\"tools\": [{\"type\": \"function\"}]"), "tools"),
        ("A18", hi(&format!("\"tools\": [{{\"function\": {{\"name\": \"{long}\"}}}}]")), "tools"),
        ("A18", hi("\"tools\": [{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"f\"}}]"), "tools"),
        ("A20", hi("\"chat_template\": \"{{ 1 }}\""), "chat_template"),
        ("A20", hi("\"chat_template_kwargs\": {\"messages\": []}"), "chat_template_kwargs"),
        ("A20", hi("\"chat_template_kwargs\": {\"bos_token\": \"x\"}"), "chat_template_kwargs"),
        ("A22", prompt("\"\\ud800\""), ""),
        ("A23", prompt(&"[".repeat(100_000)), ""),
        ("A23", (COMPLETIONS, "{\"prompt\": \"a\", \"prompt\": \"b\"}".into()), ""),
        ("A23", with("temperature", "1e400"), ""),
        (
            "A41",
            chat(
                "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"http://169.254.169.254\"}}]}]",
            ),
            "messages[0].content",
        ),
        (
            "A42",
            chat(
                "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_audio\", \"input_audio\": {}}]}]",
            ),
            "messages[0].content",
        ),
        ("types", with("stream", "\"yes\""), "stream"),
        ("types", with("prompt_logprobs", "\"1\""), "prompt_logprobs"),
        ("stream", with("prompt_logprobs", "1, \"stream\": true"), "prompt_logprobs"),
        ("empty", (COMPLETIONS, String::new()), ""),
    ];
    let taken = [
        ("A05", with("seed", "-9223372036854775808")),
        ("A05", with("seed", "9223372036854775807")),
        ("A06", with("temperature", "1e-30")),
        ("A06", with("top_p", "0")),
        ("A07", with("top_k", "100000000000")),
        ("A08", with("logit_bias", "{\"0\": -100, \"1\": -100}")),
        ("A09", with("min_tokens", "1")),
        ("A21", chat("\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|><|endoftext|>\"}]")),
        ("A22", prompt("\"a\\u0000b\\ud83d\\ude00\"")),
        ("A44", with("kv_transfer_params", "{\"tp_size\": 1000000}")),
    ];
    beside_a_stream(&served, || {
        let wrong = refused.iter().filter_map(|(id, question, param)| check(&served, id, question, 400, param));
        let wrong = wrong.chain(taken.iter().filter_map(|(id, question)| check(&served, id, question, 200, "")));
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // 10^6 entries, and as many names.
        let entries: String = (0..100_000).map(|i| format!("\"{i}\":1,")).collect();
        let question = with("logit_bias", &format!("{{{entries}\"x\":1}}"));
        assert_eq!(check(&served, "A08", &question, 400, ""), None);
        let invalid = [b"{\"prompt\": \"\xff\"}".as_slice()].concat();
        assert_eq!(served.post(COMPLETIONS, invalid).status, 400, "A22");
        for (name, shown) in [("../../etc/passwd", true), (&*long, false), ("DEMO", true)] {
            let answer = served.complete(&json!({"model": name, "prompt": "a"}));
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")), "A43");
            assert!(answer.body.len() < 1000 && answer.body.contains(name) == shown, "A43: {}", answer.body);
        }
        let nasty = served.complete(&json!({"model": "a\nb\u{1b}[31m", "prompt": "a"}));
        assert!(!nasty.json()["error"]["message"].as_str().unwrap().contains(['\n', '\u{1b}']), "A48");
    });
}

#[test]
fn prompts_beyond_the_context() {
    let served = Served::start(&["-c", "64"]);
    let answer = served.complete(&json!({"prompt": vec![5; 65], "max_tokens": 1}));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    // What does not fit is not generated.
    let clamped =
        served.complete(&json!({"prompt": vec![5; 60], "max_tokens": 2147483648u64, "ignore_eos": true})).json();
    assert_eq!(
        (&clamped["usage"]["completion_tokens"], &clamped["choices"][0]["finish_reason"]),
        (&json!(5), &json!("length"))
    );
}

#[test]
fn characters_are_whole_in_every_event() {
    let served = Served::start(&[]);
    // Drawn hot, the demo's tokens are bytes of every kind.
    let body =
        json!({"prompt": "a", "max_tokens": 200, "temperature": 50, "seed": 1, "stream": true, "ignore_eos": true});
    let streamed = served.complete(&body).streamed_text();
    let mut whole = body;
    whole["stream"] = Value::from(false);
    assert_eq!(served.complete(&whole).json()["choices"][0]["text"], streamed);
}
