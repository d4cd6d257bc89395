//! Tile kernels for x86, over the one instruction in which the tiers differ: multiplying unsigned by signed bytes.
//!
//! A row or two are multiplied with the tile's bytes as they come ([`tile`]): reading them is what takes the time. For more
//! rows ([`block`]) a stretch of columns is first brought to the form that all kinds share, in a [`Panel`] that stays in
//! the nearest cache, and then multiplied with one small set of rows after the other. Only what differs by kind is
//! compiled for every kind.
//!
//! Everything here is inlined into the entry points of the tiers, which enable the instructions it uses. Loops instead
//! of closures: a closure that is not inlined would pass its registers through memory.
#![allow(clippy::needless_range_loop)]

use super::panel::{Panel, PanelSub};
use super::tile::{ActBlock, ActRow, Class, Kind, QUANT, TILE};
use super::x86_dot::Dot;
use super::x86_sub::{self as sub, Sub};
use std::arch::x86_64::*;

/// Chooses the [`Sub`] of a kind.
macro_rules! by_kind {
    ($kind:expr, $function:ident::<$dot:ident>($($arg:expr),*)) => {
        match $kind {
            Kind::Q4_0 => $function::<$dot, sub::Q4_0>($($arg),*),
            Kind::Q4_1 => $function::<$dot, sub::Q4_1>($($arg),*),
            Kind::Q5_0 => $function::<$dot, sub::Q5_0>($($arg),*),
            Kind::Q5_1 => $function::<$dot, sub::Q5_1>($($arg),*),
            Kind::Q8_0 => $function::<$dot, sub::Q8_0>($($arg),*),
            Kind::IQ4_NL => $function::<$dot, sub::IQ4_NL>($($arg),*),
            Kind::MXFP4 => $function::<$dot, sub::MXFP4>($($arg),*),
            Kind::Q2_K => $function::<$dot, sub::Q2_K>($($arg),*),
            Kind::Q3_K => $function::<$dot, sub::Q3_K>($($arg),*),
            Kind::Q4_K => $function::<$dot, sub::Q4_K>($($arg),*),
            Kind::Q5_K => $function::<$dot, sub::Q5_K>($($arg),*),
            Kind::Q6_K => $function::<$dot, sub::Q6_K>($($arg),*),
            Kind::IQ4_XS => $function::<$dot, sub::IQ4_XS>($($arg),*),
        }
    };
}

/// Where a row's activations are, 32 columns at a time.
#[derive(Clone, Copy)]
struct Act {
    quants: *const i8,
    blocks: *const ActBlock,
}

impl Act {
    fn of(row: &ActRow, cols: usize) -> Self {
        assert!(row.quants.len() >= cols && row.blocks.len() * QUANT >= cols);
        Self { quants: row.quants.as_ptr(), blocks: row.blocks.as_ptr() }
    }

    /// The same row from its sub-block `at` on.
    #[inline(always)]
    unsafe fn from(self, at: usize) -> Self {
        // SAFETY: the caller vouches for so many columns.
        unsafe { Self { quants: self.quants.add(at * QUANT), blocks: self.blocks.add(at) } }
    }
}

/// Bytes between the products and what is fetched ahead of them: 2 to 8 KiB do alike.
const AHEAD: usize = 4096;

/// The tile kernel for a few rows.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and what `D` needs.
#[inline(always)]
pub(super) unsafe fn tile<D: Dot>(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { by_kind!(kind, few::<D>(tile, acts, out)) }
}

/// What two rows multiply with is unpacked once.
#[inline(always)]
unsafe fn few<D: Dot, S: Sub>(tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    let (pairs, last) = acts.as_chunks::<2>();
    let (out_pairs, out_last) = out.as_chunks_mut::<2>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        for (acts, out) in pairs.iter().zip(out_pairs) {
            together::<D, S, 2>(tile, acts, out);
        }
        if let ([act], [out, ..]) = (last, out_last) {
            together::<D, S, 1>(tile, &[*act], std::array::from_mut(out));
        }
    }
}

