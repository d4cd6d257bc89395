//! Places in a schema: JSON pointers (RFC 6901), and the references that spell them in a URI's fragment.

use serde_json::Value;
use std::fmt;

/// A place in a schema, from its root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::grammar) struct Place {
    parts: Vec<String>,
}

impl Place {
    /// What stands there at the keyword or index `part`.
    pub(in crate::grammar) fn under(&self, part: &str) -> Self {
        let parts = self.parts.iter().cloned().chain([part.to_string()]).collect();
        Self { parts }
    }

    /// Where a reference leads to; `None`: to nowhere inside a schema.
    pub(in crate::grammar) fn of_reference(reference: &str) -> Option<Self> {
        let fragment = decoded(reference.strip_prefix('#')?)?;
        if fragment.is_empty() || fragment == "/" {
            return Some(Self::default());
        }
        let part = |part: &str| part.replace("~1", "/").replace("~0", "~");
        Some(Self { parts: fragment.strip_prefix('/')?.split('/').map(part).collect() })
    }

    /// What stands there.
    pub(in crate::grammar) fn resolve<'s>(&self, root: &'s Value) -> Option<&'s Value> {
        self.parts.iter().try_fold(root, |value, part| match value {
            Value::Array(list) => list.get(part.parse::<usize>().ok()?),
            value => value.get(part),
        })
    }

    /// The last part; empty at the root.
    pub(super) fn last(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }

    /// For the beginning of a line.
    pub(in crate::grammar) fn at(&self) -> String {
        match self.parts.is_empty() {
            true => "the schema".into(),
            false => self.to_string(),
        }
    }
}

/// As a JSON pointer, cut short where it is long.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("at the schema's root");
        }
        let escaped = self.parts.iter().map(|part| part.replace('~', "~0").replace('/', "~1"));
        let pointer: String = escaped.map(|part| format!("/{part}")).collect();
        let most = 160;
        match pointer.char_indices().nth(most) {
            Some((end, _)) => write!(f, "at {}…", &pointer[..end]),
            None => write!(f, "at {pointer}"),
        }
    }
}

/// Without the percent signs of a URI; `None`: they are none.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digit = |digit: u8| char::from(digit).to_digit(16);
                (digit(digits[0])? * 16 + digit(digits[1])?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_pointers_in_a_fragment() {
        let root = json!({"a/b": {"c~d": [7, 8]}, "e f": {"": 9}, "100%": 10, "\u{fc}": 11});
        for (reference, found) in [
            ("#", Some(&root)),
            ("#/a~1b/c~0d/1", Some(&json!(8))),
            ("#/e%20f", Some(&json!({"": 9}))),
            ("#/e f/", Some(&json!(9))),
            ("#/100%25", Some(&json!(10))),
            ("#/%C3%BC", Some(&json!(11))),
            ("#/\u{fc}", Some(&json!(11))),
            ("#/a%7E1b/c~0d/0", Some(&json!(7))),
            ("#/none", None),
            ("#/a~1b/c~0d/2", None),
            ("#/a~1b/c~0d/x", None),
            ("#anchor", None),
            ("#/%", None),
            ("#/%fg", None),
            ("#/%ff", None),
            ("other.json#/a", None),
            ("", None),
        ] {
            let resolved = Place::of_reference(reference).and_then(|place| place.resolve(&root));
            assert_eq!(resolved, found, "{reference}");
        }
        let place = Place::default().under("a/b").under("c~d");
        assert_eq!(place.to_string(), "at /a~1b/c~0d");
        assert_eq!(Place::default().to_string(), "at the schema's root");
    }
}
