//! The router: which experts a row goes to, and with what weights. One row at a time, in plain Rust: a row's logits are
//! few, and its choice must not depend on its company.

use tombolo_model::{ExpertGroups, Gating};

/// How experts are chosen.
pub(crate) struct Rule<'a> {
    pub(crate) gating: Gating,
    /// Added for the choice alone.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) groups: Option<ExpertGroups>,
    pub(crate) normalise: bool,
    pub(crate) scale: f32,
}

/// Room that is used anew for every row.
#[derive(Default)]
pub(crate) struct Scratch {
    scores: Vec<f32>,
    choice: Vec<f32>,
    order: Vec<u32>,
}

impl Rule<'_> {
    /// Chooses as many experts as `experts` has places, the best first; of equals the lower number. NaN is the worst.
    pub(crate) fn route(&self, logits: &[f32], scratch: &mut Scratch, experts: &mut [u32], weights: &mut [f32]) {
        let Scratch { scores, choice, order } = scratch;
        scores.clear();
        scores.extend_from_slice(logits);
        match self.gating {
            Gating::Softmax => softmax(scores),
            Gating::Sigmoid => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
            Gating::SoftmaxSelected => {}
        }
        choice.clear();
        choice.extend(scores.iter().map(|&s| if s.is_nan() { f32::NEG_INFINITY } else { s }));
        if let Some(bias) = self.bias {
            choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
        }
        if let Some(groups) = self.groups {
            close_groups(choice, groups, self.gating == Gating::Softmax);
        }
        order.clear();
        order.extend(0..choice.len() as u32);
        order.sort_by(|&a, &b| choice[b as usize].total_cmp(&choice[a as usize]));
        for ((expert, weight), &chosen) in experts.iter_mut().zip(weights.iter_mut()).zip(order.iter()) {
            *expert = chosen;
            *weight = scores[chosen as usize];
        }
        if self.gating == Gating::SoftmaxSelected {
            softmax(weights);
        }
        if self.normalise {
            let sum: f32 = weights.iter().sum::<f32>() + 1e-20;
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= self.scale);
    }
}

fn softmax(values: &mut [f32]) {
    let most = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    values.iter_mut().for_each(|v| *v = (*v - most).exp());
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

/// Leaves only the best groups open: those with the best expert, or those whose two best have the largest sum.
fn close_groups(choice: &mut [f32], groups: ExpertGroups, by_best: bool) {
    let size = choice.len() / groups.count;
    let score = |group: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &c in group {
            if c > first {
                (first, second) = (c, first);
            } else if c > second {
                second = c;
            }
        }
        if by_best { first } else { first + second }
    };
    let scores: Vec<f32> = choice.chunks(size).map(score).collect();
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    for &closed in &order[groups.used..] {
        choice[closed * size..][..size].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(rule: &Rule, logits: &[f32], top_k: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (vec![u32::MAX; top_k], vec![f32::NAN; top_k]);
        rule.route(logits, &mut Scratch::default(), &mut experts, &mut weights);
        (experts, weights)
    }

    fn rule(gating: Gating) -> Rule<'static> {
        Rule { gating, bias: None, groups: None, normalise: false, scale: 1.0 }
    }

    fn close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 1e-6, "{got:?}, not {want:?}");
        }
    }

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.5, 0.0, 1.0];

    #[test]
    fn softmax_is_over_all_or_over_the_chosen() {
        let exp = LOGITS.map(|l| f64::from(l).exp());
        let all: f64 = exp.iter().sum();
        let (experts, weights) = route(&rule(Gating::Softmax), &LOGITS, 2);
        assert_eq!(experts, [3, 1]);
        close(&weights, &[exp[3] / all, exp[1] / all]);
        let of_two = [exp[3] / (exp[3] + exp[1]), exp[1] / (exp[3] + exp[1])];
        close(&route(&Rule { normalise: true, ..rule(Gating::Softmax) }, &LOGITS, 2).1, &of_two);
        close(&route(&rule(Gating::SoftmaxSelected), &LOGITS, 2).1, &of_two);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let bias = [0.0, 0.0, 0.9, 0.0, 0.0, 0.0];
        let (experts, weights) = route(&Rule { bias: Some(&bias), scale: 2.5, ..rule(Gating::Sigmoid) }, &LOGITS, 2);
        assert_eq!(experts, [2, 3]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        close(&weights, &[2.5 * sigmoid(-1.0), 2.5 * sigmoid(2.5)]);
    }

    #[test]
    fn groups_limit_the_choice() {
        // Sums of the best two: 2.5, 1.5, 1.0. The best of the second group is better than the second of the first.
        let logits = [2.0, 0.5, 0.0, 1.4, 0.1, -1.0, 0.5, 0.5, 0.0];
        let groups = |used| Rule { groups: Some(ExpertGroups { count: 3, used }), ..rule(Gating::SoftmaxSelected) };
        assert_eq!(route(&groups(1), &logits, 2).0, [0, 1]);
        assert_eq!(route(&groups(2), &logits, 2).0, [0, 3]);
    }

    #[test]
    fn equals_come_in_order_and_nan_comes_last() {
        assert_eq!(route(&rule(Gating::Softmax), &[1.0, 3.0, 3.0, 3.0], 3).0, [1, 2, 3]);
        let (experts, _) = route(&rule(Gating::SoftmaxSelected), &[f32::NAN, -5.0, f32::NAN, -9.0], 2);
        assert_eq!(experts, [1, 3]);
        let (experts, _) = route(&rule(Gating::Softmax), &[f32::NAN; 4], 4);
        assert_eq!(experts, [0, 1, 2, 3]);
    }
}
