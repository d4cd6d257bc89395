//! Compares this crate with other people's fixtures, by hand.
//!
//! `conformance tokens VOCABULARY.gguf …`: llama.cpp's fixtures. Beside each vocabulary lie its texts (`.inp`), divided by
//! a line `__ggml_vocab_test__`, and their tokens (`.out`), a line each. Prints what differs.
//!
//! `conformance template FILE.jinja …`: renders the conversation of `tools/reference/template_cases.py` and prints each
//! as a JSON string.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tombolo_gguf::Gguf;
use tombolo_text::{ChatTemplate, Message, Tokenizer};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["tokens", ref vocabularies @ ..] => compare_all(vocabularies),
        ["template", ref files @ ..] => render(files),
        _ => Err("usage: conformance tokens GGUF... | template FILE...".into()),
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

fn render(files: &[&str]) -> Outcome {
    let turn = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
    let chat = [
        turn("system", "Be brief."),
        turn("user", "  Hello there, wörld!  "),
        turn("assistant", "Hé \"you\" <b> 日本 🌊\n\ttab\\"),
        turn("user", "And\nthen? "),
    ];
    let tokens = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
    for file in files {
        let source = std::fs::read_to_string(file)?;
        match ChatTemplate::new(&source, &tokens).and_then(|t| t.render(&chat, true)) {
            Ok(text) => println!("{}", serde_json::to_string(&text)?),
            Err(error) => println!("{}", serde_json::json!({"error": error.to_string()})),
        }
    }
    Ok(true)
}
