// The figures beside the chat, read off /metrics once a second.

import { get } from "./api.js";

const $ = (id) => document.getElementById(id);
const SECONDS = 120;
const speeds = [];
let before = null;

/// Lines of the text format as a map from `name{labels}` to numbers.
function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const found = line.match(/^([\w:]+)(\{.*\})? (\S+)/);
    if (found) values.set(found[1] + (found[2] ?? ""), Number(found[3]));
  }
  return values;
}

/// The sum over all labels.
function sum(values, name) {
  let total = 0;
  for (const [key, value] of values) if (key === name || key.startsWith(`${name}{`)) total += value;
  return total;
}

export async function watch(key) {
  for (;;) {
    if (!document.hidden && !$("live").hidden) {
      try {
        draw(parse(await (await get("/metrics", key())).text()), performance.now());
      } catch {
        before = null;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function draw(now, at) {
  const last = before;
  before = { now, at };
  if (!last) return;
  const seconds = (at - last.at) / 1000;
  const change = (name) => sum(now, name) - sum(last.now, name);
  const rate = (name) => change(name) / seconds;
  const mean = (name) => (sum(now, `${name}_count`) ? sum(now, `${name}_sum`) / sum(now, `${name}_count`) : null);
  const generated = rate("vllm:generation_tokens_total");
  speeds.push(generated);
  if (speeds.length > SECONDS) speeds.shift();
  const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "–");
  const ms = (value) => (value === null ? "–" : `${(1000 * value).toFixed(value < 0.1 ? 1 : 0)} ms`);
  const rows = [
    ["generated", `${generated.toFixed(1)} tok/s`],
    ["prompts", `${rate("vllm:prompt_tokens_total").toFixed(0)} tok/s`],
    ["time to first token", ms(mean("vllm:time_to_first_token_seconds"))],
    ["between tokens", ms(mean("vllm:inter_token_latency_seconds"))],
    ["running", sum(now, "vllm:num_requests_running").toFixed(0)],
    ["waiting", sum(now, "vllm:num_requests_waiting").toFixed(0)],
    ["prefix cache", share(sum(now, "vllm:prefix_cache_hits_total"), sum(now, "vllm:prefix_cache_queries_total"))],
  ];
  const drafted = sum(now, "vllm:spec_decode_num_draft_tokens_total");
  if (drafted) rows.push(["drafts accepted", share(sum(now, "vllm:spec_decode_num_accepted_tokens_total"), drafted)]);
  $("figures").replaceChildren(
    ...rows.flatMap(([name, value]) => {
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      dt.textContent = name;
      dd.textContent = value;
      return [dt, dd];
    }),
  );
  history();
  phases(now, last.now);
  const used = sum(now, "vllm:kv_cache_usage_perc");
  $("kv").firstElementChild.style.width = `${100 * used}%`;
  $("kv-text").textContent = `${(100 * used).toFixed(0)} % in use`;
}

function history() {
  const most = Math.max(...speeds, 1);
  const x = (i) => (300 * (i + SECONDS - speeds.length)) / (SECONDS - 1);
  const points = speeds.map((speed, i) => `${x(i).toFixed(1)},${(58 - (56 * speed) / most).toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  $("history").replaceChildren(line);
}

/// Where the steps of the last second went; where there were none, those of all time.
function phases(now, last) {
  const name = (phase) => `tombolo:step_${phase}_seconds`;
  const of = (values, phase, what) => sum(values, `${name(phase)}_${what}`);
  const recent = of(now, "run", "count") - of(last, "run", "count");
  const count = recent || of(now, "run", "count");
  if (!count) return;
  const seconds = (phase) => of(now, phase, "sum") - (recent ? of(last, phase, "sum") : 0);
  const parts = ["schedule", "run", "commit"].map((phase) => [phase, seconds(phase)]);
  const total = parts.reduce((total, [, seconds]) => total + seconds, 0) || 1;
  $("phases").replaceChildren(
    ...parts.map(([phase, seconds]) => {
      const span = document.createElement("span");
      span.style.width = `${(100 * seconds) / total}%`;
      span.title = phase;
      return span;
    }),
  );
  const text = parts.map(([phase, seconds]) => `${phase} ${((1000 * seconds) / count).toFixed(2)} ms`).join(", ");
  $("phases-text").textContent = text;
  $("phases").setAttribute("aria-label", text);
}
