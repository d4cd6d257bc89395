//! JSON schemas: which values are taken and which are not, and what those are told who ask for more.

use crate::BYTES;
use serde_json::{Value, json};
use tombolo_text::grammar::{GrammarError, Source};

fn refusal(schema: &Value) -> String {
    let source = Source::json_schema(schema, true);
    match source.and_then(|source| BYTES.grammars.compile(&source)) {
        Ok(_) => panic!("taken: {schema}"),
        Err(GrammarError::Invalid(message)) => message,
        Err(other) => panic!("{other}"),
    }
}

/// Each value is valid for the schema, or is not.
#[track_caller]
fn check(schema: &Value, valid: &[&str], invalid: &[&str]) {
    let source = Source::json_schema(schema, true).unwrap();
    for text in valid {
        assert!(BYTES.takes(&source, text), "{schema}: {text} is valid");
    }
    for text in invalid {
        assert!(!BYTES.takes(&source, text), "{schema}: {text} is not valid");
    }
}

#[test]
fn formats_that_are_not_known_say_nothing() {
    for format in ["password", "binary", "byte", "path", "uri-reference", "regex", "json-pointer", "int64", "x-own"] {
        check(&json!({"type": "string", "format": format}), &["\"any text\""], &["7"]);
        check(&json!({"type": "integer", "format": format}), &["7"], &["\"7\""]);
    }
    check(&json!({"type": "string", "format": "date"}), &["\"2024-02-29\""], &["\"29.2.2024\""]);
    check(&json!({"type": "string", "format": "uri"}), &["\"http://a/b?c#d\""], &["\"no\""]);
    check(&json!({"type": "string", "format": "password", "maxLength": 3}), &["\"abc\""], &["\"abcd\""]);
}

#[test]
fn references_may_be_escaped() {
    let defs = json!({"a/b": {"type": "integer"}, "c~d": {"type": "null"}, "e f": {"type": "boolean"}, "%": {"const": 1},
        "list": [{"const": "x"}, {"const": "y"}]});
    for (reference, valid, invalid) in [
        ("#/$defs/a~1b", "7", "null"),
        ("#/$defs/c~0d", "null", "7"),
        ("#/$defs/e%20f", "true", "7"),
        ("#/$defs/e f", "true", "7"),
        ("#/%24defs/a%7E1b", "7", "true"),
        ("#/$defs/%25", "1", "2"),
        ("#/$defs/list/1", "\"y\"", "\"x\""),
    ] {
        check(&json!({"$defs": defs, "$ref": reference}), &[valid], &[invalid]);
    }
    // One that leads back, and names that differ in what no pointer can hold.
    let tree = json!({"$ref": "#/definitions/a%2Fb", "definitions": {
        "a": {"b": {"type": "object", "properties": {"next": {"$ref": "#/definitions/a~1b"}, "up": {"$ref": "#"}}, "additionalProperties": false}},
        "a/b": {"type": "array", "items": {"$ref": "#/definitions/a/b"}},
    }});
    check(&tree, &["[]", "{}", "{\"next\": [{}]}", "{\"up\": {\"next\": []}}"][1..], &["{\"next\": 7}", "7"]);
    check(
        &json!({"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "required": ["b"], "type": "object"}),
        &["{\"b\": 7}"],
        &["{\"b\": \"7\"}"],
    );
    assert_eq!(
        refusal(&json!({"properties": {"a": {"$ref": "#/$defs/none"}}})),
        "`$ref` at /properties/a: \"#/$defs/none\": there is nothing at that place"
    );
    assert!(
        refusal(&json!({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}))
            .starts_with("`$ref` at the schema's root")
    );
}

#[test]
fn exactly_one_of_what_excludes_each_other_is_any_of_it() {
    let kind = |name: &str, more: Value| json!({"type": "object", "properties": {"kind": {"const": name}, "x": more}, "required": ["kind", "x"], "additionalProperties": false});
    let shapes = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"a": kind("a", json!({"type": "integer"})), "b": kind("b", json!({"type": "string"}))}});
    check(
        &shapes,
        &["null", "{\"kind\": \"a\", \"x\": 1}", "{\"kind\": \"b\", \"x\": \"1\"}"],
        &["{\"kind\": \"a\", \"x\": \"1\"}", "7"],
    );
    check(&json!({"oneOf": [{"const": 1}, {"const": 2}]}), &["1", "2"], &["3"]);
    // Both hold where both are said.
    let both = json!({"anyOf": [{"const": 1}, {"const": "a"}], "oneOf": [{"type": "integer"}, {"type": "null"}]});
    check(&both, &["1"], &["\"a\"", "null", "2"]);
    let message =
        refusal(&json!({"properties": {"a": {"oneOf": [{"type": "null"}, {"type": "integer"}, {"type": "number"}]}}}));
    assert!(
        message
            .starts_with("`oneOf` at /properties/a: it is not certain that a value for its part 1 is none for part 2"),
        "{message}"
    );
}

