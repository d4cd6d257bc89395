//! Whatever is wrong with the command line or with a file: one line that says so, and the right exit code.
#![allow(missing_docs)]

mod common;

use common::{fail, golden, run, run_with_input, scratch, speaking_model, speaking_model_with, text};
use std::path::PathBuf;
use tombolo_gguf::Value;

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
    refused_by_all(text(scratch("empty.gguf").parent().unwrap()), &["models in it", "name one of them"]);
    let empty = scratch("nothing here");
    std::fs::create_dir_all(&empty).unwrap();
    refused_by_all(text(&empty), &["nothing here", "no GGUF file in it"]);
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
fn a_type_that_is_known_and_cannot_be_computed_with_is_named_with_its_tensor() {
    // The bytes of BF16 as integers: two dimensions, 64 and 256 long, then the type.
    let shape = [[2, 0, 0, 0].as_slice(), &64u64.to_le_bytes(), &256u64.to_le_bytes()].concat();
    let with = |ty: u8| [shape.as_slice(), &[ty, 0, 0, 0]].concat();
    let path = patched("integers.gguf", b"blk.0.attn_q.weight", &with(30), &with(25));
    for command in [COMMANDS[0], COMMANDS[2], COMMANDS[3]] {
        let args: Vec<&str> = command.iter().copied().chain([text(&path)]).collect();
        fail(&args, 2, &["integers.gguf", "blk.0.attn_q.weight", "I16"]);
    }
    let ran = common::succeed(&["inspect", text(&path)]);
    assert!(ran.out.contains("cannot run") && ran.out.contains("I16"), "{}", ran.out);
}

/// Writes a model as a set of three files, the first without tensors.
fn three_files(model: &str) -> [PathBuf; 3] {
    let whole = tombolo_gguf::Gguf::open(&golden(model)).unwrap();
    let dir = scratch(&format!("a set of {model}"));
    std::fs::create_dir_all(&dir).unwrap();
    let half = whole.tensors().len() / 2;
    let parts = [&whole.tensors()[..0], &whole.tensors()[..half], &whole.tensors()[half..]];
    let names = [0, 1, 2].map(|i| dir.join(format!("tiny-{:05}-of-00003.gguf", i + 1)));
    for (i, tensors) in parts.into_iter().enumerate() {
        let mut w = tombolo_gguf::Writer::new(Vec::new());
        w.metadata("split.no", i as u16).unwrap().metadata("split.count", 3u16).unwrap();
        if i == 0 {
            for (key, value) in whole.metadata().iter() {
                w.metadata(key, value.clone()).unwrap();
            }
        }
        for t in tensors {
            w.tensor(&t.name, &t.dims, t.ty).unwrap();
        }
        w.finish_header().unwrap();
        for t in tensors {
            w.data(whole.bytes(t)).unwrap();
        }
        std::fs::write(&names[i], w.finish().unwrap()).unwrap();
    }
    names
}

#[test]
fn a_set_of_files_opens_by_any_of_them() {
    let answer = |path: &str| common::succeed(&["run", "--tokens", "1,2,3", "-n", "8", "--temp", "0", path]).out;
    for model in ["tiny-llama.gguf", "tiny-glm-dsa.gguf"] {
        let [first, second, third] = three_files(model);
        let expected = answer(text(&golden(model)));
        for path in [&first, &second, &third, &first.parent().unwrap().to_path_buf()] {
            assert_eq!(answer(text(path)), expected, "{}", path.display());
        }
        std::fs::remove_file(second).unwrap();
        refused_by_all(text(&third), &["tiny-00002-of-00003.gguf", "shard 2 of 3 is missing"]);
    }
}

#[test]
fn an_unknown_architecture_is_refused_where_it_would_have_to_run() {
    let path = patched("arch.gguf", b"general.architecture", b"llama", b"xlama");
    for command in [COMMANDS[0], COMMANDS[2], COMMANDS[3]] {
        let args: Vec<&str> = command.iter().copied().chain([text(&path)]).collect();
        fail(&args, 2, &["arch.gguf", "architecture 'xlama'", "llama, qwen2, qwen3"]);
    }
    // It can still be looked at.
    let ran = common::succeed(&["inspect", text(&path)]);
    assert!(ran.out.contains("cannot run: architecture 'xlama'"), "{}", ran.out);
}

/// A golden model without some tensors and with other values of some keys.
fn rewritten(name: &str, model: &str, keeps: impl Fn(&str) -> bool, changes: &[(&str, Value)]) -> PathBuf {
    let gguf = tombolo_gguf::Gguf::open(&golden(model)).unwrap();
    let mut writer = tombolo_gguf::Writer::new(Vec::new());
    for (key, value) in gguf.metadata().iter() {
        let changed = changes.iter().find(|(changed, _)| *changed == key);
        writer.metadata(key, changed.map_or(value, |(_, value)| value).clone()).unwrap();
    }
    let kept: Vec<_> = gguf.tensors().iter().filter(|t| keeps(&t.name)).collect();
    for t in &kept {
        writer.tensor(&t.name, &t.dims, t.ty).unwrap();
    }
    writer.finish_header().unwrap();
    for t in kept {
        writer.data(gguf.bytes(t)).unwrap();
    }
    file(name, &writer.finish().unwrap())
}

