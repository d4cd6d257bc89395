//! The program builder over tiny models of every architecture: what a rank holds, what is read per token, what is
//! refused before any weight is touched.

use std::path::Path;
use tombolo_gguf::{Gguf, Value, Writer};
use tombolo_model::{Config, ModelError, Op, Program, Rows, Shard};

fn open(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    Gguf::open(&path).unwrap()
}

fn program(name: &str, rank: usize, size: usize) -> Program {
    let gguf = open(name);
    let config = Config::from_gguf(&gguf).unwrap();
    Program::build(&gguf, &config, Shard { rank, size }).unwrap()
}

fn width(program: &Program, name: &str) -> usize {
    program.buffers.iter().find(|b| b.name == name).unwrap().width
}

#[test]
fn every_rank_runs_the_same_operations() {
    for name in ["tiny-llama.gguf", "tiny-qwen3.gguf"] {
        let whole = program(name, 0, 1);
        let names: Vec<_> = whole.ops.iter().map(Op::name).collect();
        for (rank, size) in [(0, 2), (1, 2), (3, 4)] {
            let part = program(name, rank, size);
            assert_eq!(part.ops.iter().map(Op::name).collect::<Vec<_>>(), names);
            for buffer in ["q", "gate", "up"] {
                assert_eq!(width(&part, buffer) * size, width(&whole, buffer), "{buffer}");
            }
            assert_eq!(part.vocabulary_start, rank * whole.vocabulary / size);
        }
        let reduces = whole.ops.iter().filter(|op| matches!(op, Op::AllReduceAddNorm { .. })).count();
        assert_eq!(reduces, 2 * whole.groups[0].layers);
    }
}