#[inline(always)]
unsafe fn together<D: Dot, S: Sub, const N: usize>(tile: &[u8], acts: &[ActRow; N], out: &mut [[f32; TILE]; N]) {
    let blocks = tile.chunks_exact(S::BYTES);
    let acts = acts.each_ref().map(|act| Act::of(act, blocks.len() * S::COUNT * QUANT));
    // SAFETY: blocks are whole, and the rows have as many columns as they do, which was just checked.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); N];
        for (b, block) in blocks.enumerate() {
            // Memory is asked for before it is needed: it takes longer than what there is to do meanwhile.
            for line in (0..S::BYTES).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD + line).cast());
            }
            for j in 0..S::COUNT {
                multiply::<D, S, N>(&S::at(block.as_ptr(), j), &acts, b * S::COUNT + j, &mut sums);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            _mm256_storeu_ps(out.as_mut_ptr(), sum);
        }
    }
}

/// Adds 32 columns of a tile times `N` rows, those from the rows' sub-block `at` on, to sums.
#[inline(always)]
unsafe fn multiply<D: Dot, S: Sub, const N: usize>(sub: &S, acts: &[Act; N], at: usize, sums: &mut [__m256; N]) {
    // SAFETY: the caller vouches for the instructions and for 32 columns of every row.
    unsafe {
        let mut whole = [_mm256_setzero_si256(); N];
        match S::CLASS {
            Class::Offset { adds } => {
                let adds = if D::WIDE { 8 } else { adds };
                for first in (0..8).step_by(adds) {
                    let part = groups::<D, S, N>(sub, acts, at, first, adds);
                    for n in 0..N {
                        let part = D::widen(part[n]);
                        whole[n] = if first == 0 { part } else { _mm256_add_epi32(whole[n], part) };
                    }
                }
            }
            Class::Halves { adds } => {
                let adds = if D::WIDE { 4 } else { adds };
                for first in (0..8).step_by(adds) {
                    let part = groups::<D, S, N>(sub, acts, at, first, adds);
                    let s = sub.s(first / 4);
                    for n in 0..N {
                        let part = D::scale(part[n], s);
                        whole[n] = if first == 0 { part } else { _mm256_add_epi32(whole[n], part) };
                    }
                }
            }
            Class::Signed => signed::<D, S, N>(sub, acts, at, &mut whole),
        }
        let d = sub.d();
        for n in 0..N {
            let scale = _mm256_mul_ps(d, _mm256_set1_ps((*acts[n].blocks.add(at)).scale));
            sums[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[n]), scale, sums[n]);
        }
        match S::CLASS {
            Class::Offset { .. } => {
                let m = sub.m(0);
                for n in 0..N {
                    let weighted = _mm256_set1_ps((*acts[n].blocks.add(at)).weighted);
                    sums[n] = _mm256_fmadd_ps(m, weighted, sums[n]);
                }
            }
            Class::Halves { .. } => {
                let m = [sub.m(0), sub.m(1)];
                for n in 0..N {
                    let [first, second] = (*acts[n].blocks.add(at)).halves;
                    sums[n] = _mm256_fmadd_ps(m[0], _mm256_set1_ps(first), sums[n]);
                    sums[n] = _mm256_fmadd_ps(m[1], _mm256_set1_ps(second), sums[n]);
                }
            }
            Class::Signed => {}
        }
    }
}

/// Four neighbouring activations, the same for all rows of a tile.
#[inline(always)]
unsafe fn four(act: Act, at: usize, g: usize) -> __m256i {
    // SAFETY: the caller vouches for the columns and for the instructions.
    unsafe { _mm256_set1_epi32(act.quants.add(at * QUANT + 4 * g).cast::<i32>().read_unaligned()) }
}

