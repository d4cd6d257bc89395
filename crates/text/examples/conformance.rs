//! Compares this crate with other people's fixtures, by hand.
//!
//! `conformance tokens VOCABULARY.gguf …`: llama.cpp's fixtures. Beside each vocabulary lie its texts (`.inp`), divided by
//! a line `__ggml_vocab_test__`, and their tokens (`.out`), a line each. Prints what differs.
//!
//! `conformance template CHATS.json FILE.jinja …`: renders the conversations that `template_cases.py --chats` in
//! `tools/reference` prints, and prints each as a JSON string; `template_cases.py FILE.jinja …` prints transformers'.
//!
//! `conformance answers FILE.jinja …`: writes an assistant's turn with calls of tools by each template, takes it apart as if
//! a model had written it, and prints what of it did not come back.
//!
//! `conformance encode VOCABULARY.gguf TEXTS`: tokens of the JSON strings in a file, for `tokenizer_parity.py`.
//!
//! `conformance times VOCABULARY.gguf …`: how long a tokenizer takes to build, and to encode a mebibyte.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tombolo_gguf::Gguf;
use tombolo_text::output::{OutputParser, Piece, Tools};
use tombolo_text::{ChatTemplate, Conversation, Tokenizer};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["tokens", ref vocabularies @ ..] => compare_all(vocabularies),
        ["template", chats, ref files @ ..] => render(chats, files),
        ["answers", ref files @ ..] => answers(files),
        ["encode", vocabulary, texts] => encode(vocabulary, texts),
        ["times", ref vocabularies @ ..] => times(vocabularies),
        _ => Err("usage: conformance tokens GGUF... | template CHATS FILE... | answers FILE... | encode GGUF TEXTS | \
             times GGUF..."
            .into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

type Outcome = Result<bool, Box<dyn std::error::Error>>;

fn compare_all(vocabularies: &[&str]) -> Outcome {
    let mut all_equal = true;
    for vocabulary in vocabularies {
        match compare(vocabulary) {
            Ok(equal) => all_equal &= equal,
            Err(error) => {
                all_equal = false;
                println!("{vocabulary}: {error}");
            }
        }
    }
    Ok(all_equal)
}

fn compare(vocabulary: &str) -> Outcome {
    let file = Gguf::open(Path::new(vocabulary))?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let built = start.elapsed();
    for warning in tokenizer.warnings() {
        println!("{vocabulary}: {warning}");
    }
    let texts = std::fs::read_to_string(format!("{vocabulary}.inp"))?;
    let tokens = std::fs::read_to_string(format!("{vocabulary}.out"))?;
    let (mut cases, mut wrong, mut turned) = (0, 0, 0);
    for (text, expected) in texts.split("\n__ggml_vocab_test__\n").zip(tokens.lines()) {
        let expected: Vec<u32> = expected.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let got = tokenizer.encode(text, false)?;
        cases += 1;
        if got != expected {
            wrong += 1;
            println!("{text:?}\n  expected {expected:?}\n  got      {got:?}");
        }
        let back = tokenizer.decode_whole(&got);
        if back != text {
            turned += 1;
            println!("{text:?}\n  comes back as {back:?}");
        }
    }
    let size = tokenizer.vocabulary();
    println!("{vocabulary}: {cases} texts, {wrong} differ, {turned} come back otherwise; {size} tokens in {built:?}");
    Ok(wrong == 0)
}

/// Every file with every conversation, a line each.
fn render(chats: &str, files: &[&str]) -> Outcome {
    let chats: Vec<Json> = serde_json::from_str(&std::fs::read_to_string(chats)?)?;
    let tokens = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
    for file in files {
        let source = std::fs::read_to_string(file)?;
        for chat in &chats {
            let list = |key: &str| chat.get(key).and_then(Json::as_array).cloned().unwrap_or_default();
            let conversation = Conversation {
                messages: list("messages"),
                tools: list("tools"),
                documents: list("documents"),
                add_generation_prompt: true,
                settings: chat.get("settings").and_then(Json::as_object).cloned().unwrap_or_default(),
            };
            match ChatTemplate::new(&source, &tokens).and_then(|t| t.prompt(&conversation)) {
                Ok(prompt) => println!("{}", serde_json::to_string(&prompt.text())?),
                Err(error) => println!("{}", serde_json::json!({"error": error.to_string()})),
            }
        }
    }
    Ok(true)
}

/// What ends a turn: a model stops there.
const ENDS: [&str; 8] = [
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|observation|>",
    "<|user|>",
    "<|endoftext|>",
    "</s>",
];

fn answers(files: &[&str]) -> Outcome {
    let properties = json!({"place": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "number"}});
    let tool = |name: &str, parameters: Json| {
        let function = json!({"name": name, "description": "It tells.", "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    let tools = json!([
        tool("weather", json!({"type": "object", "required": ["place"], "properties": properties})),
        tool("now", json!({"type": "object", "properties": {}})),
    ]);
    let call = |name: &str, arguments: &Json| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": "call00001", "type": "function", "function": function})
    };
    let arguments = [json!({"place": "7 \"Åre\" <b>", "days": 2, "near": 0.5}), json!({})];
    let calls = [call("weather", &arguments[0]), call("now", &arguments[1])];
    let mut all_back = true;
    for file in files {
        let source = std::fs::read_to_string(file)?;
        // Some write one call a turn only, some none beside a text.
        for (text, calls) in
            [("", &calls[..]), ("I look.", &calls[..]), ("", &calls[..1]), ("", &calls[1..]), ("Hi.", &calls[..0])]
        {
            let outcome = answer(&source, &tools, text, calls);
            let name = Path::new(file).file_name().unwrap_or_default().display().to_string();
            let which = format!("{name}, {} calls, text {text:?}", calls.len());
            match outcome {
                Ok(None) => println!("{which}: all came back"),
                Ok(Some(differs)) => {
                    all_back = false;
                    println!("{which}: {differs}");
                }
                Err(error) => println!("{which}: not rendered: {error}"),
            }
        }
    }
    Ok(all_back)
}

