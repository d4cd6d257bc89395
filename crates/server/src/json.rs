//! JSON from strangers: parsed with limits on names and values, and no name twice in one object. How deep it may nest is
//! the parser's own limit (128).

use crate::error::{ApiError, echo};
use crate::limits::{JSON_KEYS, JSON_VALUES};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// A body as JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let mut room = Room { keys: JSON_KEYS, values: JSON_VALUES, depth: 0 };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Limited { room: &mut room }.deserialize(&mut deserializer);
    let whole = value.and_then(|value| deserializer.end().map(|()| value));
    whole.map_err(|error| ApiError::bad(format!("the body is not JSON as it should be: {}", echo(&error.to_string()))))
}

/// A part of a body with types. What is of another type is told by its field's name.
pub(crate) fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let message = echo(&error.inner().to_string());
        if path == "." {
            ApiError::bad(message)
        } else {
            ApiError::field(&path, format!("`{}`: {message}", echo(&path)))
        }
    })
}

/// What may still come, and where it is.
struct Room {
    keys: usize,
    values: usize,
    /// Objects around it.
    depth: usize,
}

/// Below it, every whole number is one as a double, too.
const WHOLE_MAX: f64 = (1u64 << 53) as f64;

struct Limited<'r> {
    room: &'r mut Room,
}

impl<'de> DeserializeSeed<'de> for Limited<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

fn take<E: Error>(room: &mut usize, what: &str) -> Result<(), E> {
    *room = room.checked_sub(1).ok_or_else(|| E::custom(format!("too many {what}")))?;
    Ok(())
}

impl<'de> Visitor<'de> for Limited<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// `16.0` is whole in JSON's eyes, and some clients write it so. What is inside of fields stays as it is: templates
    /// print it.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        if self.room.depth <= 1 && value.fract() == 0.0 && value.abs() < WHOLE_MAX {
            return Ok((value as i64).into());
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element_seed(Limited { room: self.room })? {
            take(&mut self.room.values, "values")?;
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        self.room.depth += 1;
        while let Some(key) = access.next_key::<String>()? {
            take(&mut self.room.keys, "names")?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the name `{}` is there twice", echo(&key))));
            }
            let value = access.next_value_seed(Limited { room: self.room })?;
            map.insert(key, value);
        }
        self.room.depth -= 1;
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[test]
    fn values_are_as_serde_json_reads_them() {
        let text = r#"{"a": [1, -2, 1.5, "x\ud83d\ude00", null, true, {}], "b": {"c": 18446744073709551615}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn what_harms_is_refused() {
        let message = |bytes: &[u8]| parse(bytes).unwrap_err().body.error.message;
        let deep = "[".repeat(100_000);
        let keys = (0..=JSON_KEYS).map(|i| format!("\"{i}\":0")).collect::<Vec<_>>().join(",");
        for (input, part) in [
            (deep.as_bytes(), "recursion"),
            (br#"{"a": 1, "a": 2}"#, "twice"),
            (format!("{{{keys}}}").as_bytes(), "too many names"),
            (b"{\"a\": NaN}", "expected"),
            (b"{\"a\": 1e400}", "out of range"),
            (br#""\ud800""#, "hex escape"),
            (b"\"\xff\"", "unicode"),
            (b"{} {}", "trailing"),
            (b"", "EOF"),
        ] {
            assert!(message(input).contains(part), "{part} not in {}", message(input));
        }
    }

    #[test]
    fn wrong_types_are_named() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[allow(dead_code)]
            list: Vec<Option<u32>>,
        }
        let error = typed::<Body>(&parse(br#"{"list": [1, null, "x"]}"#).unwrap()).unwrap_err();
        assert_eq!(error.body.error.param.as_deref(), Some("list[2]"));
        assert!(error.body.error.message.contains("expected u32"), "{}", error.body.error.message);
    }

    #[test]
    fn whole_numbers_are_whole_however_they_are_written() {
        let value =
            parse(br#"{"a": 16.0, "b": [1e3, [2.0]], "c": 0.5, "d": {"e": 1.0}, "f": 1e300, "g": [{"h": 2.0}]}"#);
        let whole =
            serde_json::json!({"a": 16, "b": [1000, [2]], "c": 0.5, "d": {"e": 1.0}, "f": 1e300, "g": [{"h": 2.0}]});
        assert_eq!(value.unwrap(), whole);
    }
}
