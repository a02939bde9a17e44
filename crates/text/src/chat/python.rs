//! Differences between Python's Jinja and the engine: methods of strings, and a few filters.
//!
//! Not implemented: `safe` next to `+`, which in Python escapes the operand for HTML; and the error for loops over
//! `none`.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json;
use super::metered::{VALUE_OVERHEAD_BYTES, charge, charge_trim, ensure_affordable, pieces_bytes};

/// The filter `string`.
pub(super) fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        _ => Value::from(json::as_float(value).unwrap_or_else(|| value.to_string())),
    }
}

/// The filter `length`; 0 for undefined values.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    let refused = || {
        let found = format!("cannot calculate length of value of type {}", value.kind());
        Error::new(ErrorKind::InvalidOperation, found)
    };
    if value.is_undefined() { Ok(0) } else { value.len().ok_or_else(refused) }
}

/// The filter `indent(text, width=4, first=false, blank=false)`. A line feed at the end is kept.
pub(super) fn indent(state: &State, text: &str, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (width, first, blank, options): (Option<Value>, Option<bool>, Option<bool>, Kwargs) = from_args(&arguments)?;
    let option = |given: Option<bool>, name: &str| match given {
        Some(given) => Ok(given),
        None => Ok::<_, Error>(options.get::<Option<bool>>(name)?.unwrap_or(false)),
    };
    let (first, blank) = (option(first, "first")?, option(blank, "blank")?);
    let width = match width {
        Some(width) => width,
        None => options.get::<Option<Value>>("width")?.unwrap_or_else(|| Value::from(4)),
    };
    options.assert_all_used()?;
    let indentation = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(width.as_usize().unwrap_or(0).min(1000)),
    };
    let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
    ensure_affordable(state, text.len() as u64 + (lines as u64).saturating_mul(indentation.len() as u64))?;
    let mut indented = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            indented.push('\n');
        }
        let is_indented = if number == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            indented.push_str(&indentation);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// Methods of Python's strings, lists and dictionaries: those that `minijinja_contrib` lacks, and then its own.
pub(super) fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    // A lookup in a map costs what its key does; other methods may visit everything.
    if !matches!(name, "keys" | "values" | "items") {
        charge(state, arguments)?;
    }
    if !matches!(name, "keys" | "values" | "items" | "get") {
        charge(state, std::slice::from_ref(value))?;
    }
    let Some(text) = value.as_str() else { return unknown_method_callback(state, value, name, arguments) };
    ensure_affordable(state, output_bytes_max(state, text, name, arguments)?)?;
    if matches!(name, "strip" | "lstrip" | "rstrip") {
        charge_trim(state, value, arguments)?;
    }
    let pieces = |found: Option<(&str, &str)>, separator: &str, otherwise: [&str; 3]| {
        let parts = found.map_or(otherwise, |(before, after)| [before, separator, after]);
        parts.into_iter().map(Value::from).collect::<Value>()
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            Ok(pieces(text.split_once(separator), separator, [text, "", ""]))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            Ok(pieces(text.rsplit_once(separator), separator, ["", "", text]))
        }
        "rsplit" => {
            let (separator, most): (&str, Option<i64>) = from_args(arguments)?;
            // A negative number means no limit, as in Python.
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), separator).collect();
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "index" => {
            let (what,): (&str,) = from_args(arguments)?;
            let found = text.find(what).map(|at| Value::from(text[..at].chars().count()));
            found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))
        }
        _ => unknown_method_callback(state, value, name, arguments),
    }
}

/// Maximum number of bytes that a method of a text returns, if that can be much more than the text.
fn output_bytes_max(state: &State, text: &str, name: &str, arguments: &[Value]) -> Result<u64, Error> {
    let argument = |index: usize| arguments.get(index).and_then(Value::as_str);
    let times = |count: usize, len: u64| (count as u64).saturating_mul(len);
    Ok(match name {
        "replace" => {
            times(argument(0).map_or(0, |old| text.matches(old).count()), argument(1).map_or(0, str::len) as u64)
        }
        "split" | "rsplit" | "partition" | "rpartition" if argument(0) == Some("") => {
            return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
        }
        "split" | "rsplit" => pieces_bytes(text, argument(0)),
        "splitlines" => {
            times(text.bytes().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1, VALUE_OVERHEAD_BYTES)
        }
        "join" => {
            let size = charge(state, arguments)?;
            // A text argument is joined letter by letter.
            let joined = argument(0).map_or(size.values, |letters| letters.chars().count() as u64);
            joined.saturating_mul(text.len() as u64 + 32).saturating_add(size.bytes)
        }
        "format" => {
            // Numbers in the text are widths and precisions, up to which fields are filled.
            let digits = text.split(|found: char| !found.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let widths = digits.map(|digits| digits.parse::<u64>().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
            let size = charge(state, arguments)?;
            let fields = text.bytes().filter(|&byte| byte == b'{').count();
            widths.saturating_add(times(fields, size.bytes + 32 * size.values))
        }
        _ => 0,
    })
}
