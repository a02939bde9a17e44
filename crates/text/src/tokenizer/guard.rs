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

/// A `tokenizer.json` that the library may read: JSON, whose tokens have numbers that a vocabulary can have, and
/// without truncation and padding, which an engine does not want and which may ask for any number of tokens.
pub(super) fn checked(place: &str, tokenizer_json: &[u8]) -> Result<Vec<u8>, TextError> {
    let refused = |error: serde_json::Error| TextError::format(place, "a tokenizer", error);
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(tokenizer_json).map_err(refused)?;
    fields.remove("truncation");
    fields.remove("padding");
    let too_high = |field: &str, found: f64| {
        TextError::field(place, field, format!("numbers of tokens below {MOST_TOKENS}"), found)
    };
    let model: Option<BTreeMap<String, &RawValue>> =
        fields.get("model").map(|model| serde_json::from_str(model.get())).transpose().map_err(refused)?;
    if let Some(vocabulary) = model.and_then(|model| model.get("vocab").copied()) {
        let Highest(highest) = serde_json::from_str(vocabulary.get()).map_err(refused)?;
        if highest >= MOST_TOKENS as f64 {
            return Err(too_high("model.vocab", highest));
        }
    }
    for field in ["added_tokens", "post_processor"] {
        let Some(found) = fields.get(field) else { continue };
        let found: serde_json::Value = serde_json::from_str(found.get()).map_err(refused)?;
        let highest = highest_id(&found);
        if highest >= MOST_TOKENS as f64 {
            return Err(too_high(field, highest));
        }
    }
    serde_json::to_vec(&fields).map_err(refused)
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

/// The highest number that a vocabulary gives to a token; vocabularies that are lists give none.
struct Highest(f64);

impl<'de> Deserialize<'de> for Highest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Highest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens and their numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Highest, A::Error> {
                let mut highest = 0.0;
                while let Some((_, number)) = map.next_entry::<IgnoredAny, f64>()? {
                    highest = f64::max(highest, number);
                }
                Ok(Highest(highest))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Highest, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Highest(0.0))
            }
        }
        deserializer.deserialize_any(Numbers)
    }
}
