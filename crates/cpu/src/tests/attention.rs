//! Attention over a cache of every type, with windows, soft caps and sinks.

use crate::attention::Attention;
use crate::grid::Grid;
use crate::kernels::tests::Random;
use crate::kernels::{BLOCK, Kernels, Scoring, Tier};
use crate::kv::Kv;
use crate::pool::Pool;
use tombolo_model::{KvGroup, KvType, Row, Sequence, Step, Token, Values};

/// What an attention operation is asked for.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    heads: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: Option<&'a [f32]>,
}

fn plain(heads: usize) -> Asked<'static> {
    Asked { heads, window: None, softcap: None, sinks: None }
}

/// A batch of two sequences at different depths over a cache filled with rows of noise.
struct Case {
    kv: Kv,
    step: Step,
    q: Vec<f32>,
    /// Per sequence and position, keys and values of all heads.
    past: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
}

fn case(kind: KvType, heads: usize, kv_heads: usize, dim: usize) -> Case {
    let mut random = Random::new(9);
    let group = KvGroup { name: "kv", layers: 2, kv_heads, head_dim: dim, values: Values::Own, window: None };
    let kernels = Kernels::of(Tier::best()).unwrap();
    let mut kv = Kv::new(&group, 8, kind).unwrap();
    // What lies in a cache beyond a sequence's end must not matter.
    for block in 0..8 {
        for slot in 0..BLOCK {
            let noise = vec![f32::NAN; kv_heads * dim];
            kv.write(kernels, 1, block, slot, &noise, &noise);
        }
    }
    let tables = [vec![3u32, 1, 6], vec![2, 7, 0]];
    let spans = [(40usize, 43usize), (0, 41)]; // Positions of this step's rows.
    let (mut past, mut rows) = (Vec::new(), Vec::new());
    for (s, &(first, end)) in spans.iter().enumerate() {
        let mut seen = Vec::new();
        for position in 0..end {
            let (k, v) = (random.values(kv_heads * dim), random.values(kv_heads * dim));
            kv.write(kernels, 1, tables[s][position / BLOCK] as usize, position % BLOCK, &k, &v);
            seen.push((k, v));
        }
        past.push(seen);
        rows.extend((first..end).map(|position| Row {
            token: Token::Host(0),
            position: position as u32,
            sequence: s as u32,
            sample: None,
            draft: false,
        }));
    }
    let q = random.values(rows.len() * heads * dim);
    let sequences = tables.map(|table| Sequence { tables: vec![table] }).to_vec();
    Case { kv, step: Step { rows, sequences, ..Step::default() }, q, past }
}

fn attend(case: &Case, step: &Step, q: &[f32], asked: Asked, tier: Tier, threads: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    let attention = Attention {
        kv: &case.kv,
        group: 0,
        layer: 1,
        heads: asked.heads,
        scoring: Scoring { scale: 0.3, softcap: asked.softcap },
        window: asked.window,
        sinks: asked.sinks,
        q,
        out: Grid::new(&mut out, asked.heads * case.kv.dim()),
    };
    let mut pool = Pool::new("test", threads, true).unwrap();
    attention.run(&mut pool, Kernels::of(tier).unwrap(), step).unwrap();
    out
}

fn exact_attention(case: &Case, asked: Asked) -> Vec<f64> {
    let dim = case.kv.dim();
    let shared = asked.heads / case.kv.heads();
    let mut out = Vec::new();
    for (i, row) in case.step.rows.iter().enumerate() {
        let end = row.position as usize + 1;
        let first = asked.window.map_or(0, |window| end.saturating_sub(window));
        for head in 0..asked.heads {
            let q = &case.q[(i * asked.heads + head) * dim..][..dim];
            let seen = &case.past[row.sequence as usize][first..end];
            let part = head / shared * dim;
            let score = |k: &[f32]| {
                let dot = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() * f64::from(0.3f32);
                asked.softcap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh())
            };
            let weights: Vec<f64> = seen.iter().map(|(k, _)| score(&k[part..part + dim]).exp()).collect();
            let sink = asked.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let total: f64 = weights.iter().sum::<f64>() + sink;
            out.extend(
                (0..dim).map(|d| {
                    seen.iter().zip(&weights).map(|((_, v), w)| w * f64::from(v[part + d])).sum::<f64>() / total
                }),
            );
        }
    }
    out
}

