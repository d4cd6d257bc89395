//! Which machine a plan is for.

use crate::error::{Error, input};
use crate::limits::TEXT_BYTES_MAX;
use std::io::Read;
use std::path::{Path, PathBuf};
use tombolo_topology::{Machine, Pcie, Source, gpus};

/// Reads the machine that files describe together; a card that they do not name is `card`.
pub(super) fn read(paths: &[PathBuf], card: Option<&str>) -> Result<Machine, Error> {
    if paths.is_empty() {
        return Err(input(
            "--machine FILE is needed: what `nvidia-smi topo -m` and `nvidia-smi -q` print on the machine, or its JSON",
        ));
    }
    let source = |path: &PathBuf| Ok(Source { name: path.display().to_string(), text: text_of(path)? });
    let sources: Vec<Source> = paths.iter().map(source).collect::<Result<_, Error>>()?;
    let mut machine = tombolo_topology::read(&sources).map_err(input)?;
    if let Some(name) = card {
        name_cards(&mut machine, name)?;
    }
    Ok(machine)
}

/// Gives every GPU without a name this one, and what is known of such cards.
fn name_cards(machine: &mut Machine, name: &str) -> Result<(), Error> {
    let Some(card) = gpus::facts(name).and_then(|cards| cards.first().copied()) else {
        let why = "no such card is known; it is called as nvidia-smi calls it, for example NVIDIA GeForce RTX 3090";
        return Err(input(format!("--gpu {name}: {why}")));
    };
    for gpu in machine.gpus.iter_mut().filter(|gpu| gpu.name.is_none()) {
        gpu.name = Some(card.name.clone());
        gpu.memory_gb_s = gpu.memory_gb_s.or(Some(card.memory_gb_s));
        gpu.memory_bytes = gpu.memory_bytes.or(card.memory_gb.map(|gb| u64::from(gb) << 30));
        gpu.nvlink_gb_s = gpu.nvlink_gb_s.or(card.nvlink_gb_s);
        let Pcie { gen_max, width_max, .. } = &mut gpu.pcie;
        *gen_max = gen_max.or(Some(card.pcie.0));
        *width_max = width_max.or(Some(card.pcie.1));
    }
    Ok(())
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
