//! What clients of OpenAI's API rely on.

use crate::client::Served;
use serde_json::{Value, json};

const PROMPT: &str = "In the beginning God created";

fn body(more: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn completions_are_the_same_whole_and_streamed_and_however_mixed() {
    let served = Served::start(&[]);
    let whole = served.complete(&body(json!({}))).json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_string();
    assert!(text.split_whitespace().count() > 5, "{text}");
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    let streamed = served.complete(&body(json!({"stream": true, "stream_options": {"include_usage": true}})));
    assert!(streamed.head.contains("content-type: text/event-stream"), "{}", streamed.head);
    assert_eq!(streamed.streamed_text(), text);
    let events = streamed.events();
    let last = events.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(24)));
    assert!(events[0]["usage"].is_null());
    // Draws depend on logits, seed and position alone.
    let drawn = |seed: u64| {
        let body = body(json!({"temperature": 1.0, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "seed": seed}));
        served.complete(&body).json()["choices"][0]["text"].clone()
    };
    let alone: Vec<Value> = (0..4).map(drawn).collect();
    assert_ne!(alone[0], alone[1]);
    let mixed: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || drawn(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(mixed, alone);
    assert_eq!(served.when_idle(), 0.0);
}

#[test]
fn several_prompts_and_several_answers() {
    let served = Served::start(&[]);
    let body = json!({"prompt": [PROMPT, [5, 6, 7]], "n": 2, "max_tokens": 4, "temperature": 1, "seed": 7});
    let answer = served.complete(&body).json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let one = json!({"prompt": PROMPT, "max_tokens": 4, "temperature": 1, "seed": 7});
    assert_eq!(served.complete(&one).json()["choices"][0]["text"], choices[0]["text"]);
    assert_eq!(answer["usage"]["prompt_tokens"].as_u64().unwrap(), 3 + tokens(&served, PROMPT).len() as u64);
}

fn tokens(served: &Served, text: &str) -> Vec<u64> {
    let answer = served.post("/tokenize", json!({"prompt": text}).to_string()).json();
    let tokens: Vec<u64> = answer["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    assert_eq!(answer["count"].as_u64(), Some(tokens.len() as u64));
    tokens
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let served = Served::start(&[]);
    let ids = tokens(&served, PROMPT);
    let back = served.post("/detokenize", json!({"tokens": ids}).to_string()).json();
    assert_eq!(back["prompt"], PROMPT);
    let messages = json!({"messages": [{"role": "user", "content": PROMPT}], "return_token_strs": true});
    let chat = served.post("/tokenize", messages.to_string()).json();
    assert_eq!(chat["tokens"], json!(ids), "the demo's template is a BOS and the text");
    assert_eq!(chat["token_strs"].as_array().unwrap().len(), ids.len());
    let models = served.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("demo")));
    assert_eq!(served.get("/v1/models/demo").json()["id"], "demo");
    assert_eq!(served.get("/v1/models/other").status, 404);
}

#[test]
fn a_conversation_is_answered() {
    let served = Served::start(&["--served-model-name", "small", "--served-model-name", "other"]);
    let body = |stream: bool| {
        json!({"model": "other", "stream": stream, "messages": [{"role": "user", "content": PROMPT}],
            "max_completion_tokens": 12, "temperature": 0, "logprobs": true, "top_logprobs": 2})
    };
    let whole = served.chat(&body(false)).json();
    let choice = &whole["choices"][0];
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("small")));
    assert_eq!((&choice["message"]["role"], &choice["finish_reason"]), (&json!("assistant"), &json!("length")));
    let content = choice["message"]["content"].as_str().unwrap();
    let logprobs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), 12);
    for token in logprobs {
        let [first, second] = [0, 1].map(|i| token["top_logprobs"][i]["logprob"].as_f64().unwrap());
        assert_eq!(token["logprob"].as_f64().unwrap(), first, "greedy takes the likeliest");
        assert!(second <= first && first <= 0.0);
    }
    let bytes = |token: &Value| {
        token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect::<Vec<_>>()
    };
    assert_eq!(String::from_utf8(logprobs.iter().flat_map(bytes).collect()).unwrap(), content);
    let events = served.chat(&body(true)).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_string();
    assert_eq!(events.iter().map(delta).collect::<String>(), content);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(served.chat(&json!({"model": "demo", "messages": []})).status, 404);
}

