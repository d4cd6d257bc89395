//! Counters, gauges and histograms, and how Prometheus' text format (0.0.4) writes them. They are lock-free to write, so
//! that the engine's thread never waits for whoever reads.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// How often values fell at or below each bound.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// Of each bound alone, and one for what is above all.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|&bound| bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // Always adds: the closure always gives a value.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// Writes families of metrics, one after the other.
pub(crate) struct Page {
    out: String,
    /// Labels that every sample bears, without braces.
    labels: String,
}

impl Page {
    /// Samples bear these labels.
    pub(crate) fn new(labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(name, value)| label(name, value)).collect::<Vec<_>>().join(",");
        Self { out: String::with_capacity(16 << 10), labels }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: &str) {
        let comma = if self.labels.is_empty() || more.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "{name}{{{}{comma}{more}}} {value}", self.labels);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", &number(value as f64));
    }

    /// One counter for each value of a label.
    pub(crate) fn counters(&mut self, name: &str, help: &str, by: &str, values: &[(String, u64)]) {
        self.head(name, "counter", help);
        for (of, value) in values {
            self.sample(name, &label(by, of), &number(*value as f64));
        }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", &number(value));
    }

    /// A gauge that is always 1 and says something by its labels.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.head(name, "gauge", help);
        let labels = labels.iter().map(|(name, value)| label(name, value)).collect::<Vec<_>>().join(",");
        self.sample(name, &labels, "1.0");
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut total = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            total += count.load(Ordering::Relaxed);
            self.sample(&format!("{name}_bucket"), &label("le", &number(*bound)), &number(total as f64));
        }
        total += histogram.counts.last().map_or(0, |count| count.load(Ordering::Relaxed));
        self.sample(&format!("{name}_bucket"), &label("le", "+Inf"), &number(total as f64));
        self.sample(&format!("{name}_count"), "", &number(total as f64));
        self.sample(&format!("{name}_sum"), "", &number(f64::from_bits(histogram.sum.load(Ordering::Relaxed))));
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }
}

/// As Python's client writes numbers: with a decimal point always.
fn number(value: f64) -> String {
    format!("{value:?}")
}

fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_prometheus() {
        let mut page = Page::new(&[("model_name", "a\"b\nc")]);
        let histogram = Histogram::new(&[0.001, 1.0, 2560.0]);
        [0.001, 0.5, 3000.0].iter().for_each(|&value| histogram.observe(value));
        page.histogram("h", "What.", &histogram);
        let counter = Counter::default();
        counter.add(3);
        page.counters("c_total", "Of.", "by", &[("x".into(), counter.get())]);
        let gauge = Gauge::default();
        gauge.set(0.25);
        page.gauge("g", "Now.", gauge.get());
        let expected = r#"# HELP h What.
# TYPE h histogram
h_bucket{model_name="a\"b\nc",le="0.001"} 1.0
h_bucket{model_name="a\"b\nc",le="1.0"} 2.0
h_bucket{model_name="a\"b\nc",le="2560.0"} 2.0
h_bucket{model_name="a\"b\nc",le="+Inf"} 3.0
h_count{model_name="a\"b\nc"} 3.0
h_sum{model_name="a\"b\nc"} 3000.501
# HELP c_total Of.
# TYPE c_total counter
c_total{model_name="a\"b\nc",by="x"} 3.0
# HELP g Now.
# TYPE g gauge
g{model_name="a\"b\nc"} 0.25
"#;
        assert_eq!(page.finish(), expected);
    }
}
