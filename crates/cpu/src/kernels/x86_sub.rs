//! 32 columns of a tile in registers, one type per [`Kind`](super::Kind): how its bytes become the form that all share.

use super::tile::Class;
use std::arch::x86_64::*;

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

/// Lower or upper nibbles of 32 bytes.
#[inline(always)]
unsafe fn nibbles(bytes: *const u8, upper: bool) -> __m256i {
    // SAFETY: as `load`.
    unsafe {
        let both = load(bytes);
        let shifted = if upper { _mm256_srli_epi16::<4>(both) } else { both };
        _mm256_and_si256(shifted, _mm256_set1_epi8(15))
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

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(super) struct Q4_0(*const u8);

impl Sub for Q4_0 {
    const CLASS: Class = Class::Offset { adds: 8 };
    const COUNT: usize = 1;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn at(block: *const u8, _: usize) -> Self {
        Self(block)
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe { nibbles(self.0.add(16 + 32 * (g % 4)), g >= 4) }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { halves(self.0) }
    }
    #[inline(always)]
    unsafe fn m(&self, _: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(_mm256_set1_ps(-8.0), halves(self.0)) }
    }
}

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(super) struct Q4_1(*const u8);

impl Sub for Q4_1 {
    const CLASS: Class = Class::Offset { adds: 8 };
    const COUNT: usize = 1;
    const BYTES: usize = 160;

    #[inline(always)]
    unsafe fn at(block: *const u8, _: usize) -> Self {
        Self(block)
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe { nibbles(self.0.add(32 + 32 * (g % 4)), g >= 4) }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { halves(self.0) }
    }
    #[inline(always)]
    unsafe fn m(&self, _: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { halves(self.0.add(16)) }
    }
}

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(super) struct Q8_0(*const u8);

impl Sub for Q8_0 {
    const CLASS: Class = Class::Signed;
    const COUNT: usize = 1;
    const BYTES: usize = 272;

    #[inline(always)]
    unsafe fn at(block: *const u8, _: usize) -> Self {
        Self(block)
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe { load(self.0.add(16 + 32 * g)) }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { halves(self.0) }
    }
}

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(super) struct Q4_K(*const u8, usize);

impl Q4_K {
    /// Scales, or offsets where `shift` is 4 and `place` 2, of the sub-block.
    #[inline(always)]
    unsafe fn six<const SHIFT: i32>(&self, place: i32) -> __m256 {
        // SAFETY: one whole block.
        unsafe {
            let low = _mm256_srli_epi32::<SHIFT>(eight(self.0.add(32 + 8 * self.1)));
            let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let shift = _mm_cvtsi32_si128(place + 4 * (self.1 as i32 % 2));
            let high = _mm256_srl_epi32(eight(self.0.add(96 + 8 * (self.1 / 2))), shift);
            let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
            _mm256_cvtepi32_ps(_mm256_or_si256(low, high))
        }
    }
}

impl Sub for Q4_K {
    const CLASS: Class = Class::Offset { adds: 8 };
    const COUNT: usize = 8;
    const BYTES: usize = 1152;

    #[inline(always)]
    unsafe fn at(block: *const u8, j: usize) -> Self {
        Self(block, j)
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe {
            let both = load(self.0.add(128 + self.1 / 2 * 256 + 32 * g));
            let shift = _mm_cvtsi32_si128(4 * (self.1 as i32 % 2));
            _mm256_and_si256(_mm256_srl_epi16(both, shift), _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(halves(self.0), self.six::<0>(0)) }
    }
    #[inline(always)]
    unsafe fn m(&self, _: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { minus(_mm256_mul_ps(halves(self.0.add(16)), self.six::<4>(2))) }
    }
}

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(super) struct Q6_K(*const u8, usize);

impl Q6_K {
    #[inline(always)]
    unsafe fn scales(&self, half: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe { eight_signed(self.0.add(16 + 8 * (2 * self.1 + half))) }
    }
}

impl Sub for Q6_K {
    const CLASS: Class = Class::Halves { adds: 2 };
    const COUNT: usize = 8;
    const BYTES: usize = 1680;

    #[inline(always)]
    unsafe fn at(block: *const u8, j: usize) -> Self {
        Self(block, j)
    }
    #[inline(always)]
    unsafe fn group(&self, g: usize) -> __m256i {
        // SAFETY: one whole block.
        unsafe {
            let chunk = self.0.add(144 + self.1 / 2 * 384);
            let odd = self.1 as i32 % 2;
            let low = _mm256_srl_epi16(load(chunk.add(32 * g)), _mm_cvtsi32_si128(4 * odd));
            let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
            let high =
                _mm256_srl_epi16(load(chunk.add(256 + 32 * (g % 4))), _mm_cvtsi32_si128(4 * odd + 2 * (g as i32 / 4)));
            let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
            _mm256_or_si256(low, high)
        }
    }
    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        // SAFETY: as above.
        unsafe { halves(self.0) }
    }
    #[inline(always)]
    unsafe fn m(&self, half: usize) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let offset = _mm256_mullo_epi32(self.scales(half), _mm256_set1_epi32(-32));
            _mm256_mul_ps(halves(self.0), _mm256_cvtepi32_ps(offset))
        }
    }
    #[inline(always)]
    unsafe fn s(&self, half: usize) -> __m256i {
        // SAFETY: as above.
        unsafe { pairs(self.scales(half)) }
    }
}
