//! Tile kernels for x86, over the one instruction in which the tiers differ: multiplying unsigned by signed bytes.
//!
//! A few rows are multiplied with the tile's bytes as they come ([`tile`]): reading them is what takes the time. For
//! many rows ([`block`]) a stretch of columns is first brought to the form that all kinds share, in a [`Panel`] that
//! stays in the nearest cache, and then multiplied with one small set of rows after the other.
//!
//! Everything here is inlined into the entry points of the tiers, which enable the instructions it uses. Loops instead
//! of closures: a closure that is not inlined would pass its registers through memory.
#![allow(clippy::needless_range_loop)]

use super::panel::{PANEL_SUBS, Panel, PanelSub};
use super::tile::{ActBlock, ActRow, Class, Kind, QUANT, ROWS_MAX, TILE};
use super::x86_dot::Dot;
use super::x86_sub::{self as sub, Sub};
use std::arch::x86_64::*;
use std::marker::PhantomData;

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

/// The tile kernel for 1 to [`ROWS_MAX`] rows.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and what `D` needs.
#[inline(always)]
pub(super) unsafe fn tile<D: Dot>(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { by_kind!(kind, few::<D>(tile, acts, out)) }
}

#[inline(always)]
unsafe fn few<D: Dot, S: Sub>(tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    // SAFETY: passed on.
    unsafe {
        match acts {
            [a] => rows::<D, S, 1>(tile, [a], out),
            [a, b] => rows::<D, S, 2>(tile, [a, b], out),
            [a, b, c] => rows::<D, S, 3>(tile, [a, b, c], out),
            [a, b, c, d] => rows::<D, S, 4>(tile, [a, b, c, d], out),
            _ => unreachable!("1 to {ROWS_MAX} rows a call"),
        }
    }
}

#[inline(always)]
unsafe fn rows<D: Dot, S: Sub, const N: usize>(tile: &[u8], acts: [&ActRow; N], out: &mut [[f32; TILE]]) {
    let blocks = tile.chunks_exact(S::BYTES);
    let cols = blocks.len() * S::COUNT * QUANT;
    let acts = acts.map(|row| Act::of(row, cols));
    // SAFETY: blocks are whole, and every row has as many columns as they do, which was just checked.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); N]];
        for (b, block) in blocks.enumerate() {
            for j in 0..S::COUNT {
                multiply::<D, S, 1, N>(&[S::at(block.as_ptr(), j)], &acts, b * S::COUNT + j, &mut sums);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums[0]) {
            _mm256_storeu_ps(out.as_mut_ptr(), sum);
        }
    }
}

