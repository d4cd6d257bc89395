//! What is refused before any weight is touched, each with its own error of one line: architectures, keys of the wrong
//! type or out of range, tensors that do not fit, splits that would cut a block or a head.

mod common;

use common::{Parts, open};
use tombolo_gguf::{TensorType, Value};
use tombolo_model::{Config, ModelError, Program, Shard, limits};

fn llama() -> Parts {
    Parts::of("tiny-llama.gguf")
}

/// The error's line, after checking that it is one.
fn line(error: &ModelError) -> String {
    let line = error.to_string();
    assert!(!line.contains(['\n', '\u{1b}']) && line.len() < 400, "{line:?}");
    line
}

#[test]
fn architectures_that_are_not_known() {
    let key = "general.architecture";
    for name in ["mamba9", "../x", "", "Llama", "llama\u{1b}[2J\n"] {
        let error = llama().set(key, name).fault(1);
        assert!(matches!(&error, ModelError::UnknownArchitecture { .. }), "{name:?}: {error}");
        assert!(line(&error).contains("supported are: llama, qwen2"), "{error}");
    }
    let long = llama().set(key, "x".repeat(100_000).as_str()).fault(1);
    assert!(matches!(&long, ModelError::UnknownArchitecture { architecture, .. } if architecture.len() <= 40));
    line(&long);
    assert!(matches!(llama().without(key).fault(1), ModelError::MissingKey { key: k } if k == key));
    assert!(matches!(llama().set(key, 3u32).fault(1), ModelError::WrongType { key: k, .. } if k == key));
}

#[test]
fn keys_that_are_missing_or_of_another_type() {
    let needed = [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ];
    for key in needed {
        let key = format!("llama.{key}");
        let missing = llama().without(&key).fault(1);
        assert!(matches!(&missing, ModelError::MissingKey { key: k } if *k == key), "{missing}");
        for value in [
            Value::String("x".into()),
            Value::Bool(true),
            Value::from(vec![1u32, 2]),
            Value::from(vec![-1i32; 3]),
            Value::from(Vec::<u32>::new()),
            Value::from(vec![1.5f32; 3]),
        ] {
            let wrong = llama().set(&key, value.clone()).fault(1);
            assert!(matches!(&wrong, ModelError::WrongType { key: k, .. } if *k == key), "{key} {value:?}: {wrong}");
            line(&wrong);
        }
    }
    let negative = llama().set("llama.embedding_length", -4i32).fault(1);
    assert!(line(&negative).contains("I32(-4), where a whole number is wanted"), "{negative}");
    let text = llama().set("llama.rope.freq_base", "x").fault(1);
    assert!(line(&text).contains("'x', where a number is wanted"), "{text}");
    // Once per layer, and the same for all.
    let same = llama().set("llama.feed_forward_length", vec![128u32; 3]).config().unwrap();
    assert_eq!(same, llama().config().unwrap());
    let other = llama().set("llama.attention.head_count_kv", vec![4u32, 4, 8]).fault(1);
    assert!(matches!(other, ModelError::UnsupportedFeature { .. }), "{other}");
    let short = llama().set("llama.attention.head_count_kv", vec![4u32; 2]).fault(1);
    assert!(matches!(short, ModelError::WrongType { .. }), "{short}");
    let flags = Parts::of("tiny-gemma3.gguf").set("gemma3.attention.sliding_window_pattern", vec![true; 3]).fault(1);
    assert!(matches!(flags, ModelError::WrongType { .. }), "{flags}");
}

fn out_of_range(parts: impl Fn() -> Parts, key: &str, values: &[Value]) {
    for value in values {
        let error = parts().set(key, value.clone()).fault(1);
        assert!(matches!(&error, ModelError::BadValue { key: k, .. } if k == key), "{key} = {value:?}: {error}");
        line(&error);
    }
}

