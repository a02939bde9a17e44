//! Filters that are charged before they run.
//!
//! The engine's fuel counts the results of filters and the items that they visit. The contents of each item, and work
//! that is repeated for each item, are charged here. Operands of tests are charged in [`super::with_meters`].

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::size::{charge, ensure_affordable};

/// Filters that look only at the first level of their argument.
pub(super) const SHALLOW: [&str; 9] = ["length", "count", "first", "last", "default", "d", "list", "items", "reverse"];

/// All other filters, with the names of their metered versions.
#[rustfmt::skip]
pub(super) const DEEP: [(&str, &str); 42] = [
    ("safe", "\0safe"), ("escape", "\0escape"), ("e", "\0e"), ("lower", "\0lower"), ("upper", "\0upper"),
    ("title", "\0title"), ("capitalize", "\0capitalize"), ("replace", "\0replace"), ("dictsort", "\0dictsort"),
    ("trim", "\0trim"), ("join", "\0join"), ("split", "\0split"), ("lines", "\0lines"), ("round", "\0round"),
    ("abs", "\0abs"), ("int", "\0int"), ("float", "\0float"), ("attr", "\0attr"), ("min", "\0min"), ("max", "\0max"),
    ("sort", "\0sort"), ("string", "\0string"), ("bool", "\0bool"), ("batch", "\0batch"), ("slice", "\0slice"),
    ("sum", "\0sum"), ("indent", "\0indent"), ("select", "\0select"), ("reject", "\0reject"),
    ("selectattr", "\0selectattr"), ("rejectattr", "\0rejectattr"), ("map", "\0map"), ("groupby", "\0groupby"),
    ("unique", "\0unique"), ("chain", "\0chain"), ("zip", "\0zip"), ("pprint", "\0pprint"), ("format", "\0format"),
    ("tojson", "\0tojson"), ("wordcount", "\0wordcount"), ("urlencode", "\0urlencode"), ("center", "\0center"),
];

/// Filters that may have the name of a field as an argument, which is parsed for each item.
const BY_FIELD: [&str; 12] =
    ["map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "groupby", "min", "max", "join", "sum"];

/// Adds the metered versions of filters.
pub(super) fn add_metered_filters(environment: &mut Environment<'_>) {
    for (name, metered_name) in DEEP {
        environment.add_filter(metered_name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let mut arguments = arguments.into_values();
            charge_filter(state, name, &arguments)?;
            // `map` applies the metered version to each item.
            if let ("map", Some(inner)) = (name, arguments.get_mut(1))
                && let Some((_, metered_name)) = DEEP.iter().find(|(known, _)| inner.as_str() == Some(known))
            {
                *inner = Value::from(*metered_name);
            }
            state.apply_filter(name, &arguments).map_err(|error| with_name(error, name))
        });
    }
}

/// Adds the name of an unknown filter, which the engine omits in this case.
fn with_name(error: Error, name: &str) -> Error {
    match (error.kind(), error.detail()) {
        (ErrorKind::UnknownFilter, None) => Error::new(ErrorKind::UnknownFilter, format!("filter {name} is unknown")),
        _ => error,
    }
}

/// Charges a filter's work on these arguments.
fn charge_filter(state: &State, name: &str, arguments: &[Value]) -> Result<(), Error> {
    let size = charge(state, arguments)?;
    let (first, others) =
        arguments.split_first().map_or((&Value::UNDEFINED, arguments), |(first, others)| (first, others));
    let items = || first.len().unwrap_or(1) as u64;
    if BY_FIELD.contains(&name) {
        let words = charge(state, others)?;
        state.consume_fuel(items().saturating_mul(words.bytes) / 4)?;
    }
    match name {
        "trim" => charge_trim(state, first, others),
        // Every `%` may insert the same argument again.
        "format" => {
            let fields = first.as_str().map_or(0, |text| text.bytes().filter(|&byte| byte == b'%').count()) as u64;
            ensure_affordable(state, fields.saturating_mul(size.bytes + VALUE_OVERHEAD_BYTES * size.values))
        }
        "split" => ensure_affordable(
            state,
            pieces_bytes(first.as_str().unwrap_or_default(), others.first().and_then(Value::as_str)),
        ),
        "lines" => ensure_affordable(state, pieces_bytes(first.as_str().unwrap_or_default(), Some("\n"))),
        // Anything but numbers is copied for every item.
        "sum" if first.try_iter().is_ok_and(|mut items| items.any(|item| item.kind() != ValueKind::Number)) => {
            state.consume_fuel(items().saturating_mul(size.fuel()))
        }
        _ => Ok(()),
    }
}

/// Maximum number of bytes of a value besides its text: its place in a list, and its reference count.
pub(in crate::chat) const VALUE_OVERHEAD_BYTES: u64 = 48;

/// Maximum number of bytes that the pieces of a split text take besides their text. Without a separator it is split at
/// white space.
pub(in crate::chat) fn pieces_bytes(text: &str, separator: Option<&str>) -> u64 {
    let pieces = match separator {
        None => text.split_whitespace().count(),
        Some("") => text.len() + 2,
        Some(separator) => text.matches(separator).count() + 1,
    };
    pieces as u64 * VALUE_OVERHEAD_BYTES
}

/// Charges trimming, which searches each character of the text among the given ones.
pub(in crate::chat) fn charge_trim(state: &State, text: &Value, characters: &[Value]) -> Result<(), Error> {
    const COMPARED: u64 = 256;
    let len = |value: Option<&Value>| value.and_then(Value::as_str).map_or(0, str::len) as u64;
    state.consume_fuel(len(Some(text)).saturating_mul(len(characters.first())) / COMPARED)
}
