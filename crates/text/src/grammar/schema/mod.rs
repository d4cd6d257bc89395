//! From a JSON schema as people write it to the same in fewer words, which the compiler knows: every keyword's value is
//! checked, references are resolved, what says nothing of values is left out, and what cannot be held to is refused, with
//! the place where it stands.
//!
//! What comes out accepts the same values as what goes in, with one exception that JSON Schema itself makes: a `format` that
//! is not among [`FORMATS`] says nothing.

mod apart;
mod counts;
mod keywords;
mod pointer;

use super::GrammarError;
use apart::Apart;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};

pub(super) use pointer::Place;

/// A schema's keywords.
type Fields = Map<String, Value>;

/// The formats that texts are held to.
const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

/// A format whose expression is as large as all others together: held to like them.
const URI: &str = "uri";

/// Something at a place is not as it must be.
fn wrong(place: &Place, keyword: &str, what: impl std::fmt::Display) -> GrammarError {
    GrammarError::Invalid(format!("`{keyword}` {place}: {what}"))
}

/// The same schema in fewer words. With `entry`, the part of it that stands there.
pub(super) fn prepared(schema: &Value, entry: &Place) -> Result<Value, GrammarError> {
    let mut writer = Writer::new(schema);
    let target = entry.resolve(schema).unwrap_or(schema);
    let mut whole = match writer.schema(target, entry)? {
        Value::Object(fields) => fields,
        Value::Bool(false) => return Ok(json!({"enum": []})),
        _ => Map::new(),
    };
    let mut definitions = Map::new();
    while let Some((name, place)) = writer.pending.pop_front() {
        let target = place.resolve(schema).unwrap_or(&Value::Null);
        let written = writer.schema(target, &place)?;
        definitions.insert(name, written);
    }
    definitions.extend(writer.definitions);
    if !definitions.is_empty() {
        whole.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(Value::Object(whole))
}

/// Writes a schema anew.
struct Writer<'s> {
    root: &'s Value,
    /// What references lead to, and how it is called in what is written.
    names: HashMap<Place, String>,
    taken: HashMap<String, usize>,
    /// Still to be written.
    pending: VecDeque<(String, Place)>,
    /// Written, and referred to from several places.
    definitions: Fields,
    apart: Apart<'s>,
}

impl<'s> Writer<'s> {
    fn new(root: &'s Value) -> Self {
        let (names, taken, pending) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Self { root, names, taken, pending, definitions: Map::new(), apart: Apart::new(root) }
    }

