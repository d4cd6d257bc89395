//! A plan as text or JSON.

use super::{Accuracy, Comparison, Plan};
use crate::error::{Error, failure};
use crate::output;
use serde::Serialize;
use std::io::Write;
use tombolo_ceiling::outside::Outside;
use tombolo_ceiling::placement::{Memory, Placement};
use tombolo_ceiling::step::StepTime;
use tombolo_topology::Machine;

/// Characters of a memory bar.
const BAR: usize = 24;
/// Placements that are listed.
const LISTED_MAX: usize = 16;

type Written = std::io::Result<()>;

pub(super) fn json(plan: &impl Serialize, out: &mut impl Write) -> Result<(), Error> {
    writeln!(out, "{}", serde_json::to_string_pretty(plan).map_err(failure)?)?;
    Ok(())
}

pub(super) fn text(plan: &Plan, out: &mut impl Write) -> Result<(), Error> {
    head(plan, out)?;
    listed(plan, out)?;
    if let Some(p) = plan.placements.first().filter(|p| p.fits) {
        step(&format!("{}: a step for one user", p.name), &p.one, out)?;
        if let Some(ms) = p.prefill_ms {
            let prompt = plan.wish.prompt;
            writeln!(out, "prefill of {prompt} tokens {ms:.0} ms, {:.0} tok/s", prompt as f64 * 1e3 / ms)?;
        }
        if let Some(rate) = p.tok_s_one_today {
            writeln!(
                out,
                "with the all-reduce that has a GPU kernel today, the one-shot: {rate:.1} tok/s for one user"
            )?;
        }
        if p.replicated_bytes > 0.05 * p.budget.weight_bytes {
            let (same, all) = (p.replicated_bytes / 1e9, p.budget.weight_bytes / 1e9);
            writeln!(out, "of the {all:.2} GB of weights, {same:.2} GB are read by every rank alike")?;
        }
    }
    if !plan.illegal.is_empty() {
        writeln!(out, "\nillegal")?;
        for i in &plan.illegal {
            writeln!(out, "  TP {}: {}", i.tensor_parallel, output::one_line(&i.why))?;
        }
    }
    if !plan.advice.is_empty() {
        writeln!(out, "\nwhat a change would give (one user, many)")?;
        for a in &plan.advice {
            let note = if a.note.is_empty() { String::new() } else { format!("  [{}]", a.note) };
            let gain = a.gain_one.map_or_else(String::new, |gain| format!("{:+.0} %", 100.0 * gain));
            writeln!(out, "  {:>8.1} {:>9.0} tok/s {gain:>7}  {}{note}", a.tok_s_one, a.tok_s_many, a.what)?;
        }
    }
    if let Some(c) = &plan.compare {
        comparison(c, out)?;
    }
    if let Some(a) = &plan.accuracy {
        accuracy_text(a, out)?;
    }
    Ok(())
}

/// The same as a page.
pub(super) fn page(plan: &Plan, machine: &Machine) -> String {
    let m = &plan.model;
    let mut notes = vec![
        format!(
            "{} parameters, {}, {} layers; {} + {} collectives of {} bytes a row in a step over several ranks",
            output::parameters(m.parameters),
            output::bytes(m.bytes),
            m.layers,
            m.all_reduces,
            m.other_collectives,
            m.all_reduce_bytes
        ),
        format!(
            "{} tokens of context, KV {}; all figures are predicted, from published and measured constants, unless they say \
             otherwise",
            plan.wish.context, plan.wish.kv
        ),
    ];
    notes.extend(plan.model.gpus_cannot_run.map(cannot_run));
    notes.extend(plan.machine.notes.iter().cloned());
    let title = format!("{} on {}", m.name, cards(&plan.machine.gpus));
    let observed = plan.compare.as_ref().and_then(|c| {
        let at = plan.placements.iter().find(|p| p.name == c.placement)?;
        Some((at, c.observations.as_slice(), c.inferences.as_slice()))
    });
    tombolo_report::plan_page(&tombolo_report::PlanView {
        title: &title,
        notes: &notes,
        machine,
        placements: &plan.placements,
        illegal: &plan.illegal,
        advice: &plan.advice,
        observed,
    })
}

