//! Conversions for x86: to and from halves, and activations to 8-bit integers.

use super::scalar::{self, act_block};
use super::tile::{ActBlock, QUANT};
use super::x86_sub::halves;
use std::arch::x86_64::*;

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
    scalar::widen(&bytes[16 * whole..], &mut out[8 * whole..]);
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
    scalar::narrow(&values[8 * whole..], &mut bytes[16 * whole..]);
}

/// A row as 8-bit integers, as [`scalar::quantize`] says.
///
/// # Safety
/// The processor has AVX2 and FMA.
#[inline(always)]
pub(super) unsafe fn quantize(x: &[f32], quants: &mut [i8], blocks: &mut [ActBlock]) {
    let values = x.as_chunks::<QUANT>().0.iter();
    for ((x, q), block) in values.zip(quants.as_chunks_mut::<QUANT>().0).zip(blocks) {
        // SAFETY: 32 floats in, 32 bytes out; the caller vouches for the instructions.
        unsafe {
            let x = x.as_ptr();
            let x =
                [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8)), _mm256_loadu_ps(x.add(16)), _mm256_loadu_ps(x.add(24))];
            // What is not a number is passed over: the second operand is taken.
            let mut most = _mm256_setzero_ps();
            for x in x {
                most = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x), most);
            }
            let most = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
            let most = _mm_max_ps(most, _mm_movehl_ps(most, most));
            let most = _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
            let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };

            let mut whole = [_mm256_setzero_si256(); 4];
            for (whole, x) in whole.iter_mut().zip(x) {
                // 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
                let shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(inverse), _mm256_set1_ps(12_582_912.0));
                *whole = _mm256_and_si256(_mm256_castps_si256(shifted), _mm256_set1_epi32(0xff));
            }
            let words = [_mm256_packus_epi32(whole[0], whole[1]), _mm256_packus_epi32(whole[2], whole[3])];
            // Packing goes by 128-bit halves: every fourth byte group is in its place after this.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words[0], words[1]), order);
            _mm256_storeu_si256(q.as_mut_ptr().cast(), bytes);

            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let eights = _mm256_add_epi32(fours, _mm256_unpackhi_epi64(fours, fours));
            let low = _mm256_extract_epi32::<0>(eights) + _mm256_extract_epi32::<1>(eights);
            let high = _mm256_extract_epi32::<4>(eights) + _mm256_extract_epi32::<5>(eights);
            *block = act_block(most, low, high);
        }
    }
}