/// What of a turn does not come back.
fn answer(
    source: &str,
    tools: &Json,
    text: &str,
    calls: &[Json],
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let template = ChatTemplate::new(source, &[("bos_token", "<s>".into()), ("eos_token", "</s>".into())])?;
    let mut turn = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    let messages = vec![json!({"role": "user", "content": "How is the weather?"}), turn];
    let render = |messages: &[Json], prompt: bool| {
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: tools.as_array().cloned().unwrap_or_default(),
            add_generation_prompt: prompt,
            ..Conversation::default()
        };
        template.prompt(&conversation)
    };
    let (asked, whole) = (render(&messages[..1], true)?, render(&messages, false)?.text());
    // A template may open the reasoning in a prompt, and leave it out of a turn that has none.
    let shared = asked.text().char_indices().zip(whole.chars()).take_while(|((_, a), b)| a == b).last();
    let at = shared.map_or(0, |((at, c), _)| at + c.len_utf8());
    // A marker that both begin alike is one as a whole.
    let at = whole[..at].rfind('<').filter(|&tag| !whole[tag..at].contains('>')).unwrap_or(at);
    let written = &whole[at..];
    let end = ENDS.iter().filter_map(|end| written.find(end)).min().unwrap_or(written.len());
    let opens = asked.opens_reasoning() && at == asked.text().len();
    let mut parser =
        OutputParser::new(template.dialect(), Tools::of(tools.as_array().map_or(&[], Vec::as_slice)), opens);
    let mut pieces = parser.push(&written[..end]);
    pieces.extend(parser.finish());
    let (mut said, mut called) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Content(text) => said.push_str(&text),
            Piece::Reasoning(_) => {}
            Piece::Call(call) => called.push((call.name, Json::Object(call.arguments))),
        }
    }
    let wanted: Vec<(String, Json)> = calls
        .iter()
        .map(|call| {
            (call["function"]["name"].as_str().unwrap_or_default().into(), call["function"]["arguments"].clone())
        })
        .collect();
    let differs = called != wanted || said.trim() != text;
    Ok(differs
        .then(|| format!("{:?} of {:?} came back as {said:?} and {called:?}", template.dialect(), &written[..end])))
}

/// Tokens of every line of a file of JSON strings, a JSON array each.
fn encode(vocabulary: &str, texts: &str) -> Outcome {
    let file = Gguf::open(Path::new(vocabulary))?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    for line in std::fs::read_to_string(texts)?.lines() {
        let text: String = serde_json::from_str(line)?;
        println!("{}", serde_json::to_string(&tokenizer.encode(&text, false)?)?);
    }
    Ok(true)
}

/// Time that this thread has run for, which a busy machine does not lengthen as much as the clock's; Linux only.
fn ran() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// How long it takes to build a tokenizer, and to encode a mebibyte of one thing, in time of the processor.
fn times(vocabularies: &[&str]) -> Outcome {
    const WORDS: &str = "The tide runs over the bar of sand twice a day; in 1914 there were 27 lighthouses.\n";
    for vocabulary in vocabularies {
        let file = Gguf::open(Path::new(vocabulary))?;
        let start = ran();
        let tokenizer = Tokenizer::from_metadata(file.metadata())?;
        println!("{vocabulary}: {} tokens, built in {:?}", tokenizer.vocabulary(), ran() - start);
        for unit in [WORDS, "a", " ", "\n", "1", "!", "é", "\u{301}", "海", "Aa海", " \n", "<|im_start|"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = ran();
            let tokens = tokenizer.encode(&text, true)?.len();
            println!("  1 MiB of {unit:?}: {tokens} tokens in {:?}", ran() - start);
        }
    }
    Ok(true)
}
