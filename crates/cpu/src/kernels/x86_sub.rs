//! 32 columns of a tile in registers, one type per [`Kind`]: how its bytes become the form that all share.

use super::tile::{Class, Kind, QUANT};
use std::arch::x86_64::*;
use tombolo_gguf::quant::{iq4_nl, mxfp4};

/// 32 columns of 8 rows. Each type fits the functions to its [`Class`]; those of other classes give zeros, which are
/// never used.
///
/// # Safety
/// For all functions: the processor has AVX2 and F16C, and the bytes that `at` was given are those of a whole block.
pub(super) trait Sub: Copy {
    const CLASS: Class;
    /// Sub-blocks of a block.
    const COUNT: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// Sub-block `j` of a block.
    unsafe fn at(block: *const u8, j: usize) -> Self;
    /// Quants of columns `4g .. 4g + 4`.
    unsafe fn group(&self, g: usize) -> __m256i;
    /// Factors.
    unsafe fn d(&self) -> __m256;
    /// Offsets, of the first half or the second where they differ.
    unsafe fn m(&self, _half: usize) -> __m256 {
        // SAFETY: as said above.
        unsafe { _mm256_setzero_ps() }
    }
    /// Integer scales of a half, as pairs of equal i16.
    unsafe fn s(&self, _half: usize) -> __m256i {
        // SAFETY: as said above.
        unsafe { _mm256_setzero_si256() }
    }
}

/// 32 bytes.
#[inline(always)]
pub(super) unsafe fn load(bytes: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 32 readable bytes and for the instructions.
    unsafe { _mm256_loadu_si256(bytes.cast()) }
}

/// Eight halves as floats.
#[inline(always)]
pub(super) unsafe fn halves(bytes: *const u8) -> __m256 {
    // SAFETY: the caller vouches for 16 readable bytes and for the instructions.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.cast())) }
}

/// Eight unsigned bytes as integers.
#[inline(always)]
unsafe fn eight(bytes: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 8 readable bytes and for the instructions.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())) }
}

/// Eight signed bytes as integers.
#[inline(always)]
unsafe fn eight_signed(bytes: *const u8) -> __m256i {
    // SAFETY: the caller vouches for 8 readable bytes and for the instructions.
    unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.cast())) }
}

/// `width` bits of each of 32 bytes, from bit `first` on.
#[inline(always)]
unsafe fn bits(bytes: *const u8, first: usize, width: usize) -> __m256i {
    // SAFETY: as `load`.
    unsafe {
        let shifted = _mm256_srl_epi16(load(bytes), _mm_cvtsi32_si128(first as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8((1 << width) - 1))
    }
}

/// Group `g` of 32 columns whose nibbles lie in 128 bytes: low nibbles first, then high ones.
#[inline(always)]
unsafe fn nibbles(bytes: *const u8, g: usize) -> __m256i {
    // SAFETY: as `load`.
    unsafe { bits(bytes.add(32 * (g % 4)), 4 * (g / 4), 4) }
}

/// Group `g` of sub-block `j` whose nibbles lie beside those of its neighbour, 256 bytes for two.
#[inline(always)]
unsafe fn paired(bytes: *const u8, j: usize, g: usize) -> __m256i {
    // SAFETY: as `load`.
    unsafe { bits(bytes.add(j / 2 * 256 + 32 * g), 4 * (j % 2), 4) }
}

/// Group `g` of sub-block `j` of two bits a column, 64 bytes a sub-block.
#[inline(always)]
unsafe fn twos(bytes: *const u8, j: usize, g: usize) -> __m256i {
    // SAFETY: as `load`.
    unsafe { bits(bytes.add(64 * j + 32 * (g / 4)), 2 * (g % 4), 2) }
}

/// Quants with further bits above their lower `WIDTH`.
#[inline(always)]
unsafe fn above<const WIDTH: i32>(low: __m256i, high: __m256i) -> __m256i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm256_or_si256(low, _mm256_slli_epi16::<WIDTH>(high)) }
}

