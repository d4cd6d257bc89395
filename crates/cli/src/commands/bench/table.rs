//! llama-bench's output formats: a part of its columns and fields, by its names. Fields of our
//! own (`tensor_parallel_size`, `transport`, `arith`) stand beside them.

use crate::output;
use serde::Serialize;
use std::io::{self, Write};

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Markdown table
    Md,
    /// One JSON array
    Json,
    /// One JSON object a line
    Jsonl,
    /// Comma-separated values
    Csv,
}

/// One test's result. The order is that of the CSV columns.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) build_commit: &'static str,
    pub(crate) build_number: u64,
    pub(crate) cpu_info: String,
    pub(crate) gpu_info: String,
    pub(crate) backends: &'static str,
    pub(crate) model_filename: String,
    pub(crate) model_type: String,
    pub(crate) model_size: u64,
    pub(crate) model_n_params: u64,
    pub(crate) n_batch: usize,
    pub(crate) n_ubatch: usize,
    pub(crate) n_threads: usize,
    pub(crate) tensor_parallel_size: usize,
    pub(crate) transport: String,
    pub(crate) arith: String,
    pub(crate) n_prompt: usize,
    pub(crate) n_gen: usize,
    pub(crate) n_depth: usize,
    pub(crate) n_parallel: usize,
    pub(crate) test_time: String,
    pub(crate) avg_ns: u64,
    pub(crate) stddev_ns: u64,
    pub(crate) avg_ts: f64,
    pub(crate) stddev_ts: f64,
    pub(crate) samples_ns: Vec<u64>,
    pub(crate) samples_ts: Vec<f64>,
}

impl Row {
    /// As `pp512`, `tg128`, `tg128 @ d4096`, `tg128 x 8` of eight sequences.
    fn test(&self) -> String {
        let what = if self.n_gen == 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) };
        let what = if self.n_parallel > 1 { format!("{what} x {}", self.n_parallel) } else { what };
        if self.n_depth == 0 { what } else { format!("{what} @ d{}", self.n_depth) }
    }

    /// Cells of the Markdown table.
    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.model_type.clone(),
            output::bytes(self.model_size),
            output::parameters(self.model_n_params),
            self.backends.to_string(),
            self.n_threads.to_string(),
            self.tensor_parallel_size.to_string(),
            self.transport.clone(),
            self.test(),
            format!("{:.2} ± {:.2}", self.avg_ts, self.stddev_ts),
        ]
    }
}

/// Name, width, and whether a column holds numbers.
const COLUMNS: [(&str, usize, bool); 9] = [
    ("model", 30, false),
    ("size", 10, true),
    ("params", 10, true),
    ("backend", 10, false),
    ("threads", 7, true),
    ("tp", 2, true),
    ("transport", 9, false),
    ("test", 15, true),
    ("t/s", 20, true),
];

/// Prints rows to standard output as they come.
pub(crate) struct Printer {
    format: Format,
    printed: usize,
}

impl Printer {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, printed: 0 }
    }

    pub(crate) fn print(&mut self, row: &Row) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.write(row, &mut out)?;
        out.flush()
    }

    fn write(&mut self, row: &Row, out: &mut impl Write) -> io::Result<()> {
        let first = self.printed == 0;
        self.printed += 1;
        match self.format {
            Format::Md => {
                if first {
                    markdown_head(out)?;
                }
                markdown_row(&row.cells(), out)
            }
            Format::Json => {
                let text = serde_json::to_string_pretty(row)?;
                let indented = text.replace('\n', "\n  ");
                write!(out, "{}  {indented}", if first { "[\n" } else { ",\n" })
            }
            Format::Jsonl => writeln!(out, "{}", serde_json::to_string(row)?),
            Format::Csv => csv(row, first, out),
        }
    }

    /// Whether there is anything to finish.
    pub(crate) fn has_printed(&self) -> bool {
        self.printed > 0
    }

    pub(crate) fn finish(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.format {
            Format::Json if self.printed == 0 => writeln!(out, "[]"),
            Format::Json => writeln!(out, "\n]"),
            Format::Md => writeln!(out, "\nbuild: {}", env!("TOMBOLO_COMMIT")),
            _ => Ok(()),
        }
    }
}

