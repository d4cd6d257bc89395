//! Runs the binary, and makes the files that it is given.
#![allow(dead_code, missing_docs)]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tombolo_gguf::{Array, Gguf, Value, Writer};

/// A golden model, which has no vocabulary.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/data")).join(name)
}

/// A file of this test run. The folder is cargo's, and goes when `target/` does.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}

/// The binary, on the processor and with nothing on standard input.
pub(crate) fn tombolo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    // No GPU, wherever the tests run: the driver lists none.
    command.args(args).stdin(Stdio::null()).env("CUDA_VISIBLE_DEVICES", "").env("NO_COLOR", "1");
    command.env("TOMBOLO_CONFIG", "none");
    command
}

/// What came out.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the binary prints UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

pub(crate) fn run(args: &[&str]) -> Ran {
    tombolo(args).output().expect("the binary starts").into()
}

/// Runs to the end without an error.
#[track_caller]
pub(crate) fn succeed(args: &[&str]) -> Ran {
    let ran = run(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
    ran
}

/// Runs with these bytes on standard input.
pub(crate) fn run_with_input(args: &[&str], input: &[u8]) -> Ran {
    let mut command = tombolo(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // A child that read enough has closed its end.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// Fails with this exit code and one line on standard error that holds every one of `parts`.
#[track_caller]
pub(crate) fn fail(args: &[&str], code: i32, parts: &[&str]) {
    let ran = run(args);
    assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
    assert_eq!(ran.err.trim_end().lines().count(), 1, "not one line: {}", ran.err);
    assert!(ran.err.starts_with("error: "), "{}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "'{part}' is not in: {}", ran.err);
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The golden llama with a vocabulary of the 256 bytes and a chat template, so that text goes in and out.
pub(crate) fn speaking_model(name: &str) -> PathBuf {
    speaking_model_with(name, &[], "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
}

/// The same with more tokens and another template.
pub(crate) fn speaking_model_with(name: &str, more_tokens: &[&str], template: &str) -> PathBuf {
    speaking_model_of(name, more_tokens, template, &[])
}

/// The same with special tokens by the keys that name them.
pub(crate) fn speaking_model_of(name: &str, more_tokens: &[&str], template: &str, special: &[(&str, u32)]) -> PathBuf {
    let bytes = (0..=255u8).map(|byte| byte_spelling(byte).to_string());
    let tokens = bytes.chain(more_tokens.iter().map(|token| (*token).to_string())).collect();
    write_model(name, tokens, template, special)
}

/// The same with another spelling for the token of a byte.
pub(crate) fn respelt_model(name: &str, template: &str, respelt: (u8, &str)) -> PathBuf {
    respelt_model_of(name, template, respelt, &[])
}

/// The same with special tokens by the keys that name them.
pub(crate) fn respelt_model_of(
    name: &str,
    template: &str,
    (byte, spelling): (u8, &str),
    special: &[(&str, u32)],
) -> PathBuf {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| byte_spelling(byte).to_string()).collect();
    tokens[usize::from(byte)] = spelling.into();
    write_model(name, tokens, template, special)
}

fn write_model(name: &str, tokens: Vec<String>, template: &str, special: &[(&str, u32)]) -> PathBuf {
    let gguf = Gguf::open(&golden("tiny-llama.gguf")).unwrap();
    let path = scratch(name);
    let mut writer = Writer::new(File::create(&path).unwrap());
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        writer.metadata(key, value.clone()).unwrap();
    }
    writer.metadata("tokenizer.ggml.model", Value::String("gpt2".into())).unwrap();
    writer.metadata("tokenizer.ggml.pre", Value::String("qwen2".into())).unwrap();
    writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))).unwrap();
    writer.metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new()))).unwrap();
    writer.metadata("tokenizer.chat_template", Value::String(template.into())).unwrap();
    for (key, id) in special {
        writer.metadata(&format!("tokenizer.ggml.{key}"), Value::U32(*id)).unwrap();
    }
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty).unwrap();
    }
    writer.finish_header().unwrap();
    for tensor in gguf.tensors() {
        writer.data(gguf.bytes(tensor)).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// Byte-level BPE's letter for a byte: printable Latin-1 stands for itself, the rest for U+0100 and on.
fn byte_spelling(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count();
    char::from_u32(0x100 + before as u32).unwrap()
}
