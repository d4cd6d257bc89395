//! Chance by a seed: the same seed gives the same prompts and the same arrivals on every machine.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0, below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let wide = u128::from(self.next()) * end as u128;
        (wide >> 64) as usize
    }

    /// Above 0, to 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// By the exponential law of mean 1.
    fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// By the normal law (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// By the gamma law of this shape and scale 1 (Marsaglia and Tsang, 2000).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.gamma(shape + 1.0) * self.unit().powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v;
            }
        }
    }

    /// Seconds from the beginning at which requests arrive, `rate` a second on average. Pauses follow the gamma law of
    /// shape `burstiness`: 1 is a Poisson process, less comes in bursts, more is more even.
    pub(super) fn arrivals(&mut self, count: usize, rate: f64, burstiness: f64) -> Vec<f64> {
        if rate.is_infinite() {
            return vec![0.0; count];
        }
        let mut at = 0.0;
        let mut arrive = |index| {
            if index > 0 {
                let pause = if burstiness == 1.0 { self.exponential() } else { self.gamma(burstiness) / burstiness };
                at += pause / rate;
            }
            at
        };
        (0..count).map(&mut arrive).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean of the pauses, and their variance over the square of it.
    fn pauses(rate: f64, burstiness: f64) -> (f64, f64) {
        let at = Random::new(5).arrivals(40_001, rate, burstiness);
        let pauses: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = pauses.iter().sum::<f64>() / pauses.len() as f64;
        let variance = pauses.iter().map(|pause| (pause - mean).powi(2)).sum::<f64>() / pauses.len() as f64;
        (mean, variance / (mean * mean))
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_that_are_asked_for() {
        // The gamma law's variance over its mean's square is 1 / shape.
        for (burstiness, spread) in [(1.0, 1.0), (0.5, 2.0), (4.0, 0.25), (1.0001, 1.0)] {
            let (mean, found) = pauses(20.0, burstiness);
            assert!((mean * 20.0 - 1.0).abs() < 0.03, "{burstiness}: mean {mean}");
            assert!((found / spread - 1.0).abs() < 0.06, "{burstiness}: spread {found}");
        }
    }

    #[test]
    fn a_seed_decides_the_arrivals() {
        let arrivals = |seed| Random::new(seed).arrivals(50, 3.0, 1.0);
        assert_eq!(arrivals(1), arrivals(1));
        assert_ne!(arrivals(1), arrivals(2));
        assert_eq!(arrivals(1)[0], 0.0);
        assert!(arrivals(1).is_sorted());
        assert_eq!(Random::new(1).arrivals(3, f64::INFINITY, 1.0), [0.0; 3]);
    }

    #[test]
    fn numbers_stay_below_their_end_and_reach_all_below_it() {
        let mut random = Random::new(0);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[random.below(7)] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }
}