/// Every command that computes fails with this very line.
#[track_caller]
fn refused_with(path: &std::path::Path, more: &[&str], line: &str) {
    for command in [COMMANDS[0], COMMANDS[2], COMMANDS[3]] {
        let ran = run(&[command, &[text(path)], more].concat());
        assert_eq!((ran.code, ran.err.trim_end()), (Some(2), format!("error: {line}").as_str()), "{command:?}");
    }
}

#[test]
fn relatives_of_known_architectures_are_refused_by_name() {
    for (name, why) in [
        ("glm5next", "GLM-5.3-Flash mixes linear attention with sparse attention, which GLM-5 does not"),
        ("glm5-next", "GLM-5.3-Flash mixes linear attention with sparse attention, which GLM-5 does not"),
        ("deepseek32", "DeepSeek-V3.2 files are not computed here; glm-dsa and deepseek2 files are"),
        ("deepseek4", "DeepSeek-V4 attends otherwise than V3 does; deepseek2 files are computed"),
        (
            "kimi-linear",
            "Kimi-Linear mixes linear attention with latent attention; Kimi-K2's deepseek2 files are computed",
        ),
    ] {
        let arch = [("general.architecture", Value::from(name))];
        let path = rewritten(&format!("{name}.gguf"), "tiny-glm-dsa.gguf", |_| true, &arch);
        refused_with(&path, &[], &format!("{}: architecture '{name}' is not supported: {why}", path.display()));
    }
}

#[test]
fn a_missing_indexer_is_explained() {
    let path = rewritten("indexless.gguf", "tiny-glm-dsa.gguf", |name| !name.contains("indexer"), &[]);
    let line = "the file has no tensor 'blk.0.indexer.attn_k.weight' of the indexer that chooses what is attended to; \
        --dense-attention runs the model without it, which is another model beyond 16 tokens";
    refused_with(&path, &[], &format!("{}: {line}", path.display()));
    // What the line says helps.
    let args = ["run", "--tokens", "1,2", "-n", "2", "--temp", "0", "--dense-attention", text(&path)];
    common::succeed(&args);
}

#[test]
fn a_split_that_cuts_a_head_or_a_block_names_the_tensor() {
    let path = golden("tiny-glm-dsa.gguf");
    let line = |size: usize, tensor: &str| {
        format!(
            "{}: --tensor-parallel-size {size} cannot split tensor '{tensor}' (BF16); this model can be split over \
             [1, 2, 4]",
            path.display()
        )
    };
    for size in [3, 5, 8] {
        refused_with(&path, &["--device", "cpu", "-tp", &size.to_string()], &line(size, "blk.0.attn_q_b.weight"));
    }
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
    fail(
        &["logits", text(&model), "--tokens", "999", "--out", "unwritten.safetensors"],
        2,
        &["999", "vocabulary of 256"],
    );
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

#[test]
fn what_cannot_be_taken_is_not_begun() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    let most = usize::MAX.to_string();
    fail(&["run", model, "--tokens", "1", "--device", "cpu", "-t", &most], 2, &["--threads", "1024"]);
    fail(&["bench", "decode", model, "--device", "cpu", "-t", "1025"], 2, &["--threads 1025"]);
    fail(&["bench", "decode", model, "-p", "2", "-d", &most], 2, &[&most, "any context"]);
    fail(&["bench", "collective", "--ranks", &most], 2, &["--ranks", "at most 8"]);
    // All combinations are looked at before the first is measured, so nothing was printed.
    fail(&["bench", "decode", model, "--device", "cpu", "-tp", "1,3", "-o", "json"], 2, &["cannot split"]);
    let tokens = vec!["1"; 513].join(",");
    fail(&["logits", model, "--tokens", &tokens, "--out", "unwritten.safetensors"], 2, &["513 tokens", "512"]);
}

#[test]
fn negative_numbers_are_values() {
    let model = golden("tiny-llama.gguf");
    let with = |option: &str, value: &str, parts: &[&str]| {
        fail(&["run", text(&model), "--tokens", "1", option, value], 2, parts);
    };
    with("--temp", "-1", &["--temp -1", "between 0 and 1000"]);
    with("-n", "-1", &["'-1'", "whole number from 0"]);
    with("-tp", "-1", &["'-1'", "whole number from 0"]);
    let logits = ["logits", text(&model), "--compare", "x", "--tolerance"];
    for tolerance in ["-1", "NaN"] {
        fail(&[logits.as_slice(), &[tolerance]].concat(), 2, &["--tolerance", "from 0"]);
    }
}

