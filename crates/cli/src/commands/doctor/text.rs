//! The report as text: the machine, its drawing, the verdicts by severity, what was looked at.

use super::draw;
use crate::error::Error;
use crate::output::{self, one_line};
use crate::self_check::SelfCheck;
use std::collections::BTreeMap;
use std::io::Write;
use tombolo_topology::verdicts::foremost;
use tombolo_topology::{Look, Machine, MeasuredAllReduce, Severity, Verdict};

/// Columns of text.
const COLUMNS: usize = 100;

/// Colours, or none.
pub(super) struct Style {
    colour: bool,
}

impl Style {
    /// Colours only at a terminal, and not where `NO_COLOR` asks for none.
    pub(super) fn of_stdout() -> Self {
        Style { colour: output::stdout_has_colour() }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    fn severity(&self, severity: Severity) -> String {
        let (code, word) = match severity {
            Severity::Error => ("1;31", "ERROR"),
            Severity::Warning => ("1;33", "WARNING"),
            Severity::Note => ("1;36", "NOTE"),
            Severity::Good => ("1;32", "GOOD"),
        };
        self.paint(code, &format!("{word:<7}"))
    }
}

/// Prints everything.
pub(super) fn print(
    out: &mut impl Write,
    machine: &Machine,
    verdicts: &[Verdict],
    looked: &[Look],
    check: Option<&SelfCheck>,
    style: &Style,
) -> Result<(), Error> {
    writeln!(out, "{}", style.paint("1", &headline(machine)))?;
    for verdict in foremost(verdicts) {
        let title = wrapped(&one_line(&verdict.title), "          ");
        writeln!(out, "  {} {}", style.severity(verdict.severity), title.trim_start())?;
    }
    for line in facts(machine) {
        writeln!(out, "{line}")?;
    }
    if !machine.is_empty() {
        writeln!(out)?;
        for line in draw::lines(machine) {
            writeln!(out, "{line}")?;
        }
    }
    if !looked.is_empty() {
        writeln!(out, "\n{}", style.paint("1", "Looked at"))?;
        for look in looked {
            let mark = if look.found { "  " } else { "- " };
            writeln!(out, "  {mark}{}: {}", one_line(&look.at), one_line(&look.what))?;
        }
    }
    if let Some(check) = check {
        print_check(out, check, style)?;
    } else if !machine.all_reduce.is_empty() {
        print_measured(out, &machine.all_reduce, style)?;
    }
    for note in &machine.notes {
        let lines = wrapped(&one_line(note), "  note: ");
        writeln!(out, "{lines}")?;
    }
    writeln!(out, "\n{}", style.paint("1", &count(machine, verdicts)))?;
    for verdict in verdicts {
        print_verdict(out, verdict, style)?;
    }
    Ok(())
}

/// The all-reduce as it was measured just now.
fn print_check(out: &mut impl Write, check: &SelfCheck, style: &Style) -> Result<(), Error> {
    writeln!(out, "\n{}", style.paint("1", "All-reduce between these GPUs, tried now"))?;
    for row in &check.rows {
        let wrong = if row.wrong > 0 { format!("  {} VALUES WRONG", row.wrong) } else { String::new() };
        writeln!(out, "{}{wrong}", measured(&row.measured()))?;
    }
    for remark in &check.remarks {
        writeln!(out, "{}", wrapped(&one_line(remark), "  - "))?;
    }
    Ok(())
}

/// The all-reduce as another run measured it.
fn print_measured(out: &mut impl Write, rows: &[MeasuredAllReduce], style: &Style) -> Result<(), Error> {
    writeln!(out, "\n{}", style.paint("1", "All-reduce between these GPUs, as it was measured there"))?;
    for row in rows {
        writeln!(out, "{}", measured(row))?;
    }
    Ok(())
}

fn measured(row: &MeasuredAllReduce) -> String {
    let (transport, what) = (one_line(&row.transport), one_line(&row.what));
    format!("  {transport:<5} {what:<20} {:>6} B  {} ranks  {:>8.2} µs", row.bytes, row.ranks, row.us)
}

fn print_verdict(out: &mut impl Write, verdict: &Verdict, style: &Style) -> Result<(), Error> {
    let title = style.paint("1", &one_line(&verdict.title));
    writeln!(out, "\n{} {title}  [{}]", style.severity(verdict.severity), verdict.rule)?;
    for evidence in &verdict.evidence {
        let origin = if evidence.origin.is_empty() { String::new() } else { format!(" ({})", evidence.origin) };
        writeln!(out, "{}", wrapped(&one_line(&format!("{}{origin}", evidence.fact)), "  seen  "))?;
    }
    writeln!(out, "{}", wrapped(&one_line(&verdict.reason), "  why   "))?;
    for fix in &verdict.fix {
        writeln!(out, "{}", wrapped(&one_line(fix), "  do    "))?;
    }
    Ok(())
}

/// `8x RTX PRO 6000 Blackwell`, by kinds.
pub(super) fn headline(machine: &Machine) -> String {
    if machine.is_empty() {
        return "no GPU found".into();
    }
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in &machine.gpus {
        *kinds.entry(one_line(gpu.name.as_deref().unwrap_or("GPU without a name"))).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(name, n)| format!("{n}x {name}")).collect();
    let joined = match machine.fully_connected_by_nvlink() {
        _ if machine.len() < 2 => "",
        Some(true) => ", joined by NVLink",
        Some(false) if machine.pairs().any(|(_, _, c)| c.is_some_and(|c| c.is_nvlink())) => ", NVLink between some",
        Some(false) => ", PCIe only",
        None => "",
    };
    let islands =
        machine.islands().filter(|i| i.len() > 1).map(|i| format!(", {} islands", i.len())).unwrap_or_default();
    format!("{}{joined}{islands}", kinds.join(" + "))
}

/// What is known beside the links, a line each.
fn facts(machine: &Machine) -> Vec<String> {
    let mut lines = Vec::new();
    let host = &machine.host;
    let mut add = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("  {name:<12} {}", one_line(&value))));
    };
    add(
        "processor",
        host.cpu.clone().map(|cpu| {
            let sockets = host.sockets.filter(|s| *s > 1).map(|s| format!(", {s} sockets")).unwrap_or_default();
            let threads = host.threads.map(|t| format!(", {t} threads")).unwrap_or_default();
            format!("{cpu}{sockets}{threads}")
        }),
    );
    let nodes = host.numa.len();
    let memory = host.memory_bytes.map(output::bytes);
    add("memory", memory.map(|m| if nodes > 1 { format!("{m} on {nodes} NUMA nodes") } else { m }));
    let windows = if machine.origin.contains_key("windows") { " on Windows" } else { "" };
    add("driver", host.driver.clone().map(|driver| format!("{driver}{windows}")));
    let rates: Vec<f64> = machine.gpus.iter().filter_map(|g| g.memory_gb_s).collect();
    if rates.len() == machine.len() && !rates.is_empty() {
        let sum: f64 = rates.iter().sum();
        let sizes: Vec<u64> = machine.gpus.iter().filter_map(|g| g.memory_bytes).collect();
        let size = match sizes.len() == machine.len() {
            true => format!("{}, ", output::bytes(sizes.iter().sum())),
            false => String::new(),
        };
        add("GPU memory", Some(format!("{size}bandwidth {sum:.0} GB/s in all by the makers' figures")));
    }
    if !machine.nics.is_empty() {
        add("adapters", Some(machine.nics.join(", ")));
    }
    lines
}

