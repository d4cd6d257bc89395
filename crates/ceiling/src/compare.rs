//! An observed step beside the ceiling: where its time goes, what each part loses, and what does not add up.

use crate::links::{Fabric, Nccl, Params, nccl_us};
use crate::step::{StepTime, WEIGHTS};
use serde::{Deserialize, Serialize};

/// Observations of one file.
pub const OBSERVED_MAX: usize = 1000;
/// Characters of an observation's name.
pub const NAME_CHARS_MAX: usize = 96;
/// What can be observed of a step: from a microsecond to more than a day, and no more all-reduces than any model has.
const RANGES: [(&str, f64, f64); 4] =
    [("tok_s", 1e-5, 1e6), ("step_ms", 1e-3, 1e8), ("all_reduce_us", 0.0, 1e9), ("all_reduce_calls", 0.0, 1e5)];

/// What somebody observed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Observed {
    /// In a few words.
    #[serde(default)]
    pub config: String,
    /// Tokens a second.
    pub tok_s: Option<f64>,
    /// Of a step, in milliseconds.
    pub step_ms: Option<f64>,
    /// Of one all-reduce, in microseconds.
    pub all_reduce_us: Option<f64>,
    /// All-reduces in a step.
    pub all_reduce_calls: Option<usize>,
}

/// Why a file of observations is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ObservedError {
    #[error("is not JSON of observations: {why}")]
    NotJson { why: String },
    #[error("observation {number} has neither tok_s nor step_ms above 0")]
    NoTime { number: usize },
    #[error(
        "observation {number} says {tok_s} tok/s and {step_ms} ms a step, which is {other:.1} tok/s: give one of them"
    )]
    TwoTimes { number: usize, tok_s: f64, step_ms: f64, other: f64 },
    #[error("observation {number}: {name} {value:?} is not between {least:?} and {most:?}")]
    OutOfRange { number: usize, name: &'static str, value: f64, least: f64, most: f64 },
    #[error("has {count} observations: {OBSERVED_MAX} at most")]
    TooMany { count: usize },
    #[error("holds no observation: tok_s or step_ms, and if known all_reduce_us, all_reduce_calls, config")]
    Empty,
}

/// One observation against the ceiling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What was observed.
    pub observed: Observed,
    /// A step, observed, in milliseconds.
    pub step_ms: f64,
    /// The ceiling.
    pub ceiling_ms: f64,
    /// Time in all-reduces, observed, in milliseconds; `None`: it was not.
    pub all_reduce_ms: Option<f64>,
    /// Share of the step that they are.
    pub all_reduce_share: Option<f64>,
    /// What each part loses: its name, observed, ceiling, in milliseconds.
    pub losses: Vec<(&'static str, f64, f64)>,
    /// The largest loss and what it says, in a line.
    pub named: String,
}

/// Something that follows from observations and was not observed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inference {
    /// What follows.
    pub what: String,
    /// The arithmetic.
    pub arithmetic: Vec<String>,
}

/// Reads `{"observed": [..]}`, a list, or one observation.
///
/// # Errors
/// See [`ObservedError`].
pub fn read(text: &str) -> Result<Vec<Observed>, ObservedError> {
    let not_json = |e: serde_json::Error| ObservedError::NotJson { why: e.to_string() };
    let json: serde_json::Value = serde_json::from_str(text).map_err(not_json)?;
    let list = match json {
        serde_json::Value::Array(_) => json,
        serde_json::Value::Object(ref fields) => match fields.get("observed") {
            Some(list @ serde_json::Value::Array(_)) => list.clone(),
            _ => serde_json::Value::Array(vec![json]),
        },
        _ => return Err(ObservedError::Empty),
    };
    let all: Vec<Observed> = serde_json::from_value(list).map_err(not_json)?;
    if all.is_empty() {
        return Err(ObservedError::Empty);
    }
    if all.len() > OBSERVED_MAX {
        return Err(ObservedError::TooMany { count: all.len() });
    }
    let has_time = |o: &Observed| o.step_ms.or(o.tok_s).is_some_and(|t| t.is_finite() && t > 0.0);
    if let Some(at) = all.iter().position(|o| !has_time(o)) {
        return Err(ObservedError::NoTime { number: at + 1 });
    }
    if let Some(error) = all.iter().enumerate().find_map(|(at, o)| out_of_range(at + 1, o)) {
        return Err(error);
    }
    // Rounded, the two differ by some percent.
    let differ = |o: &Observed| {
        let (tok_s, step_ms) = (o.tok_s?, o.step_ms?);
        let other = 1e3 / step_ms;
        ((tok_s / other - 1.0).abs() > 0.15).then_some((tok_s, step_ms, other))
    };
    match all.iter().enumerate().find_map(|(at, o)| Some((at + 1, differ(o)?))) {
        Some((number, (tok_s, step_ms, other))) => Err(ObservedError::TwoTimes { number, tok_s, step_ms, other }),
        None => Ok(all.into_iter().enumerate().map(named).collect()),
    }
}

