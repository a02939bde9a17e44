//! The `tojson` filter as in transformers: PythonFormatter's `json.dumps` without escaping for HTML.
//!
//! PythonFormatter writes a space after a comma and a colon, keeps the order of keys, does not escape characters, and
//! has its own format of floats (`1e-05`, `1e+16`).

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::metered::{charge, ensure_affordable};

/// The filter `tojson(value, ensure_ascii=false, indent=none, separators=none, sort_keys=false)`. Characters of
/// `escaped` (placeholders of characters that need it) get a backslash.
pub(super) fn to_json(state: &State, value: &Value, arguments: Kwargs, escaped: &[char]) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators: Option<Vec<String>> = arguments.get("separators")?;
    arguments.assert_all_used()?;
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::BadSerialization, "undefined is not JSON serializable"));
    }
    let style = PythonFormatter {
        indent: indent.map(|width| width.min(16)),
        depth: 0,
        has_value: false,
        item: separators.as_ref().and_then(|both| both.first().cloned()).unwrap_or_else(|| match indent {
            Some(_) => ",".to_owned(),
            None => ", ".to_owned(),
        }),
        key: separators.as_ref().and_then(|both| both.get(1).cloned()).unwrap_or_else(|| ": ".to_owned()),
    };
    // An upper bound of the output: an escaped byte may become six, and lines are indented by their depth.
    let size = charge(state, std::slice::from_ref(value))?;
    let line = style.indent.map_or(0, |width| 1 + width * nesting(value)) + style.item.len() + style.key.len();
    ensure_affordable(
        state,
        size.values.saturating_mul(line as u64 + 32).saturating_add(size.bytes.saturating_mul(6)),
    )?;
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, style);
    let sorted = if sort_keys { sorted(value) } else { value.clone() };
    sorted.serialize(&mut serializer).map_err(failed)?;
    let text = String::from_utf8(bytes).expect("json is written as utf-8");
    let text = escaped.iter().fold(text, |text, &found| text.replace(found, &format!("\\{found}")));
    Ok(if ascii { escape(&text) } else { text })
}

/// The nesting depth of lists and maps.
fn nesting(value: &Value) -> usize {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => 1 + items().map(|item| nesting(&item)).max().unwrap_or(0),
        ValueKind::Map => {
            let values = items().map(|key| value.get_item(&key).map_or(0, |item| nesting(&item)));
            1 + values.max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// The value with the keys of its objects in ascending order.
fn sorted(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Seq => value.try_iter().into_iter().flatten().map(|item| sorted(&item)).collect(),
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            keys.sort();
            Value::from_pairs(keys.into_iter().map(|key| {
                let item = sorted(&value.get_item(&key).unwrap_or_default());
                (key, item)
            }))
        }
        _ => value.clone(),
    }
}

/// Escapes non-ASCII characters. They occur only in strings, so this can be the last step.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            let units =
                character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            escaped.push_str(&units);
        }
    }
    escaped
}

/// A float as PythonFormatter writes it; `None` for other values.
pub(super) fn as_float(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok().map(float) } else { None }
}

/// A float as PythonFormatter writes it: the shortest digits, with an exponent where there would be many zeros.
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
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// PythonFormatter's formatting: one line, or a line for each value if indented.
struct PythonFormatter {
    indent: Option<usize>,
    depth: usize,
    has_value: bool,
    item: String,
    key: String,
}

impl PythonFormatter {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(width) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        writer.write_all(" ".repeat(width * self.depth).as_bytes())
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for PythonFormatter {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn floats_are_python_s() {
        let written = [0.0, -0.0, 1.0, 21.5, 1e-4, 1e-5, 1.5e-7, 1e15, 1e16, 1.25e300, -2.5].map(super::float);
        let python = ["0.0", "-0.0", "1.0", "21.5", "0.0001", "1e-05", "1.5e-07", "1000000000000000.0", "1e+16"];
        assert_eq!(written[..9], python);
        assert_eq!(written[9..], ["1.25e+300", "-2.5"]);
    }
}
