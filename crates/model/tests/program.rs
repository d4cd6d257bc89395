//! The program builder over tiny models of every architecture: what a rank holds, and what is read per token.

mod common;

use common::{open, program};
use tombolo_model::{Config, ExpertMatrix, Op, Program, Rows, Shard, Weight};

/// A file of each architecture, and of each kind of block.
const FILES: [&str; 9] = [
    "tiny-llama.gguf",
    "tiny-llama-q8_0.gguf",
    "tiny-llama-biases.gguf",
    "tiny-mixtral.gguf",
    "tiny-qwen2.gguf",
    "tiny-qwen3.gguf",
    "tiny-qwen3moe.gguf",
    "tiny-gemma3.gguf",
    "tiny-gpt-oss.gguf",
];

fn width(program: &Program, name: &str) -> usize {
    program.buffers.iter().find(|b| b.name == name).unwrap().width
}

#[test]
fn every_rank_runs_the_same_operations() {
    for name in FILES {
        let whole = program(name, 0, 1);
        let names: Vec<_> = whole.ops.iter().map(Op::name).collect();
        for (rank, size) in [(0, 2), (1, 2), (3, 4)] {
            let part = program(name, rank, size);
            assert_eq!(part.ops.iter().map(Op::name).collect::<Vec<_>>(), names);
            for buffer in ["q", "gate", "up"].into_iter().filter(|b| whole.buffers.iter().any(|w| w.name == *b)) {
                assert_eq!(width(&part, buffer) * size, width(&whole, buffer), "{name} {buffer}");
            }
            assert_eq!(part.vocabulary_start, rank * whole.vocabulary / size);
        }
        let reduces = whole.ops.iter().filter(|op| matches!(op, Op::AllReduceAddNorm { .. })).count();
        assert_eq!(reduces, 2 * whole.groups.iter().map(|g| g.layers).sum::<usize>());
    }
}

#[test]
fn the_shards_hold_every_weight_once() {
    for name in FILES {
        let bytes = |p: &Program, tensor: &str| -> usize {
            let is = |w: &&Weight| w.tensor.contains(tensor) && w.tensor.ends_with(".weight");
            p.weights.iter().filter(is).map(|w| w.bytes()).sum()
        };
        let whole = program(name, 0, 1);
        let parts: Vec<_> = (0..4).map(|rank| program(name, rank, 4)).collect();
        let cut = ["attn_q.", "attn_k.", "attn_v.", "attn_output", "ffn_gate.", "ffn_up", "ffn_down", "exps", "sinks"];
        for tensor in cut {
            let sum: usize = parts.iter().map(|p| bytes(p, tensor)).sum();
            assert_eq!(sum, bytes(&whole, tensor), "{name} {tensor}");
        }
        for tensor in ["norm", "ffn_gate_inp"] {
            assert!(parts.iter().all(|p| bytes(p, tensor) == bytes(&whole, tensor)), "{name} {tensor}");
        }
    }
}

#[test]
fn a_tied_head_is_held_once_on_one_rank_and_read_twice() {
    let tied = ["tiny-llama.gguf", "tiny-qwen3.gguf"].map(|name| (name, Config::from_gguf(&open(name)).unwrap().tied));
    let (name, _) = tied.into_iter().find(|t| t.1).expect("one of the two is tied");
    let whole = program(name, 0, 1);
    assert_eq!(whole.weights.iter().filter(|w| w.tensor == "token_embd.weight").count(), 1);
    let table = whole.weights.iter().find(|w| w.tensor == "token_embd.weight").unwrap();
    assert_eq!(whole.weight_bytes_per_token(), whole.weight_bytes() + table.row_bytes());
    let part = program(name, 1, 2);
    assert_eq!(part.weights.iter().filter(|w| w.tensor == "token_embd.weight").count(), 2);
}

#[test]
fn buffers_are_used_with_the_widths_that_their_operations_need() {
    for (name, (rank, size)) in FILES.into_iter().flat_map(|name| [(0, 1), (1, 4)].map(|shard| (name, shard))) {
        let p = program(name, rank, size);
        for op in &p.ops {
            match *op {
                Op::Linear { x, weight, bias, out } => {
                    let bias = bias.map(|bias| (p.weight(bias).rows, p.weight(bias).cols));
                    assert!(bias.is_none_or(|shape| shape == (p.buffer(out).width, 1)));
                    assert_eq!(p.buffer(x).width, p.weight(weight).cols);
                    assert_eq!(p.buffer(out).width, p.weight(weight).rows);
                    assert_eq!(p.buffer(x).rows, p.buffer(out).rows);
                }
                Op::Attention { q, group, heads, sinks, .. } => {
                    assert!(sinks.is_none_or(|sinks| p.weight(sinks).rows == heads));
                    let group = &p.groups[group.index()];
                    assert_eq!(p.buffer(q).width, heads * group.head_dim);
                    assert_eq!(heads % group.kv_heads, 0);
                }
                Op::Experts { x, gate, up, down, out, .. } => {
                    let shape = |m: ExpertMatrix| (p.weight(m.weight).rows, p.weight(m.weight).cols);
                    assert_eq!(shape(gate), shape(up));
                    assert_eq!(shape(down), (p.buffer(out).width, shape(gate).0));
                    assert_eq!(shape(gate).1, p.buffer(x).width);
                    for (m, bias) in [gate, up, down].into_iter().filter_map(|m| Some((m, p.weight(m.bias?)))) {
                        assert_eq!((bias.count, bias.rows, bias.cols), (p.weight(m.weight).count, shape(m).0, 1));
                    }
                }
                Op::GatherRows { x, out } => {
                    assert_eq!((p.buffer(x).rows, p.buffer(out).rows), (Rows::Batch, Rows::Logits));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn ranks_share_kv_heads_where_there_are_fewer() {
    // Eight ranks and four KV heads: two ranks hold each.
    let start = |rank| {
        let p = program("tiny-llama.gguf", rank, 8);
        p.weights.iter().find(|w| w.tensor == "blk.0.attn_k.weight").unwrap().runs().next().unwrap().0
    };
    let starts: Vec<_> = (0..8).map(start).collect();
    assert!(starts.chunks(2).all(|pair| pair[0] == pair[1]) && starts[1] < starts[2]);
}

#[test]
fn every_legal_size_leaves_blocks_whole() {
    for name in FILES {
        let gguf = open(name);
        let config = Config::from_gguf(&gguf).unwrap();
        let legal = Program::legal_sizes(&gguf, &config);
        assert!(legal.starts_with(&[1, 2]), "{name}: {legal:?}");
        for size in legal {
            let p = Program::build(&gguf, &config, Shard { rank: size - 1, size }).unwrap();
            assert!(p.weights.iter().all(|w| w.cols.is_multiple_of(w.ty.block_len())), "{name} in {size}");
        }
    }
}