#[test]
fn the_shards_hold_every_weight_once() {
    for name in ["tiny-llama.gguf", "tiny-qwen3.gguf", "tiny-llama-q8_0.gguf"] {
        let bytes = |p: &Program, tensor: &str| -> usize {
            p.weights.iter().filter(|w| w.tensor.contains(tensor)).map(|w| w.bytes()).sum()
        };
        let whole = program(name, 0, 1);
        let parts: Vec<_> = (0..4).map(|rank| program(name, rank, 4)).collect();
        for tensor in ["attn_q.", "attn_k.", "attn_v.", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
            let sum: usize = parts.iter().map(|p| bytes(p, tensor)).sum();
            assert_eq!(sum, bytes(&whole, tensor), "{name} {tensor}");
        }
        assert!(parts.iter().all(|p| bytes(p, "norm") == bytes(&whole, "norm")));
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
    for (rank, size) in [(0, 1), (1, 4)] {
        let p = program("tiny-qwen3.gguf", rank, size);
        for op in &p.ops {
            match *op {
                Op::Linear { x, weight, out, .. } => {
                    assert_eq!(p.buffer(x).width, p.weight(weight).cols);
                    assert_eq!(p.buffer(out).width, p.weight(weight).rows);
                    assert_eq!(p.buffer(x).rows, p.buffer(out).rows);
                }
                Op::Attention { q, group, heads, .. } => {
                    let group = &p.groups[group.index()];
                    assert_eq!(p.buffer(q).width, heads * group.head_dim);
                    assert_eq!(heads % group.kv_heads, 0);
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
fn illegal_sizes_are_refused_by_name() {
    let gguf = open("tiny-llama.gguf");
    let config = Config::from_gguf(&gguf).unwrap();
    let refused = |size| Program::build(&gguf, &config, Shard { rank: 0, size }).unwrap_err();
    let error = refused(3);
    assert!(matches!(&error, ModelError::IllegalSplit { tensor, legal, .. }
        if tensor == "blk.0.attn_q.weight" && legal[..] == [1, 2, 4, 8]));
    assert!(error.to_string().contains("this model can be split over [1, 2, 4, 8]"), "{error}");
    assert!(matches!(refused(9), ModelError::BadSize { size: 9, most: 8 }));
    assert!(matches!(refused(0), ModelError::BadSize { .. }));
    // Eight ranks share four KV heads: two ranks hold each.
    assert_eq!(Program::legal_sizes(&gguf, &config), [1, 2, 4, 8]);
    let starts: Vec<_> = (0..8)
        .map(|rank| {
            let p = Program::build(&gguf, &config, Shard { rank, size: 8 }).unwrap();
            p.weights.iter().find(|w| w.tensor == "blk.0.attn_k.weight").unwrap().runs().next().unwrap().0
        })
        .collect();
    assert!(starts.chunks(2).all(|pair| pair[0] == pair[1]) && starts[1] < starts[2]);
    // Blocks of 32 cannot be cut: a head of 16 columns is half a block.
    let quantized = open("tiny-llama-q8_0.gguf");
    let config = Config::from_gguf(&quantized).unwrap();
    for size in Program::legal_sizes(&quantized, &config) {
        let p = Program::build(&quantized, &config, Shard { rank: 0, size }).unwrap();
        assert!(p.weights.iter().all(|w| w.cols.is_multiple_of(w.ty.block_len())));
    }
}

/// The tiny llama file with metadata changed, a key or tensor left out, a tensor added.
fn rewritten(change: impl Fn(&str) -> Option<Value>, drop: &str, add: &str) -> Gguf {
    rewritten_with(change, drop, add, &[])
}

fn rewritten_with(change: impl Fn(&str) -> Option<Value>, drop: &str, add: &str, more: &[(&str, Value)]) -> Gguf {
    let gguf = open("tiny-llama.gguf");
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = Writer::new(&mut bytes);
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| *key != drop) {
        writer.metadata(key, change(key).unwrap_or_else(|| value.clone())).unwrap();
    }
    for (key, value) in more.iter().filter(|(key, _)| gguf.metadata().get(key).is_none()) {
        writer.metadata(key, value.clone()).unwrap();
    }
    let mut kept: Vec<_> = gguf.tensors().iter().filter(|t| t.name != drop).cloned().collect();
    if !add.is_empty() {
        let mut extra = gguf.tensor("output_norm.weight").unwrap().clone();
        extra.name = add.into();
        kept.push(extra);
    }
    for t in &kept {
        writer.tensor(&t.name, &t.dims, t.ty).unwrap();
    }
    writer.finish_header().unwrap();
    for t in &kept {
        let source = if t.name == add { "output_norm.weight" } else { t.name.as_str() };
        writer.data(gguf.bytes(gguf.tensor(source).unwrap())).unwrap();
    }
    writer.finish().unwrap();
    Gguf::from_bytes(bytes.into_inner()).unwrap()
}

/// The tiny llama file with one key more, or another value of it.
fn with(key: &str, value: Value) -> Gguf {
    rewritten_with(|k| (k == key).then(|| value.clone()), "", "", &[(key, value.clone())])
}

#[test]
fn files_that_make_no_model_are_refused_by_name() {
    let config_error = |key: &'static str, value: Value| {
        let gguf = rewritten(|k| (k == key).then(|| value.clone()), "", "");
        Config::from_gguf(&gguf).unwrap_err().to_string()
    };
    let cases = [
        ("general.architecture", Value::String("mamba9".into()), "architecture 'mamba9' is not supported"),
        ("llama.block_count", Value::U32(0), "'llama.block_count' has a value that makes no model: 0"),
        ("llama.block_count", Value::U64(1 << 40), "1 to 512 allowed"),
        ("llama.embedding_length", Value::I32(-4), "I32(-4), where a whole number is wanted"),
        ("llama.rope.freq_base", Value::String("x".into()), "'x', where a number is wanted"),
        ("llama.attention.head_count_kv", Value::U32(3), "8 query heads cannot share 3 KV heads"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "makes no model: NaN"),
        ("llama.rope.freq_base", Value::F32(-1.0), "makes no model: -1"),
        ("llama.attention.head_count", Value::U32(0), "'llama.attention.head_count'"),
        ("llama.attention.key_length", Value::U32(2048), "1 to 1024 allowed"),
    ];
    for (key, value, want) in cases {
        let got = config_error(key, value);
        assert!(got.contains(want) && !got.contains('\n'), "{key}: {got}");
    }

    for (key, value) in [
        ("llama.rope.scaling.type", Value::String("longrope".into())),
        ("llama.rope.scaling.yarn_log_multiplier", Value::F32(0.1)),
        ("llama.expert_shared_count", Value::U32(1)),
        ("llama.attention.causal", Value::Bool(false)),
        ("llama.logit_scale", Value::F32(0.5)),
        ("llama.attention.sliding_window", Value::U32(16)),
    ] {
        let error = Config::from_gguf(&with(key, value)).unwrap_err();
        assert!(matches!(&error, ModelError::UnsupportedFeature { key: named, .. } if named == key), "{key}: {error}");
    }
    for (key, value) in [
        ("llama.rope.scaling.type", Value::String("none".into())),
        ("llama.attention.sliding_window", Value::U32(1 << 20)),
        ("llama.expert_count", Value::U32(0)),
    ] {
        Config::from_gguf(&with(key, value)).unwrap();
    }
    // One head as wide as the whole row, without a key that says so.
    let wide = |key: &str| match key {
        "llama.attention.head_count" | "llama.attention.head_count_kv" => Some(Value::U32(1)),
        "llama.embedding_length" => Some(Value::U32(2048)),
        _ => None,
    };
    let wide = rewritten(wide, "llama.attention.key_length", "");
    assert!(matches!(Config::from_gguf(&wide), Err(ModelError::BadValue { .. })));

    let build_error = |gguf: &Gguf| {
        let config = Config::from_gguf(gguf).unwrap();
        Program::build(gguf, &config, Shard::WHOLE).unwrap_err()
    };
    let missing = rewritten(|_| None, "blk.1.ffn_up.weight", "");
    assert!(matches!(build_error(&missing), ModelError::MissingTensor { tensor } if tensor == "blk.1.ffn_up.weight"));
    let extra = rewritten(|_| None, "", "blk.0.attn_gate.weight");
    assert!(matches!(build_error(&extra), ModelError::ExtraTensor { tensor } if tensor == "blk.0.attn_gate.weight"));
    let wrong = rewritten(|k| (k == "llama.feed_forward_length").then_some(Value::U32(7)), "", "");
    assert!(matches!(build_error(&wrong), ModelError::WrongShape { tensor, .. } if tensor == "blk.0.ffn_gate.weight"));
}