/// Adds 32 columns of `T` tiles times `N` rows, those from the rows' sub-block `at` on, to sums.
#[inline(always)]
unsafe fn multiply<D: Dot, S: Sub, const T: usize, const N: usize>(
    subs: &[S; T],
    acts: &[Act; N],
    at: usize,
    sums: &mut [[__m256; N]; T],
) {
    // SAFETY: the caller vouches for the instructions and for 32 columns of every row.
    unsafe {
        let mut whole = [[_mm256_setzero_si256(); N]; T];
        match S::CLASS {
            Class::Offset { adds } => {
                let adds = if D::WIDE { 8 } else { adds };
                for first in (0..8).step_by(adds) {
                    let part = groups::<D, S, T, N>(subs, acts, at, first, adds);
                    for t in 0..T {
                        for n in 0..N {
                            let part = D::widen(part[t][n]);
                            whole[t][n] = if first == 0 { part } else { _mm256_add_epi32(whole[t][n], part) };
                        }
                    }
                }
            }
            Class::Halves { adds } => {
                let adds = if D::WIDE { 4 } else { adds };
                for first in (0..8).step_by(adds) {
                    let part = groups::<D, S, T, N>(subs, acts, at, first, adds);
                    for t in 0..T {
                        let s = subs[t].s(first / 4);
                        for n in 0..N {
                            let part = D::scale(part[t][n], s);
                            whole[t][n] = if first == 0 { part } else { _mm256_add_epi32(whole[t][n], part) };
                        }
                    }
                }
            }
            Class::Signed => signed::<D, S, T, N>(subs, acts, at, &mut whole),
        }
        for t in 0..T {
            let d = subs[t].d();
            for n in 0..N {
                let scale = _mm256_mul_ps(d, _mm256_set1_ps((*acts[n].blocks.add(at)).scale));
                sums[t][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[t][n]), scale, sums[t][n]);
            }
            match S::CLASS {
                Class::Offset { .. } => {
                    let m = subs[t].m(0);
                    for n in 0..N {
                        let weighted = _mm256_set1_ps((*acts[n].blocks.add(at)).weighted);
                        sums[t][n] = _mm256_fmadd_ps(m, weighted, sums[t][n]);
                    }
                }
                Class::Halves { .. } => {
                    let m = [subs[t].m(0), subs[t].m(1)];
                    for n in 0..N {
                        let [first, second] = (*acts[n].blocks.add(at)).halves;
                        sums[t][n] = _mm256_fmadd_ps(m[0], _mm256_set1_ps(first), sums[t][n]);
                        sums[t][n] = _mm256_fmadd_ps(m[1], _mm256_set1_ps(second), sums[t][n]);
                    }
                }
                Class::Signed => {}
            }
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
unsafe fn groups<D: Dot, S: Sub, const T: usize, const N: usize>(
    subs: &[S; T],
    acts: &[Act; N],
    at: usize,
    first: usize,
    count: usize,
) -> [[__m256i; N]; T] {
    // SAFETY: as `multiply`.
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); N]; T];
        for g in first..first + count {
            let mut w = [_mm256_setzero_si256(); T];
            for t in 0..T {
                w[t] = subs[t].group(g);
            }
            for n in 0..N {
                let a = four(acts[n], at, g);
                for t in 0..T {
                    sums[t][n] = D::add(sums[t][n], w[t], a);
                }
            }
        }
        sums
    }
}

/// Products of signed quants: a weight's sign goes to the activation, so that the first factor is unsigned. One pair of
/// products may be 2 · 128 · 127, so that nothing can be added in 16 bits.
#[inline(always)]
unsafe fn signed<D: Dot, S: Sub, const T: usize, const N: usize>(
    subs: &[S; T],
    acts: &[Act; N],
    at: usize,
    whole: &mut [[__m256i; N]; T],
) {
    // SAFETY: as `multiply`.
    unsafe {
        for g in 0..8 {
            for t in 0..T {
                let w = subs[t].group(g);
                let size = _mm256_abs_epi8(w);
                for n in 0..N {
                    let a = _mm256_sign_epi8(four(acts[n], at, g), w);
                    whole[t][n] = if D::WIDE {
                        D::add(whole[t][n], size, a)
                    } else {
                        let pairs = D::add(_mm256_setzero_si256(), size, a);
                        _mm256_add_epi32(whole[t][n], D::widen(pairs))
                    };
                }
            }
        }
    }
}

/// 32 columns of a panel.
#[derive(Clone, Copy)]
struct Expanded<S> {
    at: *const PanelSub,
    class: PhantomData<S>,
}

impl<S: Sub> Sub for Expanded<S> {
    const CLASS: Class = S::CLASS;
    const COUNT: usize = 1;
    const BYTES: usize = size_of::<PanelSub>();

    #[inline(always)]
    unsafe fn at(block: *const u8, _: usize) -> Self {
        Self { at: block.cast(), class: PhantomData }
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: a whole element of a panel.
        unsafe { _mm256_load_si256((&raw const (*self.at).quants[g]).cast()) }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_load_ps((&raw const (*self.at).d).cast()) }
    }
    #[inline(always)]
    unsafe fn m(&self, half: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_load_ps((&raw const (*self.at).m[half]).cast()) }
    }
    #[inline(always)]
    unsafe fn s(&self, half: usize) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_load_si256((&raw const (*self.at).s[half]).cast()) }
    }
}

