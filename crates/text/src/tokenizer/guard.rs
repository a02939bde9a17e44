//! What stands between files of strangers and the `tokenizers` library, which trusts them.
//!
//! The library reads whatever has the right shape and panics later, at a text: at a post-processor that names no token,
//! at a table of characters that is none, at an expression that gives up after ten million tries. So whatever it does
//! for us is done here ([`guarded`]), where a panic becomes an error and is not printed. What would take memory without
//! measure is looked for in the file before ([`checked`]): numbers of tokens are those of places in lists, here and in
//! the library.
//!
//! Left out: expressions that are slow without giving up (in the square of a text, say), which no file of this kind can
//! be proven to lack.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::MOST_TOKENS;
use crate::TextError;

thread_local! {
    /// Whether a panic of this thread is caught and told by [`guarded`].
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the library. What it says is an error, and so is its panic.
pub(super) fn guarded<T>(act: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                loud(info);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    // The library's tables are only read here, or thrown away with the error.
    let outcome = panic::catch_unwind(AssertUnwindSafe(act));
    IS_GUARDED.set(was_guarded);
    match outcome {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(payload) => {
            let words = payload.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason");
            Err(format!("the library of tokenizers failed: {words}"))
        }
    }
}

/// A `tokenizer.json` that the library may read: JSON, whose tokens have numbers that a vocabulary can have, whose table
/// of characters is as long as it says, and without truncation and padding, which an engine does not want and which may
/// ask for any number of tokens.
pub(super) fn checked(place: &str, tokenizer_json: &[u8]) -> Result<Vec<u8>, TextError> {
    let refused = |error: serde_json::Error| TextError::format(place, "a tokenizer", error);
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(tokenizer_json).map_err(refused)?;
    let too_high = |field: &str, found: f64| {
        TextError::field(place, field, format!("numbers of tokens below {MOST_TOKENS}"), found)
    };
    let mut written: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    for (field, found) in fields {
        match field.as_str() {
            "truncation" | "padding" => continue,
            // Too long to be read twice as a whole.
            "model" => {
                let Highest(highest) = serde_json::from_str(found.get()).map_err(refused)?;
                if highest >= MOST_TOKENS as f64 {
                    return Err(too_high("model.vocab", highest));
                }
                written.insert(field, found.to_owned());
            }
            _ => {
                // Written again, so that the library reads what was checked, of two fields of a name too.
                let value: serde_json::Value = serde_json::from_str(found.get()).map_err(refused)?;
                let highest = highest_id(&value);
                if matches!(field.as_str(), "added_tokens" | "post_processor") && highest >= MOST_TOKENS as f64 {
                    return Err(too_high(&field, highest));
                }
                check_characters(place, &value)?;
                written.insert(field, serde_json::value::to_raw_value(&value).map_err(refused)?);
            }
        }
    }
    serde_json::to_vec(&written).map_err(refused)
}

/// Refuses a table of characters that is shorter than the trie that it says it begins with: the library takes memory
/// for the trie first.
fn check_characters(place: &str, value: &serde_json::Value) -> Result<(), TextError> {
    use serde_json::Value;
    const FIELD: &str = "precompiled_charsmap";
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_characters(place, item)),
        Value::Object(fields) => {
            if let Some(Value::String(table)) = fields.get(FIELD) {
                let len = table.len() as u64 / 4 * 3;
                let trie = u64::from(first_number(table).unwrap_or(0));
                if trie > len {
                    let expected = format!("a trie of at most {len} bytes, as long as the table");
                    return Err(TextError::field(place, FIELD, expected, trie));
                }
            }
            fields.values().try_for_each(|item| check_characters(place, item))
        }
        _ => Ok(()),
    }
}

/// The number of the first four bytes of a text in base64, the low byte first.
fn first_number(base64: &str) -> Option<u32> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    // Six digits are four bytes and four bits.
    let digits = base64.bytes().take(6).map(digit).collect::<Option<Vec<u8>>>().filter(|digits| digits.len() == 6)?;
    let bits = digits.into_iter().fold(0_u64, |bits, digit| bits << 6 | u64::from(digit));
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The highest number in a JSON value of a few entries.
fn highest_id(value: &serde_json::Value) -> f64 {
    use serde_json::Value;
    match value {
        Value::Number(number) => number.as_f64().unwrap_or(f64::INFINITY),
        Value::Array(items) => items.iter().map(highest_id).fold(0.0, f64::max),
        Value::Object(fields) => fields.values().map(highest_id).fold(0.0, f64::max),
        _ => 0.0,
    }
}

/// The highest number of a token in the `vocab` of a model, of each `vocab` that it has; lists give no numbers.
struct Highest(f64);

impl<'de> Deserialize<'de> for Highest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Model)
    }
}

struct Model;

impl<'de> Visitor<'de> for Model {
    type Value = Highest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Highest, A::Error> {
        let mut highest = 0.0;
        while let Some(field) = map.next_key::<String>()? {
            if field == "vocab" {
                let Numbers(found) = map.next_value()?;
                highest = f64::max(highest, found);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Highest(highest))
    }
}

/// The highest number of a vocabulary.
struct Numbers(f64);

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Vocabulary)
    }
}

struct Vocabulary;

impl<'de> Visitor<'de> for Vocabulary {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens and their numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Numbers, A::Error> {
        let mut highest = 0.0;
        while let Some((_, number)) = map.next_entry::<IgnoredAny, f64>()? {
            highest = f64::max(highest, number);
        }
        Ok(Numbers(highest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Numbers, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Numbers(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::first_number;

    #[test]
    fn the_first_number_of_a_table() {
        // 01 02 03 04, then ff.
        assert_eq!(first_number("AQIDBP8="), Some(0x0403_0201));
        assert_eq!(first_number("/////w=="), Some(u32::MAX));
        assert_eq!((first_number("AAAA"), first_number("A=AAAAA")), (None, None));
    }
}
