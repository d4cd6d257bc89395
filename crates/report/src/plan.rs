//! The page of `tombolo plan`: the machine drawn, a step's time as a waterfall, what was observed beside it, placements
//! compared, and what a change would give.

use crate::html::{escaped, page, with_code};
use crate::{machine_svg, waterfall};
use std::fmt::Write;
use tombolo_ceiling::advice::Advice;
use tombolo_ceiling::compare::{Compared, Inference};
use tombolo_ceiling::placement::{Illegal, Memory, Placement};
use tombolo_topology::Machine;

/// What the page tells.
pub struct PlanView<'a> {
    /// The model and the machine, in a line.
    pub title: &'a str,
    /// What else must be known, a line each.
    pub notes: &'a [String],
    /// The machine.
    pub machine: &'a Machine,
    /// Placements, the best first.
    pub placements: &'a [Placement],
    /// Sizes that are illegal.
    pub illegal: &'a [Illegal],
    /// Changes.
    pub advice: &'a [Advice],
    /// The placement that observations are held against, and they; none: nothing was observed.
    pub observed: Option<(&'a Placement, &'a [Compared], &'a [Inference])>,
}

/// Placements that are listed.
const LISTED_MAX: usize = 24;

/// A whole page.
pub fn plan_page(view: &PlanView) -> String {
    let mut body = format!("<p class=\"dim\">tombolo plan</p><h1>{}</h1>\n", escaped(view.title));
    for note in view.notes {
        let _ = writeln!(body, "<p class=\"dim\">{}</p>", with_code(note));
    }
    let drawing = machine_svg::draw(view.machine);
    if !drawing.is_empty() {
        let _ = writeln!(body, "<div class=\"scroll\">{drawing}</div>");
    }
    step(&mut body, view);
    placements(&mut body, view.placements);
    advice(&mut body, view.advice);
    if !view.illegal.is_empty() {
        body += "<h2>Illegal</h2>\n<ul>";
        for illegal in view.illegal {
            let _ = write!(body, "<li>TP {}: {}</li>", illegal.tensor_parallel, escaped(&illegal.why));
        }
        body += "</ul>\n";
    }
    page(&format!("{}: tombolo plan", view.title), &body)
}

fn step(body: &mut String, view: &PlanView) {
    let (placement, observed, inferences) = match view.observed {
        Some(found) => found,
        None => match view.placements.first().filter(|first| first.fits) {
            Some(first) => (first, &[][..], &[][..]),
            None => {
                body.push_str("<p>It does not fit on this machine.</p>\n");
                return;
            }
        },
    };
    let _ = write!(
        body,
        "<h2>A step of {} for one user</h2>\n<div class=\"scroll\">{}</div>\n\
         <p class=\"dim\"><span class=\"key t-reduce\"></span> all-reduces <span class=\"key t-other\"></span> everything \
         else{}</p>\n",
        escaped(&placement.name),
        waterfall::draw(&placement.one, observed),
        if observed.is_empty() { "" } else { "; what was observed stands above the ceiling" }
    );
    if !observed.is_empty() {
        body.push_str(
            "<div class=\"scroll\"><table class=\"left\"><tr><th>observed</th><th>ms</th><th>of the ceiling</th><th>loss</th></tr>",
        );
    }
    for o in observed {
        let _ = write!(
            body,
            "<tr><td>{}</td><td class=\"n\">{:.2}</td><td class=\"n\">{:.0} %</td><td>{}</td></tr>",
            escaped(&o.observed.config),
            o.step_ms,
            100.0 * o.ceiling_ms / o.step_ms,
            escaped(&o.named)
        );
    }
    if !observed.is_empty() {
        body.push_str("</table></div>\n");
    }
    for inference in inferences {
        let _ = write!(
            body,
            "<article class=\"note\"><span class=\"tag\">INFERENCE · nobody measured it</span><h3>{}</h3><ul>",
            escaped(&inference.what)
        );
        for line in &inference.arithmetic {
            let _ = write!(body, "<li>{}</li>", escaped(line));
        }
        body.push_str("</ul></article>\n");
    }
    body.push_str("<h3>The ceiling's arithmetic</h3>\n");
    body.push_str("<div class=\"scroll\"><table class=\"left\"><tr><th>term</th><th>ms</th><th>share</th><th>arithmetic</th></tr>");
    for term in placement.one.terms.iter().filter(|term| term.ms > 0.0) {
        let _ = write!(
            body,
            "<tr><td>{}</td><td class=\"n\">{:.3}</td><td class=\"n\">{:.0} %</td><td>{}</td></tr>",
            escaped(term.name),
            term.ms,
            100.0 * term.ms / placement.one.ms,
            escaped(&term.how)
        );
    }
    body.push_str("</table></div>\n");
}

