// Speaks to the server: requests with the key, and streams of events.

/// An answer of the server that is an error, with its own words.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  const text = await response.text();
  let message = text || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not one of our own errors: its text is all there is.
  }
  throw new ServerError(response.status, message);
}

export async function get(path, key) {
  return checked(await fetch(path, { headers: headers(key), cache: "no-store" }));
}

/// Posts `body` and gives the objects of the stream that comes back, one by one.
export async function* stream(path, body, key, signal) {
  const response = await checked(await fetch(path, { method: "POST", headers: headers(key), body: JSON.stringify(body), signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const object = JSON.parse(data);
      if (object.error) throw new ServerError(object.error.code ?? 500, object.error.message);
      yield object;
    }
  }
}
