//! What each architecture's data become in the program, and the same model from tensors that hold several matrices.

mod common;

use common::{Parts, open, program};
use tombolo_model::{Activation, Config, Element, FeedForward, Gating, Op, Program, Shard, Slice};

fn config(name: &str) -> Config {
    Config::from_gguf(&open(name)).unwrap()
}

#[test]
fn gemma3_has_windows_in_a_group_of_their_own() {
    let c = config("tiny-gemma3.gguf");
    assert_eq!(c.blocks.iter().map(|b| b.reach).collect::<Vec<_>>(), [1, 1, 0, 1]);
    assert_eq!(c.embedding_scale, 8.0);
    let [all, near] = &c.attention.reaches[..] else { panic!("two kinds of layers") };
    assert_eq!((all.window, near.window), (None, Some(16)));
    // Only the layers that see everything are stretched.
    let (far, close) = (all.rope.frequencies[1], near.rope.frequencies[1]);
    assert!((far - 1e6f32.powf(-1.0 / 16.0) / 8.0).abs() < 1e-6 && (close - 1e4f32.powf(-1.0 / 16.0)).abs() < 1e-6);
    let p = program("tiny-gemma3.gguf", 0, 1);
    let groups: Vec<_> = p.groups.iter().map(|g| (g.name, g.layers, g.window)).collect();
    assert_eq!(groups, [("kv", 1, None), ("window", 3, Some(16))]);
    let mut next = [0; 2];
    for op in &p.ops {
        match *op {
            Op::Attention { group, layer, window, .. } => {
                assert_eq!(window, p.groups[group.index()].window);
                assert_eq!(layer, next[group.index()]);
                next[group.index()] += 1;
            }
            Op::AllReduceAddNorm { post_norm, .. } => assert!(post_norm.is_some()),
            Op::GatedActivation { activation, .. } => assert_eq!(activation, Activation::GeluTanh),
            _ => {}
        }
    }
    assert!(p.ops.iter().any(|op| matches!(op, Op::Softcap { cap, .. } if *cap == 5.0)));
    // A file that does not say which: all of six neighbours but the last.
    let parts = Parts::of("tiny-gemma3.gguf").without("gemma3.attention.sliding_window_pattern");
    assert!(parts.config().unwrap().attention.reaches.iter().all(|r| r.window == Some(16)));
    let flags = parts.set("gemma3.attention.sliding_window_pattern", vec![false, true, true, false]);
    assert_eq!(flags.config().unwrap().blocks.iter().map(|b| b.reach).collect::<Vec<_>>(), [0, 1, 1, 0]);
    // Without a window there is one kind of layer.
    let all = Parts::of("tiny-gemma3.gguf").without("gemma3.attention.sliding_window").config().unwrap();
    assert_eq!(all.attention.reaches.len(), 1);
}

#[test]
fn gemma3_27b_has_a_scale_of_its_own() {
    let c = config("tiny-gemma3.gguf");
    assert_eq!(c.attention.scale, 1.0 / 32f32.sqrt());
    let deep = Parts::of("tiny-gemma3.gguf").set("gemma3.block_count", 62u32);
    // 64 values in 8 heads.
    assert_eq!(deep.config().unwrap().attention.scale, 1.0 / 8f32.sqrt());
}

#[test]
fn gpt_oss_has_biases_sinks_and_a_stretched_rotation() {
    let c = config("tiny-gpt-oss.gguf");
    assert_eq!(c.blocks.iter().map(|b| b.reach).collect::<Vec<_>>(), [1, 0, 1]);
    let p = program("tiny-gpt-oss.gguf", 0, 1);
    assert_eq!(p.ropes.len(), 1, "both kinds of layers turn alike");
    assert!((p.ropes[0].magnitude - (1.0 + 0.1 * 8f32.ln())).abs() < 1e-6);
    for op in &p.ops {
        match op {
            Op::Linear { bias, out, .. } => assert_eq!(bias.is_none(), p.buffer(*out).name == "logits"),
            Op::Attention { sinks, .. } => assert!(sinks.is_some()),
            Op::Route { gating, top_k, out, .. } => {
                assert_eq!((*gating, *top_k), (Gating::SoftmaxSelected, 3));
                assert_eq!((p.buffer(out.experts).width, p.buffer(out.experts).element), (3, Element::U32));
            }
            Op::Experts { gate, up, down, activation, .. } => {
                assert!([gate, up, down].iter().all(|m| m.bias.is_some()));
                assert_eq!(*activation, Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 });
            }
            _ => {}
        }
    }
}

