//! How many rows of prompts a step may have beside answers that are being generated, so that these do not stutter.
//!
//! Learned from how long steps took. A step's time does not grow evenly with its rows: a GPU computes tiles of rows, and one
//! row more than a tile holds costs as much as a whole tile, while what is free in the tile that the answers need anyway
//! costs nearly nothing. So times are kept by rungs of a ladder of row counts, and a step is filled up to the highest rung
//! that stays within the limit. The limit is of what a step without prompts takes when all who are here generate: measured
//! against the few that already do, these would hold back the many that wait.

/// Rows of prompts that a step may always have, so that they get on.
const LEAST_ROWS: usize = 16;
/// Weight of the newest step.
const NEW: f64 = 0.3;
/// A step that took longer than so many times what is known, or less than that part of it, counts as just that: one that
/// was held up says little.
const MOST_AT_ONCE: f64 = 1.25;
/// What is aimed at of the longest that a step may take: steps scatter, and get longer as answers do.
const AIM: f64 = 0.85;
/// What a larger step may take of the smallest that always runs.
const HARDLY: f64 = 1.1;
/// How many rungs above the smallest one that reaches.
const NEXT: usize = 2;
/// After so many steps with prompts a rung that was too slow is tried again, and a step goes without prompts.
const TRIED_AGAIN: u64 = 200;
/// Rungs that are told apart: up to 12,288 rows.
const RUNGS: usize = 28;

type Seconds = [Option<f64>; RUNGS];

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// How many times as long a step may take with prompts as without; `None`: any.
    factor: Option<f64>,
    /// Most rows of a step.
    most: usize,
    /// A step without prompts.
    plain: Seconds,
    /// A step with prompts, by all its rows.
    mixed: Seconds,
    /// Which of these steps a rung is known from.
    known_from: [u64; RUNGS],
    /// Steps with prompts so far.
    steps: u64,
    /// Times that it was asked.
    asked: u64,
    /// Of these, when the next step without prompts is due.
    plain_due: u64,
}

impl Pace {
    pub(super) fn new(factor: Option<f32>, most: usize) -> Self {
        Self {
            factor: factor.map(f64::from),
            most,
            plain: [None; RUNGS],
            mixed: [None; RUNGS],
            known_from: [0; RUNGS],
            steps: 0,
            asked: 0,
            plain_due: 0,
        }
    }

    /// Most rows of prompts beside `decodes` rows of answers, where there would be `all` if everybody here generated.
    /// None once in a while: what they would be measured against has to be seen, too.
    pub(super) fn rows(&mut self, decodes: usize, all: usize) -> usize {
        let Some(factor) = self.factor.filter(|_| decodes > 0) else { return usize::MAX };
        if self.asked >= self.plain_due {
            self.plain_due = self.asked + TRIED_AGAIN;
            // What is known is from long ago.
            self.plain[rung(decodes)] = None;
            return 0;
        }
        self.asked += 1;
        let Some(plain) = nearest(&self.plain, rung(decodes)) else { return usize::MAX };
        let least = rung(decodes + LEAST_ROWS);
        let limit = AIM * factor * self.full(plain, all);
        // The smallest runs whatever it takes, and so does what takes hardly longer.
        let hardly = self.mixed[least].map_or(limit, |seconds| limit.max(HARDLY * seconds));
        let (mut chosen, mut below_fits) = (least, true);
        for at in least..=rung(self.most) {
            let limit = if at <= least + NEXT { hardly } else { limit };
            match self.mixed[at] {
                Some(seconds) if seconds <= limit => (chosen, below_fits) = (at, true),
                Some(_) if !self.is_old(self.known_from[at]) => below_fits = false,
                // What it takes is not known: it is tried where the one below it may run.
                _ if below_fits => (chosen, below_fits) = (at, false),
                _ => {}
            }
        }
        top(chosen) - decodes
    }

    /// A step without prompts when everybody generates. Before there was one: no less than one that was smaller.
    fn full(&self, plain: f64, all: usize) -> f64 {
        let at = rung(all);
        let smaller = |seconds: &Seconds| seconds[..=at].iter().rev().find_map(|known| *known).unwrap_or(plain);
        self.plain[at].unwrap_or_else(|| smaller(&self.plain).max(smaller(&self.mixed))).max(plain)
    }

    /// A step of so many rows took so long. Nonsense from a clock is passed over.
    pub(super) fn learn(&mut self, decodes: usize, prompts: usize, seconds: f64) {
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        if prompts == 0 {
            let seconds = self.at_most(seconds, rung(decodes));
            mix(&mut self.plain[rung(decodes)], seconds);
            self.plain_due = self.asked + TRIED_AGAIN;
            return;
        }
        self.steps += 1;
        let at = rung(decodes + prompts);
        let seconds = self.at_most(seconds, at + 1);
        let is_old = self.is_old(self.known_from[at]);
        // One that does not fill its rung says only that this takes no less.
        let fills = 8 * (decodes + prompts) >= 7 * top(at).min(self.most);
        if fills || is_old || self.mixed[at].is_none_or(|known| seconds > known) {
            if is_old {
                self.mixed[at] = None;
            }
            mix(&mut self.mixed[at], seconds);
            self.known_from[at] = self.steps;
        }
        // Fewer rows never take longer, or nobody would run them.
        if let Some(known) = self.mixed[at] {
            let fewer = self.mixed[..at].iter_mut().chain(&mut self.plain[..=at]);
            fewer.flatten().for_each(|longer| *longer = longer.min(known));
        }
    }

