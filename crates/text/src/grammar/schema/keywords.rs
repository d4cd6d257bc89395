//! What the values of keywords must be, and which keywords cannot be held to.

use super::{Fields, GrammarError, Place, wrong};
use serde_json::Value;

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that say something of values and that no mask can be made of.
const UNSUPPORTED: [&str; 16] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Refuses keywords that cannot be held to, but where they say nothing.
pub(super) fn refuse_unsupported(fields: &Fields, place: &Place) -> Result<(), GrammarError> {
    let has = |keyword: &str| fields.contains_key(keyword);
    let anything = |value: &Value| value == true || value.as_object().is_some_and(Fields::is_empty);
    for keyword in UNSUPPORTED {
        let Some(value) = fields.get(keyword) else { continue };
        let says_nothing = match keyword {
            "uniqueItems" | "not" => value == false,
            "propertyNames" | "unevaluatedItems" => anything(value),
            "unevaluatedProperties" => anything(value) || is_alone(fields),
            "dependencies" | "dependentRequired" | "dependentSchemas" => {
                value.as_object().is_some_and(Fields::is_empty)
            }
            "if" => !has("then") && !has("else"),
            "then" | "else" => !has("if"),
            "minContains" | "maxContains" => !has("contains"),
            _ => false,
        };
        if !says_nothing {
            let what = "answers cannot be held to this keyword: leave it out, or say it with others";
            return Err(wrong(place, keyword, what));
        }
    }
    Ok(())
}

/// Whether nothing but an object's own keywords says which of its properties are known.
pub(super) fn is_alone(fields: &Fields) -> bool {
    let others = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef"];
    !others.iter().any(|keyword| fields.contains_key(*keyword))
}

pub(super) fn types(value: &Value, place: &Place) -> Result<(), GrammarError> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_right = match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(known),
        value => known(value),
    };
    let what = || format!("{} is no type; there are {}", shown(value), TYPES.join(", "));
    if is_right { Ok(()) } else { Err(wrong(place, "type", what())) }
}

/// A list that is not empty.
pub(super) fn list<'v>(keyword: &str, value: &'v Value, place: &Place) -> Result<&'v [Value], GrammarError> {
    match value {
        Value::Array(list) if !list.is_empty() => Ok(list),
        _ => Err(wrong(place, keyword, "it must be a list that is not empty")),
    }
}

pub(super) fn required(value: &Value, place: &Place) -> Result<(), GrammarError> {
    match value.as_array().is_some_and(|list| list.iter().all(Value::is_string)) {
        true => Ok(()),
        false => Err(wrong(place, "required", "it must be a list of names of properties")),
    }
}

pub(super) fn object<'v>(keyword: &str, value: &'v Value, place: &Place) -> Result<&'v Fields, GrammarError> {
    value.as_object().ok_or_else(|| wrong(place, keyword, "it must be an object of schemas"))
}

pub(super) fn text<'v>(keyword: &str, value: &'v Value, place: &Place) -> Result<&'v str, GrammarError> {
    value.as_str().ok_or_else(|| wrong(place, keyword, format!("{} is no string", shown(value))))
}

/// A whole number from 0 on, which may be written `2.0`.
pub(super) fn count(keyword: &str, value: &Value, place: &Place) -> Result<u64, GrammarError> {
    const EXACT: f64 = (1u64 << 53) as f64;
    let whole = |number: f64| (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number as u64);
    let count = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    count.ok_or_else(|| wrong(place, keyword, format!("{} is no whole number from 0 on", shown(value))))
}

/// A number; in draft 4, those that exclude are true or false.
pub(super) fn bound(keyword: &str, value: &Value, place: &Place) -> Result<(), GrammarError> {
    match value.is_number() || (keyword.starts_with("exclusive") && value.is_boolean()) {
        true => Ok(()),
        false => Err(wrong(place, keyword, format!("{} is no number", shown(value)))),
    }
}

/// A number above 0 that few decimal digits spell.
pub(super) fn multiple(value: &Value, place: &Place) -> Result<(), GrammarError> {
    const DIGITS: usize = 6;
    let number = value.as_f64().filter(|number| *number > 0.0);
    let number = number.ok_or_else(|| wrong(place, "multipleOf", format!("{} is no number above 0", shown(value))))?;
    // As the compiler does it: a number that is not a few digits in binary either becomes another.
    let mut scaled = std::iter::successors(Some(number), |number| Some(number * 10.0)).take(DIGITS + 1);
    if scaled.any(|number| number.fract() == 0.0 && number <= f64::from(u32::MAX)) {
        return Ok(());
    }
    let what = format!("{} has too many digits: at most {DIGITS} behind the point, and 9 before it", shown(value));
    Err(wrong(place, "multipleOf", what))
}

fn shown(value: &Value) -> String {
    crate::error::shorten(&value.to_string())
}
