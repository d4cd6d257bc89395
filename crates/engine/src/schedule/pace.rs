//! How many rows of prompts a step may have beside answers that are being generated, so that these do not stutter.
//!
//! Learned from how long steps took: those without prompts by their number of rows, and what a row of a prompt adds. A
//! step's time grows less than its rows do, so the rate is that of steps as large as the ones that are run: it settles where
//! a step with prompts takes as many times as long as asked for. As long as a step without prompts will be when all who are
//! here generate: measured against the few that already do, these would hold back the many that wait.

/// Rows that a step may always have, so that prompts get on.
const LEAST_ROWS: usize = 16;
/// Rows of a step before any with prompts was seen.
const FIRST_ROWS: usize = 32;
/// Weight of the newest step.
const NEW: f64 = 0.3;
/// What is aimed at of the longest that a step may take: they scatter. With 0.95 and a factor of 2 the 99th percentile
/// between tokens was 2.1 times the median (8B model on an H200, 64 clients).
const AIM: f64 = 0.85;

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// How many times as long a step may take with prompts as without; `None`: any.
    factor: Option<f64>,
    /// Seconds of a step without prompts, by the power of two below its rows.
    plain: [Option<f64>; 16],
    /// Seconds that a row of a prompt adds.
    per_row: Option<f64>,
}

impl Pace {
    pub(super) fn new(factor: Option<f32>) -> Self {
        Self { factor: factor.map(f64::from), plain: [None; 16], per_row: None }
    }

    /// Most rows of prompts beside `decodes` rows of answers, where `all` requests are running or waiting for it.
    pub(super) fn rows(&self, decodes: usize, all: usize) -> usize {
        let factor = self.factor.filter(|_| decodes > 0);
        let (Some(factor), Some(plain), Some(full)) = (factor, self.plain(decodes), self.plain(all)) else {
            return usize::MAX;
        };
        let Some(per_row) = self.per_row else { return FIRST_ROWS };
        // A float beyond the range becomes the range's end.
        (((AIM * factor * full.max(plain) - plain) / per_row) as usize).max(LEAST_ROWS)
    }

    /// A step of so many rows took so long. Nonsense from a clock is passed over.
    pub(super) fn learn(&mut self, decodes: usize, prompts: usize, seconds: f64) {
        if !(seconds > 0.0 && seconds.is_finite()) || decodes == 0 {
            return;
        }
        if prompts == 0 {
            mix(&mut self.plain[class(decodes)], seconds);
        } else if let Some(plain) = self.plain(decodes) {
            // Never nothing: a step with more rows that happened to be quicker says little.
            let more = (seconds - plain).max(0.05 * plain);
            mix(&mut self.per_row, more / prompts as f64);
        }
    }

    /// Of the nearest number of rows that was seen, and for more rows than that what as many of prompts would add: without,
    /// steps as short as those of few requests would keep more from ever running.
    fn plain(&self, decodes: usize) -> Option<f64> {
        let at = class(decodes);
        let known = self.plain.iter().enumerate().filter_map(|(i, seconds)| Some((i, (*seconds)?)));
        let (nearest, seconds) = known.min_by_key(|(i, _)| i.abs_diff(at))?;
        let more = if nearest < at { decodes - (1 << nearest) } else { 0 };
        Some(seconds + more as f64 * self.per_row.unwrap_or(0.0))
    }
}

fn class(rows: usize) -> usize {
    (rows.max(1).ilog2() as usize).min(15)
}

fn mix(value: &mut Option<f64>, new: f64) {
    *value = Some(value.map_or(new, |old| old + NEW * (new - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a step of a device whose steps have a part that does not grow with the rows.
    fn device(decodes: usize, prompts: usize) -> f64 {
        1e-3 * (6.0 + 0.04 * (decodes + prompts) as f64 + if prompts > 0 { 2.0 } else { 0.0 })
    }

    #[test]
    fn it_settles_where_a_step_takes_as_long_as_asked_for() {
        for (factor, decodes) in [(2.0, 64), (3.0, 64), (2.0, 8)] {
            let mut pace = Pace::new(Some(factor));
            pace.learn(decodes, 0, device(decodes, 0));
            for _ in 0..50 {
                let prompts = pace.rows(decodes, decodes).min(448);
                pace.learn(decodes, prompts, device(decodes, prompts));
            }
            let got = device(decodes, pace.rows(decodes, decodes)) / device(decodes, 0);
            let aim = AIM * f64::from(factor);
            assert!((got - aim).abs() < 0.04 * aim, "{factor}, {decodes}: {got}");
        }
    }

    #[test]
    fn few_that_generate_do_not_hold_back_many_that_wait() {
        let mut pace = Pace::new(Some(2.0));
        pace.learn(2, 0, 2e-3);
        pace.learn(64, 0, 8e-3);
        pace.learn(64, 80, 16e-3);
        let near = |got: usize, want: usize| assert!(got.abs_diff(want) <= 1, "{got} rows, not {want}");
        near(pace.rows(2, 2), LEAST_ROWS);
        near(pace.rows(2, 64), 116);
        near(pace.rows(64, 64), 56);
        // Nor before it is known how long a step of many takes.
        let mut pace = Pace::new(Some(2.0));
        pace.learn(4, 0, 2e-3);
        pace.learn(4, 64, 8.4e-3);
        near(pace.rows(4, 4), LEAST_ROWS);
        near(pace.rows(4, 64), 116);
    }

    #[test]
    fn nothing_is_held_back_where_nobody_waits_or_nothing_is_known() {
        let mut pace = Pace::new(Some(2.0));
        assert_eq!((pace.rows(0, 8), pace.rows(8, 8)), (usize::MAX, usize::MAX));
        pace.learn(8, 0, 1e-3);
        assert_eq!((pace.rows(0, 8), pace.rows(8, 8), pace.rows(9, 9)), (usize::MAX, FIRST_ROWS, FIRST_ROWS));
        let mut off = Pace::new(None);
        off.learn(8, 0, 1e-3);
        assert_eq!(off.rows(8, 8), usize::MAX);
    }

    #[test]
    fn clocks_that_lie_do_not_stop_prompts() {
        let mut pace = Pace::new(Some(2.0));
        for seconds in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e-300, 1e300] {
            pace.learn(4, 0, seconds);
            pace.learn(4, 100, seconds);
            assert!(pace.rows(4, 4) >= LEAST_ROWS);
        }
    }
}
