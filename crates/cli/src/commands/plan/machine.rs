//! Which machine a plan is for.

use crate::error::{Error, input};
use crate::limits::TEXT_BYTES_MAX;
use crate::{machine_texts, output, self_check};
use std::io::Read;
use std::path::{Path, PathBuf};
use tombolo_topology::{Machine, gpus};

/// The machine that files describe together, whose unnamed cards are `card`; without files the one that this runs on, whose
/// all-reduces are measured where `measures` says so.
pub(super) fn read(paths: &[PathBuf], card: Option<&str>, measures: bool) -> Result<Machine, Error> {
    if paths.is_empty() {
        return here(measures);
    }
    let mut machine = tombolo_topology::read(&machine_texts::sources(paths)?).map_err(input)?;
    if let Some(name) = card {
        name_cards(&mut machine, name)?;
    }
    Ok(machine)
}

fn here(measures: bool) -> Result<Machine, Error> {
    let mut found = tombolo_topology::discover();
    if found.machine.is_empty() {
        let why = found.looked.iter().find(|look| !look.found).map(|look| format!(" ({}: {})", look.at, look.what));
        return Err(input(format!(
            "no GPU is seen here{}; for another machine give --machine FILE: what `nvidia-smi`, `nvidia-smi topo -m` and \
             others print there",
            why.unwrap_or_default()
        )));
    }
    if measures && found.machine.len() > 1 {
        let check = self_check::check(&mut found.machine);
        for remark in check.remarks.iter().filter(|_| check.rows.is_empty()) {
            output::say(&format!("the all-reduce was not measured, and is predicted: {remark}"));
        }
    }
    Ok(found.machine)
}

/// Gives every GPU without a name this one.
pub(in crate::commands) fn name_cards(machine: &mut Machine, name: &str) -> Result<(), Error> {
    match gpus::name(machine, name) {
        true => Ok(()),
        false => Err(input(format!(
            "--gpu {name}: no such card is known; it is called as nvidia-smi calls it, for example NVIDIA GeForce RTX 3090"
        ))),
    }
}

/// Whether a file of observations may say which cards the machine has, too.
pub(super) fn is_record(path: &Path) -> bool {
    text_of(path).is_ok_and(|text| {
        serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|json| json.get("observed").is_some())
    })
}

/// A small text file.
pub(super) fn text_of(path: &Path) -> Result<String, Error> {
    let wrong = |e: std::io::Error| input(format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(wrong)?;
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).map_err(wrong)?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        return Err(input(format!("{}: more than {TEXT_BYTES_MAX} bytes", path.display())));
    }
    Ok(text)
}