#[test]
fn stops_are_found_wherever_tokens_cut_them() {
    let served = Served::start(&[]);
    let text = served.complete(&body(json!({}))).json()["choices"][0]["text"].as_str().unwrap().to_string();
    let (from, to) = (text.len() / 3, text.len() / 3 + 7);
    let stop = text.get(from..to).expect("the demo writes ASCII");
    let before = &text[..text.find(stop).unwrap()];
    let cut = served.complete(&body(json!({"stop": [stop, "\u{1f600}"]}))).json();
    assert_eq!(cut["choices"][0]["text"], before);
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!(stop))
    );
    let kept = served.complete(&body(json!({"stop": stop, "include_stop_str_in_output": true}))).json();
    assert_eq!(kept["choices"][0]["text"], format!("{before}{stop}"));
    assert_eq!(served.complete(&body(json!({"stop": stop, "stream": true}))).streamed_text(), before);
    let all = tokens(&served, &format!("{PROMPT}{text}"));
    let ids = tokens(&served, PROMPT);
    let nth = all[ids.len() + 3];
    let ended = served.complete(&body(json!({"stop_token_ids": [nth]}))).json();
    assert_eq!(
        (&ended["choices"][0]["stop_reason"], &ended["choices"][0]["finish_reason"]),
        (&json!(nth), &json!("stop"))
    );
    let longer = served.complete(&body(json!({"stop_token_ids": [nth], "min_tokens": 10}))).json();
    assert!(longer["usage"]["completion_tokens"].as_u64() >= Some(10));
    // Where every token is an end there is none to wait for.
    let every: Vec<u32> = (0..3584).collect();
    let at_once = served.complete(&body(json!({"stop_token_ids": every, "min_tokens": 10}))).json();
    assert_eq!(at_once["usage"]["completion_tokens"], 1, "{at_once}");
    assert_eq!(served.when_idle(), 0.0);
}

