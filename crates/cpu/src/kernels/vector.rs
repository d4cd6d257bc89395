//! Eight floats side by side: what the kernels in f32 are written over. Every operation rounds once, as IEEE 754 says,
//! so that all implementations give the same bits.

/// Eight floats. Methods are safe to call where the implementation's instructions are: a type with special ones is
/// named only in the tables of tiers that have them.
pub(super) trait Eight: Copy {
    fn splat(x: f32) -> Self;
    fn load(x: &[f32; 8]) -> Self;
    fn store(self, to: &mut [f32; 8]);
    /// Eight values from a place on: for loops in which the checks of slices cost more than the work.
    ///
    /// # Safety
    /// Eight values are there to be read.
    #[inline(always)]
    unsafe fn from(x: *const f32) -> Self {
        // SAFETY: an array of floats has their alignment; the caller vouches for the rest.
        Self::load(unsafe { &*x.cast() })
    }
    /// As [`Eight::from`].
    ///
    /// # Safety
    /// There is room for eight values that nobody else uses.
    #[inline(always)]
    unsafe fn to(self, x: *mut f32) {
        // SAFETY: as above.
        self.store(unsafe { &mut *x.cast() });
    }
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other`: where one is not a number, `other`.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other`.
    fn min(self, other: Self) -> Self;
    /// `self < bound ? then : value`.
    fn pick_below(self, bound: Self, then: Self, value: Self) -> Self;
    /// Where each lane is `12582912 + n` with a small integer `n`: two factors whose product is `2^n`.
    fn powers(self) -> (Self, Self);
    /// Turns four pairs of neighbours `(a, b)` by four `(cos, sin)`: `(a·cos − b·sin, a·sin + b·cos)`.
    fn turn(self, turns: Self) -> Self;
    /// The even values of both, then the odd ones.
    fn unzip(self, other: Self) -> (Self, Self);

    /// The sum of all lanes, by halves.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut x = [0f32; 8];
        self.store(&mut x);
        let x = [x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]];
        (x[0] + x[2]) + (x[1] + x[3])
    }

    /// The largest lane, by halves.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut x = [0f32; 8];
        self.store(&mut x);
        let more = |a: f32, b: f32| if b > a { b } else { a };
        let x = [more(x[0], x[4]), more(x[1], x[5]), more(x[2], x[6]), more(x[3], x[7])];
        more(more(x[0], x[2]), more(x[1], x[3]))
    }
}

/// For any processor.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

/// Lane by lane.
macro_rules! lanes {
    (|$i:ident| $value:expr) => {{
        let mut out = [0f32; 8];
        for $i in 0..8 {
            out[$i] = $value;
        }
        Plain(out)
    }};
}

impl Eight for Plain {
    fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    fn load(x: &[f32; 8]) -> Self {
        Self(*x)
    }
    fn store(self, to: &mut [f32; 8]) {
        *to = self.0;
    }
    fn add(self, other: Self) -> Self {
        lanes!(|i| self.0[i] + other.0[i])
    }
    fn sub(self, other: Self) -> Self {
        lanes!(|i| self.0[i] - other.0[i])
    }
    fn mul(self, other: Self) -> Self {
        lanes!(|i| self.0[i] * other.0[i])
    }
    fn div(self, other: Self) -> Self {
        lanes!(|i| self.0[i] / other.0[i])
    }
    fn fma(self, b: Self, c: Self) -> Self {
        lanes!(|i| self.0[i].mul_add(b.0[i], c.0[i]))
    }
    fn max(self, other: Self) -> Self {
        lanes!(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] })
    }
    fn min(self, other: Self) -> Self {
        lanes!(|i| if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] })
    }
    fn pick_below(self, bound: Self, then: Self, value: Self) -> Self {
        lanes!(|i| if self.0[i] < bound.0[i] { then.0[i] } else { value.0[i] })
    }
    fn powers(self) -> (Self, Self) {
        let n = |i: usize| (self.0[i].to_bits() as i32).wrapping_sub(12_582_912f32.to_bits() as i32);
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
        (lanes!(|i| power(n(i) >> 1)), lanes!(|i| power(n(i) - (n(i) >> 1))))
    }
    fn turn(self, turns: Self) -> Self {
        let (x, t) = (self.0, turns.0);
        lanes!(|i| if i % 2 == 0 { x[i] * t[i] - x[i + 1] * t[i + 1] } else { x[i] * t[i - 1] + x[i - 1] * t[i] })
    }
    fn unzip(self, other: Self) -> (Self, Self) {
        let at = |i: usize| if i < 8 { self.0[i] } else { other.0[i - 8] };
        (lanes!(|i| at(2 * i)), lanes!(|i| at(2 * i + 1)))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Avx;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Eight;
    use std::arch::x86_64::*;

    /// One register of AVX2 with FMA.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx(__m256);

    /// A call of one instruction.
    macro_rules! run {
        ($call:expr) => {
            // SAFETY: only the tables of tiers with AVX2 and FMA name this type; loads and stores are of whole arrays.
            unsafe { $call }
        };
    }

    impl Eight for Avx {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            Self(run!(_mm256_set1_ps(x)))
        }
        #[inline(always)]
        fn load(x: &[f32; 8]) -> Self {
            Self(run!(_mm256_loadu_ps(x.as_ptr())))
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; 8]) {
            run!(_mm256_storeu_ps(to.as_mut_ptr(), self.0))
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(run!(_mm256_add_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(run!(_mm256_sub_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(run!(_mm256_mul_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(run!(_mm256_div_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            Self(run!(_mm256_fmadd_ps(self.0, b.0, c.0)))
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(run!(_mm256_max_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(run!(_mm256_min_ps(self.0, other.0)))
        }
        #[inline(always)]
        fn pick_below(self, bound: Self, then: Self, value: Self) -> Self {
            Self(run!(_mm256_blendv_ps(value.0, then.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0))))
        }
        #[inline(always)]
        fn powers(self) -> (Self, Self) {
            run!({
                let n =
                    _mm256_sub_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(_mm256_set1_ps(12_582_912.0)));
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                let bias = _mm256_set1_epi32(127);
                let half = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
                let rest = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
                (Self(_mm256_castsi256_ps(half)), Self(_mm256_castsi256_ps(rest)))
            })
        }
        #[inline(always)]
        fn turn(self, turns: Self) -> Self {
            run!({
                let (cos, sin) = (_mm256_moveldup_ps(turns.0), _mm256_movehdup_ps(turns.0));
                let swapped = _mm256_permute_ps::<0b10_11_00_01>(self.0);
                Self(_mm256_addsub_ps(_mm256_mul_ps(self.0, cos), _mm256_mul_ps(swapped, sin)))
            })
        }
        #[inline(always)]
        fn unzip(self, other: Self) -> (Self, Self) {
            run!({
                // Within 128-bit halves, then the halves' 64-bit parts in order.
                let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(self.0, other.0));
                let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(self.0, other.0));
                let ordered =
                    [_mm256_permute4x64_pd::<0b11_01_10_00>(even), _mm256_permute4x64_pd::<0b11_01_10_00>(odd)];
                (Self(_mm256_castpd_ps(ordered[0])), Self(_mm256_castpd_ps(ordered[1])))
            })
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            run!({
                let x = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
            })
        }
        #[inline(always)]
        fn largest(self) -> f32 {
            run!({
                let x = _mm_max_ps(_mm256_extractf128_ps::<1>(self.0), _mm256_castps256_ps128(self.0));
                let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
                _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(x), x))
            })
        }
    }
}
