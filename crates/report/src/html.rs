//! The shell of a page, and text made safe for it. What a page says is not known here.

/// Text as HTML and XML take it, in elements and in attributes. Control characters are left out.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => {}
            c => out.push(c),
        }
    }
    out
}

/// As [`escaped`], with what stands between backquotes set as code.
pub fn with_code(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        let part = escaped(part);
        if at % 2 == 1 {
            out += &format!("<code>{part}</code>");
        } else {
            out += &part;
        }
    }
    out
}

/// A whole page around a body that is HTML already.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{title}</title>\n<style>{STYLE}</style></head>\n\
         <body><main>\n{body}\n</main></body></html>\n"
    )
}

/// Colours as variables, so that dark and print change those only.
const STYLE: &str = "
:root{--bg:#fbfaf7;--fg:#1d1f22;--dim:#5d6470;--box:#fff;--line:#c9c6bd;--near:#2b6cb0;--far:#b7791f;--nv:#2f855a;
--error:#c53030;--warning:#b7791f;--note:#2b6cb0;--good:#2f855a}
@media(prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e6e4df;--dim:#9aa3b0;--box:#1f2329;--line:#3a4049;--near:#63b3ed;
--far:#ecc94b;--nv:#68d391;--error:#fc8181;--warning:#ecc94b;--note:#63b3ed;--good:#68d391}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--box:#fff;--line:#999}article{break-inside:avoid}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 1rem}
h2{font-size:1.15rem;margin:2rem 0 .6rem}p{margin:.4rem 0}.dim{color:var(--dim)}
article{background:var(--box);border:1px solid var(--line);border-left:.35rem solid var(--c);border-radius:.4rem;padding:.7rem 1rem;
margin:.8rem 0}article h3{font-size:1rem;margin:0 0 .3rem}.tag{color:var(--c);font-size:.8rem;font-weight:700;letter-spacing:.04em}
.error{--c:var(--error)}.warning{--c:var(--warning)}.note{--c:var(--note)}.good{--c:var(--good)}
ul{margin:.4rem 0;padding-left:1.2rem}code{font:.88em ui-monospace,monospace;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font:.85rem ui-monospace,monospace}td,th{padding:.2rem .55rem;text-align:center;
border:1px solid var(--line);font-weight:400}.cNV{color:var(--nv)}.cSYS{color:var(--far)}.cX{color:var(--dim)}
svg{max-width:100%;height:auto;display:block}svg text{fill:var(--fg);font-family:system-ui,sans-serif}svg .dim{fill:var(--dim)}
svg .island{fill:var(--box);stroke:var(--line)}svg .gpu{fill:var(--bg);stroke:var(--near)}svg .bus{stroke:var(--near)}
svg .nv{stroke:var(--nv)}svg .sys{stroke:var(--far)}
.left td,.left th{text-align:left}.left td.n{text-align:right;white-space:nowrap}h3{font-size:1rem}.left tr.dim td{color:var(--dim)}
.t-reduce{fill:var(--far);background:var(--far)}.t-other{fill:var(--near);background:var(--near)}
.t-whole{fill:var(--nv)}.t-rest{fill:var(--dim);background:var(--dim)}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-left:.6em}
.gauge{display:inline-flex;width:4.5rem;height:.75em;margin-right:.6em;background:var(--line);border-radius:2px;overflow:hidden;
vertical-align:-.05em}.gauge i{height:100%}
@media print{main{max-width:none}.scroll{overflow:visible}table{font-size:.7rem}.key,.gauge,.gauge i{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(escaped("<a href=\"x\">'&\u{1b}[31m"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;[31m");
        assert_eq!(with_code("set `a<b` now"), "set <code>a&lt;b</code> now");
    }
}
