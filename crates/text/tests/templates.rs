//! Chat templates against transformers' rendering, and templates that mean harm.
//! `tools/reference/template_cases.py` made the data.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tombolo_text::{ChatTemplate, Conversation, Message, TextError, limits};

fn render(source: &str, messages: &[Message], prompt: bool) -> Result<String, TextError> {
    let tokens = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
    ChatTemplate::new(source, &tokens)?.render(messages, prompt)
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into() }
}

#[test]
fn renders_as_transformers_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates.json");
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let tokens = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
    for case in cases.as_array().unwrap() {
        let list = |key: &str| case.get(key).map_or_else(Vec::new, |v| v.as_array().unwrap().clone());
        let conversation = Conversation {
            messages: list("messages"),
            tools: list("tools"),
            documents: list("documents"),
            add_generation_prompt: case["prompt"].as_bool().unwrap(),
            settings: case.get("settings").map_or_else(Map::new, |v| v.as_object().unwrap().clone()),
        };
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), &tokens).unwrap();
        let rendered = template.prompt(&conversation).map(|prompt| prompt.text());
        assert_eq!(rendered.as_deref(), Ok(case["text"].as_str().unwrap()), "{}", case["name"]);
    }
}

#[test]
fn a_conversation_is_checked() {
    let template = ChatTemplate::new("{{ x }}{{ messages|length }}", &[]).unwrap();
    let prompt = |conversation: &Conversation| template.prompt(conversation).map(|prompt| prompt.text());
    let setting =
        |name: &str| Conversation { settings: Map::from_iter([(name.into(), json!(1))]), ..Default::default() };
    assert_eq!(prompt(&setting("x")).as_deref(), Ok("10"));
    // What is passed beside, what templates rely on, and what no template can spell but the metering can.
    for name in
        ["messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "", "1x", "\0text", "a b"]
    {
        assert_eq!(prompt(&setting(name)), Err(TextError::Setting { name: name.into() }), "{name:?}");
    }
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let deep = Conversation { messages: vec![deep], ..Default::default() };
    assert!(matches!(prompt(&deep), Err(TextError::TooMany { limit: limits::VALUE_DEPTH_MAX, .. })));
    let long = Conversation { tools: vec![json!({"x": "y".repeat(limits::TEXT_BYTES_MAX)})], ..Default::default() };
    assert!(matches!(prompt(&long), Err(TextError::TooMany { what: "conversation, bytes", .. })));
}

#[test]
fn refusals_and_faults_are_one_line() {
    let hi = [message("user", "hi")];
    let refused = render("{{ raise_exception('roles must\nalternate') }}", &hi, true).unwrap_err();
    assert!(matches!(refused, TextError::Template(_)));
    assert_eq!(refused.to_string(), "chat template failed: roles must alternate (line 1)");
    let syntax = render("{% if x %}\n", &hi, true).unwrap_err();
    assert!(matches!(syntax, TextError::TemplateSyntax(_)), "{syntax}");
    let undefined = render("{{ messages[0].name.first }}", &hi, true).unwrap_err();
    assert!(matches!(undefined, TextError::Template(_)), "{undefined}");
    for error in [refused, syntax, undefined] {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let long = " ".repeat(limits::TEMPLATE_BYTES_MAX + 1);
    assert!(matches!(render(&long, &hi, true), Err(TextError::TooMany { .. })));
    let many = vec![message("user", ""); limits::MESSAGES_MAX + 1];
    assert!(matches!(render("", &many, true), Err(TextError::TooMany { .. })));
}

#[test]
fn today_is_a_date() {
    let date = render("{{ strftime_now('%Y-%m-%d') }}", &[], false).unwrap();
    assert!(date.len() == 10 && *date > *"2025-01-01" && *date < *"2200", "{date}");
}

/// Nests a list in itself twice, `n` times over: 2^n items in a few hundred bytes. What then looks at it must not.
fn doubled(look: &str) -> String {
    format!(
        "{{% set ns = namespace(a=[1], b=[1]) %}}{{% for i in range(60) %}}{{% set ns.a = [ns.a, ns.a] %}}\
         {{% set ns.b = [ns.b, ns.b] %}}{{% endfor %}}{look}"
    )
}

/// The same through filters, which need no list in the template.
fn batched(look: &str) -> String {
    format!(
        "{{% set ns = namespace(a=[1]) %}}{{% for i in range(60) %}}{{% set ns.a = (ns.a|list + ns.a|list)|batch(2)|list %}}\
         {{% endfor %}}{look}"
    )
}

/// Runs `body` often over a megabyte of text.
fn often(body: &str) -> String {
    format!(
        "{{% set a = 'é' * 500000 %}}{{% set b = 'é' * 500000 %}}{{% for i in range(100000) %}}{body}{{% endfor %}}"
    )
}

/// Wraps a lazy value in itself as often as fuel allows, then looks at it.
fn chained(step: &str) -> String {
    format!(
        "{{% set ns = namespace(a=[1, 2]) %}}{{% for i in range(60000) %}}{{% set ns.a = {step} %}}{{% endfor %}}{{{{ ns.a }}}}"
    )
}

#[test]
fn hostile_templates_end() {
    let mut templates = vec![
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(a='abc') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a|length }}".into(),
        "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}".into(),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns == ns.a }}{{ ns|tojson }}".into(),
        "{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns.a }}{{ ns.a|tojson }}".into(),
        "{{ '%1000000000d'|format(1) }}".into(),
        "{{ '{:>1000000000}'.format(1) }}".into(),
        "{{ '{:>{}}'.format(1, 1000000000) }}".into(),
        "{{ ('\n' * 1000)|indent(100000000) }}".into(),
        "{{ 'a' * 10 ** 30 }}".into(),
        "{{ [1] * 100000000 }}".into(),
        "{{ range(100000000000) }}".into(),
        "{{ [1]|slice(1000000000)|list }}{{ [1]|batch(1000000000, 0)|list }}".into(),
        "{{ 'a'|center(1000000000) }}{{ 'a'.center(1000000000) }}{{ 'a'.ljust(1000000000) }}".into(),
        format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ a{} }}}}", ".a".repeat(50_000)),
        format!("{{{{ a{} }}}}", "()".repeat(50_000)),
        format!("{{{{ a{} }}}}", "[a".repeat(10_000) + &"]".repeat(10_000)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(50_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(130_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(10_000)),
        "{% if 1 %}".repeat(10_000) + &"{% endif %}".repeat(10_000),
    ];
    for look in [
        "{{ ns.a == ns.b }}",
        "{{ ns.a < ns.b }}",
        "{{ ns.a }}",
        "{{ ns.a ~ '' }}",
        "{{ {ns.a: 1} }}",
        "{{ ''.join([ns.a]) }}",
        "{{ ns.a in [ns.b] }}",
        "{{ ns.a in 'x' }}",
        "{{ ns.a|tojson }}",
        "{{ ns.a|string }}",
        "{{ [ns.a, ns.b]|sort }}",
        "{{ [ns.a, ns.b]|unique }}",
        "{{ ns.a is eq(ns.b) }}",
        "{{ ns.a is in([ns.b]) }}",
        "{{ '%s'|format(ns.a) }}",
        "{{ '{}'.format(ns.a) }}",
        "{{ [ns.b].count(ns.a) }}",
        "{{ {}.get(ns.a) }}",
        "{{ {}[ns.a] }}",
        "{{ raise_exception(ns.a) }}",
        "{{ [1]|map('default', ns.a)|join }}",
        "{{ namespace(x=ns.a) }}",
        "{{ dict(x=ns.a)|tojson }}",
        "{{ ns }}",
        "{{ ns.a|pprint }}",
        "{{ ns.a|sum(start=[]) }}",
        "{% filter upper %}{{ ns.a }}{% endfilter %}",
        "{{ ns.a|first|list == ns.b|first|list }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(ns.a) }}",
        "{% for x in [ns.a] %}{{ x }}{% endfor %}",
        "{{ debug() }}",
        "{% set x = ns.a %}{{ (x if true else 1) == (ns.b or 1) }}",
        "{{ [ns][0] }}",
        "{{ (ns.a, ns.a) == (ns.b, ns.b) }}",
    ] {
        templates.push(doubled(look));
        templates.push(batched(look));
    }
    for body in [
        "{% if a == b %}{% endif %}",
        "{% set c = a[-1:] %}",
        "{% set c = a[-1] %}",
        "{% set c = a.count('x') %}",
        "{% set c = 'x'.strip(a) %}",
        "{% set c = a|length %}",
        "{% set c = a|last %}",
        "{% set c = a is eq(b) %}",
        "{% set c = a in b %}",
        "{% set c = a.startswith(b) %}",
        "{% set c = a|upper %}",
        "{% set c = {a: 1} %}",
        "{% set c = [a, b]|min %}",
        "{% set c = a|int(default=1) %}",
        "{% set c = {}.get(a) %}",
        "{% for d in a %}{% break %}{% endfor %}",
        "{% set c = [a, a] == [b, b] %}",
        "{% set c = a is startingwith(b) %}",
        "{% set c = a.isalnum() %}",
        "{% set c = (a ~ 1)|hash %}",
        "{% set c = a + b %}",
    ] {
        templates.push(often(body));
    }
    for step in [
        "ns.a * 1",
        "ns.a + []",
        "ns.a[0:]",
        "ns.a|reverse",
        "ns.a|list",
        "[ns.a]",
        "{'a': ns.a}",
        "ns.a|map('string')",
        "ns.a|items",
        "ns.a|select",
        "(ns.a, )",
        "ns.a[::-1]",
        "ns.a|batch(1)",
        "ns.a|zip(ns.a)",
        "ns.a|chain(ns.a)",
        "dict(a=ns.a)",
        "namespace(a=ns.a)",
        "cycler(ns.a)",
    ] {
        templates.push(chained(step));
    }
    let chat = [message("user", &"é ".repeat(100_000)), message("assistant", "x")];
    for source in templates {
        let start = Instant::now();
        let result = render(&source, &chat, true);
        let taken = start.elapsed();
        let shown: String = source.chars().take(300).collect();
        assert!(taken < Duration::from_secs(60), "{taken:?}: {shown}");
        if let Ok(text) = result {
            assert!(text.len() < 64 << 20, "{} bytes: {shown}", text.len());
        }
    }
}

/// A long conversation is within the budget of a template that uses every message several times.
#[test]
fn long_conversations_render() {
    let template = "{% for m in messages %}{% set c = m.content.strip() %}{% if loop.index0 == messages|length - 1 and \
        messages[0].role == 'user' and '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}\
        {{ '<|im_start|>' ~ m.role ~ '\n' ~ c ~ '<|im_end|>\n' }}{% endfor %}";
    for (turns, words) in [(2_000, 20), (1, 100_000)] {
        let chat: Vec<Message> = (0..turns).map(|_| message("user", &"word ".repeat(words))).collect();
        let text = render(template, &chat, true).unwrap();
        assert_eq!(text.matches("word").count(), turns * words);
    }
}