#[test]
fn counts_out_of_range() {
    let most = limits::LAYERS as u32 + 1;
    out_of_range(llama, "llama.block_count", &[0u32.into(), most.into(), u32::MAX.into(), (1u64 << 40).into()]);
    out_of_range(llama, "llama.attention.head_count", &[0u32.into(), u32::MAX.into()]);
    out_of_range(llama, "llama.attention.head_count_kv", &[0u32.into(), 3u32.into(), 16u32.into()]);
    out_of_range(llama, "llama.context_length", &[0u32.into(), u32::MAX.into()]);
    out_of_range(llama, "llama.embedding_length", &[0u32.into(), u64::MAX.into()]);
    out_of_range(llama, "llama.attention.key_length", &[0u32.into(), 2048u32.into()]);
    out_of_range(llama, "llama.attention.value_length", &[16u32.into()]);
    out_of_range(llama, "llama.rope.dimension_count", &[0u32.into(), 31u32.into(), 34u32.into()]);
    // Without a key that says how wide a head is, heads must divide the row.
    let no_length = || llama().without("llama.attention.key_length");
    let odd = || no_length().set("llama.attention.head_count_kv", 1u32);
    out_of_range(odd, "llama.attention.head_count", &[7u32.into()]);
    let one_head = no_length().set("llama.attention.head_count_kv", 1u32).set("llama.attention.head_count", 1u32);
    let wide = one_head.set("llama.embedding_length", 2048u32).fault(1);
    assert!(matches!(&wide, ModelError::BadValue { key, .. } if key == "llama.attention.key_length"), "{wide}");

    let mixtral = || Parts::of("tiny-mixtral.gguf");
    out_of_range(mixtral, "llama.expert_used_count", &[0u32.into(), 9u32.into(), 100_000u32.into()]);
    out_of_range(mixtral, "llama.expert_count", &[u32::MAX.into()]);
    let groups = || mixtral().set("llama.expert_group_used_count", 1u32);
    out_of_range(groups, "llama.expert_group_count", &[3u32.into(), 8u32.into()]);
    let few = mixtral().set("llama.expert_group_count", 4u32).set("llama.expert_used_count", 3u32);
    let few = few.set("llama.expert_group_used_count", 1u32).fault(1);
    assert!(matches!(&few, ModelError::BadValue { key, .. } if key == "llama.expert_group_used_count"), "{few}");
    let none = Parts::of("tiny-qwen3moe.gguf").set("qwen3moe.expert_count", 0u32).fault(1);
    assert!(matches!(&none, ModelError::BadValue { key, .. } if key == "qwen3moe.expert_count"), "{none}");
}

#[test]
fn numbers_that_make_no_model() {
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1.0].map(Value::from);
    out_of_range(llama, "llama.attention.layer_norm_rms_epsilon", &bad);
    out_of_range(llama, "llama.rope.freq_base", &bad);
    // 0 says: not scaled.
    let scales: Vec<Value> = bad.into_iter().filter(|v| *v != Value::F32(0.0)).collect();
    for key in ["rope.scaling.factor", "attn_logit_softcapping", "final_logit_softcapping", "attention.scale"] {
        out_of_range(llama, &format!("llama.{key}"), &scales);
    }
    out_of_range(|| Parts::of("tiny-qwen2.gguf"), "qwen2.rope.scaling.yarn_beta_fast", &scales);
    out_of_range(|| Parts::of("tiny-qwen2.gguf"), "qwen2.rope.freq_base", &[1.0f32.into()]);
    let mut freqs = Parts::of("tiny-llama-biases.gguf");
    let tensor = freqs.tensors.iter_mut().find(|t| t.name == "rope_freqs.weight").unwrap();
    tensor.bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(freqs.fault(1), ModelError::BadValue { key, .. } if key == "rope_freqs.weight"));
}

