//! Draws on the host: for requests whose logits are changed first, or told about.
//!
//! The law is that of every backend, over all logits ([`tombolo_model::draw_from_all`]); where nothing changes them, the token
//! is the one that the ranks drew.

use crate::request::{Extra, Logprobs, Penalties, Reason, Request};
use std::collections::HashMap;
use tombolo_model::{Sampling, Summary, draw_from_all};

/// How often tokens occurred in a request.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Times generated; 0: in the prompt alone.
    by_token: HashMap<u32, u32>,
}

impl Counts {
    pub(crate) fn of_prompt(prompt: &[u32]) -> Self {
        Self { by_token: prompt.iter().map(|&token| (token, 0)).collect() }
    }

    pub(crate) fn add(&mut self, token: u32) {
        *self.by_token.entry(token).or_default() += 1;
    }
}

/// What was drawn for a request, and told of it.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

/// Draws a request's next token from the `logits` of the one at `position`, unless nothing changes these: then it is the one
/// that the ranks drew.
pub(crate) fn draw(
    logits: &[f32],
    by_ranks: u32,
    request: &mut Request,
    counts: &mut Counts,
    generated: usize,
    position: u32,
) -> Result<Drawn, Reason> {
    let Request { extra: Some(extra), stop, sampling, .. } = request else {
        return Ok(Drawn { token: by_ranks, logprobs: None });
    };
    let mut token = by_ranks;
    if changes(extra, generated) {
        let mut changed = logits.to_vec();
        adjust(&mut changed, extra, counts, stop, generated);
        let fault = || extra.mask.as_ref().and_then(|mask| mask.fault()).map_or(Reason::NotNumbers, Reason::Mask);
        token = draw_from_all(&changed, sampling, position).ok_or_else(fault)?;
    } else if draw_from_all(logits, &Sampling::GREEDY, position).is_none() {
        return Err(Reason::NotNumbers);
    }
    counts.add(token);
    if let Some(mask) = &mut extra.mask {
        mask.accept(token);
    }
    Ok(Drawn { token, logprobs: extra.logprobs.map(|top| Box::new(logprobs(logits, token, top))) })
}

/// Whether the logits of a token are needed on the host, after so many.
pub(crate) fn is_on_host(extra: &Extra, generated: usize) -> bool {
    extra.logprobs.is_some() || changes(extra, generated)
}

/// Whether a request has its logits changed, and not just told about.
fn changes(extra: &Extra, generated: usize) -> bool {
    let Extra { min_tokens, penalties, bias, mask, logprobs: _, prompt_logprobs: _ } = extra;
    generated < *min_tokens || *penalties != Penalties::default() || !bias.is_empty() || mask.is_some()
}

/// Changes a row's logits as a request wants them: bias, penalties, grammar, the least length. Where nothing but ends is left,
/// the least length has none to hold back.
fn adjust(logits: &mut [f32], extra: &mut Extra, counts: &Counts, stop: &[u32], generated: usize) {
    let mut change = |token: u32, by: &dyn Fn(f32) -> f32| {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = by(*logit);
        }
    };
    for &(token, bias) in &extra.bias {
        change(token, &|logit| logit + bias);
    }
    let penalties = extra.penalties;
    if penalties != Penalties::default() {
        for (&token, &times) in &counts.by_token {
            let minus = if times > 0 { penalties.presence + penalties.frequency * times as f32 } else { 0.0 };
            let repeated = |logit: f32| {
                if logit > 0.0 { logit / penalties.repetition } else { logit * penalties.repetition }
            };
            change(token, &|logit| repeated(logit) - minus);
        }
    }
    if let Some(allowed) = extra.mask.as_mut().and_then(|mask| mask.allowed()) {
        for (logits, word) in logits.chunks_mut(32).zip(allowed.iter().chain(std::iter::repeat(&0))) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
    if generated < extra.min_tokens {
        let held = |&id: &u32| Some((id as usize, *logits.get(id as usize)?));
        let held: Vec<(usize, f32)> = stop.iter().filter_map(held).collect();
        held.iter().for_each(|&(id, _)| logits[id] = f32::NEG_INFINITY);
        if !logits.iter().any(|logit| logit.is_finite()) {
            held.into_iter().for_each(|(id, logit)| logits[id] = logit);
        }
    }
}