#[test]
fn prompts_have_log_probabilities_too() {
    let served = Served::start(&[]);
    let ids = tokens(&served, PROMPT);
    let echoed = body(json!({"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 1}));
    let answer = served.complete(&echoed).json();
    let choice = &answer["choices"][0];
    let lists = &choice["logprobs"];
    assert!(choice["text"].as_str().unwrap().starts_with(PROMPT));
    let numbers = lists["token_logprobs"].as_array().unwrap();
    assert_eq!(numbers.len(), ids.len() + 1);
    assert!(numbers[0].is_null() && lists["top_logprobs"][0].is_null());
    assert!(numbers[1..].iter().all(|n| n.as_f64().is_some_and(|n| n <= 0.0)));
    assert_eq!(lists["text_offset"].as_array().unwrap().last().unwrap().as_u64(), Some(PROMPT.len() as u64));
    // A prompt's token is as likely as it would be drawn there.
    let before = body(
        json!({"prompt": ids[..ids.len() - 1], "logprobs": 5, "max_tokens": 1, "allowed_token_ids": [ids[ids.len() - 1]]}),
    );
    let forced = served.complete(&before).json();
    let [a, b] =
        [&forced["choices"][0]["logprobs"]["token_logprobs"][0], &numbers[ids.len() - 1]].map(|n| n.as_f64().unwrap());
    assert!((a - b).abs() < 1e-5, "{a} {b}");
    let nothing = served.complete(&body(json!({"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 0}))).json();
    assert_eq!((&nothing["choices"][0]["text"], &nothing["usage"]["completion_tokens"]), (&json!(PROMPT), &json!(0)));
    // The likeliest are spelled as the tokens themselves are.
    let of = |lists: &Value, at: usize| lists["top_logprobs"][at][lists["tokens"][at].as_str().unwrap()].clone();
    assert_eq!(of(lists, ids.len()), numbers[ids.len()]);
}

#[test]
fn a_prompt_of_one_token_has_its_place_and_each_field_its_own_number() {
    let served = Served::start(&[]);
    let ids = tokens(&served, PROMPT);
    let choice = |more: Value| served.complete(&body(more)).json()["choices"][0].clone();
    for (most, count) in [(0, 1), (1, 2)] {
        let lists =
            choice(json!({"prompt": [ids[0]], "echo": true, "logprobs": 2, "max_tokens": most}))["logprobs"].clone();
        assert_eq!(lists["tokens"].as_array().unwrap().len(), count, "{lists}");
        assert!(lists["token_logprobs"][0].is_null() && lists["text_offset"][0] == 0);
    }
    let told = choice(json!({"prompt": [ids[0]], "prompt_logprobs": 2, "max_tokens": 1}));
    assert_eq!(told["prompt_logprobs"], json!([null]));
    let both = choice(json!({"prompt": ids, "echo": true, "logprobs": 0, "prompt_logprobs": 4, "max_tokens": 1}));
    assert_eq!(both["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 1);
    assert!(both["prompt_logprobs"][1].as_object().unwrap().len() >= 4);
    let silent = choice(json!({"prompt": ids, "echo": true, "prompt_logprobs": 1, "max_tokens": 0}));
    assert_eq!(silent["prompt_logprobs"].as_array().unwrap().len(), ids.len());
    assert!(silent["logprobs"].is_null());
}

#[test]
fn bias_and_penalties_change_what_is_drawn() {
    let served = Served::start(&[]);
    let ids = tokens(&served, PROMPT);
    let text = |more: Value| served.complete(&body(more)).json()["choices"][0]["text"].clone();
    let plain = text(json!({}));
    let forced = ids[1];
    let biased = served.complete(&body(json!({"logit_bias": {forced.to_string(): 100}, "max_tokens": 3}))).json();
    let want = served.post("/detokenize", json!({"tokens": [forced, forced, forced]}).to_string()).json();
    assert_eq!(biased["choices"][0]["text"], want["prompt"]);
    assert_ne!(text(json!({"repetition_penalty": 5.0})), plain);
    assert_ne!(
        text(json!({"frequency_penalty": 2.0, "presence_penalty": 2.0, "max_tokens": 64})),
        text(json!({"max_tokens": 64}))
    );
    assert_eq!(text(json!({"presence_penalty": 0, "top_k": -1, "n": null, "unknown_field": {"x": 1}})), plain);
}

#[test]
fn a_prompt_that_was_run_is_found_again() {
    let served = Served::start(&[]);
    let long = PROMPT.repeat(40);
    let ask = |salt: &str| served.complete(&body(json!({"prompt": long, "cache_salt": salt}))).json();
    let [first, second, other] = [ask("a"), ask("a"), ask("b")];
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!((cached(&first), cached(&other)), (0, 0));
    assert!(cached(&second) > 100, "{second}");
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    assert_eq!(served.metric("vllm:prefix_cache_hits_total") as u64, cached(&second));
    // Streams tell it with their usage, and conversations as texts do.
    let events = |kind: &str| {
        let options = json!({"include_usage": true});
        let asked = json!({"stream": true, "stream_options": options, "cache_salt": "a", "max_tokens": 4});
        let (mut body, path) = match kind == "chat" {
            true => (json!({"messages": [{"role": "user", "content": long}]}), "/v1/chat/completions"),
            false => (json!({"prompt": long}), "/v1/completions"),
        };
        body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        served.post(path, body.to_string()).events()
    };
    for kind in ["text", "chat"] {
        let events = events(kind);
        let (last, others) = events.split_last().unwrap();
        assert!(cached(last) >= cached(&second), "{kind}: {last}");
        assert!(others.iter().all(|event| event.get("usage").is_none_or(Value::is_null)), "{kind}");
    }
}

#[test]
fn metrics_have_vllm_s_names_and_types() {
    let served = Served::start(&[]);
    served.complete(&body(json!({})));
    let page = served.get("/metrics").body;
    for (name, kind) in [
        ("vllm:num_requests_running", "gauge"),
        ("vllm:num_requests_waiting", "gauge"),
        ("vllm:kv_cache_usage_perc", "gauge"),
        ("vllm:cache_config_info", "gauge"),
        ("vllm:prompt_tokens_total", "counter"),
        ("vllm:generation_tokens_total", "counter"),
        ("vllm:request_success_total", "counter"),
        ("vllm:spec_decode_num_drafts_total", "counter"),
        ("vllm:time_to_first_token_seconds", "histogram"),
        ("vllm:inter_token_latency_seconds", "histogram"),
        ("vllm:e2e_request_latency_seconds", "histogram"),
        ("vllm:iteration_tokens_total", "histogram"),
    ] {
        assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name} {kind} not in {page}");
    }
    assert!(
        page.contains("vllm:request_success_total{engine=\"0\",model_name=\"demo\",finished_reason=\"length\"} 1.0\n")
    );
    assert!(page.contains("vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"demo\",le=\"0.001\"}"));
    assert_eq!(served.metric("vllm:generation_tokens_total"), 24.0);
    assert_eq!(served.metric("vllm:time_to_first_token_seconds_count"), 1.0);
}

/// The page comes whole out of the binary, with or without a key, and asks for nothing from elsewhere.
#[test]
fn the_page_is_part_of_the_binary() {
    let served = Served::start(&["--api-key", "sk-page"]);
    let page = served.get("/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{}", page.head);
    let named =
        page.body.split(['"']).filter(|part| part.ends_with(".js") || part.ends_with(".css") || part.ends_with(".svg"));
    let mut files: Vec<String> = named.map(str::to_string).collect();
    let app = served.get("/app.js").body;
    files.extend(app.split('"').filter_map(|part| part.strip_prefix("./")).map(str::to_string));
    assert!(files.len() >= 6, "{files:?}");
    for file in &files {
        let answer = served.get(&format!("/{file}"));
        assert_eq!((answer.status, answer.body.is_empty()), (200, false), "{file}");
        let elsewhere =
            answer.body.match_indices("://").filter(|(at, _)| !answer.body[..*at].ends_with("http")).count();
        assert_eq!(elsewhere, 0, "{file}");
    }
    assert!(
        !page.body.contains("://") && !page.body.contains("onclick") && !page.body.contains("<style"),
        "{}",
        page.body
    );
    assert_eq!(served.get("/v1/models").status, 401);
    assert_eq!(served.get("/server.rs").status, 401);
}