/// Sums of `count` groups from `first` on, not yet widened.
#[inline(always)]
unsafe fn groups<D: Dot, S: Sub, const N: usize>(
    sub: &S,
    acts: &[Act; N],
    at: usize,
    first: usize,
    count: usize,
) -> [__m256i; N] {
    // SAFETY: as `multiply`.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); N];
        for g in first..first + count {
            let w = sub.group(g);
            for n in 0..N {
                sums[n] = D::add(sums[n], w, four(acts[n], at, g));
            }
        }
        sums
    }
}

/// Products of signed quants: a weight's sign goes to the activation, so that the first factor is unsigned. One pair of
/// products may be 2 · 128 · 127, so that nothing can be added in 16 bits.
#[inline(always)]
unsafe fn signed<D: Dot, S: Sub, const N: usize>(sub: &S, acts: &[Act; N], at: usize, whole: &mut [__m256i; N]) {
    // SAFETY: as `multiply`.
    unsafe {
        for g in 0..8 {
            let w = sub.group(g);
            let size = _mm256_abs_epi8(w);
            for n in 0..N {
                let a = _mm256_sign_epi8(four(acts[n], at, g), w);
                whole[n] = if D::WIDE {
                    D::add(whole[n], size, a)
                } else {
                    let pairs = D::add(_mm256_setzero_si256(), size, a);
                    _mm256_add_epi32(whole[n], D::widen(pairs))
                };
            }
        }
    }
}

/// 32 columns of a panel, of one of the forms below.
#[derive(Clone, Copy)]
struct Expanded<const FORM: usize>(*const PanelSub);

const FORMS: [Class; 5] = [
    Class::Offset { adds: 8 },
    Class::Offset { adds: 4 },
    Class::Halves { adds: 4 },
    Class::Halves { adds: 2 },
    Class::Signed,
];

impl<const FORM: usize> Sub for Expanded<FORM> {
    const CLASS: Class = FORMS[FORM];
    const COUNT: usize = 1;
    const BYTES: usize = size_of::<PanelSub>();

    #[inline(always)]
    unsafe fn at(block: *const u8, _: usize) -> Self {
        Self(block.cast())
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: a whole element of a panel.
        unsafe { _mm256_load_si256((&raw const (*self.0).quants[g]).cast()) }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_load_ps((&raw const (*self.0).d).cast()) }
    }
    #[inline(always)]
    unsafe fn m(&self, half: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_load_ps((&raw const (*self.0).m[half]).cast()) }
    }
    #[inline(always)]
    unsafe fn s(&self, half: usize) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_load_si256((&raw const (*self.0).s[half]).cast()) }
    }
}

/// Brings sub-blocks of a stretch of blocks to the common form.
#[inline(always)]
unsafe fn expand<D: Dot, S: Sub>(blocks: &[u8], panel: &mut [PanelSub]) {
    // SAFETY: the caller vouches for the instructions; every field is 32 bytes, aligned so; blocks are whole.
    unsafe {
        for (block, subs) in blocks.chunks_exact(S::BYTES).zip(panel.chunks_exact_mut(S::COUNT)) {
            for (j, to) in subs.iter_mut().enumerate() {
                let sub = S::at(block.as_ptr(), j);
                for g in 0..8 {
                    _mm256_store_si256(to.quants[g].as_mut_ptr().cast(), sub.group(g));
                }
                _mm256_store_ps(to.d.as_mut_ptr(), sub.d());
                if !matches!(S::CLASS, Class::Signed) {
                    _mm256_store_ps(to.m[0].as_mut_ptr(), sub.m(0));
                }
                if matches!(S::CLASS, Class::Halves { .. }) {
                    _mm256_store_ps(to.m[1].as_mut_ptr(), sub.m(1));
                    _mm256_store_si256(to.s[0].as_mut_ptr().cast(), sub.s(0));
                    _mm256_store_si256(to.s[1].as_mut_ptr().cast(), sub.s(1));
                }
            }
        }
    }
}

