//! Which machine a plan is for.

use crate::error::{Error, input};
use crate::limits::TEXT_BYTES_MAX;
use crate::{machine_texts, output, self_check, small_file};
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
    let (found, check) = self_check::this_machine(measures);
    if found.machine.is_empty() {
        let why = found.looked.iter().find(|look| !look.found).map(|look| format!(" ({}: {})", look.at, look.what));
        return Err(input(format!(
            "no GPU is seen here{}; for another machine give --machine FILE: what `nvidia-smi`, `nvidia-smi topo -m` and \
             others print there",
            why.unwrap_or_default()
        )));
    }
    if let Some(check) = check {
        for remark in check.remarks.iter().filter(|_| check.rows.is_empty()) {
            output::say(&format!("the all-reduce was not measured, and is predicted: {remark}"));
        }
    }
    Ok(found.machine)
}

/// Gives every GPU without a name this one.
pub(in crate::commands) fn name_cards(machine: &mut Machine, name: &str) -> Result<(), Error> {
    let Some(card) = card(name) else {
        let alike = |card: &&str| {
            let words: Vec<String> = card.split(' ').map(str::to_ascii_lowercase).collect();
            let is_part = |word: &str| word.len() >= 3 && words.contains(&word.to_ascii_lowercase());
            name.split([' ', '-', '_']).any(is_part)
        };
        let known = || gpus::cards().iter().map(|card| card.name.as_str());
        let found: Vec<&str> = known().filter(alike).take(4).collect();
        let meant = match found.is_empty() {
            true => format!(
                "it is called as nvidia-smi calls it, as one of {} is: NVIDIA GeForce RTX 3090",
                known().count()
            ),
            false => format!("alike are {}", found.join(", ")),
        };
        return Err(input(format!("--gpu {name}: no such card is known; {meant}")));
    };
    gpus::name(machine, &card);
    Ok(())
}

/// A name that the table knows: as given, or what people leave out of it: `4090`, `rtx4090`, `RTX-PRO-6000`.
fn card(name: &str) -> Option<String> {
    let spaced = name.replace(['-', '_'], " ");
    let lower = spaced.to_ascii_lowercase();
    let short = lower.trim_start_matches("nvidia ").trim_start_matches("geforce ").trim_start_matches("rtx").trim();
    let tries = [
        name.to_string(),
        spaced.clone(),
        format!("RTX {short}"),
        format!("GeForce RTX {short}"),
        format!("NVIDIA {short}"),
    ];
    tries.into_iter().find(|name| gpus::facts(name).is_some())
}

/// Whether a file of observations may say which cards the machine has, too.
pub(super) fn is_record(path: &Path) -> bool {
    text_of(path).is_ok_and(|text| {
        serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|json| json.get("observed").is_some())
    })
}

/// A small text file.
pub(super) fn text_of(path: &Path) -> Result<String, Error> {
    small_file::text(path, TEXT_BYTES_MAX).map_err(|error| input(format!("{}: {error}", path.display())))
}