/// How likely `token` was, and the `top` likeliest tokens.
pub(crate) fn logprobs(logits: &[f32], token: u32, top: usize) -> Logprobs {
    let best = Summary::of(logits, 0, 1.0, top.max(1));
    let most = best.candidates.first().map_or(f32::NEG_INFINITY, |best| best.logit);
    let all = f64::from(most) + best.weight.ln();
    let of = |logit: f32| (f64::from(logit) - all) as f32;
    let own = logits.get(token as usize).copied().filter(|logit| !logit.is_nan()).unwrap_or(f32::NEG_INFINITY);
    let better = logits.iter().filter(|&&logit| logit > own).count();
    let top = best.candidates.iter().take(top).map(|c| (c.token, of(c.logit))).collect();
    Logprobs { logprob: of(own), rank: 1 + better, top }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Mask;

    #[derive(Debug)]
    struct Only(Vec<u32>);

    impl Mask for Only {
        fn allowed(&mut self) -> Option<&[u32]> {
            Some(&self.0)
        }

        fn accept(&mut self, _: u32) {}
    }

    fn adjusted(extra: &mut Extra, counts: &Counts, generated: usize) -> Vec<f32> {
        let mut logits = vec![1.0, -1.0, 2.0, 0.5];
        adjust(&mut logits, extra, counts, &[2], generated);
        logits
    }

    #[test]
    fn logits_are_changed_as_asked_for() {
        let mut counts = Counts::of_prompt(&[0, 1, 9]);
        counts.add(2);
        counts.add(2);
        let plain = vec![1.0, -1.0, 2.0, 0.5];
        assert_eq!(adjusted(&mut Extra::default(), &counts, 0), plain);
        let bias = vec![(3, 1.5), (1, -2.0), (77, 1.0)];
        assert_eq!(adjusted(&mut Extra { bias, ..Extra::default() }, &counts, 0), [1.0, -3.0, 2.0, 2.0]);
        let mut least = Extra { min_tokens: 2, ..Extra::default() };
        assert_eq!(adjusted(&mut least, &counts, 1)[2], f32::NEG_INFINITY);
        assert_eq!(adjusted(&mut least, &counts, 2), plain);
        let penalties = Penalties { repetition: 2.0, presence: 0.25, frequency: 0.125 };
        let mut against = Extra { penalties, ..Extra::default() };
        assert_eq!(adjusted(&mut against, &counts, 0), [0.5, -2.0, 1.0 - 0.5, 0.5]);
        let mut only = Extra { mask: Some(Box::new(Only(vec![0b1010]))), ..Extra::default() };
        assert_eq!(adjusted(&mut only, &counts, 0), [f32::NEG_INFINITY, -1.0, f32::NEG_INFINITY, 0.5]);
        // Only the end is left: it is not held back.
        let mut end = Extra { mask: Some(Box::new(Only(vec![0b100]))), min_tokens: 5, ..Extra::default() };
        assert_eq!(adjusted(&mut end, &counts, 0), [f32::NEG_INFINITY, f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY]);
        let mut end = Extra { mask: Some(Box::new(Only(vec![0b101]))), min_tokens: 5, ..Extra::default() };
        assert_eq!(adjusted(&mut end, &counts, 0)[2], f32::NEG_INFINITY);
        // Nor where every token is an end.
        let mut all = vec![1.0, -1.0, 2.0, 0.5];
        adjust(&mut all, &mut Extra { min_tokens: 2, ..Extra::default() }, &counts, &[3, 0, 1, 2, 2, 77], 0);
        assert_eq!(all, plain);
        let mut none = Extra { mask: Some(Box::new(Only(Vec::new()))), ..Extra::default() };
        assert_eq!(draw_from_all(&adjusted(&mut none, &counts, 0), &Sampling::GREEDY, 0), None);
    }

    #[test]
    fn logprobs_are_those_of_a_softmax() {
        let logits = [1.0f32, 3.0, f32::NAN, 2.0];
        let sum: f32 = [1.0f32, 3.0, 2.0].iter().map(|l| l.exp()).sum();
        let found = logprobs(&logits, 3, 2);
        assert!((found.logprob - (2.0 - sum.ln())).abs() < 1e-6);
        assert_eq!((found.rank, found.top.iter().map(|t| t.0).collect::<Vec<_>>()), (2, vec![1, 3]));
        assert_eq!(found.top[1].1, found.logprob);
        assert!(logprobs(&logits, 1, 0).top.is_empty());
        assert_eq!(logprobs(&[f32::NAN; 3], 1, 2).rank, 1);
    }
}
