//! The page of `tombolo doctor`: the machine drawn, its matrix, the verdicts.

use crate::html::{escaped, page, with_code};
use crate::machine_svg;
use std::fmt::Write;
use tombolo_topology::verdicts::foremost;
use tombolo_topology::{LinkClass, Machine, Severity, Verdict};

/// A whole page. `title` says which machine it is, in one line.
pub fn doctor_page(title: &str, machine: &Machine, verdicts: &[Verdict]) -> String {
    let mut body = format!("<p class=\"dim\">tombolo doctor</p><h1>{}</h1>\n", escaped(title));
    summary(&mut body, verdicts);
    let drawing = machine_svg::draw(machine);
    if !drawing.is_empty() {
        let _ = writeln!(body, "<div class=\"scroll\">{drawing}</div>");
    }
    if machine.len() > 1 && machine.links.is_some() {
        matrix(&mut body, machine);
    }
    measured(&mut body, machine);
    for note in &machine.notes {
        let _ = writeln!(body, "<p class=\"dim\">{}</p>", with_code(note));
    }
    body += "<h2>Verdicts</h2>\n";
    if verdicts.is_empty() {
        body += "<p>No fault in what is known of this machine.</p>\n";
    }
    for verdict in verdicts {
        article(&mut body, verdict);
    }
    page(&format!("{title}: tombolo doctor"), &body)
}

/// The worst findings, before anything else.
fn summary(body: &mut String, verdicts: &[Verdict]) {
    let lines: Vec<String> =
        foremost(verdicts).map(|v| format!("<li><b>{}</b> {}</li>", word(v.severity), with_code(&v.title))).collect();
    if !lines.is_empty() {
        let _ = writeln!(body, "<ul>{}</ul>", lines.join(""));
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "ERROR",
        Severity::Warning => "WARNING",
        Severity::Note => "NOTE",
        Severity::Good => "GOOD",
    }
}

fn matrix(body: &mut String, machine: &Machine) {
    body.push_str("<h2>Paths</h2>\n<div class=\"scroll\"><table><tr><th></th>");
    for gpu in &machine.gpus {
        let _ = write!(body, "<th>GPU{}</th>", gpu.index);
    }
    body.push_str("</tr>");
    for (a, gpu) in machine.gpus.iter().enumerate() {
        let _ = write!(body, "<tr><th>GPU{}</th>", gpu.index);
        for b in 0..machine.len() {
            let class = machine.class(a, b);
            let kind = match class {
                Some(LinkClass::Itself) => "cX",
                Some(LinkClass::NvLink(_)) => "cNV",
                Some(LinkClass::Sys) => "cSYS",
                _ => "",
            };
            let word = class.map_or("?".to_string(), |class| class.to_string());
            let _ = write!(body, "<td class=\"{kind}\">{word}</td>");
        }
        body.push_str("</tr>");
    }
    body.push_str("</table></div>\n");
}

fn measured(body: &mut String, machine: &Machine) {
    if machine.all_reduce.is_empty() {
        return;
    }
    body.push_str(
        "<h2>All-reduce, measured</h2>\n<div class=\"scroll\"><table class=\"left\"><tr><th>through</th><th>fused</th>\
         <th>bytes</th><th>ranks</th><th>µs</th></tr>",
    );
    for row in &machine.all_reduce {
        let _ = write!(
            body,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.2}</td></tr>",
            escaped(&row.transport),
            escaped(&row.what),
            row.bytes,
            row.ranks,
            row.us
        );
    }
    body.push_str("</table></div>\n");
}

fn article(body: &mut String, verdict: &Verdict) {
    let word = word(verdict.severity);
    let class = word.to_ascii_lowercase();
    let _ = write!(
        body,
        "<article class=\"{class}\"><span class=\"tag\">{word} · {}</span><h3>{}</h3>",
        escaped(verdict.rule),
        with_code(&verdict.title)
    );
    for evidence in &verdict.evidence {
        let origin = if evidence.origin.is_empty() { String::new() } else { format!(" ({})", evidence.origin) };
        let _ = write!(body, "<p class=\"dim\">Seen: {}</p>", escaped(&format!("{}{origin}", evidence.fact)));
    }
    let _ = write!(body, "<p>{}</p>", with_code(&verdict.reason));
    if !verdict.fix.is_empty() {
        body.push_str("<ul>");
        for fix in &verdict.fix {
            let _ = write!(body, "<li>{}</li>", with_code(fix));
        }
        body.push_str("</ul>");
    }
    body.push_str("</article>\n");
}