fn out_of_range(number: usize, o: &Observed) -> Option<ObservedError> {
    let values = [o.tok_s, o.step_ms, o.all_reduce_us, o.all_reduce_calls.map(|calls| calls as f64)];
    let odd = |(value, (name, least, most)): (Option<f64>, (&'static str, f64, f64))| {
        let value = value.filter(|value| !(least..=most).contains(value))?;
        Some(ObservedError::OutOfRange { number, name, value, least, most })
    };
    values.into_iter().zip(RANGES).find_map(odd)
}

/// What has no words of its own is counted.
fn named((at, observed): (usize, Observed)) -> Observed {
    let config = match observed.config.is_empty() {
        true => format!("observation {}", at + 1),
        false => observed.config.chars().take(NAME_CHARS_MAX).collect(),
    };
    Observed { config, ..observed }
}

fn step_ms(o: &Observed) -> f64 {
    // The rate is told to more digits than the time that is made of it.
    o.tok_s.map(|rate| 1e3 / rate).or(o.step_ms).unwrap_or(f64::NAN)
}

fn all_reduce_ms(o: &Observed, calls: usize) -> Option<f64> {
    o.all_reduce_us.map(|us| us * o.all_reduce_calls.unwrap_or(calls) as f64 / 1e3)
}

/// Puts an observation beside the ceiling. `calls`: all-reduces of a step where the observation does not say.
pub fn compare(observed: &Observed, ceiling: &StepTime, calls: usize) -> Compared {
    let step = step_ms(observed);
    // More than the whole cannot be a part: see `infer`.
    let reduce = all_reduce_ms(observed, calls).filter(|&ms| ms <= step);
    let ceiling_reduce = ceiling.all_reduce_ms();
    let losses = match reduce {
        Some(ms) => {
            vec![("all-reduce", ms, ceiling_reduce), ("everything else", step - ms, ceiling.ms - ceiling_reduce)]
        }
        None => vec![("the whole step", step, ceiling.ms)],
    };
    let lost = step - ceiling.ms;
    let largest = losses.iter().max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)));
    let named = match largest {
        Some((_, seen, least)) if lost > 0.0 && reduce.is_none() => format!(
            "{:.2} ms of {seen:.2} ms, of whose parts nothing was observed; the ceiling is {least:.2} ms",
            seen - least
        ),
        Some((name, seen, least)) if lost > 0.0 => format!(
            "{name}: {seen:.2} ms where {least:.2} ms would do, {:.0} % of what the step loses against its ceiling",
            100.0 * ((seen - least) / lost).min(1.0)
        ),
        _ => {
            "quicker than the ceiling: that is of another model, quantization, context or machine, or drafts were right"
                .into()
        }
    };
    Compared {
        step_ms: step,
        ceiling_ms: ceiling.ms,
        all_reduce_ms: reduce,
        all_reduce_share: reduce.map(|ms| ms / step),
        losses,
        named,
        observed: observed.clone(),
    }
}

/// What does not add up among observations of one model on one machine.
///
/// Where one tells its all-reduces and another does not, the rest of the step should be the same in both: what is left
/// for an all-reduce in the other is held against NCCL's own model of its quickest protocol.
pub fn infer(
    all: &[Observed],
    ceiling: &StepTime,
    calls: usize,
    fabric: &Fabric,
    bytes: usize,
    p: &Params,
) -> Vec<Inference> {
    let mut found = Vec::new();
    for o in all {
        let ms = all_reduce_ms(o, calls).filter(|&ms| ms > step_ms(o));
        found.extend(ms.map(|ms| Inference {
            what: format!("the all-reduces of '{}' cannot be its step's: they take longer than the step", o.config),
            arithmetic: vec![format!(
                "{} calls x {:.0} us = {ms:.2} ms, and the step is {:.2} ms: they are a prompt's, or several steps', or overlap",
                o.all_reduce_calls.unwrap_or(calls),
                o.all_reduce_us.unwrap_or(0.0),
                step_ms(o)
            )],
        }));
    }
    let told = all
        .iter()
        .filter_map(|o| Some((o, all_reduce_ms(o, calls)?)))
        .filter(|(o, ms)| *ms <= step_ms(o))
        .min_by(|a, b| step_ms(a.0).total_cmp(&step_ms(b.0)));
    let Some((told, reduce)) = told else { return found };
    let rest = step_ms(told) - reduce;
    let weights = ceiling.of(WEIGHTS);
    if rest < weights {
        found.push(Inference {
            what: "all-reduces cannot take all the time that the profile gives them: part of each call is waiting for other ranks".into(),
            arithmetic: vec![
                format!("{:.2} ms − {reduce:.2} ms of all-reduces = {rest:.2} ms for everything else ({})", step_ms(told), told.config),
                format!("reading the weights alone takes {weights:.2} ms"),
            ],
        });
    }
    let n = all.iter().filter(|o| o.all_reduce_us.is_none() && o.config.to_uppercase().contains("LL"));
    let Some(other) = n.max_by(|a, b| step_ms(b).total_cmp(&step_ms(a)).reverse()) else { return found };
    let count = told.all_reduce_calls.unwrap_or(calls) as f64;
    let left = (step_ms(other) - rest) * 1e3 / count;
    let (peer, host) = (nccl_us(fabric, bytes, Nccl::Ll, p), nccl_us(fabric, bytes, Nccl::LlPinned, p));
    if left > 1.2 * host.max(peer) {
        let fits = (step_ms(other) * 1e3 - count * host) / 1e3;
        found.push(Inference {
            what: format!(
                "{:.1} tok/s under LL does not fit a remainder of {rest:.1} ms, unless part of each call is waiting for other ranks",
                1e3 / step_ms(other)
            ),
            arithmetic: vec![
                format!(
                    "({:.2} ms − {rest:.2} ms) / {count} calls = {left:.0} us a call ({})",
                    step_ms(other), other.config
                ),
                format!("LL takes {peer:.0} us through peer memory and {host:.0} us through host memory (predicted by NCCL's own model, calibrated)"),
                format!(
                    "{count} calls x {host:.0} us leave {fits:.1} ms for the rest: then {:.0} us of each {:.0} us call of '{}' were waiting",
                    told.all_reduce_us.unwrap_or(0.0) - (step_ms(told) - fits) * 1e3 / count,
                    told.all_reduce_us.unwrap_or(0.0),
                    told.config
                ),
            ],
        });
    }
    found
}