    fn schema(&mut self, schema: &Value, place: &Place) -> Result<Value, GrammarError> {
        let fields = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            _ => {
                let what = GrammarError::Invalid(format!("{}: a schema is an object, true or false", place.at()));
                return Err(what);
            }
        };
        keywords::refuse_unsupported(fields, place)?;
        let mut written = Map::new();
        for (keyword, value) in fields {
            if let Some((keyword, value)) = self.keyword(fields, keyword, value, place)? {
                match written.contains_key(&keyword) {
                    false => drop(written.insert(keyword, value)),
                    // Both hold.
                    true => all_of(&mut written, json!({keyword: value})),
                }
            }
        }
        self.counted(written, place).map(Value::Object)
    }

    /// What becomes of a keyword; `None`: it says nothing.
    fn keyword(
        &mut self,
        fields: &Fields,
        keyword: &str,
        value: &Value,
        place: &Place,
    ) -> Result<Option<(String, Value)>, GrammarError> {
        let kept = |value: Value| Ok(Some((keyword.to_string(), value)));
        match keyword {
            "$schema" if value.is_string() => kept(value.clone()),
            "type" => keywords::types(value, place).and_then(|()| kept(value.clone())),
            "const" => kept(value.clone()),
            "enum" => keywords::list(keyword, value, place).and_then(|_| kept(value.clone())),
            "required" => keywords::required(value, place).and_then(|()| kept(value.clone())),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                kept(json!(keywords::count(keyword, value, place)?))
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                keywords::bound(keyword, value, place).and_then(|()| kept(value.clone()))
            }
            "multipleOf" => keywords::multiple(value, place).and_then(|()| kept(value.clone())),
            "pattern" => keywords::text(keyword, value, place).and_then(|_| kept(value.clone())),
            "format" => match keywords::text(keyword, value, place)? {
                format if FORMATS.contains(&format) || format == URI => kept(value.clone()),
                _ => Ok(None),
            },
            "properties" | "patternProperties" => {
                let mut all = Map::new();
                for (name, schema) in keywords::object(keyword, value, place)? {
                    all.insert(name.clone(), self.schema(schema, &place.under(keyword).under(name))?);
                }
                kept(Value::Object(all))
            }
            // Without schemas beside it that look at the same object, it is this.
            "unevaluatedProperties" if keywords::is_alone(fields) => {
                match fields.contains_key("additionalProperties") {
                    true => Ok(None),
                    false => Ok(Some(("additionalProperties".into(), self.schema(value, &place.under(keyword))?))),
                }
            }
            "items" if value.is_array() => self.schemas(keyword, value, place).and_then(kept),
            "items" | "additionalItems" | "additionalProperties" => {
                self.schema(value, &place.under(keyword)).and_then(kept)
            }
            "prefixItems" | "allOf" => self.schemas(keyword, value, place).and_then(kept),
            "anyOf" => {
                keywords::list(keyword, value, place).and_then(|_| self.schemas(keyword, value, place)).and_then(kept)
            }
            "oneOf" => {
                let parts = keywords::list(keyword, value, place)?;
                let written = self.schemas(keyword, value, place)?;
                if let Some((first, second)) = self.apart.overlap(parts) {
                    let what = format!(
                        "it is not certain that a value for its part {first} is none for part {second}, so it cannot be \
                         held to: write `anyOf`, or tell them apart by a required property with `const`"
                    );
                    return Err(wrong(place, keyword, what));
                }
                Ok(Some(("anyOf".into(), written)))
            }
            "$ref" => kept(json!(self.reference(keywords::text(keyword, value, place)?, place)?)),
            _ => Ok(None),
        }
    }

    fn schemas(&mut self, keyword: &str, value: &Value, place: &Place) -> Result<Value, GrammarError> {
        let Value::Array(list) = value else { return Err(wrong(place, keyword, "it must be a list of schemas")) };
        let place = place.under(keyword);
        let each = list.iter().enumerate().map(|(at, schema)| self.schema(schema, &place.under(&at.to_string())));
        each.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    /// How a reference is written.
    fn reference(&mut self, reference: &str, place: &Place) -> Result<String, GrammarError> {
        let shown = || crate::error::shorten(reference);
        let target = Place::of_reference(reference).ok_or_else(|| {
            let what = format!("{:?}: only pointers inside the schema (`#/…`) are looked up", shown());
            wrong(place, "$ref", what)
        })?;
        if target.resolve(self.root).is_none() {
            return Err(wrong(place, "$ref", format!("{:?}: there is nothing at that place", shown())));
        }
        if let Some(name) = self.names.get(&target) {
            return Ok(format!("#/$defs/{name}"));
        }
        let name = self.name(target.last());
        self.names.insert(target.clone(), name.clone());
        self.pending.push_back((name.clone(), target));
        Ok(format!("#/$defs/{name}"))
    }

    /// A name that is not taken, and that a pointer can hold as it is.
    fn name(&mut self, like: &str) -> String {
        let plain: String = like.chars().filter(|c| c.is_ascii_alphanumeric() || "_-.".contains(*c)).take(60).collect();
        let plain = if plain.is_empty() { "part".to_string() } else { plain };
        let times = self.taken.entry(plain.clone()).or_default();
        *times += 1;
        // A `:` is in no name as it stands.
        if *times == 1 { plain } else { format!("{plain}:{times}") }
    }
}

/// Adds what must hold, too.
fn all_of(fields: &mut Fields, schema: Value) {
    match fields.get_mut("allOf") {
        Some(Value::Array(list)) => list.push(schema),
        _ => drop(fields.insert("allOf".into(), json!([schema]))),
    }
}

/// The schemas that stand at a place, one level down. With `binding`, only those without which no value is valid.
pub(super) fn parts(root: &Value, place: &Place, binding: bool) -> Vec<Place> {
    let Some(Value::Object(fields)) = place.resolve(root) else { return Vec::new() };
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let mut parts = Vec::new();
    for (keyword, value) in fields {
        let below = place.under(keyword);
        match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => parts.extend(Place::of_reference(reference)),
            ("properties" | "patternProperties", Value::Object(schemas)) => {
                let is_bound =
                    |name: &&String| !binding || (keyword == "properties" && required.contains(&name.as_str()));
                parts.extend(schemas.keys().filter(is_bound).map(|name| below.under(name)));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                let bound = match keyword.as_str() {
                    "allOf" => schemas.len(),
                    "anyOf" | "oneOf" => 0,
                    _ => least.min(schemas.len()),
                };
                let count = if binding { bound } else { schemas.len() };
                parts.extend((0..count).map(|at| below.under(&at.to_string())));
            }
            ("items", _) if !binding || least > 0 => parts.push(below),
            ("additionalProperties" | "additionalItems", _) if !binding => parts.push(below),
            _ => {}
        }
    }
    // `false` is what it is: who wants a value of it is wrong.
    parts.retain(|part: &Place| part.resolve(root).is_some_and(Value::is_object));
    parts
}