/// What nibbles stand for.
#[inline(always)]
unsafe fn looked_up(nibbles: __m256i, levels: &[i8; 16]) -> __m256i {
    // SAFETY: 16 bytes are read; the caller vouches for the instructions.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

/// A sub-block's 6-bit scales or, from bit 4 of the lower and bit 2 of the upper parts on, offsets.
#[inline(always)]
unsafe fn six(scales: *const u8, j: usize, offsets: bool) -> __m256 {
    // SAFETY: 96 bytes, as the caller vouches.
    unsafe {
        let (low, high) = (eight(scales.add(8 * j)), eight(scales.add(64 + 8 * (j / 2))));
        let by = |n: usize| _mm_cvtsi32_si128(n as i32);
        let low = _mm256_and_si256(_mm256_srl_epi32(low, by(4 * usize::from(offsets))), _mm256_set1_epi32(15));
        let high = _mm256_srl_epi32(high, by(4 * (j % 2) + 2 * usize::from(offsets)));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        _mm256_cvtepi32_ps(_mm256_or_si256(low, high))
    }
}

/// `d · factor · s` of eight signed bytes `s`.
#[inline(always)]
unsafe fn scaled(d: *const u8, s: *const u8, factor: i32) -> __m256 {
    // SAFETY: as `halves` and `eight_signed`.
    unsafe {
        let s = _mm256_mullo_epi32(eight_signed(s), _mm256_set1_epi32(factor));
        _mm256_mul_ps(halves(d), _mm256_cvtepi32_ps(s))
    }
}

/// Eight halves times a number.
#[inline(always)]
unsafe fn times(d: *const u8, factor: f32) -> __m256 {
    // SAFETY: as `halves`.
    unsafe { _mm256_mul_ps(halves(d), _mm256_set1_ps(factor)) }
}

/// `2^(e - 128)` of eight bytes `e`.
#[inline(always)]
unsafe fn power(e: *const u8) -> __m256 {
    // SAFETY: as `eight`.
    unsafe {
        let e = eight(e);
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
        _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
    }
}

/// Eight small integers as pairs of equal i16.
#[inline(always)]
unsafe fn pairs(s: __m256i) -> __m256i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm256_or_si256(_mm256_slli_epi32::<16>(s), _mm256_and_si256(s, _mm256_set1_epi32(0xffff))) }
}

/// The sign turned.
#[inline(always)]
unsafe fn minus(x: __m256) -> __m256 {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm256_xor_ps(x, _mm256_set1_ps(-0.0)) }
}

/// One type per kind: the bytes `b` of a block from which sub-block `j` gives a group `g`, factors, offsets and scales.
macro_rules! subs {
    ($($kind:ident {
        group($gb:ident, $gj:ident, $g:ident) $group:block
        d($db:ident, $dj:ident) $d:block
        $(m($mb:ident, $mj:ident, $mh:ident) $m:block)?
        $(s($sb:ident, $sj:ident, $sh:ident) $s:block)?
    })*) => {
        $(
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types)]
            pub(super) struct $kind(*const u8, usize);

            #[allow(unused_variables)]
            impl Sub for $kind {
                const CLASS: Class = Kind::$kind.class();
                const COUNT: usize = Kind::$kind.block_cols() / QUANT;
                const BYTES: usize = Kind::$kind.block_bytes();

                #[inline(always)]
                unsafe fn at(block: *const u8, j: usize) -> Self {
                    Self(block, j)
                }
                #[inline(always)]
                unsafe fn group(&self, $g: usize) -> __m256i {
                    let Self($gb, $gj) = *self;
                    // SAFETY: one whole block.
                    unsafe { $group }
                }
                #[inline(always)]
                unsafe fn d(&self) -> __m256 {
                    let Self($db, $dj) = *self;
                    // SAFETY: as above.
                    unsafe { $d }
                }
                $(
                    #[inline(always)]
                    unsafe fn m(&self, $mh: usize) -> __m256 {
                        let Self($mb, $mj) = *self;
                        // SAFETY: as above.
                        unsafe { $m }
                    }
                )?
                $(
                    #[inline(always)]
                    unsafe fn s(&self, $sh: usize) -> __m256i {
                        let Self($sb, $sj) = *self;
                        // SAFETY: as above.
                        unsafe { $s }
                    }
                )?
            }
        )*
    };
}