/// Where no rule speaks.
const NO_FAULT: &str = "No fault in what is known of this machine";

/// `0 errors, 3 warnings, 2 notes`.
fn count(machine: &Machine, verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return match machine.len() {
            0 => "Nothing to judge: without a GPU there are no links. A machine elsewhere can be pasted: --machine -"
                .into(),
            _ => NO_FAULT.into(),
        };
    }
    let of = |severity| verdicts.iter().filter(|v| v.severity == severity).count();
    let word = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let parts =
        [word(of(Severity::Error), "error"), word(of(Severity::Warning), "warning"), word(of(Severity::Note), "note")];
    parts.join(", ")
}

/// Text in lines of [`COLUMNS`], the first after a label, the others below its end. Words longer than a line stay whole.
fn wrapped(text: &str, label: &str) -> String {
    let indent = label.chars().count();
    let mut lines = vec![label.to_string()];
    let mut column = indent;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > COLUMNS {
            lines.push(" ".repeat(indent));
            column = indent;
        }
        if let Some(line) = lines.last_mut() {
            if column > indent {
                line.push(' ');
                column += 1;
            }
            line.push_str(word);
            column += width;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let lines = wrapped(&"word ".repeat(40), "  why   ");
        assert!(lines.lines().all(|line| line.chars().count() <= COLUMNS), "{lines}");
        assert!(lines.lines().nth(1).is_some_and(|line| line.starts_with("        word")), "{lines}");
        assert_eq!(wrapped(&"x".repeat(200), "- "), format!("- {}", "x".repeat(200)));
    }
}