/// Against f64; and the same bits in every tier, on any number of threads, for every row by itself.
fn check(case: &Case, asked: Asked, most: f64) {
    let scalar = attend(case, &case.step, &case.q, asked, Tier::Scalar, 1);
    let want = exact_attention(case, asked);
    let error: f64 = scalar.iter().zip(&want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    let error = error / want.iter().map(|w| w * w).sum::<f64>();
    assert!(error <= most, "{asked:?}, heads of {}: {error}", case.kv.dim());
    for tier in Tier::available() {
        assert_eq!(attend(case, &case.step, &case.q, asked, tier, 3), scalar, "{tier:?}");
        let width = asked.heads * case.kv.dim();
        for (i, row) in case.step.rows.iter().enumerate() {
            let step = Step { rows: vec![row.clone()], ..case.step.clone() };
            let alone = attend(case, &step, &case.q[i * width..][..width], asked, tier, 2);
            assert_eq!(alone, scalar[i * width..][..width], "row {i}, {tier:?}");
        }
    }
}

#[test]
fn it_is_causal_exact_and_independent_of_the_batch() {
    for (heads, kv_heads, dim) in [(6, 2, 64), (4, 4, 20), (8, 1, 128)] {
        // Keys and values in f16 carry 11 bits, in bf16 8.
        for (kind, most) in [(KvType::F32, 1e-11), (KvType::F16, 1e-6), (KvType::BF16, 3e-5)] {
            check(&case(kind, heads, kv_heads, dim), plain(heads), most);
        }
    }
    // A scale for 32 values leaves a 127th of the largest: about (1 / 127)² / 12 of its square.
    for (heads, kv_heads, dim) in [(6, 2, 64), (8, 1, 128)] {
        check(&case(KvType::Q8_0, heads, kv_heads, dim), plain(heads), 1e-4);
    }
}

#[test]
fn windows_caps_and_sinks() {
    let case = case(KvType::F32, 6, 2, 64);
    // Within a block, across two, and longer than any sequence.
    for window in [1, 5, 32, 33, 40, 100] {
        check(&case, Asked { window: Some(window), ..plain(6) }, 1e-11);
    }
    check(&case, Asked { softcap: Some(0.7), ..plain(6) }, 1e-11);
    let sinks = [0.0, -3.0, 2.0, 5.0, f32::NEG_INFINITY, 1.0];
    check(&case, Asked { sinks: Some(&sinks), ..plain(6) }, 1e-11);
    check(&case, Asked { window: Some(9), softcap: Some(2.0), sinks: Some(&sinks), ..plain(6) }, 1e-11);
    // A window that is not shorter than what there is hides nothing: not a bit is different.
    let all = attend(&case, &case.step, &case.q, plain(6), Tier::best(), 2);
    let same = attend(&case, &case.step, &case.q, Asked { window: Some(64), ..plain(6) }, Tier::best(), 2);
    assert_eq!(all, same);
}

#[test]
fn what_lies_before_a_window_does_not_matter() {
    let mut case = case(KvType::F16, 4, 2, 32);
    let asked = Asked { window: Some(6), ..plain(4) };
    let rows: Vec<Row> = case.step.rows.iter().filter(|row| row.sequence == 0).cloned().collect();
    let step = Step { rows, ..case.step.clone() };
    let q = case.q[..step.rows.len() * 4 * 32].to_vec();
    let before = attend(&case, &step, &q, asked, Tier::best(), 1);
    let kernels = Kernels::of(Tier::best()).unwrap();
    let noise = vec![f32::NAN; 2 * 32];
    // The first row, at 40, sees 35 to 40.
    for position in 0..35 {
        let block = step.sequences[0].tables[0][position / BLOCK] as usize;
        case.kv.write(kernels, 1, block, position % BLOCK, &noise, &noise);
    }
    assert_eq!(attend(&case, &step, &q, asked, Tier::best(), 1), before);
}