#[test]
fn properties_are_counted() {
    let of = |more: Value| {
        let mut schema =
            json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let [none, a, b, ab, bc, all] = [
        "{}",
        "{\"a\": 1}",
        "{\"b\": 2}",
        "{\"a\": 1, \"b\": 2}",
        "{\"b\": 2, \"c\": 3}",
        "{\"a\": 1, \"b\": 2, \"c\": 3}",
    ];
    let [x, ax, xy, abx] =
        ["{\"x\": 0}", "{\"a\": 1, \"x\": 0}", "{\"x\": 0, \"y\": 0}", "{\"a\": 1, \"b\": 2, \"x\": 0}"];
    let closed = |more: Value| {
        let mut schema = of(more);
        schema["additionalProperties"] = json!(false);
        schema
    };
    check(&closed(json!({"minProperties": 1})), &[a, b, ab, bc, all], &[none, x, ax]);
    check(&closed(json!({"minProperties": 2})), &[ab, bc, all], &[none, a, b, ax]);
    check(&closed(json!({"maxProperties": 1})), &[none, a, b], &[ab, bc, all, x]);
    check(&closed(json!({"minProperties": 1, "maxProperties": 2})), &[a, b, ab, bc], &[none, all]);
    check(&closed(json!({"maxProperties": 3})), &[none, a, all], &[x]);
    check(&closed(json!({"minProperties": 1, "required": ["b"]})), &[b, ab, all], &[none, a]);
    check(&closed(json!({"minProperties": 2, "required": ["b"]})), &[ab, bc, all], &[none, b, a]);
    check(&of(json!({"minProperties": 1})), &[a, bc, x, ax, xy], &[none]);
    check(&of(json!({"minProperties": 2})), &[ab, bc, ax, xy, abx], &[none, a, x]);
    check(&of(json!({"maxProperties": 2})), &[none, a, ab, bc, x, ax, xy], &[all, abx]);
    check(&of(json!({"minProperties": 2, "maxProperties": 2})), &[ab, bc, ax, xy], &[none, a, x, all, abx]);
    // What is no object is not counted.
    check(&closed(json!({"type": ["object", "null"], "minProperties": 1})), &["null", a], &[none, "7"]);
    let both = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "minProperties": 1,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    check(&both, &["{\"a\": 5}", "{\"b\": 5}"], &["{}", "{\"a\": true}"]);
    let many: serde_json::Map<_, _> = (0..30).map(|i| (format!("p{i}"), json!({"type": "integer"}))).collect();
    check(
        &json!({"type": "object", "properties": many, "minProperties": 1, "additionalProperties": false}),
        &["{\"p7\": 1}"],
        &["{}"],
    );
    let message = refusal(&json!({"properties": {"a": {"type": "object", "properties": many, "minProperties": 15}}}));
    assert!(message.starts_with("`minProperties` at /properties/a: counting"), "{message}");
}

#[test]
fn what_says_nothing_is_taken() {
    for schema in [
        json!({"type": "integer", "uniqueItems": false, "if": {"type": "null"}, "minContains": 1, "dependentRequired": {}}),
        json!({"type": "integer", "$id": "https://example.org/x", "$comment": "c", "title": "t", "x-own": {"not": {}}}),
        json!({"type": "integer", "$defs": {"unused": {"not": {}}}, "default": {"$ref": "x"}}),
    ] {
        check(&schema, &["7"], &["\"7\""]);
    }
    check(&json!({"type": "string", "minLength": 2.0}), &["\"ab\""], &["\"a\""]);
    let closed = json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false});
    check(&closed, &["{\"a\": 1}", "{}"], &["{\"b\": 1}"]);
}

