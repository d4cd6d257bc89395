//! Tile kernels for x86, over the one instruction in which the tiers differ: multiplying unsigned by signed bytes.
//!
//! Everything here is inlined into the entry points of `avx2` and `avx512`, which enable the instructions it uses.
//! A block's weights are unpacked once and used for all rows of the call. Loops instead of closures: a closure that is
//! not inlined would pass its registers through memory.

use super::tile::{ActRow, Kind, ROWS_MAX, TILE};
use std::arch::x86_64::*;

/// Sums of products of unsigned and signed bytes.
pub(super) trait Dot {
    /// `sum + Σ w·a` over neighbouring bytes. What may be added up before [`Dot::widen`] is bounded by 32767 in
    /// magnitude per pair of bytes.
    ///
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn add(sum: __m256i, w: __m256i, a: __m256i) -> __m256i;

    /// The sums as eight i32, one per four bytes.
    ///
    /// # Safety
    /// As [`Dot::add`].
    unsafe fn widen(sum: __m256i) -> __m256i;
}

/// The tile kernel of one kind for any number of rows.
///
/// # Safety
/// The processor has AVX2, FMA, F16C and what `D` needs.
#[inline(always)]
pub(super) unsafe fn tile<D: Dot>(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]; ROWS_MAX]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        match acts {
            [a] => rows::<D, 1>(kind, tile, [a], out),
            [a, b] => rows::<D, 2>(kind, tile, [a, b], out),
            [a, b, c] => rows::<D, 3>(kind, tile, [a, b, c], out),
            [a, b, c, d] => rows::<D, 4>(kind, tile, [a, b, c, d], out),
            _ => unreachable!("1 to {ROWS_MAX} rows a call"),
        }
    }
}

#[inline(always)]
unsafe fn rows<D: Dot, const N: usize>(kind: Kind, tile: &[u8], acts: [&ActRow; N], out: &mut [[f32; TILE]; ROWS_MAX]) {
    let cols = tile.len() / kind.block_bytes() * kind.block_cols();
    for act in acts {
        assert!(act.quants.len() >= cols && act.blocks.len() * super::QUANT >= cols);
    }
    // SAFETY: as above; every kernel reads `tile` in whole blocks and from the rows as many columns as those have,
    // which was just checked.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); N];
        for (b, block) in tile.chunks_exact(kind.block_bytes()).enumerate() {
            match kind {
                Kind::Q4_0 => q4_0::<D, N>(block.as_ptr(), &acts, b, &mut sums),
                Kind::Q4_1 => q4_1::<D, N>(block.as_ptr(), &acts, b, &mut sums),
                Kind::Q8_0 => q8_0::<D, N>(block.as_ptr(), &acts, b, &mut sums),
                Kind::Q4_K => q4_k::<D, N>(block.as_ptr(), &acts, b, &mut sums),
                Kind::Q6_K => q6_k::<D, N>(block.as_ptr(), &acts, b, &mut sums),
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            _mm256_storeu_ps(out.as_mut_ptr(), sum);
        }
    }
}

/// 32 bytes.
#[inline(always)]
unsafe fn load(bytes: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 32 readable bytes and for the instructions.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

/// Four neighbouring activations, the same for all rows of the tile.
#[inline(always)]
unsafe fn four(act: &ActRow, col: usize) -> __m256i {
    // SAFETY: the caller vouches for `col + 4` columns and for the instructions.
    unsafe { _mm256_set1_epi32(act.quants.as_ptr().add(col).cast::<i32>().read_unaligned()) }
}

/// Eight halves as floats.
#[inline(always)]
unsafe fn halves(bytes: *const u8) -> __m256 {
    // SAFETY: the caller vouches for 16 readable bytes and for the instructions.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.cast())) }
}

/// Per row `Σ nibble · a` over 32 columns whose nibbles lie in `groups` of four: low nibbles first, then high ones.
#[inline(always)]
unsafe fn nibbles<D: Dot, const N: usize>(q: *const u8, acts: &[&ActRow; N], col: usize) -> [__m256i; N] {
    // SAFETY: 128 bytes of quants and 32 columns per row, as the caller vouches. A sum of 8 products of two pairs of
    // a nibble and a byte is at most 8 · 2 · 15 · 127 = 30480.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut sums = [_mm256_setzero_si256(); N];
        for g in 0..4 {
            let both = load(q.add(32 * g));
            let low = _mm256_and_si256(both, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
            for r in 0..N {
                sums[r] = D::add(sums[r], low, four(acts[r], col + 4 * g));
                sums[r] = D::add(sums[r], high, four(acts[r], col + 16 + 4 * g));
            }
        }
        for sum in &mut sums {
            *sum = D::widen(*sum);
        }
        sums
    }
}

#[inline(always)]
unsafe fn q4_0<D: Dot, const N: usize>(block: *const u8, acts: &[&ActRow; N], b: usize, sums: &mut [__m256; N]) {
    // SAFETY: one whole block, and its columns in every row.
    unsafe {
        let d = halves(block);
        let whole = nibbles::<D, N>(block.add(16), acts, 32 * b);
        for r in 0..N {
            let a = acts[r].blocks.get_unchecked(b);
            let whole = _mm256_sub_epi32(whole[r], _mm256_set1_epi32(8 * (a.low + a.high)));
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(a.scale));
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, sums[r]);
        }
    }
}

