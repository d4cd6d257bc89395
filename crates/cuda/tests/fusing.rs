//! What a program becomes: checked on the tiny models, without a GPU.

use tombolo_cuda::fuse::{Epilogue, Level, Node, fuse, unsupported};
use tombolo_gguf::{Gguf, TensorType};
use tombolo_model::{Activation, Config, Op, Program, Shard};

const LLAMA: &[u8] = include_bytes!("../../model/tests/data/tiny-llama.gguf");
const QWEN3: &[u8] = include_bytes!("../../model/tests/data/tiny-qwen3.gguf");
const LAYERS: usize = 3;

fn program(file: &[u8], size: usize) -> Program {
    let gguf = Gguf::from_bytes(file.to_vec()).unwrap();
    let config = Config::from_gguf(&gguf).unwrap();
    Program::build(&gguf, &config, Shard { rank: 0, size }).unwrap()
}

fn kinds(nodes: &[Node]) -> Vec<String> {
    let kind = |node: &Node| match node {
        Node::Embed { .. } => "embed".to_string(),
        Node::RmsNorm { .. } => "norm".into(),
        Node::Linear(l) => {
            let norm = if l.norm.is_some() { "norm+" } else { "" };
            let then = match l.epilogue {
                Epilogue::Store => "",
                Epilogue::Add => "+add",
                Epilogue::SiluMul(_) => "+silu_mul",
            };
            format!("{norm}linear{}{then}", l.parts.len())
        }
        Node::Attention(a) => if a.norms.is_some() { "norms+attention" } else { "attention" }.into(),
        Node::SiluMul { .. } => "silu_mul".into(),
        Node::AddNorm(_) => "add_norm".into(),
        Node::AllReduceAddNorm(_) => "all_reduce".into(),
        Node::GatherRows { .. } => "gather".into(),
        Node::Sample { .. } => "sample".into(),
    };
    nodes.iter().map(kind).collect()
}

/// `first`, then `layer` for every layer, then `last`.
fn check(program: &Program, level: Level, first: &[&str], layer: &[&str], last: &[&str]) {
    let nodes = fuse(program, level).unwrap();
    let layers = (0..LAYERS).flat_map(|_| layer.iter());
    let expect: Vec<&str> = first.iter().chain(layers).chain(last).copied().collect();
    assert_eq!(kinds(&nodes), expect, "{level:?}");
}

#[test]
fn a_lone_rank_chains_residual_and_norm_into_its_products() {
    let layer = ["norm+linear3", "attention", "linear1+add", "norm+linear2+silu_mul", "linear1+add"];
    check(&program(LLAMA, 1), Level::Chained, &["embed"], &layer, &["norm+linear1", "sample"]);
}

#[test]
fn norms_of_heads_go_with_attention() {
    let layer = ["norm+linear3", "norms+attention", "linear1+add", "norm+linear2+silu_mul", "linear1+add"];
    check(&program(QWEN3, 1), Level::Chained, &["embed"], &layer, &["norm+linear1", "sample"]);
}

#[test]
fn several_ranks_meet_twice_a_layer() {
    let layer = ["linear3", "attention", "linear1", "all_reduce", "linear2+silu_mul", "linear1", "all_reduce"];
    for level in [Level::Joined, Level::Chained] {
        check(&program(LLAMA, 2), level, &["embed", "norm"], &layer, &["linear1", "sample"]);
    }
}

#[test]
fn mixed_steps_gather_their_rows() {
    let layer = ["linear3", "attention", "linear1", "add_norm", "linear2+silu_mul", "linear1", "add_norm"];
    check(&program(LLAMA, 1), Level::Plain, &["embed", "norm"], &layer, &["gather", "linear1", "sample"]);
}

/// No kernel for many rows takes both.
#[test]
fn gate_and_up_of_two_types_are_joined_for_few_rows_alone() {
    let mut program = program(LLAMA, 1);
    let gates = program.ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::GatedActivation { .. }));
    let ups: Vec<usize> = gates.map(|(index, _)| index - 1).collect();
    for index in ups {
        let Op::Linear { weight, .. } = program.ops[index] else { panic!("no product before an activation") };
        program.weights[weight.index()].ty = TensorType::Q6_K;
    }
    let joined = |level| {
        kinds(&fuse(&program, level).unwrap()).iter().any(|kind| kind.contains("silu_mul") && kind.contains("linear"))
    };
    assert!(joined(Level::Chained) && !joined(Level::Joined) && !joined(Level::Plain));
}

#[test]
fn fusing_keeps_every_weight_and_the_order_of_what_is_written() {
    for file in [LLAMA, QWEN3] {
        let program = program(file, 1);
        for level in [Level::Plain, Level::Joined, Level::Chained] {
            let mut used = vec![0; program.weights.len()];
            for node in fuse(&program, level).unwrap() {
                match node {
                    Node::Embed { table, .. } => used[table.index()] += 1,
                    Node::RmsNorm { weight, .. } => used[weight.index()] += 1,
                    Node::AddNorm(a) | Node::AllReduceAddNorm(a) => used[a.weight.index()] += 1,
                    Node::Attention(a) => {
                        for weight in a.norms.iter().flat_map(|n| [n.0, n.1]) {
                            used[weight.index()] += 1;
                        }
                    }
                    Node::Linear(l) => {
                        l.parts.iter().map(|p| p.0).chain(l.norm.map(|n| n.0)).for_each(|w| used[w.index()] += 1);
                    }
                    _ => {}
                }
            }
            assert!(used.iter().all(|&n| n > 0), "{level:?}: {used:?}");
        }
    }
}

#[test]
fn what_no_kernel_computes_is_named() {
    assert_eq!(unsupported(&program(LLAMA, 1)), None);
    assert_eq!(unsupported(&program(QWEN3, 2)), None);
    let changed = |change: fn(&mut Op)| {
        let mut program = program(LLAMA, 1);
        program.ops.iter_mut().for_each(change);
        unsupported(&program).unwrap_or_default()
    };
    let found = changed(|op| {
        if let Op::Attention { window, .. } = op {
            *window = Some(16);
        }
    });
    assert!(found.contains("window"), "{found}");
    let found = changed(|op| {
        if let Op::GatedActivation { activation, .. } = op {
            *activation = Activation::GeluTanh;
        }
    });
    assert!(found.contains("SiLU"), "{found}");
    let found = changed(|op| {
        if let Op::Linear { bias, weight, .. } = op {
            *bias = Some(*weight);
        }
    });
    assert!(found.contains("bias"), "{found}");
    let mut stretched = program(LLAMA, 1);
    stretched.ropes[0].magnitude = 1.3;
    assert!(unsupported(&stretched).unwrap_or_default().contains("YaRN"));
}
