//! Kernels, by tier: the same functions compiled for what a processor can do. The tier is chosen once, at load.
//!
//! All tiers give the same bits, so that a result depends neither on the machine nor on how many rows were computed
//! together. No weights, threads or programs live here.

mod attend;
mod lanes;
mod latent;
mod panel;
mod scalar;
#[cfg(test)]
mod speed;
#[cfg(test)]
pub(crate) mod tests;
mod tile;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_convert;
#[cfg(target_arch = "x86_64")]
mod x86_dot;
#[cfg(target_arch = "x86_64")]
mod x86_sub;

pub(crate) use panel::Panel;
use std::ops::Range;
pub(crate) use tile::{ActBlock, ActRow, Kind, QUANT, TILE};
use tombolo_model::BLOCK_TOKENS;

/// Positions of a KV block, which attention folds in at once.
pub(crate) const BLOCK: usize = BLOCK_TOKENS;

/// A processor's abilities, as far as kernels differ by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Any processor.
    Scalar,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// That and AVX-512 VL with VNNI.
    Avx512Vnni,
}

impl Tier {
    /// What this processor can run, the best last.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut tiers = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            tiers.push(Self::Avx2);
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
            if wide && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni") {
                tiers.push(Self::Avx512Vnni);
            }
        }
        tiers
    }

    /// The best that this processor can run.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            Tier::Avx2 => "AVX2",
            Tier::Avx512Vnni => "AVX-512 VNNI",
        }
    }
}

/// What a product of query and key counts in the softmax.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scoring {
    /// Factor on it.
    pub(crate) scale: f32,
    /// Then `cap · tanh(score / cap)`, where there is a cap.
    pub(crate) softcap: Option<f32>,
}

/// Query heads that share a KV head, and their running softmax over the positions seen so far.
#[derive(Default)]
pub(crate) struct Heads {
    /// Values per head.
    pub(crate) dim: usize,
    /// `[heads, dim]`.
    pub(crate) q: Vec<f32>,
    /// `[heads, dim]`: `Σ exp(score − max) · v`.
    pub(crate) out: Vec<f32>,
    /// Per head the largest score so far, and `Σ exp(score − max)`.
    pub(crate) state: Vec<(f32, f32)>,
}

impl Heads {
    pub(crate) const fn new() -> Self {
        Self { dim: 0, q: Vec::new(), out: Vec::new(), state: Vec::new() }
    }

    /// Forgets everything; queries of `dim` values come next.
    pub(crate) fn clear(&mut self, dim: usize) {
        self.dim = dim;
        self.q.clear();
        self.out.clear();
        self.state.clear();
    }

    /// Adds a query head that has seen nothing but, where it has one, its sink.
    pub(crate) fn push(&mut self, q: &[f32], sink: Option<f32>) {
        self.q.extend_from_slice(q);
        self.out.resize(self.q.len(), 0.0);
        self.state.push(sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (sink, 1.0)));
    }
}

/// The kernels of products in integers, compiled with a tier's instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! tile_kernels {
    ($tier:ident, $features:literal) => {{
        #[target_feature(enable = $features)]
        fn tile(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
            // SAFETY: this function has the tier's instructions.
            unsafe { x86::tile::<x86_dot::$tier>(kind, tile, acts, out) }
        }
        #[target_feature(enable = $features)]
        fn block(kind: Kind, tiles: &[&[u8]], acts: &[ActRow], panel: &mut Panel, out: &mut [[f32; TILE]]) {
            // SAFETY: as above.
            unsafe { x86::block::<x86_dot::$tier>(kind, tiles, acts, panel, out) }
        }
        let few: TileKernel = |kind, bytes, acts, out| {
            // SAFETY: `Kernels::of` hands out a table only where the processor has its tier.
            unsafe { tile(kind, bytes, acts, out) }
        };
        let many: BlockKernel = |kind, tiles, acts, panel, out| {
            // SAFETY: as above.
            unsafe { block(kind, tiles, acts, panel, out) }
        };
        (few, many)
    }};
}