/// The kernel for some tiles and any number of rows: `out[tile][row][row of the tile]`.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn block<D: Dot>(
    kind: Kind,
    tiles: &[&[u8]],
    acts: &[ActRow],
    panel: &mut Panel,
    out: &mut [[f32; TILE]],
) {
    let panel = &mut panel.subs[..];
    let per_block = kind.block_cols() / QUANT;
    let step = kind.block_bytes() * (panel.len() / per_block);
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
        out.fill([0.0; TILE]);
        let mut at = 0;
        for blocks in tile.chunks(step) {
            let subs = blocks.len() / kind.block_bytes() * per_block;
            let filled = &mut panel[..subs];
            // SAFETY: the caller vouches for the instructions. How many rows go together is what fits the registers:
            // with 32 of them eight.
            unsafe {
                by_kind!(kind, expand::<D>(blocks, filled));
                match kind.class() {
                    Class::Offset { .. } if D::WIDE => stretch::<D, Expanded<0>, 8>(filled, acts, at, out),
                    Class::Halves { .. } if D::WIDE => stretch::<D, Expanded<2>, 8>(filled, acts, at, out),
                    Class::Signed if D::WIDE => stretch::<D, Expanded<4>, 8>(filled, acts, at, out),
                    Class::Offset { adds: 8 } => stretch::<D, Expanded<0>, 3>(filled, acts, at, out),
                    Class::Offset { .. } => stretch::<D, Expanded<1>, 3>(filled, acts, at, out),
                    Class::Halves { adds: 4 } => stretch::<D, Expanded<2>, 4>(filled, acts, at, out),
                    Class::Halves { .. } => stretch::<D, Expanded<3>, 4>(filled, acts, at, out),
                    Class::Signed => stretch::<D, Expanded<4>, 4>(filled, acts, at, out),
                }
            }
            at += subs;
        }
    }
}

/// A panel, whose columns begin at the rows' sub-block `at`, times all rows, `N` at a time, added to `out`.
#[inline(always)]
unsafe fn stretch<D: Dot, S: Sub, const N: usize>(
    panel: &[PanelSub],
    acts: &[ActRow],
    at: usize,
    out: &mut [[f32; TILE]],
) {
    // SAFETY: passed on.
    unsafe {
        let (sets, rest) = acts.as_chunks::<N>();
        let (of_sets, of_rest) = out.split_at_mut(N * sets.len());
        for (acts, out) in sets.iter().zip(of_sets.as_chunks_mut::<N>().0) {
            rows::<D, S, N>(panel, acts, at, out);
        }
        for (act, out) in rest.iter().zip(of_rest) {
            rows::<D, S, 1>(panel, std::array::from_ref(act), at, std::array::from_mut(out));
        }
    }
}

#[inline(always)]
unsafe fn rows<D: Dot, S: Sub, const N: usize>(
    panel: &[PanelSub],
    rows: &[ActRow; N],
    at: usize,
    out: &mut [[f32; TILE]; N],
) {
    // SAFETY: `Act::of` checks that every row has the panel's columns; the caller vouches for the instructions.
    unsafe {
        let cols = (at + panel.len()) * QUANT;
        let mut acts = [Act::of(&rows[0], cols).from(at); N];
        let mut sums = [_mm256_setzero_ps(); N];
        for n in 0..N {
            acts[n] = Act::of(&rows[n], cols).from(at);
            sums[n] = _mm256_loadu_ps(out[n].as_ptr());
        }
        for (i, sub) in panel.iter().enumerate() {
            multiply::<D, S, N>(&S::at((&raw const *sub).cast(), 0), &acts, i, &mut sums);
        }
        for n in 0..N {
            _mm256_storeu_ps(out[n].as_mut_ptr(), sums[n]);
        }
    }
}
