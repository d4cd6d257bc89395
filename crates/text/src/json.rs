//! `tojson` as transformers defines it: Python's `json.dumps` with its spacing, no HTML escapes, and text beyond ASCII
//! as it is. minijinja's own escapes `<` and leaves the spaces out, which would be other tokens.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::limits;

/// The filter.
pub(crate) fn tojson(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson wants two separators")),
        // Python drops the space behind a comma where it breaks the line.
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        state,
        out: String::new(),
        paid: 0,
        item,
        key,
        indent: indent.map(|n| n.min(16)),
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// A float as Python prints it: the fewest digits that are read back as it, with an exponent for the very large and small.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let digits = format!("{value:e}");
    let exponent = digits.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    match exponent {
        -4..16 => format!("{value:?}"),
        _ => {
            let mantissa = digits.split_once('e').map_or("0", |(mantissa, _)| mantissa);
            format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, i32::abs(exponent))
        }
    }
}

struct Writer<'s, 't, 'e> {
    state: &'s State<'t, 'e>,
    out: String,
    /// Bytes of `out` that are paid for.
    paid: usize,
    item: String,
    key: String,
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > limits::VALUE_DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value nests too deep"));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            other => {
                let what = format!("tojson: {other} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        self.pay()
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()?.checked() {
            self.separate(any, depth + 1);
            self.value(&item?, depth + 1)?;
            any = true;
        }
        self.close(']', any, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut any = false;
        let mut keys = Vec::new();
        for key in value.try_iter()?.checked() {
            keys.push(key?);
        }
        if self.sort_keys {
            keys.sort();
        }
        for key in &keys {
            self.separate(any, depth + 1);
            match key.as_str() {
                Some(text) => self.string(text),
                None => self.string(&key.to_string()),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
            any = true;
        }
        self.close('}', any, depth);
        Ok(())
    }

    /// What stands before an item.
    fn separate(&mut self, any: bool, depth: usize) {
        if any {
            self.out.push_str(&self.item);
        }
        self.break_line(depth);
    }

    fn close(&mut self, bracket: char, any: bool, depth: usize) {
        if any {
            self.break_line(depth);
        }
        self.out.push(bracket);
    }

    fn break_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// Pays for what was written since the last time: a unit of fuel for a value and for 64 bytes.
    fn pay(&mut self) -> Result<(), Error> {
        let bytes = self.out.len() - self.paid;
        self.paid = self.out.len();
        self.state.consume_fuel(1 + bytes as u64 / 64)
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }
}