/// Declares the table of kernels, that of the scalar tier, and that of AVX2: `lanes` compiled with its instructions.
macro_rules! kernels {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// The kernels of one tier.
        pub(crate) struct Kernels {
            /// Which.
            pub(crate) tier: Tier,
            /// `out[r][row of the tile] = tile · act` for a few rows.
            pub(crate) tile: TileKernel,
            /// The same bits for some tiles and many rows: `out[t · rows + r][row of the tile]`.
            pub(crate) block: BlockKernel,
            /// Little-endian halves as floats.
            pub(crate) widen: fn(halves: &[u8], out: &mut [f32]),
            /// Floats as little-endian halves, rounded to the nearest, ties to even.
            pub(crate) narrow: fn(values: &[f32], halves: &mut [u8]),
            /// A row as 8-bit integers with a scale per 32 values.
            pub(crate) quantize: fn(x: &[f32], quants: &mut [i8], blocks: &mut [ActBlock]),
            $($(#[$doc])* pub(crate) $name: fn($($arg: $ty),*) $(-> $ret)?,)*
        }

        static SCALAR: Kernels = Kernels {
            tier: Tier::Scalar,
            tile: scalar::tile,
            block: scalar::block,
            widen: scalar::widen,
            narrow: scalar::narrow,
            quantize: scalar::quantize,
            $($name: |$($arg: $ty),*| lanes::$name::<vector::Plain>($($arg),*),)*
        };

        #[cfg(target_arch = "x86_64")]
        const AVX2_KERNELS: Kernels = {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn widen(halves: &[u8], out: &mut [f32]) {
                // SAFETY: this function has the tier's instructions.
                unsafe { x86_convert::widen(halves, out) }
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            fn narrow(values: &[f32], halves: &mut [u8]) {
                // SAFETY: as above.
                unsafe { x86_convert::narrow(values, halves) }
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            fn quantize(x: &[f32], quants: &mut [i8], blocks: &mut [ActBlock]) {
                // SAFETY: as above.
                unsafe { x86_convert::quantize(x, quants, blocks) }
            }
            $(
                #[target_feature(enable = "avx2,fma,f16c")]
                fn $name($($arg: $ty),*) $(-> $ret)? {
                    lanes::$name::<vector::Avx>($($arg),*)
                }
            )*
            let (tile, block) = tile_kernels!(Avx2, "avx2,fma,f16c");
            Kernels {
                tier: Tier::Avx2,
                tile,
                block,
                // SAFETY: `Kernels::of` hands out a table only where the processor has its tier.
                widen: |halves, out| unsafe { widen(halves, out) },
                // SAFETY: as above.
                narrow: |values, halves| unsafe { narrow(values, halves) },
                // SAFETY: as above.
                quantize: |x, quants, blocks| unsafe { quantize(x, quants, blocks) },
                $(
                    // SAFETY: as above.
                    $name: |$($arg: $ty),*| unsafe { $name($($arg),*) },
                )*
            }
        };
    };
}

type TileKernel = fn(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]);
type BlockKernel = fn(kind: Kind, tiles: &[&[u8]], acts: &[ActRow], panel: &mut Panel, out: &mut [[f32; TILE]]);

#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = AVX2_KERNELS;

/// In f32 it has no more than AVX2 has.
#[cfg(target_arch = "x86_64")]
static AVX512_VNNI: Kernels = {
    let (tile, block) = tile_kernels!(Avx512Vnni, "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512vnni");
    Kernels { tier: Tier::Avx512Vnni, tile, block, ..AVX2_KERNELS }
};

kernels! {
    /// Four weight rows, `w: [4, cols]`, times any number of rows: `out[row][weight row]`.
    fn products(w: &[f32], x: &[&[f32]], out: &mut [[f32; 4]]);
    /// `x = x / sqrt(mean(x²) + eps) ⊙ weight`.
    fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32);
    /// `sum += x`.
    fn add(sum: &mut [f32], x: &[f32]);
    /// `out = gate / (1 + exp(-gate)) ⊙ up`.
    fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
    /// `out = gelu(gate) ⊙ up`, GELU by its tanh formula.
    fn gelu_mul(gate: &[f32], up: &[f32], out: &mut [f32]);
    /// `out = g / (1 + exp(-alpha · g)) ⊙ (u + 1)`, `g` cut above `limit`, `u` at both ends.
    fn clamped_swiglu(gate: &[f32], up: &[f32], alpha: f32, limit: f32, out: &mut [f32]);
    /// `sum += factor · x`.
    fn add_scaled(sum: &mut [f32], x: &[f32], factor: f32);
    /// `x = cap · tanh(x / cap)`.
    fn softcap(x: &mut [f32], cap: f32);
    /// Turns pairs `(2j, 2j + 1)` of one head by `[cos, sin]`.
    fn rope_interleaved(head: &mut [f32], turns: &[[f32; 2]]);
    /// Turns pairs `(j, j + turns.len())` of one head.
    fn rope_half_split(head: &mut [f32], turns: &[[f32; 2]]);
    /// Folds the positions `valid[i]` of a KV block, `k: [dim, BLOCK]`, `v: [BLOCK, dim]`, into head `i`.
    fn attend(heads: &mut Heads, valid: &[Range<usize>], k: &[f32], v: &[f32], scoring: Scoring);
    /// Folds the positions `valid[i]` of latent attention, `rows: [BLOCK, heads.dim]`, into head `first + i`: the first
    /// `latent` values of a position are its value.
    fn attend_latent(heads: &mut Heads, first: usize, valid: &[Range<usize>], rows: &[f32], latent: usize, scoring: Scoring);
    /// `out[i] = Σ over heads h of weights[h] · max(0, q[h]·keys[i])` for a multiple of four keys.
    fn index_scores(q: &[f32], weights: &[f32], keys: &[f32], out: &mut [f32]);
    /// `x = (x − mean(x)) / sqrt(var(x) + eps) ⊙ weight + bias`.
    fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32);
    /// Upper halves of floats as floats.
    fn widen_bf16(halves: &[u16], out: &mut [f32]);
    /// Groups of [`QUANT`] neighbouring integers, each times its scale.
    fn widen_groups(quants: &[i8], scales: &[f32], out: &mut [f32]);
    /// Rows of [`BLOCK`] integers, each times its column's scale.
    fn widen_columns(quants: &[i8], scales: &[f32; BLOCK], out: &mut [f32]);
    /// Where the first of the largest values is.
    fn argmax(x: &[f32]) -> usize;
}

impl Kernels {
    /// The kernels of a tier, if this processor has it.
    pub(crate) fn of(tier: Tier) -> Option<&'static Self> {
        let table: &'static Self = match tier {
            Tier::Scalar => &SCALAR,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Vnni => &AVX512_VNNI,
            #[cfg(not(target_arch = "x86_64"))]
            _ => return None,
        };
        Tier::available().contains(&tier).then_some(table)
    }
}