fn cannot_run(what: &str) -> String {
    format!(
        "tombolo cannot run this model on GPUs yet: there is no kernel for {what}. What the machine could do holds all the same"
    )
}

/// `8 x RTX PRO 6000`, or all names.
fn cards(gpus: &[String]) -> String {
    let first = gpus.first().map_or("", |g| g);
    if gpus.iter().all(|g| g == first) { format!("{} x {first}", gpus.len()) } else { gpus.join(", ") }
}

fn head(plan: &Plan, out: &mut impl Write) -> Written {
    let m = &plan.model;
    writeln!(
        out,
        "{}: {} parameters, {}, {} layers",
        output::one_line(&m.name),
        output::parameters(m.parameters),
        output::bytes(m.bytes),
        m.layers
    )?;
    writeln!(
        out,
        "collectives of a step over several ranks: {} + {} of {} bytes a row (2 a layer; one for the embedding where an engine splits it, which tombolo does not; one to gather the candidates of the vocabulary's parts)",
        m.all_reduces, m.other_collectives, m.all_reduce_bytes
    )?;
    if let Some(what) = m.gpus_cannot_run {
        writeln!(out, "{}", cannot_run(what))?;
    }
    write!(out, "machine: {}", output::one_line(&cards(&plan.machine.gpus)))?;
    match &plan.machine.islands {
        Some(islands) if islands.len() > 1 => {
            let text: Vec<String> =
                islands.iter().map(|i| i.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")).collect();
            writeln!(out, "; islands {}", text.join(" | "))?;
        }
        _ => writeln!(out)?,
    }
    for note in &plan.machine.notes {
        writeln!(out, "  note: {}", output::one_line(note))?;
    }
    if !plan.placements.iter().any(|p| p.fits) {
        let more = plan.advice.first().map_or_else(String::new, |a| format!(": {}", a.what));
        writeln!(out, "it does not fit on this machine{more}")?;
    }
    writeln!(
        out,
        "figures are ceilings, predicted from published and measured constants, unless they say otherwise; tombolo itself has \
         reached 61 to 68 % of its own (8B on one and two H200)\n"
    )
}

fn listed(plan: &Plan, out: &mut impl Write) -> Written {
    let w = &plan.wish;
    let memory = format!("memory a GPU at {} tokens, KV {}", w.context, w.kv);
    writeln!(
        out,
        "{:<24} {:>8} {:>9} {:>5}  {memory:<48} {:<22} {:>8} {:>6}",
        "placement", "one user", "many", "seqs", "binding", "context", "batch"
    )?;
    for p in plan.placements.iter().take(LISTED_MAX) {
        let rate = |rate: f64, digits: usize| if p.fits { format!("{rate:.digits$}") } else { "-".into() };
        let state = match (p.fits, p.cannot_run_yet) {
            (false, _) => "  does not fit".to_string(),
            (_, Some(why)) => format!("  {why}"),
            _ => String::new(),
        };
        writeln!(
            out,
            "{:<24} {:>8} {:>9} {:>5}  {:<48} {:<22} {:>8} {:>6}{state}",
            p.name,
            rate(p.tok_s_one, 1),
            rate(p.tok_s_many, 0),
            if p.fits { p.batch.to_string() } else { "-".into() },
            bar(&p.memory),
            if p.fits { p.one.binding() } else { "memory" },
            p.memory.context_max,
            batch_max(p)
        )?;
    }
    writeln!(
        out,
        "one user, many: tokens a second, of one sequence and of seqs sequences together; EP: experts whole, each on one rank;\n\
         memory: # weights, = caches of one user, - the rest; context, batch: the longest of one user, the most of this one"
    )
}

fn batch_max(p: &Placement) -> String {
    if p.memory.batch_max > 9999 { ">9999".into() } else { p.memory.batch_max.to_string() }
}

/// `#` weights, `=` caches of one user, `-` the rest, `.` free.
fn bar(m: &Memory) -> String {
    let used = m.weights + m.kv_one + m.rest;
    let cells = |bytes: f64| (bytes / m.capacity * BAR as f64).round() as usize;
    let (weights, kv, rest) = (cells(m.weights), cells(m.kv_one), cells(m.rest));
    let filled: String = std::iter::repeat_n('#', weights)
        .chain(std::iter::repeat_n('=', kv))
        .chain(std::iter::repeat_n('-', rest))
        .collect();
    let filled: String = filled.chars().chain(std::iter::repeat_n('.', BAR)).take(BAR).collect();
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    format!("[{filled}] {:>6.1} of {:.1} GiB", gib(used), gib(m.capacity))
}

fn step(title: &str, step: &StepTime, out: &mut impl Write) -> Written {
    writeln!(out, "\n{title}: {:.3} ms", step.ms)?;
    for t in step.terms.iter().filter(|t| t.ms > 0.0) {
        writeln!(out, "  {:<22} {:>8.3} ms {:>4.0} %  {}", t.name, t.ms, 100.0 * t.ms / step.ms, t.how)?;
    }
    Ok(())
}

fn comparison(c: &Comparison, out: &mut impl Write) -> Written {
    writeln!(out, "\nobserved beside the ceiling of {}", c.placement)?;
    for o in &c.observations {
        writeln!(
            out,
            "  {}: {:.2} ms a step (observed), ceiling {:.2} ms, {:.0} % of it reached",
            output::one_line(&o.observed.config),
            o.step_ms,
            o.ceiling_ms,
            100.0 * o.ceiling_ms / o.step_ms
        )?;
        if let (Some(ms), Some(share)) = (o.all_reduce_ms, o.all_reduce_share) {
            writeln!(out, "    all-reduce: {ms:.2} ms (observed), {:.0} % of the step", 100.0 * share)?;
        }
        writeln!(out, "    loss: {}", o.named)?;
    }
    for i in &c.inferences {
        writeln!(out, "  inference (nobody measured it): {}", i.what)?;
        for line in &i.arithmetic {
            writeln!(out, "    {line}")?;
        }
    }
    outside(&c.predictions, out)
}

fn outside(predictions: &[Outside], out: &mut impl Write) -> Written {
    writeln!(out, "\nhow far such predictions were off: steps that nothing here was fitted to")?;
    writeln!(out, "  {:>9} {:>9} {:>6}  what", "measured", "predicted", "error")?;
    for o in predictions {
        writeln!(
            out,
            "  {:>9.2} {:>9.2} {:>+5.0}%  {} ({}; {})",
            o.measured,
            o.predicted,
            100.0 * o.error,
            o.what,
            o.unit,
            o.source
        )?;
        writeln!(out, "  {:>26}  {}", "", o.how)?;
    }
    Ok(())
}

pub(super) fn accuracy(a: &Accuracy, as_json: bool, out: &mut impl Write) -> Result<(), Error> {
    if as_json {
        return json(a, out);
    }
    Ok(accuracy_text(a, out)?)
}

fn accuracy_text(a: &Accuracy, out: &mut impl Write) -> Written {
    writeln!(out, "\nall-reduces, each predicted with costs that were calibrated without its machine")?;
    writeln!(
        out,
        "  {:<42} {:<14} {:>9} {:>9} {:>9} {:>6}",
        "machine", "what", "bytes", "measured", "predicted", "error"
    )?;
    for p in &a.links {
        writeln!(
            out,
            "  {:<42} {:<14} {:>9} {:>9.1} {:>9.1} {:>+5.0}%",
            p.on,
            p.what,
            p.bytes,
            p.measured_us,
            p.predicted_us,
            100.0 * p.error
        )?;
    }
    writeln!(out, "  median error {:.0} % of {} points", 100.0 * a.median_error, a.links.len())?;
    outside(&a.steps, out)
}
