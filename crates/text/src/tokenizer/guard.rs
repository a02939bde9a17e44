//! What stands between files of strangers and the `tokenizers` library, which trusts them.
//!
//! The library reads whatever has the right shape and panics later, at a text: at a post-processor that names no token,
//! at a table of characters that is none, at an expression that tries too often ([`super::expressions`]). So whatever
//! it does for us is done here ([`guarded`]), where a panic becomes an error and is not printed. What would take memory
//! without measure is looked for in the file before ([`check`]): numbers of tokens are those of places in lists, here
//! and in the library.
//!
//! Left out: expressions that are slow without giving up (in the square of a text, say), which no file of this kind can
//! be proven to lack.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::MOST_TOKENS;
use super::expressions::bound_tries;
use crate::TextError;
use crate::caught::caught;

/// Runs a function of the library. What it says is an error, and so is its panic.
pub(super) fn guarded<T>(act: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    bound_tries();
    caught("tokenizers", act)?.map_err(|error| error.to_string())
}

/// Refuses a `tokenizer.json` whose tokens have numbers that no vocabulary has, or whose table of characters is shorter
/// than the trie that it says it begins with: the library takes memory for both before it looks.
pub(super) fn check(place: &str, tokenizer_json: &[u8]) -> Result<(), TextError> {
    if std::str::from_utf8(tokenizer_json).is_ok_and(is_harmless) {
        return Ok(());
    }
    let mut found = Found::default();
    let mut json = serde_json::Deserializer::from_slice(tokenizer_json);
    Look { found: &mut found, at: Place::Whole }
        .deserialize(&mut json)
        .map_err(|error| TextError::format(place, "a tokenizer", error))?;
    if let Some((field, number)) = found.too_high {
        return Err(TextError::field(place, field, format!("numbers of tokens below {MOST_TOKENS}"), number));
    }
    if let Some((trie, len)) = found.too_short {
        let expected = format!("a trie of at most {len} bytes, as long as the table");
        return Err(TextError::field(place, TABLE, expected, trie));
    }
    Ok(())
}

/// The field with a table of characters.
const TABLE: &str = "precompiled_charsmap";

/// Whether a file can have nothing that [`check`] looks for, as most have: so it is not parsed twice. There is no whole
/// number of eight digits, no table, and no printable ASCII that is escaped, which could spell the table's name.
fn is_harmless(json: &str) -> bool {
    let escapes =
        || json.match_indices("\\u00").any(|(at, _)| matches!(json.as_bytes().get(at + 4), Some(b'2'..=b'7')));
    !has_long_number(json.as_bytes()) && !json.contains(TABLE) && !escapes()
}

/// Whether there is a number of eight digits or more that is no fraction; none below [`MOST_TOKENS`] has as many.
fn has_long_number(json: &[u8]) -> bool {
    let mut from = 0;
    // Eight digits in a row have one in every eighth place.
    while let Some(at) = (from + 7..json.len()).step_by(8).find(|&at| json[at].is_ascii_digit()) {
        let before = json[from..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let behind = json[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let first = at - before;
        let is_number = first == 0 || matches!(json[first - 1], b':' | b',' | b'[' | b' ' | b'\n' | b'\r' | b'\t');
        if before + behind >= 8 && is_number {
            return true;
        }
        // Each run is looked at once: a text may be one of a million digits.
        from = at + behind;
    }
    false
}

/// What a file has that would take memory without measure.
#[derive(Default)]
struct Found {
    /// A field, and a number of a token in it.
    too_high: Option<(&'static str, f64)>,
    /// What a table says of its trie, and its own length, in bytes.
    too_short: Option<(u64, u64)>,
}

/// Where in a file a value is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Whole,
    Model,
    /// Whose numbers are those of tokens.
    Tokens(&'static str),
    Other,
}

/// Looks through a value and all in it, of two fields of a name through both.
struct Look<'found> {
    found: &'found mut Found,
    at: Place,
}

impl Look<'_> {
    fn within(&mut self, at: Place) -> Look<'_> {
        Look { found: self.found, at }
    }

    fn number(self, number: f64) {
        if let Place::Tokens(field) = self.at
            && number >= MOST_TOKENS as f64
        {
            self.found.too_high.get_or_insert((field, number));
        }
    }

    fn table(&mut self, table: &str) {
        let len = table.len() as u64 / 4 * 3;
        let trie = u64::from(first_number(table).unwrap_or(0));
        if trie > len {
            self.found.too_short.get_or_insert((trie, len));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.number(number as f64);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.number(number);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        // A vocabulary that is a list gives no numbers but scores.
        let at = if self.at == Place::Tokens(VOCABULARY) { Place::Other } else { self.at };
        while list.next_element_seed(self.within(at))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<String>()? {
            let at = match (self.at, field.as_str()) {
                (Place::Whole, "model") => Place::Model,
                (Place::Whole, "added_tokens") => Place::Tokens("added_tokens"),
                (Place::Whole, "post_processor") => Place::Tokens("post_processor"),
                (Place::Whole, _) => Place::Other,
                (Place::Model, "vocab") => Place::Tokens(VOCABULARY),
                (Place::Model, _) => Place::Other,
                (at, _) => at,
            };
            if field == TABLE {
                let value: serde_json::Value = map.next_value()?;
                value.as_str().into_iter().for_each(|table| self.table(table));
            } else {
                map.next_value_seed(self.within(at))?;
            }
        }
        Ok(())
    }
}

const VOCABULARY: &str = "model.vocab";

/// The number of the first four bytes of a text in base64, the low byte first.
fn first_number(base64: &str) -> Option<u32> {
    // Six digits are four bytes and four bits.
    let digits =
        base64.bytes().take(6).map(base64_digit).collect::<Option<Vec<u8>>>().filter(|digits| digits.len() == 6)?;
    let bits = digits.into_iter().fold(0_u64, |bits, digit| bits << 6 | u64::from(digit));
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The six bits that a letter of base64 stands for.
pub(super) fn base64_digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{first_number, is_harmless};

    #[test]
    fn the_first_number_of_a_table() {
        // 01 02 03 04, then ff.
        assert_eq!(first_number("AQIDBP8="), Some(0x0403_0201));
        assert_eq!(first_number("/////w=="), Some(u32::MAX));
        assert_eq!((first_number("AAAA"), first_number("A=AAAAA")), (None, None));
    }

    #[test]
    fn what_is_looked_through_and_what_is_not() {
        for shift in 0..9 {
            let json = |text: &str| format!("{{\"{}\":{text}}}", "a".repeat(shift));
            for harmless in ["1234567", "-0.123456789", "\"00000000\"", "\"\\u0001\\u00ad\""] {
                assert!(is_harmless(&json(harmless)), "{harmless}");
            }
            for suspicious in
                ["12345678", " 16777216", "[0,999999999999]", "{\"precompiled_charsmap\":0}", "\"\\u005f\""]
            {
                assert!(!is_harmless(&json(suspicious)), "{suspicious}");
            }
        }
    }
}
