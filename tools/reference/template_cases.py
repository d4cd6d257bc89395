"""What transformers renders chat templates to.

Writes crates/text/tests/data/templates.json: cases of {name, template, messages, prompt, text}, some with {tools,
documents, settings} too. The templates are small ones of our own, each for features that real ones use, and SmolLM2's.

    python tools/reference/template_cases.py [TEMPLATE.jinja ...]      needs transformers (requirements.txt)

With arguments, prints what those files render to as one JSON line each and conversation, to compare by hand with
`cargo run -p tombolo-text --example conformance -- template CHATS.json ...`, whose first file `--chats` prints.
"""

import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

DATA = Path(__file__).parents[2] / "crates/text/tests/data"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TEMPLATES = {
    "smollm2": SMOLLM2,
    "white space": """{{- bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
    [U] {{ message.content | trim }}
    {%- else %}
    [{{ message.role | upper }}] {{ message['content'] }}{{ eos_token }}
    {%- endif %}

{% endfor %}
{% if add_generation_prompt %}
[A]
{% endif %}
""",
    "namespace and slices": """{%- set ns = namespace(n=0, last=none) -%}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif -%}
{%- for m in rest %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}
{%- if not loop.last and loop.nextitem.role == m.role %}{{ '(again)' }}{% endif -%}
{{ loop.index0 }}/{{ rest|length }} {{ m.content.strip().split(' ')[-1] }}|{{ m.content[::-1][:3] }};{% endfor -%}
{{ ns.n }} {{ ns.last }} {{ system ~ '!' }} {{ messages[::-1][0].role }}""",
    "python methods": """{% for m in messages %}{% if m.content.startswith('H') and not 'x' in m.content %}{{
m.content.replace('l', 'L').rstrip('!').capitalize() }}{% elif m.content is string %}{{ '%s-%d' % (m.content.lower(), 3) if
false else '-'.join(m.content.split()) }}{% endif %}{% for k, v in m.items() %}{{ k }}={{ v|length }},{% endfor %}{{
m.get('name', 'nobody') }}{{ m.get('tool_calls') is none }}
{% endfor %}""",
    "tojson": """{% for m in messages %}{{ m | tojson }}{{ [1, 2.5, true, none, 'é<&>"\\\\'] | tojson }}{{
{'b': {'a': []}, 'a': {}} | tojson(indent=2) }}{% endfor %}""",
    "macros and filters": """{% macro turn(role, text='') -%}<{{ role }}>{{ text }}</{{ role }}>{%- endmacro %}
{{- messages | map(attribute='role') | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ turn('x') }}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}
{{ messages[0].content | default('none') }} {{ nothing | default('none') }} {{ (nothing.x is defined) if nothing else 'no' }}
{{ (messages | last).role | capitalize }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ -7 % 3 }} {{ true }} {{ none }} {{ [1, 'a'] }}""",
    "tools and documents": """{% if tools is not none and tools %}T{% endif %}{% if tools is defined %}D{% endif %}{%
if documents %}E{% endif %}{% if tools is iterable and tools | length > 0 %}I{% endif %}{% if not tools %}N{% endif %}""",
    "loop controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{%
if loop.index > 2 %}{% break %}{% endif %}{% endfor %}""",
    "tools": """{%- if tools %}{{ '# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}
{{ tool.function.parameters.properties.keys() | list | join(',') }}|{% for name, p in tool.function.parameters.properties.items() -%}
{{ name }}:{{ p.type }}{% if p.enum is defined %}{{ p.enum }}{% endif %}{% if name in tool.function.parameters.required %}!{% endif %};
{%- endfor %}{% endfor %}{% endif %}
{%- for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- if m.content is string %}{{ m.content }}{% elif m.content is iterable %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}
{%- for call in m.tool_calls or [] %}<call>{{ call.function.name }}{% for k, v in call.function.arguments.items() %} {{ k }}={{ v | tojson if v is not string else v }}{% endfor %}</call>{% endfor %}
{%- if m.tool_call_id is defined %}<of {{ m.tool_call_id }}>{% endif %}
{% endfor %}
{%- if add_generation_prompt %}[assistant]{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}{{ effort | default('none') }}{{ documents | tojson }}""",
    "json of tools": """{{ tools | tojson }}
{{ tools | tojson(indent=2) }}{{ tools | tojson(ensure_ascii=True, sort_keys=True) }}{{ tools | tojson(separators=(',', ':')) }}{{ messages | tojson(indent=4) }}""",
    "generation": """{% for m in messages %}
{%- if m.role == 'assistant' -%}
  {%- generation -%}  {{ m.content }}{% endgeneration %}

{%- else %} {{ m.content }} {% endif %}
{% endfor %}""",
}

CHATS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hello there, wörld!  "},
        {"role": "assistant", "content": "Hé \"you\" <b> 日本 🌊\n\ttab\\"},
        {"role": "user", "content": "And\nthen? "},
    ],
]

# A conversation with tools, their calls and results, and reasoning.
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather at a place. It's \"here\" <now> & 日本.", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "Where"}, "days": {"type": "integer", "minimum": 1, "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"]}, "near": {"type": "number", "multipleOf": 0.1, "maximum": 1e20}}}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]
TOOL_CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Åre?"},
    {"role": "assistant", "content": "", "reasoning_content": "I must look.", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Åre", "days": 2, "near": 0.5}}}]},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "{\"snow\": true}"},
    {"role": "assistant", "content": "Snow.", "reasoning_content": "It said snow."},
    {"role": "user", "content": "Thanks"},
]
PARTS_CHAT = [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]}]
# Name, messages, and what else there is. Real templates are tried on these.
RICH = [
    ("plain", CHATS[1], {}),
    ("tools", TOOL_CHAT, {"tools": TOOLS}),
    ("thinks not", CHATS[0], {"tools": TOOLS, "settings": {"enable_thinking": False, "effort": "low"}}),
]


def render(template, messages, prompt, tools=None, documents=None, settings=None):
    # transformers itself cannot parse its generation tags without recording where they fall.
    marks = "{%- generation" in template
    texts, _ = render_jinja_template(
        conversations=[messages], chat_template=template, add_generation_prompt=prompt, tools=tools, documents=documents,
        return_assistant_tokens_mask=marks, **TOKENS, **(settings or {}),
    )
    return texts[0]


def main():
    if sys.argv[1:] == ["--chats"]:
        print(json.dumps([dict(messages=messages, prompt=True, **more) for _, messages, more in RICH]))
        return
    for path in sys.argv[1:]:
        template = Path(path).read_text()
        for name, messages, more in RICH:
            try:
                print(json.dumps(render(template, messages, True, **more)))
            except Exception as error:
                print(json.dumps({"error": str(error)}))
    if len(sys.argv) > 1:
        return
    cases = []
    for name, template in TEMPLATES.items():
        for messages in CHATS:
            for prompt in [False, True]:
                text = render(template, messages, prompt)
                cases.append(dict(name=name, template=template, messages=messages, prompt=prompt, text=text))
    for name in ["tools", "json of tools"]:
        more = [(PARTS_CHAT, dict(documents=[{"title": "T", "text": "x"}])), *((m, rest) for _, m, rest in RICH)]
        for messages, rest in more:
            text = render(TEMPLATES[name], messages, True, **rest)
            cases.append(dict(name=name, template=TEMPLATES[name], messages=messages, prompt=True, text=text, **rest))
    lines = ",\n".join(json.dumps(case) for case in cases)
    (DATA / "templates.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} cases of {len(TEMPLATES)} templates")


if __name__ == "__main__":
    main()
