//! `tombolo plan`, as somebody far away would use it: pasted text, a name, observations.
#![allow(missing_docs)]

mod common;

use common::{fail, golden, scratch, succeed, text};
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../topology/tests/data/rtx-pro-6000-x8")).join(name)
}

fn machine() -> [PathBuf; 3] {
    ["topo-m.txt", "pcie.csv", "observed.json"].map(case)
}

fn plan(more: &[&str]) -> common::Ran {
    let files = machine();
    let [topo, pcie, observed] = files.each_ref().map(|f| text(f));
    succeed(&[&["plan"], more, &["--machine", topo, pcie, observed]].concat())
}

/// The starting case: what took days to find, in one command.
#[test]
fn the_starting_case_is_explained() {
    let observed = case("observed.json");
    let ran = plan(&["GLM-5", "--compare", text(&observed)]);
    for part in [
        "islands 0 1 2 3 | 4 5 6 7",
        "156 + 2 of 12288 bytes",
        "TP 8",
        "86 % of the step",
        "loss: all-reduce",
        "inference (nobody measured it): 57.5 tok/s under LL does not fit",
        "waiting for other ranks",
        "57.50",
        "88.00",
        "13.62",
        "2.24",
        "without P2P",
        "cannot split tensor",
    ] {
        assert!(ran.out.contains(part), "'{part}' is not in:\n{}", ran.out);
    }
}

#[test]
fn json_says_the_same() {
    let observed = case("observed.json");
    let ran = plan(&["dummy:glm5", "--json", "--compare", text(&observed)]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let first = &json["placements"][0];
    assert_eq!(first["tensor_parallel"], 8);
    assert_eq!(first["budget"]["all_reduces"], 156);
    assert_eq!(first["budget"]["all_reduce_bytes"], 12_288);
    let bytes = first["budget"]["weight_bytes"].as_f64().unwrap();
    assert!((bytes / 6.36e9 - 1.0).abs() < 0.01, "{bytes}");
    let observation = json["compare"]["observations"]
        .as_array()
        .unwrap()
        .iter()
        .find(|o| o["observed"]["tok_s"] == 43.0)
        .expect("the one with graphs is there");
    assert!(observation["all_reduce_share"].as_f64().unwrap() >= 0.8);
    assert!(json["illegal"].as_array().unwrap().iter().any(|i| i["tensor_parallel"] == 3));
}

#[test]
fn a_file_or_its_beginning_is_enough() {
    let model = golden("tiny-llama.gguf");
    assert!(plan(&[text(&model), "-c", "128"]).out.contains("TP 1"));
    let bytes = std::fs::read(&model).unwrap();
    let cut = scratch("beginning.gguf");
    std::fs::write(&cut, &bytes[..bytes.len() - 100]).unwrap();
    let ran = plan(&[text(&cut), "-c", "128"]);
    assert!(ran.err.contains("only the header") && ran.out.contains("TP 1"), "{}", ran.err);
}

#[test]
fn a_config_is_enough() {
    let dir = scratch("some-model");
    std::fs::create_dir_all(&dir).unwrap();
    let config = dir.join("config.json");
    let llama = r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072}"#;
    std::fs::write(&config, llama).unwrap();
    let ran = plan(&[text(&config), "--quant", "q4_k_m"]);
    assert!(ran.out.contains("some-model (q4_k_m)") && ran.out.contains("70.55 B"), "{}", ran.out);
}

#[test]
fn how_far_predictions_were_off_is_told() {
    let ran = succeed(&["plan", "--accuracy"]);
    assert!(ran.out.contains("median error") && ran.out.contains("8x A800"), "{}", ran.out);
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let files = machine();
    let topo = text(&files[0]);
    fail(&["plan", "GLM-5"], 2, &["--machine", "nvidia-smi topo -m"]);
    fail(&["plan", "GLM-7", "--machine", topo], 2, &["GLM-7", "GLM-5.2"]);
    fail(&["plan", "GLM-5", "--machine", topo], 2, &["--gpu"]);
    fail(&["plan", "GLM-5", "--machine", topo, "--gpu", "GTX 9"], 2, &["GTX 9", "RTX 3090"]);
    fail(&["plan", "GLM-5", "--quant", "q3", "--machine", topo], 2, &["q3", "ud-q4_k_xl"]);
    fail(&["plan", "dummy:8b", "--quant", "q8_0", "--machine", topo], 2, &["--quant"]);
    fail(
        &["plan", "GLM-5", "--acceptance", "1e308", "--machine", topo, text(&files[2])],
        2,
        &["--acceptance 1e308 is"],
    );
    let absurd = scratch("absurd.json");
    for (content, parts) in [
        (r#"{"tok_s": 1e308}"#, ["observation 1: tok_s 1e308 is not between", "1000000.0"]),
        (r#"[{"tok_s": 50}, {"step_ms": 1e-300}]"#, ["observation 2: step_ms 1e-300", "0.001"]),
        (r#"{"tok_s": 50, "all_reduce_us": -4}"#, ["all_reduce_us -4.0", "0.0"]),
        (
            r#"{"tok_s": 50, "all_reduce_us": 3, "all_reduce_calls": 18446744073709551615}"#,
            ["all_reduce_calls 1.84", "and"],
        ),
        (r#"{"tok_s": 50, "step_ms": 1e-308}"#, ["step_ms 1e-308", "not between"]),
        (&format!("[{}{{\"tok_s\": 1}}]", "{\"tok_s\": 1},".repeat(1000)), ["1001 observations", "1000 at most"]),
    ] {
        std::fs::write(&absurd, content).unwrap();
        let args = ["plan", "GLM-5", "--machine", topo, text(&files[2]), "--compare", text(&absurd)];
        fail(&args, 2, &[&["absurd.json"], &parts[..]].concat());
    }
    // Nobody ever writes to it.
    let pipe = scratch("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fail(&["plan", "GLM-5", "--machine", topo, text(&files[2]), "--compare", text(&pipe)], 2, &["not a regular file"]);
    fail(&["plan", text(&pipe), "--machine", topo, text(&files[2])], 2, &["a device, pipe or socket"]);
    let empty = scratch("empty.json");
    std::fs::write(&empty, "{}").unwrap();
    let observed = text(&files[2]);
    fail(&["plan", "GLM-5", "--machine", topo, observed, "--compare", text(&empty)], 2, &["tok_s", "step_ms"]);
    fail(&["plan", "GLM-5", "-c", "300000", "--machine", topo, observed], 2, &["-c 300000", "202752"]);
}