fn placements(body: &mut String, all: &[Placement]) {
    let fastest = all.iter().filter(|p| p.fits).map(|p| p.tok_s_one).fold(f64::MIN_POSITIVE, f64::max);
    body.push_str(
        "<h2>Placements</h2>\n<div class=\"scroll\"><table class=\"left\"><tr><th>placement</th><th>one user, tok/s</th>\
         <th>many, tok/s</th><th>sequences</th><th>memory a GPU</th><th>bound by</th><th>largest context</th><th></th></tr>",
    );
    for p in all.iter().take(LISTED_MAX) {
        let state = match (p.fits, p.cannot_run_yet) {
            (false, _) => "does not fit",
            (_, Some(why)) => why,
            _ => "",
        };
        let _ = write!(
            body,
            "<tr{}><td>{}</td><td>{}{:.1}</td><td class=\"n\">{:.0}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td>{}</td></tr>",
            if p.fits && p.cannot_run_yet.is_none() { "" } else { " class=\"dim\"" },
            escaped(&p.name),
            gauge(&[("other", if p.fits { p.tok_s_one / fastest } else { 0.0 })]),
            p.tok_s_one,
            p.tok_s_many,
            p.batch,
            memory(&p.memory),
            escaped(p.one.binding()),
            p.memory.context_max,
            escaped(state)
        );
    }
    body.push_str("</table></div>\n<p class=\"dim\">Memory: <span class=\"key t-other\"></span> weights \
         <span class=\"key t-reduce\"></span> caches of one user <span class=\"key t-rest\"></span> the rest. EP: experts whole, \
         each on one rank.</p>\n");
}

fn memory(m: &Memory) -> String {
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let share = |bytes: f64| bytes / m.capacity;
    let parts = [("other", share(m.weights)), ("reduce", share(m.kv_one)), ("rest", share(m.rest))];
    format!("{}{:.1} of {:.1} GiB", gauge(&parts), gib(m.weights + m.kv_one + m.rest), gib(m.capacity))
}

/// A bar of parts, each a share of the whole; what is beyond it is cut off.
fn gauge(parts: &[(&str, f64)]) -> String {
    let mut left: f64 = 100.0;
    let mut out = String::from("<span class=\"gauge\">");
    for (class, share) in parts {
        let width = (100.0 * share).clamp(0.0, left);
        left -= width;
        let _ = write!(out, "<i class=\"t-{class}\" style=\"width:{width:.1}%\"></i>");
    }
    out + "</span>"
}

fn advice(body: &mut String, all: &[Advice]) {
    if all.is_empty() {
        return;
    }
    body.push_str(
        "<h2>What a change would give</h2>\n<div class=\"scroll\"><table class=\"left\"><tr><th>change</th>\
         <th>one user, tok/s</th><th></th><th>many, tok/s</th><th></th></tr>",
    );
    for a in all {
        let _ = write!(
            body,
            "<tr><td>{}</td><td class=\"n\">{:.1}</td><td class=\"n\">{}</td><td class=\"n\">{:.0}</td><td>{}</td></tr>",
            escaped(&a.what),
            a.tok_s_one,
            a.gain_one.map_or_else(String::new, |gain| format!("{:+.0} %", 100.0 * gain)),
            a.tok_s_many,
            escaped(&a.note)
        );
    }
    body.push_str("</table></div>\n");
}
