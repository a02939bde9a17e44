//! The `tojson` filter, as transformers gives it to templates: Python's `json.dumps` without escaping for HTML.
//!
//! Python writes a space after a comma and a colon, keeps the order of keys and the characters as they are. What it
//! leaves out: the `separators` argument, which no known template uses.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The filter: `tojson(value, indent=none, ensure_ascii=false, sort_keys=false)`.
pub(super) fn to_json(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    arguments.assert_all_used()?;
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let written = if sort_keys {
        let mut sorted = serde_json::to_value(value).map_err(failed)?;
        sorted.sort_all_objects();
        write(&sorted, indent)
    } else {
        write(value, indent)
    };
    let text = written.map_err(failed)?;
    Ok(if ascii { escape(&text) } else { text })
}

fn write(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced))?,
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            value.serialize(&mut Serializer::with_formatter(
                &mut bytes,
                PrettyFormatter::with_indent(indent.as_bytes()),
            ))?;
        }
    }
    Ok(String::from_utf8(bytes).expect("json is written as utf-8"))
}

/// Outside of strings json is ASCII, so escaping can come last.
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

/// One line, with a space after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
