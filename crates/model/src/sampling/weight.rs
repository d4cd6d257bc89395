//! How likely tokens are: `exp((logit - best) / temperature)`.

/// Values that are computed side by side: plain loops over them become vector instructions.
const LANES: usize = 16;
/// Blocks of them whose parts are added in 32 bits.
const BLOCKS: usize = 8;
/// Where no weight is above exp(-30), all are left out: half a million of them are less than what 24 bits leave out.
const LEAST: f32 = -30.0;

/// Of one token.
pub(super) fn relative_weight(logit: f32, best: f32, temperature: f32) -> f64 {
    if logit == best {
        return 1.0;
    }
    if temperature <= 0.0 {
        return 0.0;
    }
    (f64::from(logit - best) / f64::from(temperature)).exp()
}

/// The sum over all `logits`, of which `best`, a number, is the largest: within a millionth. NaN weighs nothing.
pub(super) fn sum(logits: &[f32], best: f32, temperature: f32) -> f64 {
    // Not infinite: 0 times it is 0.
    let inverse = if temperature > 0.0 { (1.0 / temperature).min(1e30) } else { 1e30 };
    let weight = |logit: f32| exp_of_negative((logit - best) * inverse);
    let floor = best + LEAST * temperature.max(0.0);
    let mut total = 0.0;
    let mut parts = logits.chunks_exact(LANES * BLOCKS);
    for part in parts.by_ref() {
        // Most of a language model's tokens are far below.
        if !part.iter().fold(false, |any, &logit| any | (logit >= floor)) {
            continue;
        }
        let mut sums = [0.0f32; LANES];
        for block in part.as_chunks::<LANES>().0 {
            for (sum, &logit) in sums.iter_mut().zip(block) {
                *sum += weight(logit);
            }
        }
        total += sums.into_iter().map(f64::from).sum::<f64>();
    }
    total + parts.remainder().iter().map(|&logit| f64::from(weight(logit))).sum::<f64>()
}

/// `exp(x)` for `x <= 0`, to a few units in the last place; 0 below -87, and for what is no number.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, ln 2 in two parts (Cody and Waite 1980), and Taylor's polynomial for `exp(r)`.
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    /// Added and subtracted, it rounds to whole numbers, which are then its lowest bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 x 2^23
    const LN_2_HIGH: f32 = 0.693_359_4; // 355/512
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let in_range = x.max(-87.0);
    let rounded = in_range * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (in_range - n * LN_2_HIGH) - n * LN_2_LOW;
    let p = ((((1.0 / 5040.0 * r + 1.0 / 720.0) * r + 1.0 / 120.0) * r + 1.0 / 24.0) * r + 1.0 / 6.0) * r + 0.5;
    let p = (p * r + 1.0) * r + 1.0;
    // n added to the exponent: `rounded` is 0x4b400000 + n.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23));
    if x > -87.0 { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_are_right() {
        for i in 0..200_000 {
            let x = -(i as f32) * 5e-4;
            let (got, want) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!(x <= -87.0 || (got / want - 1.0).abs() < 3e-7, "{x}: {got}, not {want}");
            assert!(x > -87.0 || got == 0.0);
        }
        assert_eq!([f32::NAN, f32::NEG_INFINITY, -1e30].map(exp_of_negative), [0.0; 3]);
        assert_eq!(exp_of_negative(0.0), 1.0);
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_parts(
            logits in prop::collection::vec(-30.0f32..30.0, 1..200),
            temperature in prop_oneof![Just(0.0f32), Just(f32::MIN_POSITIVE), 0.01f32..5.0],
        ) {
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            let want: f64 = logits.iter().map(|&logit| relative_weight(logit, best, temperature)).sum();
            let got = sum(&logits, best, temperature);
            prop_assert!((got / want - 1.0).abs() < 1e-6, "{got}, not {want}");
        }
    }

    #[test]
    fn what_is_no_number_weighs_nothing() {
        let logits = [f32::NAN, 1.0, f32::NEG_INFINITY, 1.0];
        for temperature in [0.0, 1e-45, 1.0, 1e38] {
            assert_eq!(sum(&logits, 1.0, temperature), 2.0, "{temperature}");
        }
    }
}