fn markdown_head(out: &mut impl Write) -> io::Result<()> {
    markdown_row(&COLUMNS.map(|(name, _, _)| name.to_string()), out)?;
    let rules = COLUMNS.map(
        |(_, width, number)| {
            if number { format!("{}:", "-".repeat(width - 1)) } else { "-".repeat(width) }
        },
    );
    markdown_row(&rules, out)
}

fn markdown_row(cells: &[String; COLUMNS.len()], out: &mut impl Write) -> io::Result<()> {
    write!(out, "|")?;
    for (cell, (_, width, number)) in cells.iter().zip(COLUMNS) {
        if number { write!(out, " {cell:>width$} |")? } else { write!(out, " {cell:<width$} |")? }
    }
    writeln!(out)
}

/// llama-bench's CSV has no columns for the single samples.
fn csv(row: &Row, first: bool, out: &mut impl Write) -> io::Result<()> {
    let serde_json::Value::Object(fields) = serde_json::to_value(row)? else { return Ok(()) };
    let fields: Vec<_> = NAMES.iter().filter_map(|name| fields.get_key_value(*name)).collect();
    let line = |cells: Vec<String>| cells.join(",");
    if first {
        writeln!(out, "{}", line(fields.iter().map(|(name, _)| (*name).clone()).collect()))?;
    }
    let quoted = |value: &serde_json::Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        format!("\"{}\"", text.replace('"', "\"\""))
    };
    writeln!(out, "{}", line(fields.iter().map(|(_, value)| quoted(value)).collect()))
}

/// Columns of the CSV, in order: a JSON object does not keep it.
const NAMES: [&str; 24] = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "tensor_parallel_size",
    "transport",
    "arith",
    "n_prompt",
    "n_gen",
    "n_depth",
    "n_parallel",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            build_commit: "abc",
            build_number: 0,
            cpu_info: "A \"fast\" one".into(),
            gpu_info: String::new(),
            backends: "CPU",
            model_filename: "m.gguf".into(),
            model_type: "llama 135M Q4_1".into(),
            model_size: 98_362_432,
            model_n_params: 134_515_008,
            n_batch: 512,
            n_ubatch: 512,
            n_threads: 2,
            tensor_parallel_size: 1,
            transport: "auto".into(),
            arith: "production".into(),
            n_prompt: 0,
            n_gen: 128,
            n_depth: 512,
            n_parallel: 1,
            test_time: "2026-11-29T00:00:00Z".into(),
            avg_ns: 1,
            stddev_ns: 2,
            avg_ts: 180.5,
            stddev_ts: 1.25,
            samples_ns: vec![1],
            samples_ts: vec![2.0],
        }
    }

    fn printed(format: Format, rows: usize) -> String {
        let mut printer = Printer::new(format);
        let mut out = Vec::new();
        (0..rows).for_each(|_| printer.write(&row(), &mut out).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn markdown_is_llama_benchs() {
        let text = printed(Format::Md, 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines[0].starts_with("| model                          |       size |     params | backend    | threads |")
        );
        assert!(
            lines[1].starts_with("| ------------------------------ | ---------: | ---------: | ---------- | ------: |")
        );
        assert!(lines[2].contains("|  93.81 MiB |   134.52 M | CPU        |       2 |"), "{}", lines[2]);
        assert!(lines[2].ends_with("|    tg128 @ d512 |        180.50 ± 1.25 |"), "{}", lines[2]);
        assert!(lines.iter().all(|l| l.chars().count() == lines[0].chars().count()));
        assert_eq!(Row { n_parallel: 8, n_depth: 0, ..row() }.test(), "tg128 x 8");
    }

    #[test]
    fn json_is_one_array() {
        let text = printed(Format::Json, 2) + "\n]";
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value[1]["avg_ts"], 180.5);
        assert_eq!(value.as_array().unwrap().len(), 2);
        let lines = printed(Format::Jsonl, 2);
        assert!(lines.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()));
    }

    #[test]
    fn csv_has_every_field_but_the_samples() {
        let text = printed(Format::Csv, 1);
        let (head, values) = text.split_once('\n').unwrap();
        assert_eq!(head, NAMES.join(","));
        assert!(values.contains("\"A \"\"fast\"\" one\",\"\",\"CPU\""));
        let serde_json::Value::Object(all) = serde_json::to_value(row()).unwrap() else { panic!("no object") };
        assert_eq!(all.len(), NAMES.len() + 2);
    }
}
