//! A step's time drawn: its terms one after the other below the ceiling that they add up to, and above it what somebody
//! observed, on one scale.

use crate::html::escaped;
use std::fmt::Write;
use tombolo_ceiling::compare::Compared;
use tombolo_ceiling::step::StepTime;

const WIDTH: usize = 920;
/// Columns of names at the left and of figures at the right.
const NAMES: usize = 270;
const FIGURES: usize = 120;
const ROW: usize = 26;
const BAR: usize = 16;
/// Observations that are drawn.
const OBSERVED_MAX: usize = 8;
/// Characters of a name.
const NAME_MAX: usize = 38;

/// The drawing as an SVG element.
pub fn draw(ceiling: &StepTime, observed: &[Compared]) -> String {
    let shown = &observed[..observed.len().min(OBSERVED_MAX)];
    let longest = shown.iter().map(|o| o.step_ms).fold(ceiling.ms, f64::max);
    if !(longest.is_finite() && longest > 0.0) {
        return String::new();
    }
    let scale = Scale { per_ms: (WIDTH - NAMES - FIGURES) as f64 / longest };
    let mut body = String::new();
    let mut top = 4;
    for o in shown {
        let parts: Vec<(&str, f64)> = match o.all_reduce_ms {
            Some(reduce) => vec![("reduce", reduce.min(o.step_ms)), ("other", (o.step_ms - reduce).max(0.0))],
            None => vec![("other", o.step_ms)],
        };
        row(&mut body, top, &o.observed.config, &figure(o.step_ms, None), false);
        let mut from = 0.0;
        for (class, ms) in parts {
            bar(&mut body, top, class, scale, (from, ms));
            from += ms;
        }
        top += ROW;
    }
    row(&mut body, top, "ceiling", &figure(ceiling.ms, None), true);
    bar(&mut body, top, "whole", scale, (0.0, ceiling.ms));
    top += ROW;
    let mut from = 0.0;
    for term in ceiling.terms.iter().filter(|term| term.ms > 0.0) {
        row(&mut body, top, term.name, &figure(term.ms, Some(ceiling.ms)), false);
        bar(
            &mut body,
            top,
            if term.name.starts_with("all-reduce") { "reduce" } else { "other" },
            scale,
            (from, term.ms),
        );
        from += term.ms;
        top += ROW;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"a step's time, term by term\">{body}</svg>"
    )
}

#[derive(Clone, Copy)]
struct Scale {
    per_ms: f64,
}

fn figure(ms: f64, of: Option<f64>) -> String {
    match of {
        Some(whole) => format!("{ms:.2} ms  {:.0} %", 100.0 * ms / whole),
        None => format!("{ms:.2} ms"),
    }
}

fn row(body: &mut String, top: usize, name: &str, figure: &str, bold: bool) {
    let base = top + BAR - 3;
    let weight = if bold { " font-weight=\"600\"" } else { "" };
    let short: String = if name.chars().count() > NAME_MAX {
        name.chars().take(NAME_MAX - 1).chain(['…']).collect()
    } else {
        name.to_string()
    };
    let _ = write!(
        body,
        "<text x=\"0\" y=\"{base}\" font-size=\"13\"{weight}>{}</text>\
         <text x=\"{WIDTH}\" y=\"{base}\" font-size=\"13\" text-anchor=\"end\"{weight}>{}</text>",
        escaped(&short),
        escaped(figure)
    );
}

/// From a time on for a time, at least so wide that it is seen.
fn bar(body: &mut String, top: usize, class: &str, scale: Scale, (from, ms): (f64, f64)) {
    let (x, width) = (NAMES as f64 + from * scale.per_ms, (ms * scale.per_ms).max(1.0));
    let _ = write!(
        body,
        "<rect class=\"t-{class}\" x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>"
    );
}
