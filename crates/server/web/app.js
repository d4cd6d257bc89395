// The chat: what was said, what is being said, and the buttons around it.

import { get, stream, ServerError } from "./api.js";
import { render } from "./markdown.js";
import { watch } from "./live.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "max_tokens", "seed"];
const SAVED = "tombolo.settings";

/// What the server runs, and whether it answers messages or goes on with texts.
const model = { id: "", chats: true };
/// `{role, content, reasoning}`, oldest first.
let messages = [];
let running = null;

const key = () => $("key").value;

function notice(text) {
  $("notice").textContent = text ?? "";
  $("notice").hidden = !text;
}

async function connect() {
  try {
    const list = await (await get("/v1/models", key())).json();
    model.id = list.data[0].id;
    model.chats = list.data[0].chat !== false;
    $("model").textContent = model.id;
    $("text").placeholder = model.chats ? "Write a message" : "Write how a text begins";
    notice();
    welcome();
  } catch (error) {
    if (error.status === 401) {
      notice("This server asks for an API key: it goes under Settings.");
      toggle("settings", true);
    } else {
      notice(`The server does not answer (${error.message}); trying again.`);
      setTimeout(connect, 2000);
    }
  }
}

function welcome() {
  if (messages.length) return;
  const text = model.chats ? "Ask something." : "This model goes on with texts: write how one begins.";
  const empty = document.createElement("p");
  empty.className = "empty";
  empty.textContent = text;
  $("messages").replaceChildren(empty);
}

function settings() {
  const values = {};
  for (const name of NUMBERS) if ($(name).value !== "") values[name] = Number($(name).value);
  return values;
}

function body() {
  const common = { model: model.id, stream: true, stream_options: { include_usage: true }, ...settings() };
  if (!model.chats) return { ...common, max_tokens: common.max_tokens ?? 256, prompt: messages.at(-1).content };
  const system = $("system").value.trim();
  const said = messages.map(({ role, content }) => ({ role, content }));
  return { ...common, messages: system ? [{ role: "system", content: system }, ...said] : said };
}

/// Draws one message; the returned functions change it.
function show(message) {
  $("messages").querySelector(".empty")?.remove();
  const article = $("message").content.firstElementChild.cloneNode(true);
  article.classList.add(message.role);
  article.querySelector(".who").textContent = message.role === "user" ? "You" : model.id;
  const content = article.querySelector(".body");
  const reasoning = article.querySelector(".reasoning");
  const draw = () => {
    reasoning.hidden = !message.reasoning;
    reasoning.querySelector("div").textContent = message.reasoning ?? "";
    if (message.role === "user") content.textContent = message.content;
    else if (model.chats) render(content, message.content);
    else {
      content.classList.add("plain");
      content.textContent = message.content;
    }
  };
  article.querySelector(".copy").addEventListener("click", () => navigator.clipboard?.writeText(message.content));
  article.querySelector(".again").addEventListener("click", () => again(message));
  draw();
  follow(() => $("messages").append(article));
  return { article, draw };
}

/// Keeps the end in view for who was there before.
function follow(change) {
  const log = $("messages");
  const is_at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (is_at_end) log.scrollTop = log.scrollHeight;
}

async function answer() {
  const message = { role: "assistant", content: "", reasoning: "" };
  const { article, draw } = show(message);
  article.classList.add("busy");
  running = new AbortController();
  busy(true);
  notice();
  const started = performance.now();
  let first = null;
  let usage = null;
  let reason = null;
  let is_due = false;
  const redraw = () => {
    // Once a frame is enough.
    if (is_due) return;
    is_due = true;
    requestAnimationFrame(() => {
      is_due = false;
      follow(draw);
    });
  };
  try {
    const path = model.chats ? "/v1/chat/completions" : "/v1/completions";
    for await (const part of stream(path, body(), key(), running.signal)) {
      usage = part.usage ?? usage;
      const choice = part.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      const delta = choice.delta ?? { content: choice.text };
      if (delta.content || delta.reasoning_content) first ??= performance.now();
      message.reasoning += delta.reasoning_content ?? "";
      message.content += delta.content ?? "";
      for (const call of delta.tool_calls ?? []) message.content += call.function?.name ? `\n\`${call.function.name}\` ` : call.function?.arguments ?? "";
      redraw();
    }
  } catch (error) {
    if (error.name !== "AbortError") notice(error instanceof ServerError ? error.message : `The connection broke: ${error.message}`);
    else reason = "stopped";
  }
  running = null;
  busy(false);
  article.classList.remove("busy");
  draw();
  if (message.content || message.reasoning) messages.push(message);
  else article.remove();
  article.querySelector("footer").hidden = false;
  article.querySelector(".facts").textContent = facts({ started, first, usage, reason });
  $("text").focus();
}

function facts({ started, first, usage, reason }) {
  const parts = [];
  if (first) parts.push(`first token after ${((first - started) / 1000).toFixed(2)} s`);
  const count = usage?.completion_tokens;
  if (count > 1) parts.push(`${count} tokens, ${((1000 * (count - 1)) / (performance.now() - first)).toFixed(1)} a second`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  if (reason === "length") parts.push("cut at the limit");
  if (reason === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function busy(is_busy) {
  $("stop").hidden = !is_busy;
  $("send").hidden = is_busy;
}

function ask(text) {
  const message = { role: "user", content: text };
  messages.push(message);
  show(message);
  $("messages").scrollTop = $("messages").scrollHeight;
  answer();
}

/// Answers once more what this message answered.
function again(message) {
  if (running) return;
  const at = messages.indexOf(message);
  const until = message.role === "user" ? at + 1 : at;
  if (at < 0 || until < 1) return;
  messages = messages.slice(0, until);
  $("messages").replaceChildren();
  messages.forEach((said) => {
    show(said).article.querySelector("footer").hidden = said.role === "user";
  });
  answer();
}

function reset() {
  running?.abort();
  messages = [];
  $("messages").replaceChildren();
  notice();
  welcome();
  $("text").focus();
}

function toggle(id, is_open = $(id).hidden) {
  $(id).hidden = !is_open;
  $(`toggle-${id}`).setAttribute("aria-expanded", String(is_open));
}

function grow() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

function save() {
  const values = Object.fromEntries([...NUMBERS, "system"].map((name) => [name, $(name).value]));
  localStorage.setItem(SAVED, JSON.stringify(values));
  // The key is forgotten with the tab.
  sessionStorage.setItem("tombolo.key", key());
}

function load() {
  try {
    const values = JSON.parse(localStorage.getItem(SAVED) ?? "{}");
    for (const [name, value] of Object.entries(values)) if ($(name)) $(name).value = value;
  } catch {
    localStorage.removeItem(SAVED);
  }
  $("key").value = sessionStorage.getItem("tombolo.key") ?? "";
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running || !model.id) return;
  $("text").value = "";
  grow();
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("text").addEventListener("input", grow);
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", reset);
$("toggle-settings").addEventListener("click", () => toggle("settings"));
$("toggle-live").addEventListener("click", () => toggle("live"));
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("change", () => {
  save();
  if (!model.id) connect();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.altKey && event.key.toLowerCase() === "n") reset();
});

load();
// On a small screen the conversation comes first.
if (matchMedia("(max-width: 820px)").matches) toggle("live", false);
connect();
watch(key);
