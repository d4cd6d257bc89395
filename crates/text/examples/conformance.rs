//! Compares this crate with other people's fixtures, by hand.
//!
//! `conformance tokens VOCABULARY.gguf TEXTS.inp TOKENS.out`: llama.cpp's pairs of files, texts divided by a line
//! `__ggml_vocab_test__` and their tokens, a line each. Prints what differs.
//!
//! `conformance template FILE.jinja …`: renders the conversation of `tools/reference/template_cases.py` and prints each
//! as a JSON string.

use std::path::Path;
use std::process::ExitCode;

use tombolo_gguf::Gguf;
use tombolo_text::{ChatTemplate, Message, Tokenizer};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["tokens", vocabulary, texts, tokens] => compare(vocabulary, texts, tokens),
        ["template", ref files @ ..] => render(files),
        _ => Err("usage: conformance tokens GGUF INP OUT | template FILE...".into()),
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

fn compare(vocabulary: &str, texts: &str, tokens: &str) -> Outcome {
    let file = Gguf::open(Path::new(vocabulary))?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let (texts, tokens) = (std::fs::read_to_string(texts)?, std::fs::read_to_string(tokens)?);
    let (mut cases, mut wrong) = (0, 0);
    for (text, expected) in texts.split("\n__ggml_vocab_test__\n").zip(tokens.lines()) {
        let expected: Vec<u32> = expected.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let got = tokenizer.encode(text, false)?;
        cases += 1;
        if got != expected {
            wrong += 1;
            println!("{text:?}\n  expected {expected:?}\n  got      {got:?}");
        }
        let back = tokenizer.decode(&got);
        if back != text {
            println!("{text:?}\n  comes back as {back:?}");
        }
    }
    println!("{vocabulary}: {cases} texts, {wrong} differ");
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
