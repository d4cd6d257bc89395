"""The server through OpenAI's Python package, unmodified. Run by the Rust tests of crates/cli/tests/clients, which start
the servers.

usage: openai_python.py OPEN_URL KEYED_URL TOOL_URL

OPEN_URL: the demo model. KEYED_URL: the same, which wants the key `right`, runs one request and lets one wait. TOOL_URL: a
model that calls `weather` when it is offered tools, and answers what a tool has said.
"""

import asyncio
import json
import sys
import typing
import unittest

import openai
import pydantic
from openai import AsyncOpenAI, OpenAI

OPEN, KEYED, TOOL = (url + "/v1" for url in sys.argv[1:4])
PROMPT = "In the beginning God created"
MESSAGES = [{"role": "user", "content": PROMPT}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def client(url, key="none"):
    return OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


class Models(unittest.TestCase):
    def test_are_listed_and_found(self):
        models = client(OPEN).models
        self.assertEqual([model.id for model in models.list()], ["demo"])
        self.assertEqual(models.retrieve("demo").object, "model")
        with self.assertRaises(openai.NotFoundError):
            models.retrieve("other")


class Chat(unittest.TestCase):
    def setUp(self):
        self.create = client(OPEN).chat.completions.create

    def ask(self, **more):
        return self.create(model="demo", messages=MESSAGES, **{"max_tokens": 24, "temperature": 0, **more})

    def test_streams_what_it_says(self):
        whole = self.ask()
        text = whole.choices[0].message.content
        self.assertGreater(len(text.split()), 5)
        self.assertEqual((whole.choices[0].finish_reason, whole.choices[0].message.role), ("length", "assistant"))
        self.assertEqual(whole.usage.completion_tokens, 24)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + 24)
        events = list(self.ask(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(e.choices[0].delta.content or "" for e in events if e.choices), text)
        self.assertEqual(events[0].choices[0].delta.role, "assistant")
        self.assertEqual((events[-1].choices, events[-1].usage.completion_tokens), ([], 24))
        self.assertEqual(len({event.id for event in events}), 1)

    def test_helper_gathers_the_stream(self):
        text = self.ask().choices[0].message.content
        word = text.split()[3]
        # The helper takes an answer that was cut at a limit for a failure.
        with client(OPEN).chat.completions.stream(model="demo", messages=MESSAGES, temperature=0, stop=[word]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertLessEqual({"chunk", "content.delta", "content.done"}, kinds)
        self.assertEqual(final.choices[0].message.content, text[: text.index(word)])

    def test_seeds_and_several_answers(self):
        drawn = lambda seed: [c.message.content for c in self.ask(temperature=1, seed=seed, n=3).choices]
        self.assertEqual(drawn(1), drawn(1))
        self.assertNotEqual(drawn(1), drawn(2))
        self.assertEqual(len(set(drawn(1))), 3)

    def test_stops_before_a_string(self):
        text = self.ask().choices[0].message.content
        word = text.split()[3]
        cut = self.ask(stop=[word]).choices[0]
        self.assertEqual((cut.message.content, cut.finish_reason), (text[: text.index(word)], "stop"))

    def test_logprobs(self):
        choice = self.ask(max_tokens=5, logprobs=True, top_logprobs=3).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), choice.message.content)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertLessEqual(token.logprob, 0)
            # Greedy: the token itself is the likeliest.
            self.assertEqual(token.top_logprobs[0].token, token.token)
            self.assertEqual(bytes(token.bytes).decode(), token.token)

    def test_content_in_parts_and_newer_names(self):
        parts = [{"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
        answer = self.create(model="demo", messages=parts, max_completion_tokens=3, temperature=0)
        self.assertEqual(answer.usage.completion_tokens, 3)


class Completions(unittest.TestCase):
    def setUp(self):
        self.create = client(OPEN).completions.create

    def test_echo_tells_of_the_prompt(self):
        answer = self.create(model="demo", prompt=PROMPT, echo=True, logprobs=1, max_tokens=2, temperature=0)
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith(PROMPT))
        lists = choice.logprobs
        self.assertEqual(len(lists.tokens), answer.usage.prompt_tokens + 2)
        self.assertIsNone(lists.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in lists.token_logprobs[1:]))
        self.assertEqual(len(lists.text_offset), len(lists.tokens))

    def test_prompts_are_texts_or_tokens_one_or_many(self):
        answer = self.create(model="demo", prompt=[PROMPT, "And"], max_tokens=3, temperature=0)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual(len(self.create(model="demo", prompt=[5, 6, 7], max_tokens=2).choices), 1)
        text = answer.choices[0].text
        events = list(self.create(model="demo", prompt=PROMPT, max_tokens=3, temperature=0, stream=True))
        self.assertEqual("".join(event.choices[0].text for event in events if event.choices), text)

    def test_what_others_have_beside_openai(self):
        more = {"min_p": 0.1, "top_k": 5, "repetition_penalty": 1.1, "ignore_eos": True}
        answer = self.create(model="demo", prompt=PROMPT, max_tokens=4, extra_body=more)
        self.assertEqual(answer.usage.completion_tokens, 4)


