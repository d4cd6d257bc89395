//! The tiers' ways to multiply bytes.

use super::x86::Dot;
use std::arch::x86_64::*;

/// Pairs are added up in 16 bits, and only at the end in 32.
pub(super) struct Avx2;

impl Dot for Avx2 {
    #[inline(always)]
    unsafe fn add(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller vouches for AVX2.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a)) }
    }

    #[inline(always)]
    unsafe fn widen(sum: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) }
    }
}

/// Four products are added up in 32 bits by one instruction.
pub(super) struct Avx512Vnni;

impl Dot for Avx512Vnni {
    #[inline(always)]
    unsafe fn add(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller vouches for AVX-512 VL and VNNI.
        unsafe { _mm256_dpbusd_epi32(sum, w, a) }
    }

    #[inline(always)]
    unsafe fn widen(sum: __m256i) -> __m256i {
        sum
    }
}
