//! Models of the GLM and DeepSeek families against logits of the reference implementation (transformers, f32), with f32
//! arithmetic: latent attention, what its indexer chooses, routed experts with one beside them.

mod common;

use common::{How, Model, Reference, data, max_difference, rows};
use std::sync::Arc;
use tombolo_gguf::{Gguf, TensorType, Writer, quant};
use tombolo_model::{Arith, BLOCK_TOKENS, Capacity, Config, Program, Sequence, Shard, Step};

/// A model whose configuration was changed after it was read.
fn load(gguf: &Arc<Gguf>, how: How, change: impl Fn(&mut Config)) -> (Model, usize) {
    let mut config = Config::from_gguf(gguf).unwrap();
    change(&mut config);
    let capacity = Capacity::new(how.rows, how.rows, 256);
    let options = tombolo_cpu::Options { threads: how.threads, arith: how.arith, ..Default::default() };
    let ranks = tombolo_cpu::load_with(gguf.clone(), &config, how.tp, capacity, &options, how.tier).unwrap();
    let groups = Program::build(gguf, &config, Shard::WHOLE).unwrap().groups.len();
    (Model { config, ranks, capacity }, groups)
}

/// A step of one sequence with logits of all rows; its groups have the blocks in different orders.
fn step(groups: usize, start: usize, tokens: &[u32]) -> Step {
    let len = (256 / BLOCK_TOKENS) as u32;
    let tables = (0..groups as u32).map(|group| (0..len).map(|b| (b + 3 * group + 1) % len).collect()).collect();
    Step {
        rows: rows(0, start, tokens, true),
        sequences: vec![Sequence { tables }],
        full_logits: true,
        ..Step::default()
    }
}

/// How a prompt comes in: lengths of the steps; the rest token by token.
fn steps(groups: usize, tokens: &[u32], chunks: &[usize]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut start = 0;
    let ones = std::iter::repeat(&1);
    for &len in chunks.iter().chain(ones) {
        if start == tokens.len() {
            break;
        }
        steps.push(step(groups, start, &tokens[start..start + len]));
        start += len;
    }
    steps
}

fn logits(model: &mut Model, steps: &[Step]) -> Vec<f32> {
    model.run(steps).into_iter().flat_map(|output| output.logits).collect()
}

fn open(name: &str) -> Arc<Gguf> {
    Arc::new(Gguf::open(&data(&format!("{name}.gguf"))).unwrap())
}

/// Prefill and decode against the reference, for every number of ranks; a prompt in chunks has the bits of a whole one.
fn check(name: &str, tps: &[usize], tolerance: f32, change: impl Fn(&mut Config)) {
    let (gguf, reference) = (open(name), Reference::open(&format!("{name}.safetensors")));
    let prompt = reference.tokens("tokens");
    let tokens = [prompt.clone(), reference.tokens("decode_tokens")].concat();
    let want = [reference.f32s("logits"), reference.f32s("decode_logits")].concat();
    for &tp in tps {
        let (mut model, groups) = load(&gguf, How::new(tp, Arith::F32), &change);
        let whole = logits(&mut model, &steps(groups, &tokens, &[prompt.len()]));
        let difference = max_difference(&whole, &want);
        println!("{name} at TP {tp}: off by {difference:e}");
        assert!(difference <= tolerance, "{name} at TP {tp}: off by {difference}");
        let chunked = logits(&mut model, &steps(groups, &tokens, &[7, 1, 26, 11]));
        assert!(whole == chunked, "{name} at TP {tp}: chunks change the logits");
    }
}

/// transformers norms squeezed queries and latents with an eps of their own, which no file carries.
fn reference_eps(config: &mut Config) {
    config.latent.as_mut().unwrap().eps = 1e-6;
}

#[test]
fn glm_dsa() {
    check("tiny-glm-dsa", &[1, 2, 4], 1e-5, reference_eps);
    check("tiny-glm-dsa", &[1], 1e-4, |_| ());
}

#[test]
fn glm_dsa_forced_to_be_dense() {
    let (gguf, reference) = (open("tiny-glm-dsa"), Reference::open("tiny-glm-dsa.safetensors"));
    let tokens = reference.tokens("tokens");
    for tp in [1, 4] {
        let (mut model, groups) = load(&gguf, How::new(tp, Arith::F32), |config| {
            reference_eps(config);
            assert!(config.force_dense_attention());
        });
        assert_eq!(groups, 1);
        let dense = logits(&mut model, &steps(groups, &tokens, &[tokens.len()]));
        let difference = max_difference(&dense, &reference.f32s("dense_logits"));
        assert!(difference <= 1e-5, "dense at TP {tp}: off by {difference}");
        assert!(max_difference(&dense, &reference.f32s("logits")) > 0.1, "sparsity makes no difference here");
    }
}

#[test]
fn deepseek3() {
    check("tiny-deepseek3", &[1, 2, 4], 1e-4, |_| ());
}

#[test]
fn deepseek2_lite_from_a_legacy_file() {
    check("tiny-deepseek2-lite", &[1, 2, 4], 1e-4, |_| ());
}

