//! Whatever is wrong with the command line or with a file: one line that says so, and the right exit code.
#![allow(missing_docs)]

mod common;

use common::{fail, golden, scratch, text};
use std::path::PathBuf;

const COMMANDS: [&[&str]; 4] = [
    &["run", "--tokens", "1,2"],
    &["inspect"],
    &["logits", "--tokens", "1,2", "--out", "unwritten.safetensors"],
    &["bench", "decode", "-p", "4", "-n", "2", "-r", "1"],
];

/// Every command refuses the file as bad input.
#[track_caller]
fn refused_by_all(file: &str, parts: &[&str]) {
    for command in COMMANDS {
        let args: Vec<&str> = command.iter().copied().chain([file]).collect();
        fail(&args, 2, parts);
    }
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The golden llama with the first `from` after `after` replaced by `to`.
fn patched(name: &str, after: &[u8], from: &[u8], to: &[u8]) -> PathBuf {
    let mut bytes = std::fs::read(golden("tiny-llama.gguf")).unwrap();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what).expect("is in the file");
    let start = find(&bytes, after) + after.len();
    let at = start + find(&bytes[start..], from);
    bytes.splice(at..at + from.len(), to.iter().copied());
    file(name, &bytes)
}

#[test]
fn a_missing_file_is_named() {
    refused_by_all("no/such/model.gguf", &["no/such/model.gguf"]);
}

#[test]
fn what_is_no_model_file_is_refused() {
    refused_by_all(text(&file("empty.gguf", b"")), &["empty.gguf"]);
    refused_by_all(text(&file("text.gguf", b"once upon a time there was no model")), &["text.gguf", "GGUF"]);
    refused_by_all(text(scratch("empty.gguf").parent().unwrap()), &["not a file"]);
}

#[test]
fn a_truncated_file_is_refused() {
    let whole = std::fs::read(golden("tiny-llama.gguf")).unwrap();
    refused_by_all(text(&file("half.gguf", &whole[..whole.len() / 2])), &["half.gguf"]);
    refused_by_all(text(&file("header.gguf", &whole[..100])), &["header.gguf", "29 tensors"]);
}

#[test]
fn an_unknown_tensor_type_is_refused() {
    // After the name: the number of dimensions, the dimensions, the type.
    let name = b"blk.0.attn_norm.weight";
    let from = [[1, 0, 0, 0].as_slice(), &64u64.to_le_bytes(), &[0, 0, 0, 0]].concat();
    let to = [[1, 0, 0, 0].as_slice(), &64u64.to_le_bytes(), &[99, 0, 0, 0]].concat();
    let path = patched("type.gguf", name, &from, &to);
    refused_by_all(text(&path), &["type.gguf", "blk.0.attn_norm.weight", "99"]);
}

#[test]
fn an_unknown_architecture_is_refused_where_it_would_have_to_run() {
    let path = patched("arch.gguf", b"general.architecture", b"llama", b"xlama");
    for command in [COMMANDS[0], COMMANDS[2], COMMANDS[3]] {
        let args: Vec<&str> = command.iter().copied().chain([text(&path)]).collect();
        fail(&args, 2, &["arch.gguf", "architecture 'xlama'", "llama, qwen3"]);
    }
    // It can still be looked at.
    let ran = common::succeed(&["inspect", text(&path)]);
    assert!(ran.out.contains("cannot run: architecture 'xlama'"), "{}", ran.out);
}

#[test]
fn an_illegal_split_is_refused_before_anything_is_loaded() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    for size in ["3", "5"] {
        fail(
            &["run", model, "--tokens", "1", "--device", "cpu", "-tp", size],
            2,
            &["this model can be split over", "1, 2, 4"],
        );
    }
    fail(&["run", model, "--tokens", "1", "--device", "cpu", "-tp", "9"], 2, &["--tensor-parallel-size 9"]);
    fail(&["run", model, "--tokens", "1", "-tp", "0"], 2, &["--tensor-parallel-size 0"]);
    fail(&["bench", "decode", model, "--device", "cpu", "-tp", "3"], 2, &["this model can be split over"]);
}

#[test]
fn no_gpu_is_a_failure_that_says_why() {
    let model = golden("tiny-llama.gguf");
    fail(&["run", text(&model), "--tokens", "1", "--device", "cuda"], 1, &["--device cuda", "no GPU"]);
    fail(&["bench", "decode", text(&model), "--device", "cuda:0,1"], 1, &["no GPU"]);
}

#[test]
fn no_model_says_how_to_get_one() {
    fail(&["run", "-p", "hello"], 2, &["no model given", "tools/fetch-smollm2"]);
}

#[test]
fn wrong_options_are_one_line() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    fail(&["run", model, "--no-such-option"], 2, &["--no-such-option", "--help"]);
    fail(&["run", model, "--tokens", "1,x"], 2, &["'x' is no token id"]);
    fail(&["run", model, "--tokens", "1", "--device", "tpu"], 2, &["auto, cpu, cuda"]);
    fail(&["run", model, "--tokens", "1", "--top-p", "1.5"], 2, &["--top-p 1.5"]);
    fail(&["run", model, "--tokens", "1", "-t", "0"], 2, &["--threads 0"]);
    fail(&["run", model, "--tokens", "1", "-c", "100000"], 2, &["-c 100000", "512"]);
    fail(&["run", model, "--tokens", "1,2,3,4", "-c", "3", "--device", "cpu"], 2, &[]);
    fail(&["run", model, "-m", model, "--tokens", "1"], 2, &["cannot be used with"]);
    fail(&["bench", "decode", model, "-p", "0", "-n", "0"], 2, &["nothing to measure"]);
    fail(&["logits", model, "--tokens", "1"], 2, &["--out", "--compare"]);
    fail(&["no-such-command"], 2, &["no-such-command"]);
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let model = golden("tiny-llama.gguf");
    fail(&["run", text(&model), "--tokens", "1,256", "--device", "cpu"], 2, &["256"]);
    fail(&["logits", text(&model), "--tokens", "999", "--out", "unwritten.safetensors"], 2, &["999", "vocabulary of 256"]);
}

#[test]
fn text_for_a_model_without_vocabulary_is_refused() {
    fail(&["run", text(&golden("tiny-llama.gguf")), "-p", "hello"], 2, &["tiny-llama.gguf", "vocabulary"]);
}

#[test]
fn a_bad_reference_is_refused() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    fail(&["logits", model, "--compare", "no/such/file"], 2, &["no/such/file"]);
    let path = file("bad.safetensors", b"12345678 not json");
    fail(&["logits", model, "--compare", text(&path)], 2, &["bad.safetensors"]);
    let other = golden("tiny-qwen3.safetensors");
    fail(&["logits", model, "--compare", text(&other)], 2, &["[64, 250]", "[64, 256]"]);
}
