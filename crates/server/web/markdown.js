// Turns the little of Markdown that models write into elements: code blocks, inline code, bold, lists, headings,
// paragraphs. Nothing here ever makes HTML out of text.

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;

/// Puts `text` into `target`, as elements.
export function render(target, text) {
  target.replaceChildren(...blocks(text.split("\n")));
}

function* blocks(lines) {
  let at = 0;
  while (at < lines.length) {
    const fence = lines[at].match(FENCE);
    if (fence) {
      const end = lines.findIndex((line, i) => i > at && line.trim().startsWith(fence[1]) && FENCE.test(line));
      const stop = end < 0 ? lines.length : end;
      yield code(lines.slice(at + 1, stop).join("\n"), fence[2]);
      at = stop + 1;
    } else if (lines[at].trim() === "") {
      at += 1;
    } else if (/^#{1,6}\s/.test(lines[at])) {
      yield element("h3", inline(lines[at].replace(/^#+\s+/, "")));
      at += 1;
    } else if (bullet(lines[at])) {
      const is_ordered = /^\s*\d/.test(lines[at]);
      const items = [];
      while (at < lines.length && (bullet(lines[at]) || (/^\s{2,}\S/.test(lines[at]) && items.length))) {
        const item = bullet(lines[at]);
        if (item !== null) items.push(item);
        else items[items.length - 1] += " " + lines[at].trim();
        at += 1;
      }
      yield element(is_ordered ? "ol" : "ul", items.map((item) => element("li", inline(item))));
    } else {
      const start = at;
      while (at < lines.length && lines[at].trim() !== "" && !FENCE.test(lines[at]) && (at === start || bullet(lines[at]) === null)) at += 1;
      const parts = lines.slice(start, at).flatMap((line, i) => (i ? [document.createElement("br"), ...inline(line)] : inline(line)));
      yield element("p", parts);
    }
  }
}

function bullet(line) {
  const found = line.match(/^\s*(?:[-*+]|\d{1,3}[.)])\s+(.*)$/);
  return found ? found[1] : null;
}

function code(text, language) {
  const copy = element("button", ["Copy"]);
  copy.type = "button";
  copy.addEventListener("click", () => navigator.clipboard?.writeText(text));
  const inner = element("code", [text]);
  if (language) inner.dataset.language = language;
  return element("pre", [copy, inner]);
}

/// `code`, **bold** and *slanted*.
function inline(text) {
  const parts = [];
  const mark = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
  let from = 0;
  for (let found; (found = mark.exec(text)); from = mark.lastIndex) {
    if (found.index > from) parts.push(text.slice(from, found.index));
    const [, code, bold, slanted] = found;
    parts.push(element(code ? "code" : bold ? "strong" : "em", [code ?? bold ?? slanted]));
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}

function element(name, children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}
