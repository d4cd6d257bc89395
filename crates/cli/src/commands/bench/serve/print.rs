//! A run's figures as the table and the JSON that `vllm bench serve` gives.

use super::drive::Outcome;
use super::figures::{Figures, Metric};
use super::speculation::Speculation;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Characters of a line.
const WIDTH: usize = 50;

/// What was asked for, beside what came of it.
pub(super) struct Run {
    /// When it began, as `20261130-031500`.
    pub(super) date: String,
    pub(super) backend: &'static str,
    pub(super) label: Option<String>,
    pub(super) model: String,
    pub(super) num_prompts: usize,
    pub(super) request_rate: f64,
    pub(super) burstiness: f64,
    pub(super) concurrency: Option<usize>,
    pub(super) figures: Figures,
    pub(super) speculation: Option<Speculation>,
    /// In the table.
    pub(super) shown: Vec<Metric>,
}

/// What a metric is called in the table: its heading and its rows' short name.
fn names(metric: Metric) -> (&'static str, &'static str) {
    match metric {
        Metric::Ttft => ("Time to First Token", "TTFT"),
        Metric::Tpot => ("Time per Output Token (excl. 1st token)", "TPOT"),
        Metric::Itl => ("Inter-token Latency", "ITL"),
        Metric::E2el => ("End-to-end Latency", "E2EL"),
    }
}

/// `99`, or `99.9`.
fn percent(p: f64) -> String {
    p.to_string()
}

impl Run {
    /// The table.
    pub(super) fn table(&self) -> String {
        let mut table = format!("{:=^WIDTH$}\n", " Serving Benchmark Result ");
        let figures = &self.figures;
        let mut row = |name: &str, value: String| {
            let _ = writeln!(table, "{name:<40} {value:<10}");
        };
        row("Successful requests:", figures.completed.to_string());
        row("Failed requests:", figures.failed.to_string());
        if let Some(most) = self.concurrency {
            row("Maximum request concurrency:", most.to_string());
        }
        if self.request_rate.is_finite() {
            row("Request rate configured (RPS):", format!("{:.2}", self.request_rate));
        }
        row("Benchmark duration (s):", format!("{:.2}", figures.duration));
        row("Total input tokens:", figures.input_tokens.to_string());
        if figures.cached_tokens > 0 {
            row("Of them from the server's cache:", figures.cached_tokens.to_string());
        }
        row("Total generated tokens:", figures.output_tokens.to_string());
        let rate = |count| format!("{:.2}", figures.rate(count));
        row("Request throughput (req/s):", rate(figures.completed));
        if let Some(good) = figures.good {
            row("Request goodput (req/s):", rate(good));
        }
        row("Output token throughput (tok/s):", rate(figures.output_tokens));
        row("Peak output token throughput (tok/s):", format!("{:.2}", figures.peak_output_tokens_s));
        row("Peak concurrent requests:", format!("{:.2}", figures.peak_concurrent as f64));
        row("Total token throughput (tok/s):", rate(figures.input_tokens + figures.output_tokens));
        for (metric, summary) in figures.metrics.iter().filter(|(metric, _)| self.shown.contains(metric)) {
            let (heading, short) = names(*metric);
            let _ = writeln!(table, "{heading:-^WIDTH$}");
            let tails = summary.percentiles.iter().map(|&(p, value)| (format!("P{}", percent(p)), value));
            for (name, value) in
                [("Mean".to_string(), summary.mean), ("Median".into(), summary.median)].into_iter().chain(tails)
            {
                let _ = writeln!(table, "{:<40} {value:<10.2}", format!("{name} {short} (ms):"));
            }
        }
        if let Some(speculation) = &self.speculation {
            speculation_rows(&mut table, speculation);
        }
        table + &"=".repeat(WIDTH)
    }