/// Whoever asks for what cannot be is told what, where, and in no words of the compiler's.
#[test]
fn refusals_say_what_and_where() {
    let at = |schema: Value| json!({"type": "object", "properties": {"x/y": {"type": "array", "items": schema, "minItems": 1}}, "required": ["x/y"]});
    let cases = [
        (json!({"type": "strng"}), "`type` at"),
        (json!({"type": "string", "minLength": -1}), "`minLength` at"),
        (json!({"enum": []}), "`enum` at"),
        (json!({"multipleOf": 0}), "`multipleOf` at"),
        (json!({"multipleOf": 1e-9}), "`multipleOf` at"),
        (json!({"minimum": "5"}), "`minimum` at"),
        (json!({"required": "a"}), "`required` at"),
        (json!({"properties": 7}), "`properties` at"),
        (json!({"not": {"type": "null"}}), "`not` at"),
        (json!({"uniqueItems": true}), "`uniqueItems` at"),
        (json!({"contains": {"type": "null"}}), "`contains` at"),
        (json!({"if": {"type": "null"}, "then": false}), "`if` at"),
        (json!({"propertyNames": {"maxLength": 3}}), "`propertyNames` at"),
        (json!({"dependentRequired": {"a": ["b"]}}), "`dependentRequired` at"),
        (json!({"unevaluatedProperties": false, "allOf": [{"properties": {"a": {}}}]}), "`unevaluatedProperties` at"),
        (json!({"type": "integer", "minimum": 5, "maximum": 3}), "no value is valid: minimum (5)"),
        (json!({"type": "string", "pattern": "("}), "the regular expression: unclosed group"),
        (json!({"type": "string", "pattern": "a\\bc"}), "`\\b` within a regular expression"),
        (json!({"type": "string", "pattern": "a", "maxLength": 0}), "no text matches"),
        (json!({"type": "object", "required": ["a"], "additionalProperties": false}), "the required property `a`"),
        (json!({"type": "object", "minProperties": 2, "maxProperties": 1}), "`minProperties` is more"),
        (json!({"allOf": [{"type": "integer"}, {"type": "string"}]}), "its parts want different types"),
        (json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}), "`patternProperties`"),
    ];
    let words = ["nsatisfiable", "nimplemented", "f64", "coerce", "lexer", "parser", "regexes", "segment", "\n"];
    for (schema, what) in cases {
        let message = refusal(&at(schema.clone()));
        assert!(message.contains(what) && message.contains("/properties/x~1y/items"), "{schema}: {message}");
        assert!(!words.iter().any(|word| message.contains(word)), "{message}");
    }
    // The same in a grammar, and of it.
    for (grammar, what) in [
        ("start: %json {\"properties\": {\"a\": {\"type\": \"strng\"}}}", "`type` at /properties/a"),
        ("start: b\nb: nothing", "line 2, column 4: there is no `nothing`"),
        ("start: \"a", "line 1, column 10: a text or an expression is not closed"),
        ("start: <|none|>", "line 1, column 8: this vocabulary has no control token `<|none|>`"),
        ("x: \"a\"", "there is no rule `start`"),
        ("start: /(/", "the regular expression: unclosed group"),
    ] {
        let error = Source::grammar(grammar).and_then(|source| BYTES.grammars.compile(&source)).unwrap_err();
        assert!(error.to_string().contains(what), "{grammar}: {error}");
    }
    let formats = Source::grammar("start: \"<\" %json {\"type\": \"string\", \"format\": \"password\"} \">\"").unwrap();
    assert!(BYTES.takes(&formats, "<\"x\">"));
}