#[test]
fn what_would_be_ignored() {
    for (key, value) in [
        ("rope.scaling.type", Value::from("longrope")),
        ("rope.scaling.yarn_log_multiplier", 0.1f32.into()),
        ("attention.causal", false.into()),
        ("logit_scale", 0.5f32.into()),
        ("attention.sliding_window", 16u32.into()),
        ("expert_shared_count", 1u32.into()),
        ("nextn_predict_layers", 1u32.into()),
    ] {
        let key = format!("llama.{key}");
        let error = llama().set(&key, value).fault(1);
        assert!(matches!(&error, ModelError::UnsupportedFeature { key: k, .. } if *k == key), "{key}: {error}");
        line(&error);
    }
    let error = llama().set("llama.rope.scaling.type", 1u32).fault(1);
    assert!(matches!(error, ModelError::WrongType { .. }), "{error}");
    let dense = Parts::of("tiny-qwen3.gguf").set("qwen3.expert_count", 8u32).fault(1);
    assert!(matches!(dense, ModelError::UnsupportedFeature { .. }), "{dense}");
    let gating = Parts::of("tiny-mixtral.gguf").set("llama.expert_gating_func", 4u32).fault(1);
    assert!(matches!(gating, ModelError::UnsupportedFeature { .. }), "{gating}");
    for (key, value) in [
        ("llama.rope.scaling.type", Value::from("none")),
        ("llama.attention.sliding_window", (1u32 << 20).into()),
        ("llama.expert_count", 0u32.into()),
    ] {
        llama().set(key, value).config().unwrap();
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let missing = llama().without("blk.1.ffn_up.weight").fault(1);
    assert!(matches!(missing, ModelError::MissingTensor { tensor } if tensor == "blk.1.ffn_up.weight"));
    let missing = llama().without("token_embd.weight").fault(1);
    assert!(matches!(missing, ModelError::MissingTensor { tensor } if tensor == "token_embd.weight"));
    // What an architecture must have, and another only may.
    for (file, name) in [
        ("tiny-qwen2.gguf", "blk.1.attn_k.bias"),
        ("tiny-gpt-oss.gguf", "blk.0.attn_sinks.weight"),
        ("tiny-gpt-oss.gguf", "blk.2.ffn_down_exps.bias"),
        ("tiny-gemma3.gguf", "blk.3.post_ffw_norm.weight"),
        ("tiny-qwen3moe.gguf", "blk.0.ffn_gate_inp.weight"),
    ] {
        let missing = Parts::of(file).without(name).fault(1);
        assert!(matches!(&missing, ModelError::MissingTensor { tensor } if tensor == name), "{missing}");
    }
    let extra = llama().copy("output_norm.weight", "blk.0.attn_gate.weight").fault(1);
    assert!(matches!(extra, ModelError::ExtraTensor { tensor } if tensor == "blk.0.attn_gate.weight"));
    let extra = llama().copy("output_norm.weight", "blk.3.attn_norm.weight").fault(1);
    assert!(matches!(extra, ModelError::ExtraTensor { .. }), "{extra}");

    for (key, value, name) in [
        ("llama.feed_forward_length", 7u32, "blk.0.ffn_gate.weight"),
        ("llama.attention.head_count_kv", 2, "blk.0.attn_k.weight"),
        ("llama.embedding_length", 32, "blk.0.attn_q.weight"),
    ] {
        let wrong = llama().set(key, value).fault(1);
        assert!(matches!(&wrong, ModelError::WrongShape { tensor, .. } if tensor == name), "{wrong}");
    }
    let narrow = llama().set("llama.attention.key_length", 16u32).set("llama.attention.value_length", 16u32);
    let narrow = narrow.set("llama.rope.dimension_count", 16u32).fault(1);
    assert!(matches!(&narrow, ModelError::WrongShape { shape, wanted, .. } if shape[1] == 256 && wanted[1] == 128));
    let short = llama().copy("output_norm.weight", "blk.0.attn_q.bias").fault(1);
    assert!(matches!(short, ModelError::WrongShape { .. }), "{short}");
    let experts = Parts::of("tiny-mixtral.gguf").set("llama.expert_count", 4u32).fault(1);
    assert!(matches!(&experts, ModelError::WrongShape { tensor, .. } if tensor == "blk.0.ffn_gate_inp.weight"));

    // As many tokens as rows.
    let tokens = |n: usize| llama().set("tokenizer.ggml.tokens", vec!["x".to_string(); n]);
    assert!(matches!(tokens(255).fault(1), ModelError::BadValue { key, .. } if key == "token_embd.weight"));
    tokens(256).config().unwrap();

    // A type that nothing computes with; a bias in blocks.
    let mut odd = llama();
    let tensor = odd.tensors.iter_mut().find(|t| t.name == "blk.0.ffn_gate.weight").unwrap();
    (tensor.ty, tensor.bytes) = (TensorType::I16, vec![0; tensor.bytes.len()]);
    assert!(matches!(odd.fault(1), ModelError::UnsupportedType { tensor, .. } if tensor == "blk.0.ffn_gate.weight"));
    let mut odd = Parts::of("tiny-qwen2.gguf");
    let tensor = odd.tensors.iter_mut().find(|t| t.name == "blk.0.attn_q.bias").unwrap();
    (tensor.ty, tensor.bytes) = (TensorType::Q8_0, vec![0; 256 / 32 * 34]);
    assert!(matches!(odd.fault(1), ModelError::UnsupportedType { tensor, .. } if tensor == "blk.0.attn_q.bias"));
}

#[test]
fn splits_that_cannot_be() {
    let refused = |name: &str, size: usize| {
        let gguf = open(name);
        let config = Config::from_gguf(&gguf).unwrap();
        let error = Program::build(&gguf, &config, Shard { rank: 0, size }).unwrap_err();
        line(&error);
        (error, Program::legal_sizes(&gguf, &config))
    };
    // By heads.
    let (error, legal) = refused("tiny-llama.gguf", 3);
    assert!(matches!(&error, ModelError::IllegalSplit { tensor, legal: named, .. }
        if tensor == "blk.0.attn_q.weight" && *named == legal));
    assert_eq!(legal, [1, 2, 4, 8]);
    assert!(line(&error).contains("this model can be split over [1, 2, 4, 8]"), "{error}");
    assert!(matches!(refused("tiny-llama.gguf", 9).0, ModelError::BadSize { size: 9, most: 8 }));
    assert!(matches!(refused("tiny-llama.gguf", 0).0, ModelError::BadSize { .. }));
    // By blocks: a feed forward of 128 in eight is half a block; of 512 in four half a block of 256.
    for (name, size, cut) in
        [("tiny-llama-q8_0.gguf", 8, "blk.0.ffn_down.weight"), ("tiny-llama-q4_k.gguf", 4, "blk.0.attn_output.weight")]
    {
        let (error, legal) = refused(name, size);
        assert!(
            matches!(&error, ModelError::IllegalSplit { tensor, .. } if tensor.contains(&cut[5..])),
            "{name}: {error}"
        );
        assert!(!legal.contains(&size) && legal.contains(&2), "{name}: {legal:?}");
    }
}