#[test]
fn glm4moe() {
    check("tiny-glm4moe", &[1, 2, 4], 1e-4, |_| ());
}

/// A file of BF16 and F32 tensors with some of them in another type; or with the values that those would have, in F32.
fn retyped(gguf: &Gguf, ty_of: impl Fn(&str) -> Option<TensorType>, as_f32: bool) -> Arc<Gguf> {
    let values = |info: &tombolo_gguf::TensorInfo| {
        let mut values = vec![0.0; info.dims.iter().product::<u64>() as usize];
        quant::decode(info.ty, gguf.bytes(info), &mut values).unwrap();
        values
    };
    let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
    for (key, value) in gguf.metadata().iter() {
        writer.metadata(key, value.clone()).unwrap();
    }
    let mut data = Vec::new();
    for info in gguf.tensors() {
        let Some(ty) = ty_of(&info.name) else {
            writer.tensor(&info.name, &info.dims, info.ty).unwrap();
            data.push(gguf.bytes(info).to_vec());
            continue;
        };
        let mut bytes = Vec::new();
        quant::encode(ty, &values(info), &mut bytes).unwrap();
        let mut decoded = vec![0.0; info.dims.iter().product::<u64>() as usize];
        quant::decode(ty, &bytes, &mut decoded).unwrap();
        writer.tensor(&info.name, &info.dims, if as_f32 { TensorType::F32 } else { ty }).unwrap();
        data.push(if as_f32 { decoded.iter().flat_map(|v| v.to_le_bytes()).collect() } else { bytes });
    }
    writer.finish_header().unwrap();
    for bytes in &data {
        writer.data(bytes).unwrap();
    }
    Arc::new(Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap())
}

/// Types per tensor, a gate's unlike its up's, whatever the latent's matrices are in: the same as in F32. Experts in
/// blocks as wide as they are cannot be cut: ranks hold whole ones.
#[test]
fn quantized_tensors_of_all_kinds_and_experts_that_stay_whole() {
    use TensorType::{Q4_0, Q4_1, Q5_0, Q8_0};
    let plain = open("tiny-glm-dsa");
    let tokens = Reference::open("tiny-glm-dsa.safetensors").tokens("tokens");
    for k_b in [Q8_0, Q5_0, Q4_1] {
        let ty_of = |name: &str| {
            let part =
                name.split_once("blk.").and_then(|(_, rest)| rest.split_once('.')).map_or(name, |(_, part)| part);
            Some(match part {
                "attn_k_b.weight" => k_b,
                "attn_v_b.weight" | "ffn_gate_exps.weight" | "attn_kv_a_mqa.weight" | "indexer.attn_q_b.weight" => Q8_0,
                "ffn_up_exps.weight" | "attn_q_b.weight" | "indexer.attn_k.weight" => Q5_0,
                "ffn_down_exps.weight" | "attn_q_a.weight" => Q4_0,
                _ => return None,
            })
        };
        let (quantized, wide) = (retyped(&plain, ty_of, false), retyped(&plain, ty_of, true));
        let run = |gguf: &Arc<Gguf>, how: How, chunks: &[usize]| {
            let (mut model, groups) = load(gguf, how, |_| ());
            logits(&mut model, &steps(groups, &tokens, chunks))
        };
        let want = run(&wide, How::new(1, Arith::F32), &[64]);
        for tp in [1, 2, 4] {
            let got = run(&quantized, How::new(tp, Arith::F32), &[64]);
            let difference = max_difference(&got, &want);
            assert!(difference <= 1e-4, "k_b in {k_b} at TP {tp}: off by {difference}");
            // Rounded activations are another matter, but not chunks of them.
            let whole = run(&quantized, How::new(tp, Arith::Production), &[64]);
            let chunked = run(&quantized, How::new(tp, Arith::Production), &[30, 1, 9, 21]);
            assert!(whole == chunked, "k_b in {k_b} at TP {tp}: chunks change the logits");
        }
        let config = Config::from_gguf(&quantized).unwrap();
        let held = |rank: usize| {
            let program = Program::build(&quantized, &config, Shard { rank, size: 4 }).unwrap();
            let weights = program.weights.into_iter().filter(|w| w.tensor == "blk.1.ffn_gate_exps.weight");
            weights.map(|w| (w.first, w.count, w.rows)).collect::<Vec<_>>()
        };
        assert_eq!([held(0), held(3)], [vec![(0, 2, 32)], vec![(6, 2, 32)]]);
    }
}