#[test]
fn an_option_that_would_do_nothing_is_refused() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    let ids = ["run", model, "--tokens", "1", "--device", "cpu"];
    fail(&[ids.as_slice(), &["--transport", "host"]].concat(), 2, &["--transport host", "processor"]);
    fail(&[ids.as_slice(), &["--system", "x"]].concat(), 2, &["cannot be used with"]);
    fail(&[ids.as_slice(), &["--chat"]].concat(), 2, &["cannot be used with"]);
    fail(&[ids.as_slice(), &["--tools", "x"]].concat(), 2, &["cannot be used with"]);
}

#[test]
fn keys_that_no_header_carries_are_refused_and_not_shown() {
    for key in ["a\nsecret", "secret ", "sec\u{7f}ret"] {
        for command in [&["serve", "--port", "0"][..], &["bench", "serve"]] {
            let ran = run(&[command, &["--api-key", key]].concat());
            assert_eq!(ran.code, Some(2), "{}", ran.err);
            assert!(ran.err.starts_with("error: --api-key") && !ran.err.contains("sec"), "{}", ran.err);
        }
    }
}

#[test]
fn a_file_without_tools_is_refused() {
    let model = speaking_model("no-tools.gguf");
    let with = |tools: &str, parts: &[&str]| fail(&["run", text(&model), "-p", "x", "--tools", tools], 2, parts);
    with("no/such/tools", &["--tools no/such/tools"]);
    with(text(scratch("x").parent().unwrap()), &["--tools", "not a regular file"]);
    for (name, content) in [("object.json", r#"{"name": "now"}"#), ("nameless.json", r#"[{"type": "function"}]"#)] {
        with(text(&file(name, content.as_bytes())), &[name, "list of functions with names"]);
    }
    with(text(&file("half.json", b"[{")), &["half.json", "EOF"]);
    with(text(&file("bytes.json", b"\xff")), &["bytes.json", "UTF-8"]);
}

#[test]
fn no_command_ends_in_one_line_too() {
    for args in [[].as_slice(), &["bench"]] {
        let ran = run(args);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        assert!(ran.err.contains("Usage"), "{}", ran.err);
        assert!(ran.err.lines().last().unwrap().starts_with("error: no command"), "{}", ran.err);
    }
}

#[test]
fn a_tokenizer_larger_than_the_model_is_refused() {
    let model = speaking_model_with("large.gguf", &["one", "two"], "x");
    fail(&["run", text(&model), "-p", "hello"], 2, &["large.gguf", "258 tokens", "256 rows"]);
}

#[test]
fn a_template_that_fails_is_named_in_one_short_line() {
    let model = speaking_model_with("raise.gguf", &[], "{{ raise_exception('x' * 5000) }}");
    fail(&["run", text(&model), "-p", "hello"], 2, &["raise.gguf", "--no-chat"]);
    let ran = run(&["run", text(&model), "-p", "hello"]);
    assert!(ran.err.chars().count() < 320, "{}", ran.err);
    let model = speaking_model_with("syntax.gguf", &[], "{% for");
    fail(&["run", text(&model), "-p", "hello"], 2, &["syntax.gguf", "does not parse", "--no-chat"]);
}

#[test]
fn a_prompt_that_cannot_be_run_is_refused_before_loading() {
    let model = speaking_model("prompts.gguf");
    let model = text(&model);
    fail(&["run", model, "-p", ""], 2, &["empty"]);
    fail(&["run", model, "--no-chat", "-p", ""], 2, &["empty"]);
    fail(&["run", model, "--no-chat", "-c", "3", "-p", "four"], 2, &["4 tokens", "-c raises it, up to 512"]);
    let long = "x".repeat(513);
    let ran = run(&["run", model, "--no-chat", "-p", &long]);
    assert!(ran.code == Some(2) && !ran.err.contains("-c"), "{}", ran.err);
    let ran = run_with_input(&["run", model], b"\xff\xfe");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("not UTF-8") && ran.err.contains("iconv"), "{}", ran.err);
}

#[test]
#[cfg(unix)]
fn only_regular_files_are_read_and_written() {
    let model = golden("tiny-llama.gguf");
    let model = text(&model);
    fail(&["logits", model, "--compare", "/dev/zero"], 2, &["/dev/zero", "not a regular file"]);
    let to = |out: &str, parts: &[&str]| fail(&["logits", model, "--tokens", "1", "--out", out], 2, parts);
    to("/dev/null", &["/dev/null", "not a regular file"]);
    to("no/such/folder/x", &["no folder no/such/folder"]);
    to(model, &["that is the model"]);
    let link = scratch("link.safetensors");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(model, &link).unwrap();
    to(text(&link), &["that is the model"]);
}