#[inline(always)]
unsafe fn expand<S: Sub>(sub: &S, to: &mut PanelSub) {
    // SAFETY: the caller vouches for the instructions; every field is 32 bytes, aligned so.
    unsafe {
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

/// The kernel for one or two tiles and any number of rows: `out[tile][row][row of the tile]`.
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
    // SAFETY: passed on.
    unsafe { by_kind!(kind, many::<D>(tiles, acts, panel, out)) }
}

#[inline(always)]
unsafe fn many<D: Dot, S: Sub>(tiles: &[&[u8]], acts: &[ActRow], panel: &mut Panel, out: &mut [[f32; TILE]]) {
    // SAFETY: passed on. How many tiles and rows go together is what fits the registers.
    unsafe {
        match (S::CLASS, tiles) {
            (Class::Offset { .. }, [a, b]) if D::WIDE => stretch::<D, S, 2, 4>(&[*a, *b], acts, panel, out),
            (Class::Offset { .. }, _) => {
                for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
                    stretch::<D, S, 1, 3>(&[*tile], acts, panel, out);
                }
            }
            _ => {
                for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
                    stretch::<D, S, 1, 4>(&[*tile], acts, panel, out);
                }
            }
        }
    }
}

/// Stretches of columns of `T` tiles, one after the other, times all rows, `N` at a time.
#[inline(always)]
unsafe fn stretch<D: Dot, S: Sub, const T: usize, const N: usize>(
    tiles: &[&[u8]; T],
    acts: &[ActRow],
    panel: &mut Panel,
    out: &mut [[f32; TILE]],
) {
    let blocks = tiles[0].len() / S::BYTES;
    let rows = acts.len();
    assert!(tiles.iter().all(|tile| tile.len() >= blocks * S::BYTES) && out.len() >= T * rows);
    let cols = blocks * S::COUNT * QUANT;
    out[..T * rows].fill([0.0; TILE]);
    let step = (PANEL_SUBS / S::COUNT).max(1);
    for first in (0..blocks).step_by(step) {
        let count = step.min(blocks - first);
        let subs = count * S::COUNT;
        // SAFETY: blocks are whole; the panel has room for `T` times as many sub-blocks; `Act::of` checks that every
        // row has all columns, and `out` was just checked.
        unsafe {
            for (t, tile) in tiles.iter().enumerate() {
                for i in 0..subs {
                    let block = tile.as_ptr().add((first + i / S::COUNT) * S::BYTES);
                    expand(&S::at(block, i % S::COUNT), &mut panel.subs[t * PANEL_SUBS + i]);
                }
            }
            let panel = panel.subs.as_ptr();
            let at = first * S::COUNT;
            let mut row = 0;
            while row + N <= rows {
                panel_rows::<D, S, T, N>(panel, subs, &acts[row..row + N], at, cols, rows, out, row);
                row += N;
            }
            while row < rows {
                panel_rows::<D, S, T, 1>(panel, subs, &acts[row..row + 1], at, cols, rows, out, row);
                row += 1;
            }
        }
    }
}

/// `subs` sub-blocks of a panel times `N` rows, added to what `out` holds of the row `row` and those after it.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn panel_rows<D: Dot, S: Sub, const T: usize, const N: usize>(
    panel: *const PanelSub,
    subs: usize,
    acts: &[ActRow],
    at: usize,
    cols: usize,
    rows: usize,
    out: &mut [[f32; TILE]],
    row: usize,
) {
    // SAFETY: as `stretch`.
    unsafe {
        let mut from = [Act::of(&acts[0], cols).from(at); N];
        for n in 1..N {
            from[n] = Act::of(&acts[n], cols).from(at);
        }
        let acts = from;
        let mut sums = [[_mm256_setzero_ps(); N]; T];
        for t in 0..T {
            for n in 0..N {
                sums[t][n] = _mm256_loadu_ps(out[t * rows + row + n].as_ptr());
            }
        }
        for i in 0..subs {
            let mut expanded = [Expanded { at: panel, class: PhantomData }; T];
            for (t, expanded) in expanded.iter_mut().enumerate() {
                expanded.at = panel.add(t * PANEL_SUBS + i);
            }
            multiply::<D, Expanded<S>, T, N>(&expanded, &acts, i, &mut sums);
        }
        for t in 0..T {
            for n in 0..N {
                _mm256_storeu_ps(out[t * rows + row + n].as_mut_ptr(), sums[t][n]);
            }
        }
    }
}