class Tools(unittest.TestCase):
    def setUp(self):
        self.create = client(TOOL).chat.completions.create

    def test_an_agent_goes_round(self):
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        for _ in range(3):
            choice = self.create(model="scripted", messages=messages, tools=[WEATHER], temperature=0).choices[0]
            messages.append(choice.message)
            if choice.finish_reason != "tool_calls":
                break
            for call in choice.message.tool_calls:
                arguments = json.loads(call.function.arguments)
                self.assertEqual((call.type, call.function.name, arguments), ("function", "weather", {"city": "Paris", "days": 2}))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 20})})
        self.assertEqual([m["role"] if isinstance(m, dict) else m.role for m in messages], ["user", "assistant", "tool", "assistant"])
        self.assertEqual(messages[-1].content, "It is 20 degrees in Paris.")
        self.assertIsNone(messages[-1].tool_calls)
        self.assertIsNone(messages[1].content)

    def test_a_call_is_streamed(self):
        ask = {"model": "scripted", "messages": MESSAGES, "tools": [WEATHER], "temperature": 0}
        calls, reasons = [], []
        for event in self.create(stream=True, **ask):
            calls += event.choices[0].delta.tool_calls or []
            reasons += filter(None, [event.choices[0].finish_reason])
        self.assertEqual(reasons, ["tool_calls"])
        self.assertEqual({call.index for call in calls}, {0})
        self.assertEqual("".join(call.function.name or "" for call in calls), "weather")
        arguments = "".join(call.function.arguments or "" for call in calls)
        self.assertEqual(json.loads(arguments), {"city": "Paris", "days": 2})
        with client(TOOL).chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.tool_calls[0].function.name, "weather")

    def test_without_tools_there_are_no_calls(self):
        choice = self.create(model="scripted", messages=MESSAGES, temperature=0).choices[0]
        self.assertEqual((choice.message.content, choice.message.tool_calls), ("Hello there.", None))
        none = self.create(model="scripted", messages=MESSAGES, tools=[WEATHER], tool_choice="none", temperature=0)
        self.assertIsNone(none.choices[0].message.tool_calls)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)
    likes: list[typing.Literal["tea", "coffee"]] = pydantic.Field(max_length=2)


