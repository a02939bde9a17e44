//! Filters that pay before they work.
//!
//! The engine's fuel pays for what filters give, and for the items that they visit. What they look at within each item,
//! and what they do with arguments again for each item, is paid for here. Left out: what tests compare, which is
//! operands like others ([`super::around`]).

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::weight::{ensure, weigh};

/// Filters that look no further than the first level of what they are given.
pub(super) const SHALLOW: [&str; 9] = ["length", "count", "first", "last", "default", "d", "list", "items", "reverse"];

/// The other filters of the engine and ours, with the names under which they pay first.
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

/// Filters that may be told the name of a field, which they take apart for each item.
const BY_FIELD: [&str; 12] =
    ["map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "groupby", "min", "max", "join", "sum"];

/// Adds the filters that pay.
pub(super) fn add_paying(environment: &mut Environment<'_>) {
    for (name, paying) in DEEP {
        environment.add_filter(paying, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let mut arguments = arguments.into_values();
            pay(state, name, &arguments)?;
            // Items are given to a filter that pays, too.
            if let ("map", Some(inner)) = (name, arguments.get_mut(1))
                && let Some((_, paying)) = DEEP.iter().find(|(known, _)| inner.as_str() == Some(known))
            {
                *inner = Value::from(*paying);
            }
            state.apply_filter(name, &arguments).map_err(|error| named(error, name))
        });
    }
}

/// The engine does not say which filter it does not know, if it is asked for one by us.
fn named(error: Error, name: &str) -> Error {
    match (error.kind(), error.detail()) {
        (ErrorKind::UnknownFilter, None) => Error::new(ErrorKind::UnknownFilter, format!("filter {name} is unknown")),
        _ => error,
    }
}

/// Pays for a filter's work on these arguments.
fn pay(state: &State, name: &str, arguments: &[Value]) -> Result<(), Error> {
    let weight = weigh(state, arguments)?;
    let (first, others) =
        arguments.split_first().map_or((&Value::UNDEFINED, arguments), |(first, others)| (first, others));
    let items = || first.len().unwrap_or(1) as u64;
    if BY_FIELD.contains(&name) {
        let words = weigh(state, others)?;
        state.consume_fuel(items().saturating_mul(words.bytes) / 4)?;
    }
    match name {
        "trim" => pay_for_trim(state, first, others),
        // Every `%` may be the same argument again.
        "format" => {
            let fields = first.as_str().map_or(0, |text| text.bytes().filter(|&byte| byte == b'%').count()) as u64;
            ensure(state, fields.saturating_mul(weight.bytes + PIECE * weight.values))
        }
        "split" => {
            ensure(state, pieces_made(first.as_str().unwrap_or_default(), others.first().and_then(Value::as_str)))
        }
        "lines" => ensure(state, pieces_made(first.as_str().unwrap_or_default(), Some("\n"))),
        // Numbers are small; all else is copied for every item.
        "sum" if first.try_iter().is_ok_and(|mut items| items.any(|item| item.kind() != ValueKind::Number)) => {
            state.consume_fuel(items().saturating_mul(weight.fuel()))
        }
        _ => Ok(()),
    }
}

/// Bytes that a value takes beside its letters, at most: its place in a list, and what counts its owners.
pub(in crate::chat) const PIECE: u64 = 48;

/// Bytes that the pieces of a text take beside their letters, at most. No separator: white space.
pub(in crate::chat) fn pieces_made(text: &str, separator: Option<&str>) -> u64 {
    let pieces = match separator {
        None => text.split_whitespace().count(),
        Some("") => text.len() + 2,
        Some(separator) => text.matches(separator).count() + 1,
    };
    pieces as u64 * PIECE
}

/// Pays for taking characters from the ends of a text, each of which is looked for among those that are given.
pub(in crate::chat) fn pay_for_trim(state: &State, text: &Value, characters: &[Value]) -> Result<(), Error> {
    const COMPARED: u64 = 256;
    let len = |value: Option<&Value>| value.and_then(Value::as_str).map_or(0, str::len) as u64;
    state.consume_fuel(len(Some(text)).saturating_mul(len(characters.first())) / COMPARED)
}