#[inline(always)]
unsafe fn q4_1<D: Dot, const N: usize>(block: *const u8, acts: &[&ActRow; N], b: usize, sums: &mut [__m256; N]) {
    // SAFETY: as q4_0.
    unsafe {
        let (d, m) = (halves(block), halves(block.add(16)));
        let whole = nibbles::<D, N>(block.add(32), acts, 32 * b);
        for r in 0..N {
            let a = acts[r].blocks.get_unchecked(b);
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(a.scale));
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r]), scale, sums[r]);
            sums[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(a.weighted), sums[r]);
        }
    }
}

#[inline(always)]
unsafe fn q8_0<D: Dot, const N: usize>(block: *const u8, acts: &[&ActRow; N], b: usize, sums: &mut [__m256; N]) {
    // SAFETY: as q4_0. The sign of a weight goes to the activation, so that the first factor is unsigned; a pair's
    // products add up to at most 2 · 128 · 127.
    unsafe {
        let d = halves(block);
        let mut whole = [_mm256_setzero_si256(); N];
        for g in 0..8 {
            let w = load(block.add(16 + 32 * g));
            let size = _mm256_abs_epi8(w);
            for r in 0..N {
                let a = _mm256_sign_epi8(four(acts[r], 32 * b + 4 * g), w);
                let products = D::widen(D::add(_mm256_setzero_si256(), size, a));
                whole[r] = _mm256_add_epi32(whole[r], products);
            }
        }
        for r in 0..N {
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(acts[r].blocks.get_unchecked(b).scale));
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r]), scale, sums[r]);
        }
    }
}

#[inline(always)]
unsafe fn q4_k<D: Dot, const N: usize>(block: *const u8, acts: &[&ActRow; N], b: usize, sums: &mut [__m256; N]) {
    // SAFETY: as q4_0; the bound of `nibbles` holds for the 8 groups of one sub-block too.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let (d, dm) = (halves(block), halves(block.add(16)));
        for j in 0..8 {
            let q = block.add(160 + j / 2 * 256);
            let shift = _mm_cvtsi32_si128(4 * (j as i32 % 2));
            let s = _mm256_cvtepu8_epi32(_mm_loadl_epi64(block.add(32 + 8 * j).cast()));
            let m = _mm256_cvtepu8_epi32(_mm_loadl_epi64(block.add(96 + 8 * j).cast()));
            let mut whole = [_mm256_setzero_si256(); N];
            for g in 0..8 {
                let w = _mm256_and_si256(_mm256_srl_epi16(load(q.add(32 * g)), shift), mask);
                for r in 0..N {
                    whole[r] = D::add(whole[r], w, four(acts[r], 256 * b + 32 * j + 4 * g));
                }
            }
            for r in 0..N {
                let a = acts[r].blocks.get_unchecked(8 * b + j);
                let scaled = _mm256_cvtepi32_ps(_mm256_mullo_epi32(D::widen(whole[r]), s));
                let lowered = _mm256_cvtepi32_ps(_mm256_mullo_epi32(m, _mm256_set1_epi32(a.low + a.high)));
                let scale = _mm256_set1_ps(a.scale);
                sums[r] = _mm256_fmadd_ps(scaled, _mm256_mul_ps(d, scale), sums[r]);
                sums[r] = _mm256_fnmadd_ps(lowered, _mm256_mul_ps(dm, scale), sums[r]);
            }
        }
    }
}