    /// What was measured, but no more than what steps of the rungs from `first` on took lately.
    fn at_most(&self, seconds: f64, first: usize) -> f64 {
        let lately = (first..RUNGS).filter(|&at| !self.is_old(self.known_from[at])).filter_map(|at| self.mixed[at]);
        lately.fold(seconds, f64::min)
    }

    /// Whether a step is long ago.
    fn is_old(&self, step: u64) -> bool {
        self.steps - step > TRIED_AGAIN
    }
}

/// The lowest rung that holds so many rows.
fn rung(rows: usize) -> usize {
    (0..RUNGS).find(|&at| rows <= top(at)).unwrap_or(RUNGS - 1)
}

/// The most rows of a rung: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on. The last one has no end.
fn top(at: usize) -> usize {
    match at {
        0 => 1,
        _ if at + 1 == RUNGS => usize::MAX,
        _ if at % 2 == 1 => 1 << at.div_ceil(2),
        _ => 3 << (at / 2 - 1),
    }
}

fn nearest(seconds: &Seconds, to: usize) -> Option<f64> {
    let known = seconds.iter().enumerate().filter_map(|(at, seconds)| Some((at, (*seconds)?)));
    known.min_by_key(|(at, _)| at.abs_diff(to)).map(|(_, seconds)| seconds)
}