    /// What is saved. `outcomes`: every request's own figures, too.
    pub(super) fn json(&self, outcomes: Option<&[Outcome]>) -> Map<String, Value> {
        let figures = &self.figures;
        let rate = if self.request_rate.is_finite() { json!(self.request_rate) } else { json!("inf") };
        let mut all = Map::new();
        let mut put = |key: &str, value: Value| all.insert(key.to_string(), value);
        put("date", json!(self.date));
        put("backend", json!(self.backend));
        put("label", json!(self.label));
        put("model_id", json!(self.model));
        put("num_prompts", json!(self.num_prompts));
        put("request_rate", rate);
        put("burstiness", json!(self.burstiness));
        put("max_concurrency", json!(self.concurrency));
        put("duration", json!(figures.duration));
        put("completed", json!(figures.completed));
        put("failed", json!(figures.failed));
        put("total_input_tokens", json!(figures.input_tokens));
        put("total_cached_tokens", json!(figures.cached_tokens));
        put("total_output_tokens", json!(figures.output_tokens));
        put("request_throughput", json!(figures.rate(figures.completed)));
        put("request_goodput", json!(figures.good.map(|good| figures.rate(good))));
        put("output_throughput", json!(figures.rate(figures.output_tokens)));
        put("total_token_throughput", json!(figures.rate(figures.input_tokens + figures.output_tokens)));
        put("max_output_tokens_per_s", json!(figures.peak_output_tokens_s));
        put("max_concurrent_requests", json!(figures.peak_concurrent));
        for (metric, summary) in &figures.metrics {
            let key = metric.key();
            put(&format!("mean_{key}_ms"), json!(summary.mean));
            put(&format!("median_{key}_ms"), json!(summary.median));
            put(&format!("std_{key}_ms"), json!(summary.std));
            for &(p, value) in &summary.percentiles {
                put(&format!("p{}_{key}_ms", percent(p)), json!(value));
            }
        }
        if let Some(speculation) = &self.speculation {
            put("spec_decode_acceptance_rate", json!(speculation.acceptance_rate()));
            put("spec_decode_acceptance_length", json!(speculation.acceptance_length()));
            put("spec_decode_num_drafts", json!(speculation.drafts));
            put("spec_decode_draft_tokens", json!(speculation.draft_tokens));
            put("spec_decode_accepted_tokens", json!(speculation.accepted));
            put("spec_decode_per_position_acceptance_rates", json!(speculation.rates_by_place()));
        }
        if let Some(outcomes) = outcomes {
            all.extend(details(outcomes));
        }
        all
    }
}

fn speculation_rows(table: &mut String, speculation: &Speculation) {
    let _ = writeln!(table, "{:-^WIDTH$}", "Speculative Decoding");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(table, "{name:<40} {value:<10}");
    };
    row("Acceptance rate (%):", format!("{:.2}", speculation.acceptance_rate()));
    row("Acceptance length:", format!("{:.2}", speculation.acceptance_length()));
    row("Drafts:", speculation.drafts.to_string());
    row("Draft tokens:", speculation.draft_tokens.to_string());
    row("Accepted tokens:", speculation.accepted.to_string());
    let rates = speculation.rates_by_place();
    if !rates.is_empty() {
        row("Per-position acceptance (%):", String::new());
    }
    for (place, rate) in rates.iter().enumerate() {
        row(&format!("  Position {place}:"), format!("{:.2}", 100.0 * rate));
    }
}

/// List by list, request by request.
fn details(outcomes: &[Outcome]) -> Map<String, Value> {
    let list = |of: &dyn Fn(&Outcome) -> Value| Value::Array(outcomes.iter().map(of).collect());
    let error = |outcome: &Outcome| json!(outcome.error.as_ref().map(ToString::to_string).unwrap_or_default());
    let lists = json!({
        "input_lens": list(&|outcome| json!(outcome.prompt_tokens)),
        "output_lens": list(&|outcome| json!(outcome.output_tokens)),
        "ttfts": list(&|outcome| json!(outcome.ttft)),
        "itls": list(&|outcome| json!(outcome.itls)),
        "latencies": list(&|outcome| json!(outcome.latency)),
        "start_times": list(&|outcome| json!(outcome.start)),
        "generated_texts": list(&|outcome| json!(outcome.text)),
        "errors": list(&error),
    });
    match lists {
        Value::Object(lists) => lists,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let outcome = Outcome {
            ttft: 0.1,
            latency: 0.3,
            itls: vec![0.2],
            output_tokens: 2,
            prompt_tokens: 7,
            ..Outcome::default()
        };
        Run {
            date: "20261130-031500".into(),
            backend: "openai",
            label: None,
            model: "m".into(),
            num_prompts: 1,
            request_rate: f64::INFINITY,
            burstiness: 1.0,
            concurrency: Some(4),
            figures: Figures::new(&[outcome], 0.5, &[99.0, 99.9], &[]),
            speculation: None,
            shown: vec![Metric::Ttft],
        }
    }

    #[test]
    fn the_table_is_vllms() {
        let table = run().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "============ Serving Benchmark Result ============");
        assert_eq!(lines[1], format!("{:<40} {:<10}", "Successful requests:", 1));
        assert!(table.contains("Maximum request concurrency:             4         \n"), "{table}");
        assert!(table.contains("---------------Time to First Token----------------\n"), "{table}");
        assert!(table.contains("P99.9 TTFT (ms):                         100.00    \n"), "{table}");
        assert!(!table.contains("TPOT") && !table.contains("Request rate configured"), "{table}");
        assert_eq!(lines.last(), Some(&&*"=".repeat(50)));
    }

    #[test]
    fn the_json_has_vllms_keys() {
        let json = run().json(None);
        assert_eq!((&json["request_rate"], &json["output_throughput"]), (&json!("inf"), &json!(4.0)));
        assert_eq!((&json["p99_e2el_ms"], &json["p99.9_ttft_ms"]), (&json!(300.0), &json!(100.0)));
        assert_eq!(json.get("ttfts"), None);
        let outcomes = [Outcome::default()];
        assert_eq!(run().json(Some(&outcomes))["errors"], json!([""]));
    }
}
