//! How many properties an object has, where some of them may be left out: the compiler counts none but those that the
//! schema does not name, so that what is left of the others is written out as alternatives.

use super::{Fields, GrammarError, Place, Writer, all_of, wrong};
use serde_json::{Map, Value, json};

/// As many alternatives are written out for one object.
const ALTERNATIVES_MAX: usize = 64;

/// The keywords that say what an object is.
const OF_OBJECTS: [&str; 6] =
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"];

impl Writer<'_> {
    /// The same, where the compiler can count.
    pub(super) fn counted(&mut self, mut fields: Fields, place: &Place) -> Result<Fields, GrammarError> {
        let count = |keyword: &str| fields.get(keyword).and_then(Value::as_u64).map(|count| count as usize);
        let (least, most) = (count("minProperties").unwrap_or(0), count("maxProperties"));
        if least == 0 && most.is_none() {
            return Ok(fields);
        }
        let object = Object::of(&fields);
        // What holds anyway need not be said.
        let most = most.filter(|most| !object.is_closed || object.required.len() + object.optional.len() > *most);
        if most.is_none() {
            fields.remove("maxProperties");
        }
        if least <= object.required.len() {
            fields.remove("minProperties");
        }
        let is_said = fields.contains_key("minProperties") || fields.contains_key("maxProperties");
        if !is_said || object.optional.is_empty() {
            return Ok(fields);
        }
        let chosen = object.choices(least, most).ok_or_else(|| {
            let optional = object.optional.len();
            let what = format!(
                "counting an object's properties beside {optional} that may be left out takes more than \
                 {ALTERNATIVES_MAX} alternatives: make properties required, or leave this out"
            );
            let keyword = if fields.contains_key("minProperties") { "minProperties" } else { "maxProperties" };
            wrong(place, keyword, what)
        })?;
        let object = object.named(self);
        Ok(object.alternatives(fields, &chosen))
    }
}

/// A choice among the properties that may be left out.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    /// These must be there.
    there: Vec<usize>,
    /// All others must not be there; otherwise they may.
    is_exact: bool,
    /// The compiler counts the rest.
    counts: bool,
}

struct Object {
    required: Vec<String>,
    /// Those that may be left out, with their schemas.
    optional: Vec<(String, Value)>,
    /// Nothing else can be there.
    is_closed: bool,
}

impl Object {
    fn of(fields: &Fields) -> Self {
        let names = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        let mut required: Vec<String> = names.filter_map(Value::as_str).map(str::to_string).collect();
        required.sort_unstable();
        required.dedup();
        let properties = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
        let optional = properties.filter(|(name, schema)| !required.contains(name) && **schema != Value::Bool(false));
        let optional = optional.map(|(name, schema)| (name.clone(), schema.clone())).collect();
        let has_patterns =
            fields.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        let is_closed = !has_patterns && fields.get("additionalProperties") == Some(&Value::Bool(false));
        Self { required, optional, is_closed }
    }

    /// All that there can be; `None`: too many.
    fn choices(&self, least: usize, most: Option<usize>) -> Option<Vec<Choice>> {
        let n = self.optional.len();
        let least = least.saturating_sub(self.required.len());
        // More required ones than there may be: nothing is possible, which the compiler says.
        let most = most.map(|most| most.saturating_sub(self.required.len()));
        let sizes: Vec<(usize, bool, bool)> = match most {
            // So many of them, and beside them whatever; or fewer, and the rest from elsewhere.
            None => {
                let enough = (least <= n).then_some((least, false, false));
                let fewer = (0..least.min(n + 1)).filter(|_| !self.is_closed).map(|size| (size, true, true));
                enough.into_iter().chain(fewer).collect()
            }
            Some(most) => {
                let from = if self.is_closed { least.min(n) } else { 0 };
                (from..=most.min(n)).map(|size| (size, true, !self.is_closed)).collect()
            }
        };
        let mut all = Vec::new();
        for (size, is_exact, counts) in sizes {
            for there in subsets(n, size) {
                if all.len() == ALTERNATIVES_MAX {
                    return None;
                }
                all.push(Choice { there, is_exact, counts });
            }
        }
        Some(all)
    }

    /// The properties' schemas become definitions: they are written once.
    fn named(mut self, writer: &mut Writer<'_>) -> Self {
        for (name, schema) in &mut self.optional {
            if schema.as_object().is_some_and(|fields| !fields.is_empty() && !fields.contains_key("$ref")) {
                let called = writer.name(name);
                let reference = json!({"$ref": format!("#/$defs/{called}")});
                writer.definitions.insert(called, std::mem::replace(schema, reference));
            }
        }
        self
    }

    /// Puts the choices in the place of what is counted. What is no object is not concerned.
    fn alternatives(&self, mut fields: Fields, chosen: &[Choice]) -> Fields {
        let mut of_object = Map::new();
        for keyword in OF_OBJECTS {
            if let Some(value) = fields.shift_remove(keyword) {
                of_object.insert(keyword.into(), value);
            }
        }
        of_object.insert("type".into(), json!("object"));
        let mut all: Vec<Value> = chosen.iter().map(|choice| self.alternative(&of_object, choice)).collect();
        let types = ["null", "boolean", "number", "string", "array"];
        let others = match fields.get("type") {
            None => json!(types),
            Some(Value::Array(list)) => list.iter().filter(|name| **name != "object").cloned().collect(),
            Some(one) => {
                if one == "object" {
                    json!([])
                } else {
                    json!([one])
                }
            }
        };
        let is_object = others.as_array().is_some_and(Vec::is_empty);
        if is_object {
            fields.shift_remove("type");
        } else {
            all.push(json!({"type": others}));
        }
        match fields.contains_key("anyOf") {
            true => all_of(&mut fields, json!({"anyOf": all})),
            false => drop(fields.insert("anyOf".into(), Value::Array(all))),
        }
        fields
    }

    fn alternative(&self, of_object: &Fields, choice: &Choice) -> Value {
        let mut fields = of_object.clone();
        let there = choice.there.iter().map(|&at| self.optional[at].0.clone());
        let required: Vec<String> = self.required.iter().cloned().chain(there).collect();
        if let Some(Value::Object(properties)) = fields.get_mut("properties") {
            for (at, (name, schema)) in self.optional.iter().enumerate() {
                let is_out = choice.is_exact && !choice.there.contains(&at);
                properties.insert(name.clone(), if is_out { Value::Bool(false) } else { schema.clone() });
            }
        }
        if !choice.counts {
            fields.remove("minProperties");
            fields.remove("maxProperties");
        }
        fields.insert("required".into(), json!(required));
        Value::Object(fields)
    }
}

/// All ways to choose `size` of `n` in their order, one after the other.
fn subsets(n: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let first = (size <= n).then(|| (0..size).collect::<Vec<_>>());
    std::iter::successors(first, move |last| {
        let at = (0..size).rev().find(|&at| last[at] < n - size + at)?;
        let mut next = last.clone();
        next[at] += 1;
        (at + 1..size).for_each(|after| next[after] = next[after - 1] + 1);
        Some(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_of_them() {
        let all = |n, size| subsets(n, size).collect::<Vec<_>>();
        assert_eq!(all(4, 2), [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(all(3, 0), [vec![]; 1] as [Vec<usize>; 1]);
        assert_eq!((all(3, 3).len(), all(3, 4).len(), all(6, 3).len()), (1, 0, 20));
    }
}