fn mix(value: &mut Option<f64>, new: f64) {
    *value = Some(value.map_or(new, |old| old + NEW * (new.clamp(old / MOST_AT_ONCE, old * MOST_AT_ONCE) - old)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Seconds of a step whose time grows evenly.
    fn even(decodes: usize, prompts: usize) -> f64 {
        1e-3 * (4.0 + 0.05 * (decodes + prompts) as f64 + if prompts > 0 { 1.0 } else { 0.0 })
    }

    /// As an H200 takes them: tiles of 64 rows, smaller ones for few rows, the one of 24 a bad fit.
    fn tiles(decodes: usize, prompts: usize) -> f64 {
        1e-3 * match (decodes + prompts, prompts) {
            (..=2, 0) => 2.1,
            (..=8, 0) => 3.5,
            (..=16, _) => 4.5,
            (..=24, _) => 6.5,
            (..=32, _) => 5.8,
            (rows, _) => 4.5 + 4.4 * rows.div_ceil(64) as f64,
        }
    }

    /// Runs steps as long as prompts last, which is for ever, and gives the rows of the last one.
    fn settle(pace: &mut Pace, device: fn(usize, usize) -> f64, decodes: usize, steps: usize) -> usize {
        pace.learn(decodes, 0, device(decodes, 0));
        for _ in 0..steps {
            let prompts = pace.rows(decodes, decodes).min(512 - decodes);
            pace.learn(decodes, prompts, device(decodes, prompts));
        }
        decodes + pace.rows(decodes, decodes)
    }

    #[test]
    fn rungs_hold_what_they_are_found_for() {
        for rows in 1..20_000 {
            let at = rung(rows);
            assert!(rows <= top(at) && (at == 0 || rows > top(at - 1)));
        }
        assert_eq!([24, 32, 48, 64, 96].map(|rows| top(rung(rows))), [24, 32, 48, 64, 96]);
    }

    #[test]
    fn steps_are_filled_to_the_end_of_a_tile() {
        for (factor, decodes, rows) in [(2.0, 64, 128), (3.0, 64, 256), (2.0, 8, 32), (3.0, 8, 64), (1.5, 32, 64)] {
            assert_eq!(settle(&mut Pace::new(Some(factor), 512), tiles, decodes, 20), rows, "{factor}, {decodes}");
        }
    }

    #[test]
    fn where_time_grows_evenly_it_is_the_highest_rung_within_the_limit() {
        for (factor, decodes) in [(2.0, 64), (3.0, 64), (2.0, 8), (4.0, 2)] {
            let rows = settle(&mut Pace::new(Some(factor), 512), even, decodes, 20);
            let limit = AIM * f64::from(factor) * even(decodes, 0);
            assert!(even(decodes, rows - decodes) <= limit, "{factor}, {decodes}: {rows}");
            assert!(even(decodes, top(rung(rows + 1)) - decodes) > limit, "{factor}, {decodes}: {rows}");
        }
    }

    #[test]
    fn few_that_generate_do_not_hold_back_many_that_wait() {
        let mut pace = Pace::new(Some(2.0), 512);
        settle(&mut pace, tiles, 64, 20);
        settle(&mut pace, tiles, 2, 20);
        assert_eq!([2, 64].map(|all| 2 + pace.rows(2, all)), [32, 128]);
        // Nor before there was a step of many that generate: one with prompts was as large.
        let mut pace = Pace::new(Some(2.0), 512);
        settle(&mut pace, tiles, 2, 20);
        pace.learn(2, 62, tiles(2, 62));
        pace.learn(2, 126, tiles(2, 126));
        pace.learn(2, 190, tiles(2, 190));
        assert_eq!(2 + pace.rows(2, 64), 128);
    }

    #[test]
    fn nothing_is_held_back_where_nobody_waits_or_nothing_is_learned() {
        let mut pace = Pace::new(Some(2.0), 512);
        // One step to learn from.
        assert_eq!([0, 8, 8, 0].map(|decodes| pace.rows(decodes, 8)), [usize::MAX, 0, usize::MAX, usize::MAX]);
        pace.learn(8, 0, 1e-3);
        assert_eq!([0, 8].map(|decodes| pace.rows(decodes, 8)), [usize::MAX, 24 - 8]);
        let mut off = Pace::new(None, 512);
        off.learn(8, 0, 1e-3);
        assert_eq!(off.rows(8, 8), usize::MAX);
    }

    #[test]
    fn one_step_that_was_held_up_changes_nothing_and_what_gets_quicker_is_noticed() {
        let mut pace = Pace::new(Some(2.0), 512);
        assert_eq!(settle(&mut pace, tiles, 64, 20), 128);
        pace.learn(64, 64, 0.5);
        assert_eq!(settle(&mut pace, tiles, 64, 0), 128);
        let slow = |d, p| if p > 0 { 3.0 * tiles(d, p) } else { tiles(d, p) };
        assert!(settle(&mut pace, slow, 64, 200) <= 128);
        settle(&mut pace, tiles, 64, 2000);
        // What is too slow is tried again, but seldom.
        let rows = |_| settle(&mut pace, tiles, 64, 1);
        let tried = (0..2000).map(rows).filter(|&rows| rows != 128).count();
        assert!((5..=20).contains(&tried), "{tried}");
    }

    #[test]
    fn a_largest_step_between_two_rungs_is_learned_too() {
        let mut pace = Pace::new(Some(2.0), 300);
        pace.learn(64, 0, tiles(64, 0));
        pace.learn(64, 300 - 64, tiles(64, 300 - 64));
        assert!(pace.mixed[rung(300)].is_some());
    }

    #[test]
    fn a_rung_that_prompts_do_not_fill_is_not_run_for_ever() {
        let cliff = |decodes: usize, prompts: usize| if decodes + prompts <= 128 { 9e-3 } else { 60e-3 };
        let mut pace = Pace::new(Some(2.0), 512);
        pace.learn(64, 0, 9e-3);
        let mut slow = 0;
        for _ in 0..1000 {
            let prompts = pace.rows(64, 64).min(70);
            slow += usize::from(cliff(64, prompts) > 0.02);
            pace.learn(64, prompts, cliff(64, prompts));
        }
        assert!(slow <= 20, "{slow}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Steps were held up or took another time before, for whatever reason: it comes back within the limit.
        #[test]
        fn it_finds_back(
            before in prop::collection::vec((1usize..100, 0usize..512, -1.0f64..3.0), 0..40),
            decodes in 1usize..=64,
            slow in 0.2f64..5.0,
            is_even: bool,
        ) {
            let mut pace = Pace::new(Some(2.0), 512);
            let device = |decodes, prompts| slow * if is_even { even(decodes, prompts) } else { tiles(decodes, prompts) };
            for (decodes, prompts, power) in before {
                let prompts = prompts.min(512 - decodes);
                pace.learn(decodes, prompts, device(decodes, prompts) * 10f64.powf(power));
            }
            let mut seconds = |_| {
                let prompts = pace.rows(decodes, decodes).min(512 - decodes);
                pace.learn(decodes, prompts, device(decodes, prompts));
                device(decodes, prompts)
            };
            (0..1500).for_each(|step| _ = seconds(step));
            let least = (LEAST_ROWS..=2 * (decodes + LEAST_ROWS)).map(|rows| device(decodes, rows)).fold(0.0, f64::max);
            let limit = (2.0 * device(decodes, 0)).max(1.2 * least);
            let over = (0..1000).map(seconds).filter(|seconds| *seconds > limit).count();
            prop_assert!(over <= 10, "{over} of 1,000");
        }
    }

    #[test]
    fn clocks_that_lie_do_not_stop_prompts() {
        let mut pace = Pace::new(Some(2.0), 512);
        for seconds in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e-300, 1e300] {
            for prompts in [0, 100, 1000, 100_000] {
                pace.learn(4, prompts, seconds);
                assert!(pace.rows(4, 4).max(pace.rows(4, 4)) >= LEAST_ROWS);
            }
        }
    }
}