#[inline(always)]
unsafe fn q6_k<D: Dot, const N: usize>(block: *const u8, acts: &[&ActRow; N], b: usize, sums: &mut [__m256; N]) {
    // SAFETY: as q4_0. Two pairs of products add up to at most 2 · 2 · 63 · 127 = 32004.
    unsafe {
        let d = halves(block);
        for j in 0..8 {
            let q = block.add(144 + j / 2 * 384);
            let mut whole = [_mm256_setzero_si256(); N];
            for half in 0..2 {
                let s = _mm256_cvtepi8_epi32(_mm_loadl_epi64(block.add(16 + 8 * (2 * j + half)).cast()));
                let mut w = [_mm256_setzero_si256(); 4];
                for (i, w) in w.iter_mut().enumerate() {
                    *w = sixes(q, j % 2, half, i);
                }
                for r in 0..N {
                    let a = acts[r].blocks.get_unchecked(8 * b + j);
                    let col = 256 * b + 32 * j + 16 * half;
                    let first = D::add(_mm256_setzero_si256(), w[0], four(acts[r], col));
                    let first = D::widen(D::add(first, w[1], four(acts[r], col + 4)));
                    let second = D::add(_mm256_setzero_si256(), w[2], four(acts[r], col + 8));
                    let second = D::widen(D::add(second, w[3], four(acts[r], col + 12)));
                    let low = _mm256_set1_epi32(32 * if half == 0 { a.low } else { a.high });
                    let part = _mm256_sub_epi32(_mm256_add_epi32(first, second), low);
                    whole[r] = _mm256_add_epi32(whole[r], _mm256_mullo_epi32(part, s));
                }
            }
            for r in 0..N {
                let scale = _mm256_mul_ps(d, _mm256_set1_ps(acts[r].blocks.get_unchecked(8 * b + j).scale));
                sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r]), scale, sums[r]);
            }
        }
    }
}

/// Group `i` of a half of a Q6_K sub-block: the nibble, and above it the bit pair.
#[inline(always)]
unsafe fn sixes(q: *const u8, odd: usize, half: usize, i: usize) -> __m256i {
    // SAFETY: the 384 bytes of a chunk, as the caller vouches.
    unsafe {
        let nibbles = load(q.add(32 * (4 * half + i)));
        let pairs = load(q.add(256 + 32 * i));
        let low = if odd == 0 { nibbles } else { _mm256_srli_epi16::<4>(nibbles) };
        let high = match 2 * odd + half {
            0 => _mm256_slli_epi16::<4>(pairs),
            1 => _mm256_slli_epi16::<2>(pairs),
            2 => pairs,
            _ => _mm256_srli_epi16::<2>(pairs),
        };
        let low = _mm256_and_si256(low, _mm256_set1_epi8(0x0f));
        _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
    }
}

/// Halves as floats, eight at a time.
///
/// # Safety
/// The processor has F16C.
#[inline(always)]
pub(super) unsafe fn widen(bytes: &[u8], out: &mut [f32]) {
    let whole = bytes.len().min(2 * out.len()) / 16;
    for (bytes, out) in bytes.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: 16 bytes in, 8 floats out; the caller vouches for the instructions.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), halves(bytes.as_ptr())) };
    }
    super::scalar::widen(&bytes[16 * whole..], &mut out[8 * whole..]);
}

/// Floats as halves, eight at a time.
///
/// # Safety
/// The processor has F16C.
#[inline(always)]
pub(super) unsafe fn narrow(values: &[f32], bytes: &mut [u8]) {
    let whole = bytes.len().min(2 * values.len()) / 16;
    for (values, bytes) in values.as_chunks::<8>().0.iter().zip(bytes.as_chunks_mut::<16>().0) {
        // SAFETY: 8 floats in, 16 bytes out; the caller vouches for the instructions.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(values.as_ptr()));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), halves);
        }
    }
    super::scalar::narrow(&values[8 * whole..], &mut bytes[16 * whole..]);
}
