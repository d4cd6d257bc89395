//! Programs of latent attention: what a rank holds and keeps per token, what is refused and how that is said.

use std::path::Path;
use tombolo_gguf::{Gguf, TensorType, Value, Writer};
use tombolo_model::{Config, ModelError, Op, Program, Shard, Values};

fn open(name: &str) -> Gguf {
    Gguf::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

fn build(gguf: &Gguf, shard: Shard) -> Result<Program, ModelError> {
    Program::build(gguf, &Config::from_gguf(gguf)?, shard)
}

/// A file without some tensors and with other values of some keys.
fn rewritten(gguf: &Gguf, keeps: impl Fn(&str) -> bool, change: impl Fn(&str) -> Option<Value>) -> Gguf {
    let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
    for (key, value) in gguf.metadata().iter() {
        writer.metadata(key, change(key).unwrap_or_else(|| value.clone())).unwrap();
    }
    let kept: Vec<_> = gguf.tensors().iter().filter(|t| keeps(&t.name)).collect();
    for t in &kept {
        writer.tensor(&t.name, &t.dims, t.ty).unwrap();
    }
    writer.finish_header().unwrap();
    for t in kept {
        writer.data(gguf.bytes(t)).unwrap();
    }
    Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap()
}

#[test]
fn a_token_takes_one_latent_a_layer_and_one_index_key_a_full_layer() {
    let gguf = open("tiny-glm-dsa.gguf");
    for size in [1, 2, 4] {
        let program = build(&gguf, Shard { rank: size - 1, size }).unwrap();
        let [latent, index] = &program.groups[..] else { panic!("{:?}", program.groups) };
        // And one of each for the block that drafts tokens.
        assert_eq!((latent.layers, latent.values_per_token(), latent.values), (4 + 1, 32 + 16, Values::OfKey(32)));
        assert_eq!((index.layers, index.values_per_token(), index.values), (3 + 1, 32, Values::None));
        let count = |name: &str| program.ops.iter().filter(|op| op.name() == name).count();
        assert_eq!([count("select"), count("index_write"), count("latent_attention")], [3, 3, 4]);
        let heads = |op: &Op| match op {
            Op::LatentAttention { keys, values, heads, .. } => {
                Some([program.weight(*keys).count, program.weight(*values).count, *heads])
            }
            _ => None,
        };
        assert!(program.all_ops().filter_map(heads).all(|counts| counts == [4 / size; 3]));
        let without = Config::from_gguf(&gguf).unwrap().without_draft();
        let without = Program::build(&gguf, &without, program.shard).unwrap();
        assert_eq!(without.groups.iter().map(|group| group.layers).collect::<Vec<_>>(), [4, 3]);
        assert!(without.draft.is_empty() && !without.weights.iter().any(|w| w.tensor.starts_with("blk.4.")));
    }
}

#[test]
fn ranks_hold_their_heads_and_share_what_all_need() {
    let gguf = open("tiny-glm-dsa.gguf");
    let whole = build(&gguf, Shard::WHOLE).unwrap();
    let parts: Vec<_> = (0..4).map(|rank| build(&gguf, Shard { rank, size: 4 }).unwrap()).collect();
    let bytes = |program: &Program, part: &str| -> usize {
        program.weights.iter().filter(|w| w.tensor.contains(part)).map(|w| w.bytes()).sum()
    };
    let cut = ["attn_k_b", "attn_v_b", "attn_output", "shexp", "gate_exps", "up_exps", "down_exps"];
    for part in cut {
        let sum: usize = parts.iter().map(|p| bytes(p, part)).sum();
        assert_eq!(sum, bytes(&whole, part), "{part}");
    }
    for part in ["attn_q_a", "attn_kv_a", "indexer", "ffn_gate_inp", "exp_probs_b", "norm"] {
        assert!(parts.iter().all(|p| bytes(p, part) == bytes(&whole, part)), "{part}");
    }
    assert_eq!(Program::legal_sizes(&gguf, &Config::from_gguf(&gguf).unwrap()), [1, 2, 4]);
    let error = build(&gguf, Shard { rank: 0, size: 3 }).unwrap_err();
    assert!(
        matches!(&error, ModelError::IllegalSplit { tensor, legal, .. }
        if tensor == "blk.0.attn_q_b.weight" && legal[..] == [1, 2, 4]),
        "{error}"
    );
}

#[test]
fn what_is_missing_is_named_and_what_helps_is_said() {
    let gguf = open("tiny-glm-dsa.gguf");
    let same = |_: &str| None;
    let without = rewritten(&gguf, |name| name != "blk.1.indexer.attn_k.weight", same);
    let error = build(&without, Shard::WHOLE).unwrap_err();
    assert!(matches!(&error, ModelError::MissingIndexer { tensor, top_k: 16 } if tensor.starts_with("blk.1.indexer")));
    assert!(error.to_string().contains("--dense-attention"), "{error}");
    // Without an indexer at all, but told to do without.
    let without = rewritten(&gguf, |name| !name.contains("indexer"), same);
    let mut config = Config::from_gguf(&without).unwrap();
    assert!(config.force_dense_attention() && !config.force_dense_attention());
    assert_eq!(Program::build(&without, &config, Shard::WHOLE).unwrap().groups.len(), 1);
    // Blocks that are not counted are not ignored, and a block of the model does not draft.
    let counted = |blocks: u32, drafts: u32| {
        let change = move |key: &str| match key {
            "glm-dsa.block_count" => Some(Value::U32(blocks)),
            "glm-dsa.nextn_predict_layers" => Some(Value::U32(drafts)),
            _ => None,
        };
        let file = rewritten(&gguf, |_| true, change);
        Config::from_gguf(&file).and_then(|config| Program::build(&file, &config, Shard::WHOLE)).unwrap_err()
    };
    let error = counted(3, 0);
    assert!(matches!(&error, ModelError::ExtraTensor { tensor } if tensor.starts_with("blk.3.")), "{error}");
    let error = counted(5, 2).to_string();
    assert!(error.contains("block 3 has no tensors 'nextn.*'"), "{error}");
    let part = rewritten(&gguf, |name| name != "blk.4.nextn.hnorm.weight", same);
    let error = build(&part, Shard::WHOLE).unwrap_err();
    assert!(matches!(&error, ModelError::MissingDraft { tensor } if tensor == "blk.4.nextn.hnorm.weight"), "{error}");
    assert!(error.to_string().contains("--draft-max 0"), "{error}");
    // Left out as a whole, it is not missed.
    let trunk = rewritten(&gguf, |name| !name.starts_with("blk.4."), same);
    assert!(build(&trunk, Shard::WHOLE).unwrap().draft.is_empty());
    let named = |name: &'static str| {
        let change = move |key: &str| (key == "general.architecture").then(|| Value::String(name.into()));
        Config::from_gguf(&rewritten(&gguf, |_| true, change)).unwrap_err().to_string()
    };
    assert!(named("glm5next").contains("'glm5next' is not supported: GLM-5.3-Flash"), "{}", named("glm5next"));
    assert!(named("glm6").contains("supported are: llama"), "{}", named("glm6"));
}

