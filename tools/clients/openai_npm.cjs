// The server through OpenAI's npm package, unmodified. Run by the Rust tests of crates/cli/tests/clients, which start the
// servers and say where the package is (NODE_PATH).
//
// usage: node openai_npm.cjs OPEN_URL KEYED_URL TOOL_URL     as openai_python.py

const assert = require("node:assert/strict");
const test = require("node:test");
const OpenAI = require("openai");

const [open, keyed, tool] = process.argv.slice(2).map((url) => `${url}/v1`);
const client = (baseURL, apiKey = "none") => new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });
const prompt = "In the beginning God created";
const ask = { model: "demo", messages: [{ role: "user", content: prompt }], max_tokens: 24, temperature: 0 };
const weather = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } } },
};

test("models are listed", async () => {
  const names = [];
  for await (const model of client(open).models.list()) names.push(model.id);
  assert.deepEqual(names, ["demo"]);
});

test("a chat streams what it says", async () => {
  const whole = await client(open).chat.completions.create(ask);
  const text = whole.choices[0].message.content;
  assert.equal(whole.usage.completion_tokens, 24);
  let streamed = "";
  let usage = null;
  const stream = await client(open).chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  for await (const event of stream) {
    streamed += event.choices[0]?.delta?.content ?? "";
    usage = event.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.equal(usage.completion_tokens, 24);
  const helper = client(open).chat.completions.stream(ask);
  assert.equal(await helper.finalContent(), text);
});

test("a stream can be left", async () => {
  const stream = await client(open).chat.completions.create({ ...ask, max_tokens: 500, stream: true });
  let events = 0;
  for await (const _ of stream) if (++events === 3) break;
  assert.equal(events, 3);
  assert.ok(stream.controller.signal.aborted);
});

test("log-probabilities and echo", async () => {
  const chat = await client(open).chat.completions.create({ ...ask, max_tokens: 3, logprobs: true, top_logprobs: 2 });
  assert.equal(chat.choices[0].logprobs.content.length, 3);
  assert.equal(chat.choices[0].logprobs.content[0].top_logprobs.length, 2);
  const echo = await client(open).completions.create({ model: "demo", prompt, echo: true, logprobs: 1, max_tokens: 1 });
  assert.ok(echo.choices[0].text.startsWith(prompt));
  assert.equal(echo.choices[0].logprobs.token_logprobs[0], null);
});

test("an agent goes round", async () => {
  const asked = [];
  const runner = client(tool).chat.completions.runTools({
    model: "scripted",
    temperature: 0,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [{ ...weather, function: { ...weather.function, parse: JSON.parse, function: (given) => (asked.push(given), "20 degrees") } }],
  });
  assert.equal(await runner.finalContent(), "It is 20 degrees in Paris.");
  assert.deepEqual(asked, [{ city: "Paris", days: 2 }]);
  assert.deepEqual(runner.messages.map((message) => message.role), ["user", "assistant", "tool", "assistant"]);
});

test("an answer has the form of its schema", async () => {
  const properties = { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 } };
  const schema = { type: "object", properties, required: ["name", "age"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "person", strict: true, schema } };
  const answer = await client(open).chat.completions.create({ ...ask, max_tokens: 300, response_format });
  const person = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(person), ["name", "age"]);
  assert.ok(Number.isInteger(person.age) && person.age <= 120 && person.name.length <= 12);
});

test("errors have their classes", async () => {
  const bad = client(open).chat.completions.create({ ...ask, temperature: -1 });
  await assert.rejects(bad, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  await assert.rejects(client(open).chat.completions.create({ ...ask, model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(client(keyed, "wrong").models.list(), OpenAI.AuthenticationError);
  const one = { model: "demo", prompt, max_tokens: 200, ignore_eos: true };
  const flood = await Promise.allSettled(Array.from({ length: 8 }, () => client(keyed, "right").completions.create(one)));
  const refused = flood.filter((result) => result.status === "rejected");
  assert.ok(refused.length > 0 && refused.length < 8);
  for (const { reason } of refused) assert.ok(reason instanceof OpenAI.RateLimitError, String(reason));
  await assert.rejects(client("http://127.0.0.1:1/v1").models.list(), OpenAI.APIConnectionError);
});