subs! {
    Q4_0 {
        group(b, j, g) { nibbles(b.add(16), g) }
        d(b, j) { halves(b) }
        m(b, j, h) { times(b, -8.0) }
    }
    Q4_1 {
        group(b, j, g) { nibbles(b.add(32), g) }
        d(b, j) { halves(b) }
        m(b, j, h) { halves(b.add(16)) }
    }
    Q5_0 {
        group(b, j, g) { above::<4>(nibbles(b.add(16), g), bits(b.add(144), g, 1)) }
        d(b, j) { halves(b) }
        m(b, j, h) { times(b, -16.0) }
    }
    Q5_1 {
        group(b, j, g) { above::<4>(nibbles(b.add(32), g), bits(b.add(160), g, 1)) }
        d(b, j) { halves(b) }
        m(b, j, h) { halves(b.add(16)) }
    }
    Q8_0 {
        group(b, j, g) { load(b.add(16 + 32 * g)) }
        d(b, j) { halves(b) }
    }
    IQ4_NL {
        group(b, j, g) { looked_up(nibbles(b.add(16), g), &iq4_nl::LEVELS) }
        d(b, j) { halves(b) }
    }
    MXFP4 {
        group(b, j, g) { looked_up(nibbles(b.add(8), g), &MXFP4_LEVELS) }
        d(b, j) { power(b) }
        m(b, j, h) { _mm256_mul_ps(power(b), _mm256_set1_ps(-12.0)) }
    }
    Q2_K {
        group(b, j, g) { twos(b.add(160), j, g) }
        d(b, j) { halves(b) }
        m(b, j, h) {
            let m = _mm256_srli_epi32::<4>(eight(b.add(32 + 8 * (2 * j + h))));
            minus(_mm256_mul_ps(halves(b.add(16)), _mm256_cvtepi32_ps(m)))
        }
        s(b, j, h) { pairs(_mm256_and_si256(eight(b.add(32 + 8 * (2 * j + h))), _mm256_set1_epi32(15))) }
    }
    Q3_K {
        group(b, j, g) { above::<2>(twos(b.add(144), j, g), bits(b.add(656 + 32 * j), g, 1)) }
        d(b, j) { halves(b) }
        m(b, j, h) { scaled(b, b.add(16 + 8 * (2 * j + h)), -4) }
        s(b, j, h) { pairs(eight_signed(b.add(16 + 8 * (2 * j + h)))) }
    }
    Q4_K {
        group(b, j, g) { paired(b.add(128), j, g) }
        d(b, j) { _mm256_mul_ps(halves(b), six(b.add(32), j, false)) }
        m(b, j, h) { minus(_mm256_mul_ps(halves(b.add(16)), six(b.add(32), j, true))) }
    }
    Q5_K {
        group(b, j, g) { above::<4>(paired(b.add(128), j, g), bits(b.add(1152 + 32 * j), g, 1)) }
        d(b, j) { _mm256_mul_ps(halves(b), six(b.add(32), j, false)) }
        m(b, j, h) { minus(_mm256_mul_ps(halves(b.add(16)), six(b.add(32), j, true))) }
    }
    Q6_K {
        group(b, j, g) {
            let pairs = b.add(144 + j / 2 * 384 + 256 + 32 * (g % 4));
            above::<4>(bits(b.add(144 + j / 2 * 384 + 32 * g), 4 * (j % 2), 4), bits(pairs, 4 * (j % 2) + 2 * (g / 4), 2))
        }
        d(b, j) { halves(b) }
        m(b, j, h) { scaled(b, b.add(16 + 8 * (2 * j + h)), -32) }
        s(b, j, h) { pairs(eight_signed(b.add(16 + 8 * (2 * j + h)))) }
    }
    IQ4_XS {
        group(b, j, g) { looked_up(nibbles(b.add(80 + 128 * j), g), &iq4_nl::LEVELS) }
        d(b, j) { scaled(b, b.add(16 + 8 * j), 1) }
    }
}

/// Those of the type, made unsigned.
const MXFP4_LEVELS: [i8; 16] = {
    let mut levels = mxfp4::LEVELS;
    let mut i = 0;
    while i < 16 {
        levels[i] += 12;
        i += 1;
    }
    levels
};
