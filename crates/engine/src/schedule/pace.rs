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
/// After so many steps with prompts a rung that was too slow is tried again.
const TRIED_AGAIN: u64 = 200;
/// Rungs that are told apart: up to 16,384 rows.
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
}

impl Pace {
    pub(super) fn new(factor: Option<f32>, most: usize) -> Self {
        let factor = factor.map(f64::from);
        Self { factor, most, plain: [None; RUNGS], mixed: [None; RUNGS], known_from: [0; RUNGS], steps: 0 }
    }

    /// Most rows of prompts beside `decodes` rows of answers, where there would be `all` if everybody here generated.
    pub(super) fn rows(&self, decodes: usize, all: usize) -> usize {
        let factor = self.factor.filter(|_| decodes > 0);
        let (Some(factor), Some(plain)) = (factor, nearest(&self.plain, rung(decodes))) else { return usize::MAX };
        let least = rung(decodes + LEAST_ROWS);
        // The lowest runs whatever it takes, and so does what takes hardly longer.
        let limit = (AIM * factor * self.full(plain, all)).max(HARDLY * self.mixed[least].unwrap_or(0.0));
        let (mut chosen, mut below_fits) = (least, true);
        for at in least..=rung(self.most) {
            match self.mixed[at] {
                Some(seconds) if seconds <= limit => (chosen, below_fits) = (at, true),
                Some(_) if !self.is_old(at) => below_fits = false,
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
            mix(&mut self.plain[rung(decodes)], seconds);
            return;
        }
        self.steps += 1;
        let at = rung(decodes + prompts);
        // One that does not fill its rung says only that this takes no less.
        let fills = 8 * (decodes + prompts) >= 7 * top(at).min(self.most);
        if fills || self.mixed[at].is_some_and(|known| seconds > known) {
            if self.is_old(at) {
                self.mixed[at] = None;
            }
            mix(&mut self.mixed[at], seconds);
            self.known_from[at] = self.steps;
            // Where fewer rows take longer, nobody runs them.
            let (fewer, others) = self.mixed.split_at_mut(at);
            let known = others[0].unwrap_or(seconds);
            fewer.iter_mut().flatten().for_each(|longer| *longer = longer.min(known));
        }
    }

    /// Whether what is known of a rung is from long ago.
    fn is_old(&self, at: usize) -> bool {
        self.steps - self.known_from[at] > TRIED_AGAIN
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
    fn nothing_is_held_back_where_nobody_waits_or_nothing_is_known() {
        let mut pace = Pace::new(Some(2.0), 512);
        assert_eq!((pace.rows(0, 8), pace.rows(8, 8)), (usize::MAX, usize::MAX));
        pace.learn(8, 0, 1e-3);
        assert_eq!((pace.rows(0, 8), pace.rows(8, 8)), (usize::MAX, 24 - 8));
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
    fn clocks_that_lie_do_not_stop_prompts() {
        let mut pace = Pace::new(Some(2.0), 512);
        for seconds in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e-300, 1e300] {
            for prompts in [0, 100, 1000, 100_000] {
                pace.learn(4, prompts, seconds);
                assert!(pace.rows(4, 4) >= LEAST_ROWS);
            }
        }
    }
}