class Forms(unittest.TestCase):
    def setUp(self):
        self.open = client(OPEN).chat.completions

    def test_a_class_is_answered_with_an_object_of_it(self):
        for seed in range(3):
            answer = self.open.parse(
                model="demo", messages=MESSAGES, response_format=Person, max_tokens=400, temperature=1, seed=seed
            )
            person = answer.choices[0].message.parsed
            self.assertIsInstance(person, Person)
            self.assertTrue(0 <= person.age <= 120 and len(person.name) <= 12)
            self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_a_form_is_streamed(self):
        ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 400, "temperature": 0}
        with client(OPEN).chat.completions.stream(response_format=Person, **ask) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertIsInstance(final.choices[0].message.parsed, Person)
        self.assertGreater(kinds.count("content.delta"), 5)

    def test_any_object(self):
        answer = self.open.create(
            model="demo", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=300, temperature=1, seed=3
        )
        choice = answer.choices[0]
        self.assertTrue(choice.message.content.lstrip().startswith("{"))
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_vllms_forms(self):
        def answer(**form):
            ask = client(OPEN).completions.create
            more = {"structured_outputs": form}
            return ask(model="demo", prompt=PROMPT, max_tokens=50, temperature=0, extra_body=more).choices[0].text

        self.assertIn(answer(choice=["the heaven", "the sea"]), ("the heaven", "the sea"))
        self.assertRegex(answer(regex="[a-c]{3}-[0-9]{2}"), "^[a-c]{3}-[0-9]{2}$")

    def test_what_is_no_schema_is_refused(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
        with self.assertRaises(openai.BadRequestError) as raised:
            self.open.create(model="demo", messages=MESSAGES, response_format=form)
        self.assertTrue(raised.exception.param.startswith("response_format"), raised.exception.param)

    def test_calls_that_must_be_made(self):
        def tool(name):
            values = {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}}
            schema = {"type": "object", "properties": values, "required": ["city", "days"], "additionalProperties": False}
            return {"type": "function", "function": {"name": name, "parameters": schema}}

        def calls(choice):
            answer = client(TOOL).chat.completions.create(
                model="scripted", messages=MESSAGES, tools=[tool("weather"), tool("trains")], tool_choice=choice,
                # Where the script has nothing to say all tokens are alike: greedy would be blanks only.
                temperature=1, seed=3, max_tokens=800, parallel_tool_calls=False,
            ).choices[0]
            self.assertEqual(len(answer.message.tool_calls), 1)
            call = answer.message.tool_calls[0].function
            arguments = json.loads(call.arguments)
            self.assertTrue(arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2), arguments)
            return call.name

        self.assertIn(calls("required"), ("weather", "trains"))
        self.assertEqual(calls({"type": "function", "function": {"name": "trains"}}), "trains")


class Errors(unittest.TestCase):
    def test_of_a_field(self):
        ask = client(OPEN).chat.completions.create
        with self.assertRaises(openai.BadRequestError) as raised:
            ask(model="demo", messages=MESSAGES, temperature=-1)
        self.assertEqual((raised.exception.status_code, raised.exception.param), (400, "temperature"))
        self.assertEqual(raised.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as raised:
            ask(model="demo", messages=[{"role": "user", "content": "word " * 3000}])
        self.assertEqual(raised.exception.code, "context_length_exceeded")

    def test_of_a_model(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            client(OPEN).completions.create(model="other", prompt="a")
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            client(OPEN).embeddings.create(model="demo", input="a")

    def test_of_a_key(self):
        for key in ("wrong", "righ", "rightx"):
            with self.assertRaises(openai.AuthenticationError):
                client(KEYED, key).models.list()
        self.assertEqual(client(KEYED, "right").models.list().data[0].id, "demo")

    def test_of_too_many(self):
        async def flood():
            async with AsyncOpenAI(base_url=KEYED, api_key="right", max_retries=0, timeout=60) as keyed:
                ask = lambda: keyed.completions.create(model="demo", prompt=PROMPT, max_tokens=200, extra_body={"ignore_eos": True})
                return await asyncio.gather(*(ask() for _ in range(8)), return_exceptions=True)

        results = asyncio.run(flood())
        refused = [result for result in results if isinstance(result, Exception)]
        self.assertTrue(refused and all(isinstance(error, openai.RateLimitError) for error in refused), refused)
        answered = [result for result in results if not isinstance(result, Exception)]
        self.assertTrue(answered and all(answer.usage.completion_tokens == 200 for answer in answered))
        # Whoever tries again gets through.
        again = OpenAI(base_url=KEYED, api_key="right", max_retries=5, timeout=60)
        self.assertEqual(again.completions.create(model="demo", prompt=PROMPT, max_tokens=1).usage.completion_tokens, 1)

    def test_of_nobody_there(self):
        with self.assertRaises(openai.APIConnectionError):
            client("http://127.0.0.1:1/v1").models.list()


class Many(unittest.TestCase):
    def test_at_once_and_left_half_way(self):
        async def run():
            async with AsyncOpenAI(base_url=OPEN, api_key="none", max_retries=0, timeout=60) as many:
                async def one(index):
                    text = ""
                    stream = await many.chat.completions.create(
                        model="demo", messages=MESSAGES, max_tokens=30, temperature=0, stream=True)
                    async for event in stream:
                        text += event.choices[0].delta.content or ""
                        if index % 2 and len(text) > 10:
                            await stream.close()
                            return None
                    return text

                return await asyncio.gather(*(one(index) for index in range(12)))

        texts = asyncio.run(run())
        self.assertEqual(len(set(texts[::2])), 1)
        self.assertEqual(set(texts[1::2]), {None})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