#[test]
fn a_bias_of_a_sum_is_added_once() {
    for (name, sums) in [("tiny-llama-biases.gguf", 2), ("tiny-gpt-oss.gguf", 1)] {
        let biased = |p: &Program| {
            let of = |op: &&Op| matches!(op, Op::Linear { bias: Some(_), out, .. } if p.buffer(*out).name == "partial");
            p.ops.iter().filter(of).count()
        };
        let layers = config(name).layers();
        assert_eq!(biased(&program(name, 0, 2)), layers * sums, "{name}");
        let other = program(name, 1, 2);
        assert_eq!(biased(&other), 0, "{name}");
        assert!(other.weights.iter().all(|w| !w.tensor.contains("attn_output.bias")), "{name}: held and not used");
        for op in &other.ops {
            if let Op::Experts { gate, down, .. } = op {
                assert!(gate.bias.is_some() && down.bias.is_none());
            }
        }
        // The others are cut like their matrices.
        let [whole, part] = [program(name, 0, 1), other];
        let held = |p: &Program, tensor: &str| p.weights.iter().find(|w| w.tensor == tensor).unwrap().clone();
        for tensor in ["blk.0.attn_q", "blk.1.attn_v"] {
            let (bias, matrix) = (held(&part, &format!("{tensor}.bias")), held(&part, &format!("{tensor}.weight")));
            assert_eq!((bias.slice, bias.rows, bias.cols), (matrix.slice, matrix.rows, 1));
            assert_eq!(2 * bias.bytes(), held(&whole, &format!("{tensor}.bias")).bytes());
        }
    }
}

#[test]
fn experts_are_held_and_read_in_parts() {
    let whole = program("tiny-qwen3moe.gguf", 0, 1);
    let parts = [0, 1, 2, 3].map(|rank| program("tiny-qwen3moe.gguf", rank, 4));
    let stacks = |p: &Program| p.weights.iter().filter(|w| w.count > 1).cloned().collect::<Vec<_>>();
    let gguf = open("tiny-qwen3moe.gguf");
    for (i, stack) in stacks(&whole).iter().enumerate() {
        assert_eq!(stack.count, 8);
        let tensor = gguf.bytes(gguf.tensor(&stack.tensor).unwrap());
        let held: Vec<_> = parts.iter().map(|p| stacks(p)[i].clone()).collect();
        assert_eq!(held.iter().map(|w| w.bytes()).sum::<usize>(), tensor.len(), "{}", stack.tensor);
        // Every byte of the tensor is in one run of one rank.
        let mut seen = vec![0; tensor.len()];
        for (offset, len) in held.iter().flat_map(|w| w.runs()) {
            seen[offset..offset + len].iter_mut().for_each(|n| *n += 1);
        }
        assert!(seen.iter().all(|&n| n == 1), "{}", stack.tensor);
        // One expert's bytes are those of the stack, in their place.
        let (mut all, mut one) = (Vec::new(), Vec::new());
        held[1].gather(tensor, &mut all);
        held[1].matrix(5).gather(tensor, &mut one);
        assert_eq!(one, all[5 * held[1].matrix_bytes()..][..held[1].matrix_bytes()]);
    }
    // Three of eight are read.
    let read = |p: &Program| p.weight_bytes_per_token();
    let stacked: usize = stacks(&whole).iter().map(|w| w.bytes()).sum();
    let table = whole.weights.iter().find(|w| w.tensor == "token_embd.weight").unwrap();
    assert_eq!(read(&whole), whole.weight_bytes() - stacked / 8 * 5 - table.bytes() + table.row_bytes());
}

