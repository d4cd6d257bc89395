//! JSON: a [`Machine`] as tombolo writes it, alone or as `machine` of what `tombolo doctor --json` prints, and the record
//! of a deployment that was observed (`observed`, `all_reduce`, …), whose first sentence may name the cards.

use super::error::{Fault, ReadError};
use super::part::Part;
use crate::gpus;
use crate::limits::{GPUS_MAX, NAME_CHARS_MAX};
use crate::machine::Machine;
use serde_json::Value;

/// What a JSON text turned out to be.
pub(crate) enum Json {
    /// A whole machine.
    Machine(Box<Machine>),
    /// A record that says a little about one: how many cards, and their name.
    Record(Box<Part>, Option<(usize, String)>),
}

/// The JSON of a text: from its first line that begins with a brace to the last brace. Whether something else stands around
/// it, and how many lines stand before it. `None` if the text is no JSON.
pub(crate) fn of(text: &str) -> Option<(&str, bool, usize)> {
    let text = text.trim_start_matches('\u{feff}');
    let mut start = 0;
    let mut before = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('{') {
            break;
        }
        start += line.len();
        before += 1;
    }
    let (head, rest) = text.split_at_checked(start)?;
    let is_ours = head.trim().is_empty() || rest.contains("\"gpus\"") || rest.contains("\"observed\"");
    if rest.is_empty() || !is_ours {
        return None;
    }
    let end = rest.rfind('}').map_or(rest.len(), |at| at + 1);
    let (body, tail) = rest.split_at_checked(end)?;
    let noise = |text: &str| text.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with("```"));
    Some((body, noise(head) || noise(tail), before))
}

/// Reads a JSON text that `before` lines stand above.
pub(crate) fn read(file: &str, text: &str, before: usize) -> Result<Json, ReadError> {
    let at = |error: serde_json::Error| {
        let line = Some(error.line()).filter(|l| *l > 0).map(|l| l + before);
        ReadError::new(file, line, Fault::Json(error.to_string()))
    };
    let mut value: Value = serde_json::from_str(text).map_err(at)?;
    let other = |what: &str| Err(ReadError::new(file, None, Fault::Json(what.into())));
    if value.get("placements").is_some() {
        return other("it is what `tombolo plan --json` prints; give what `tombolo doctor --json` prints");
    }
    if value.get("model_type").is_some() {
        return other("it is a model's config.json, which `tombolo plan` takes");
    }
    if value.get("gpus").is_some() {
        let machine: Machine = serde_json::from_str(text).map_err(at)?;
        return checked(file, machine);
    }
    if let Some(machine) = value.get_mut("machine").filter(|m| m.get("gpus").is_some()).map(Value::take) {
        let machine = serde_json::from_value(machine)
            .map_err(|error| ReadError::new(file, None, Fault::Json(error.to_string())))?;
        return checked(file, machine);
    }
    if value.get("observed").is_some() || value.get("all_reduce").is_some() {
        let part = Part {
            notes: vec![format!(
                "{file}: measurements of a deployment; of the machine it says what its first line says"
            )],
            ..Part::default()
        };
        return Ok(Json::Record(Box::new(part), value.get("what").and_then(Value::as_str).and_then(cards)));
    }
    Err(ReadError::new(file, None, Fault::Json("it has neither `gpus` nor `machine` nor `observed`".into())))
}

/// The tables of a machine must fit its GPUs, or everything computed from it would be wrong.
fn checked(file: &str, machine: Machine) -> Result<Json, ReadError> {
    let n = machine.gpus.len();
    let wrong = |what: String| Err(ReadError::new(file, None, Fault::Json(what)));
    if n > GPUS_MAX {
        return wrong(format!("{n} GPUs, and {GPUS_MAX} is the most that is read"));
    }
    let p2p = &machine.p2p;
    let states = [&p2p.read, &p2p.write, &p2p.atomics, &p2p.nvlink];
    let sizes = [
        machine.links.as_ref().map(|t| t.len()),
        p2p.tested.as_ref().map(|t| t.len()),
        p2p.measured_gb_s.as_ref().map(|t| t.len()),
        p2p.staged_gb_s.as_ref().map(|t| t.len()),
    ];
    let sizes = states.iter().map(|t| t.as_ref().map(|t| t.len())).chain(sizes).flatten();
    if let Some(size) = sizes.into_iter().find(|size| *size != n) {
        return wrong(format!("a table of {size} GPUs in a machine of {n}"));
    }
    if let Some((a, b)) = machine.links.as_ref().and_then(|t| t.asymmetry()) {
        return wrong(format!("`links` from {a} to {b} and back differ"));
    }
    let diagonal = |a: usize, b: usize| machine.links.as_ref().and_then(|t| *t.get(a, b)?);
    let itself = Some(crate::link::LinkClass::Itself);
    if machine.links.is_some() && (0..n).any(|a| diagonal(a, a) != itself || (0..a).any(|b| diagonal(a, b) == itself)) {
        return wrong("`links` must be X where a GPU meets itself, and only there".into());
    }
    if machine.all_reduce.iter().any(|row| !row.us.is_finite() || row.us <= 0.0) {
        return wrong("`all_reduce` has a time that is none".into());
    }
    if machine.gpus.windows(2).any(|pair| pair[0].index >= pair[1].index) {
        return wrong("`gpus` must be ordered by `index`, each index once".into());
    }
    Ok(Json::Machine(Box::new(machine)))
}

/// How many cards of which name a sentence speaks of: `8x RTX PRO 6000 Blackwell, PCIe only` is 8 of a known card.
fn cards(sentence: &str) -> Option<(usize, String)> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let count: usize = word.strip_suffix(['x', '×'])?.parse().ok().filter(|n| (1..=GPUS_MAX).contains(n))?;
        // The longest run of words after the count that names a card.
        (1..=6).rev().find_map(|length| {
            let name = words.get(at + 1..at + 1 + length)?.join(" ");
            let name = name.trim_end_matches([',', '.', ';', ':']);
            (name.len() <= NAME_CHARS_MAX && gpus::facts(name).is_some()).then(|| (count, name.to_string()))
        })
    })
}