/// Six blocks of columns over four ranks, and experts of six blocks: neither can be cut evenly.
#[test]
fn a_shared_expert_is_cut_into_whole_blocks_however_many() {
    let plain = open("tiny-glm4moe.gguf");
    let blocks = |name: &str| name.ends_with("_down_shexp.weight") || name.ends_with("ffn_down_exps.weight");
    // Experts of 192 values in blocks of 32; the data do not matter here.
    let width = |name: &str| name.contains("_exps.") || name.contains("_shexp.");
    let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
    for (key, value) in plain.metadata().iter() {
        let wide = key == "glm4moe.expert_feed_forward_length";
        writer.metadata(key, if wide { Value::U32(192) } else { value.clone() }).unwrap();
    }
    let shapes: Vec<_> = plain
        .tensors()
        .iter()
        .map(|t| {
            let mut dims = t.dims.clone();
            if width(&t.name) {
                dims[usize::from(!t.name.contains("_down_"))] = 192;
            }
            (dims, if blocks(&t.name) { TensorType::Q8_0 } else { t.ty })
        })
        .collect();
    for (t, (dims, ty)) in plain.tensors().iter().zip(&shapes) {
        writer.tensor(&t.name, dims, *ty).unwrap();
    }
    writer.finish_header().unwrap();
    for (dims, ty) in &shapes {
        let values = dims.iter().product::<u64>() as usize;
        writer.data(&vec![0; values / ty.block_len() * ty.block_bytes()]).unwrap();
    }
    let gguf = Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap();
    let held = |tensor: &str| {
        (0..4)
            .map(|rank| {
                let program = build(&gguf, Shard { rank, size: 4 }).unwrap();
                let weight = program.weights.iter().find(|w| w.tensor == tensor).unwrap();
                (weight.first, weight.count, weight.rows, weight.cols)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(held("blk.1.ffn_up_shexp.weight"), [(0, 1, 32, 64), (0, 1, 64, 64), (0, 1, 32, 64), (0, 1, 64, 64)]);
    assert_eq!(held("blk.1.ffn_down_shexp.weight"), [(0, 1, 64, 32), (0, 1, 64, 64), (0, 1, 64, 32), (0, 1, 64, 64)]);
    assert_eq!(
        held("blk.1.ffn_down_exps.weight"),
        [(0, 2, 64, 192), (2, 2, 64, 192), (4, 2, 64, 192), (6, 2, 64, 192)]
    );
}
