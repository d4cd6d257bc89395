//! Texts of machines, and what follows from them in short.
#![allow(dead_code)]

use tombolo_topology::{Machine, Source, Verdict, read, verdicts};

pub(crate) fn data(name: &str) -> Source {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Source { name: name.rsplit('/').next().unwrap_or(name).to_string(), text }
}

/// The machine that several texts describe.
pub(crate) fn machine(names: &[&str]) -> Machine {
    let sources: Vec<Source> = names.iter().map(|name| data(name)).collect();
    read(&sources).unwrap_or_else(|error| panic!("{error}"))
}

/// The rules that speak, worst first.
pub(crate) fn rules(machine: &Machine) -> String {
    let word = |v: &Verdict| format!("{}:{:?}", v.rule, v.severity).to_lowercase();
    verdicts(machine).iter().map(word).collect::<Vec<_>>().join(" ")
}

pub(crate) fn of_rule(machine: &Machine, rule: &str) -> Verdict {
    let found = verdicts(machine).into_iter().find(|v| v.rule == rule);
    found.unwrap_or_else(|| panic!("no verdict of {rule}: {}", rules(machine)))
}