#[test]
fn leading_layers_may_be_dense() {
    let name = "tiny-qwen3moe.gguf";
    let mut parts = Parts::of(name).set("qwen3moe.leading_dense_block_count", 1u32);
    for part in ["gate", "up", "down"] {
        // The first expert's matrix alone.
        let tensor = parts.tensors.iter_mut().find(|t| t.name == format!("blk.0.ffn_{part}_exps.weight")).unwrap();
        tensor.bytes.truncate(tensor.bytes.len() / 8);
        tensor.dims.truncate(2);
        tensor.name = format!("blk.0.ffn_{part}.weight");
    }
    let gguf = parts.without("blk.0.ffn_gate_inp.weight").gguf();
    let config = Config::from_gguf(&gguf).unwrap();
    let kinds: Vec<_> = config.blocks.iter().map(|b| b.feed_forward).collect();
    assert_eq!(kinds, [FeedForward::Dense, FeedForward::Experts]);
    let p = Program::build(&gguf, &config, Shard { rank: 1, size: 2 }).unwrap();
    let names: Vec<_> = p.ops.iter().map(Op::name).filter(|n| ["gated_activation", "experts"].contains(n)).collect();
    assert_eq!(names, ["gated_activation", "experts"]);
}

/// The parts of a fused tensor are the parts of the tensors that it holds, for every rank.
#[test]
fn fused_tensors_are_taken_apart() {
    let names = |what: &[&str], layer: usize, end: &str| {
        what.iter().map(|w| format!("blk.{layer}.{w}.{end}")).collect::<Vec<_>>()
    };
    for file in ["tiny-gpt-oss.gguf", "tiny-qwen3moe.gguf", "tiny-llama-biases.gguf"] {
        let plain = open(file);
        let config = Config::from_gguf(&plain).unwrap();
        let mut parts = Parts::of(file);
        for layer in 0..config.layers() {
            let qkv = ["attn_q", "attn_k", "attn_v"];
            for end in
                if config.attention.qkv_bias || file.contains("biases") { &["weight", "bias"][..] } else { &["weight"] }
            {
                let joined = names(&qkv, layer, end);
                let joined: Vec<&str> = joined.iter().map(String::as_str).collect();
                parts = parts.joined(&joined, &format!("blk.{layer}.attn_qkv.{end}"));
            }
            if config.experts.is_some() {
                let joined = names(&["ffn_gate_exps", "ffn_up_exps"], layer, "weight");
                let joined: Vec<&str> = joined.iter().map(String::as_str).collect();
                parts = parts.joined(&joined, &format!("blk.{layer}.ffn_gate_up_exps.weight"));
            }
        }
        let fused = parts.gguf();
        assert_eq!(Config::from_gguf(&fused).unwrap(), config);
        for (rank, size) in [(0, 1), (0, 2), (1, 2), (3, 4)] {
            let shard = Shard { rank, size };
            let [a, b] = [&plain, &fused].map(|gguf| Program::build(gguf, &config, shard).unwrap());
            assert_eq!(a.ops, b.ops);
            for (a, b) in a.weights.iter().zip(&b.weights) {
                let (mut from_own, mut from_fused) = (Vec::new(), Vec::new());
                a.gather(plain.bytes(plain.tensor(&a.tensor).unwrap()), &mut from_own);
                b.gather(fused.bytes(fused.tensor(&b.tensor).unwrap()), &mut from_fused);
                assert_eq!(from_own, from_fused, "{file}: {} of {}, rank {rank} of {size}", a.tensor, b.tensor);
            }
        }
        let first = &Program::build(&fused, &config, Shard::WHOLE).unwrap().weights[3];
        assert!(matches!(first.slice, Slice::Rows { .. }), "{first:?}");
    }
}