/// The same file with gates and ups of all experts in one tensor, gates first.
fn fused(gguf: &Gguf) -> Arc<Gguf> {
    let mut writer = Writer::new(std::io::Cursor::new(Vec::new()));
    for (key, value) in gguf.metadata().iter() {
        writer.metadata(key, value.clone()).unwrap();
    }
    let mut data = Vec::new();
    for info in gguf.tensors().iter().filter(|info| !info.name.contains("ffn_up_exps")) {
        let Some((block, rest)) = info.name.split_once("ffn_gate_exps") else {
            writer.tensor(&info.name, &info.dims, info.ty).unwrap();
            data.push(gguf.bytes(info).to_vec());
            continue;
        };
        let up = gguf.tensor(&format!("{block}ffn_up_exps{rest}")).unwrap();
        let matrix = gguf.bytes(info).len() / info.dims[2] as usize;
        let both = gguf.bytes(info).chunks(matrix).zip(gguf.bytes(up).chunks(matrix));
        data.push(both.flat_map(|(gate, up)| [gate, up].concat()).collect());
        let dims = [info.dims[0], 2 * info.dims[1], info.dims[2]];
        writer.tensor(&format!("{block}ffn_gate_up_exps{rest}"), &dims, info.ty).unwrap();
    }
    writer.finish_header().unwrap();
    for bytes in &data {
        writer.data(bytes).unwrap();
    }
    Arc::new(Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap())
}

#[test]
fn gates_and_ups_in_one_tensor() {
    for name in ["tiny-glm-dsa", "tiny-deepseek3", "tiny-glm4moe"] {
        let (gguf, reference) = (fused(&open(name)), Reference::open(&format!("{name}.safetensors")));
        let (tokens, want) = (reference.tokens("tokens"), reference.f32s("logits"));
        for tp in [1, 2, 4] {
            let (mut model, groups) = load(&gguf, How::new(tp, Arith::F32), |_| ());
            let difference = max_difference(&logits(&mut model, &steps(groups, &tokens, &[tokens.len()])), &want);
            assert!(difference <= 1e-4, "{name} at TP {tp}: off by {difference}");
        }
    }
}

/// A file whose every matrix that can be is in type `ty`, and how far its values are from those before, relative to them.
fn in_type(gguf: &Gguf, ty: TensorType) -> (Arc<Gguf>, f64) {
    let fits = |name: &str| {
        let info = gguf.tensor(name).unwrap();
        info.dims.len() >= 2 && !name.contains("gate_inp") && info.dims[0].is_multiple_of(ty.block_len() as u64)
    };
    let rounded = retyped(gguf, |name| fits(name).then_some(ty), false);
    let (mut error, mut size) = (0.0, 0.0);
    for info in gguf.tensors().iter().filter(|info| fits(&info.name)) {
        let [before, after] = [gguf, &*rounded].map(|gguf| {
            let info = gguf.tensor(&info.name).unwrap();
            let mut values = vec![0.0; info.dims.iter().product::<u64>() as usize];
            quant::decode(info.ty, gguf.bytes(info), &mut values).unwrap();
            values
        });
        let squares = before.iter().zip(&after).map(|(a, b)| f64::from(a - b).powi(2));
        error += squares.sum::<f64>();
        size += before.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    }
    (rounded, (error / size).sqrt())
}

/// What a type's rounding costs a whole model grows with that rounding and with nothing else: random weights multiply it
/// by 2 to 9, in every type alike. Where it changes which experts are chosen, a position's logits are quite different
/// ones: the median position counts. (Nothing writes Q2_K and Q3_K.)
#[test]
fn a_type_costs_what_its_rounding_costs() {
    use TensorType::{BF16, IQ4_NL, IQ4_XS, MXFP4, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    let (narrow, wide) = ([Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, MXFP4], [Q6_K, Q5_K, Q4_K, IQ4_XS]);
    let mut wrong = Vec::new();
    let models: [(&str, &[TensorType]); 4] = [
        ("tiny-glm-dsa", &narrow),
        ("tiny-deepseek2-lite", &narrow),
        ("tiny-glm4moe", &narrow),
        ("tiny-llama-q4_k", &wide),
    ];
    for (name, types) in models {
        let plain = retyped(&open(name), |_| Some(BF16), true);
        let tokens = Reference::open(&format!("{name}.safetensors")).tokens("tokens");
        let run = |gguf: &Arc<Gguf>, arith: Arith| {
            // What an indexer chooses is another matter than what is computed with it.
            let (mut model, groups) = load(gguf, How::new(1, arith), |config| {
                config.force_dense_attention();
            });
            logits(&mut model, &steps(groups, &tokens, &[tokens.len()]))
        };
        let want = run(&plain, Arith::F32);
        let width = want.len() / tokens.len();
        for &ty in types {
            let (rounded, type_error) = in_type(&plain, ty);
            for arith in [Arith::F32, Arith::Production] {
                let got = run(&rounded, arith);
                let mut errors: Vec<f64> =
                    got.chunks(width).zip(want.chunks(width)).map(|(a, b)| relative(a, b)).collect();
                errors.sort_by(f64::total_cmp);
                let error = errors[errors.len() / 2];
                println!("{name} in {ty}, {arith:?}: weights off by {type_error:.5}, logits by {error:.5}");
                // Activations in 8 bits have an error of their own.
                let own = if arith == Arith::Production { 0.02 } else { 0.0 };
                if !(type_error..=10.0 * (type_error + own)).contains(&error) {
                    wrong.push(format!("{name} in {ty}, {arith:?}: {error}, weights {type_error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn relative(got: &[f32], want: &[f32]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (error / want.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()).sqrt()
}
