//! What a server's `/metrics` say of speculative decoding: under vLLM's names, or llama-server's, which differ in what
//! stands before the colon.

use super::http::Client;
use hyper::Method;
use hyper::body::Bytes;
use std::collections::BTreeMap;

/// Sums since the server started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Speculation {
    pub(super) drafts: f64,
    pub(super) draft_tokens: f64,
    pub(super) accepted: f64,
    /// Accepted at each place of a draft.
    pub(super) by_place: BTreeMap<u32, f64>,
}

impl Speculation {
    /// `None` where the server tells nothing of it.
    pub(super) async fn of(client: &Client) -> Option<Self> {
        let answer = client.whole_of_root(Method::GET, "/metrics", Bytes::new()).await;
        let (200, page) = answer.ok()? else { return None };
        Self::read(std::str::from_utf8(&page).ok()?)
    }

    fn read(page: &str) -> Option<Self> {
        let mut sums = Self::default();
        let mut is_there = false;
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Some((_, name)) = name.split_once(':') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            match name {
                "spec_decode_num_drafts_total" => {
                    is_there = true;
                    sums.drafts += value;
                }
                "spec_decode_num_draft_tokens_total" => sums.draft_tokens += value,
                "spec_decode_num_accepted_tokens_total" => sums.accepted += value,
                "spec_decode_num_accepted_tokens_per_pos_total" => {
                    let place = labels.split("position=\"").nth(1).and_then(|rest| rest.split('"').next());
                    if let Some(place) = place.and_then(|place| place.parse().ok()) {
                        *sums.by_place.entry(place).or_default() += value;
                    }
                }
                _ => {}
            }
        }
        is_there.then_some(sums)
    }

    /// What came since; `None` where nothing was drafted.
    pub(super) fn since(&self, before: &Self) -> Option<Self> {
        let place = |(&place, &value): (&u32, &f64)| (place, value - before.by_place.get(&place).unwrap_or(&0.0));
        let since = Self {
            drafts: self.drafts - before.drafts,
            draft_tokens: self.draft_tokens - before.draft_tokens,
            accepted: self.accepted - before.accepted,
            by_place: self.by_place.iter().map(place).collect(),
        };
        (since.drafts > 0.0 && since.draft_tokens > 0.0).then_some(since)
    }

    /// Accepted of the drafted, in percent.
    pub(super) fn acceptance_rate(&self) -> f64 {
        100.0 * self.accepted / self.draft_tokens
    }

    /// Tokens of a step that a draft went before: its own and the accepted.
    pub(super) fn acceptance_length(&self) -> f64 {
        1.0 + self.accepted / self.drafts
    }

    /// Of all drafts, the part that was accepted so far.
    pub(super) fn rates_by_place(&self) -> Vec<f64> {
        self.by_place.values().map(|accepted| accepted / self.drafts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_in_between_is_told() {
        let page = |drafts: u32, accepted: u32| {
            format!(
                "# TYPE vllm:spec_decode_num_drafts counter\n\
                 vllm:spec_decode_num_drafts_total{{engine=\"0\",model_name=\"a b\"}} {drafts}\n\
                 vllm:spec_decode_num_draft_tokens_total{{engine=\"0\"}} {}\n\
                 vllm:spec_decode_num_accepted_tokens_total {accepted}\n\
                 vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine=\"0\",position=\"0\"}} {accepted}.0\n\
                 vllm:other 1\nnonsense\n",
                2 * drafts
            )
        };
        let read = |drafts, accepted| Speculation::read(&page(drafts, accepted)).unwrap();
        let since = read(30, 15).since(&read(10, 5)).unwrap();
        assert_eq!((since.acceptance_rate(), since.acceptance_length()), (25.0, 1.5));
        assert_eq!(since.rates_by_place(), [0.5]);
        assert_eq!(read(10, 5).since(&read(10, 5)), None);
        assert_eq!(Speculation::read("llamacpp:n_decode_total 3\n"), None);
    }
}
