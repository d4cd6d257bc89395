//! The tiers' ways to multiply bytes.

use std::arch::x86_64::*;

/// Sums of products of unsigned and signed bytes.
pub(super) trait Dot {
    /// Sums are kept in 32 bits: any number of products may be added up.
    const WIDE: bool;

    /// `sum + Σ w·a` over neighbouring bytes. Unless [`Dot::WIDE`], what is added up before [`Dot::widen`] or
    /// [`Dot::scale`] is bounded by 32767 in magnitude per pair of bytes.
    ///
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn add(sum: __m256i, w: __m256i, a: __m256i) -> __m256i;

    /// The sums as eight i32, one per four bytes.
    ///
    /// # Safety
    /// As [`Dot::add`].
    unsafe fn widen(sum: __m256i) -> __m256i;

    /// [`Dot::widen`] times eight scales, each given as a pair of equal i16.
    ///
    /// # Safety
    /// As [`Dot::add`].
    unsafe fn scale(sum: __m256i, scales: __m256i) -> __m256i;
}

/// Pairs are added up in 16 bits, and only at the end in 32.
pub(super) struct Avx2;

impl Dot for Avx2 {
    const WIDE: bool = false;

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

    #[inline(always)]
    unsafe fn scale(sum: __m256i, scales: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_madd_epi16(sum, scales) }
    }
}

/// Four products are added up in 32 bits by one instruction.
pub(super) struct Avx512Vnni;

impl Dot for Avx512Vnni {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn add(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller vouches for AVX-512 VL and VNNI.
        unsafe { _mm256_dpbusd_epi32(sum, w, a) }
    }

    #[inline(always)]
    unsafe fn widen(sum: __m256i) -> __m256i {
        sum
    }

    #[inline(always)]
    unsafe fn scale(sum: __m256i, scales: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_mullo_epi32(sum, _mm256_srai_epi32::<16>(scales)) }
    }
}
