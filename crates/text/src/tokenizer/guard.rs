//! Guards the `tokenizers` library, which trusts its input, against untrusted files.
//!
//! The library accepts any file of the right shape and panics later, when it encodes: at a post-processor that names no
//! token, at a malformed table of characters, at an expression that backtracks too much ([`super::expressions`]). So it
//! is only called through [`guarded`], where a panic becomes an error and is not printed. Values that would take
//! unbounded memory are refused before ([`check`]): token ids, for example, are indices of lists, here and in the
//! library.
//!
//! Expressions that are slow within the limits (quadratic in a text, say) are not detected.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::MOST_TOKENS;
use super::expressions::limit_backtracking;
use crate::TextError;
use crate::caught::caught;

/// Calls the library; its panic is an error, like those that it returns.
pub(super) fn guarded<T>(act: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    limit_backtracking();
    caught("tokenizers", act)?.map_err(|error| error.to_string())
}

/// Refuses a `tokenizer.json` with token ids that no vocabulary has, or with a table of characters that is shorter than
/// its declared trie: the library allocates both before it validates them.
pub(super) fn check(place: &str, tokenizer_json: &[u8]) -> Result<(), TextError> {
    if std::str::from_utf8(tokenizer_json).is_ok_and(is_harmless) {
        return Ok(());
    }
    let mut violations = Violations::default();
    let mut json = serde_json::Deserializer::from_slice(tokenizer_json);
    Scan { violations: &mut violations, section: Section::Whole }
        .deserialize(&mut json)
        .map_err(|error| TextError::format(place, "a tokenizer", error))?;
    if let Some((field, number)) = violations.id_too_high {
        return Err(TextError::field(place, field, format!("numbers of tokens below {MOST_TOKENS}"), number));
    }
    if let Some((trie, len)) = violations.table_too_short {
        let expected = format!("a trie of at most {len} bytes, as long as the table");
        return Err(TextError::field(place, TABLE, expected, trie));
    }
    Ok(())
}

/// The field with a compiled table of characters.
const TABLE: &str = "precompiled_charsmap";

/// Whether a file certainly has nothing that [`check`] refuses, so that most files are not parsed twice: it has no
/// integer of eight digits, no table, and no escaped printable ASCII, which could spell the table's name.
fn is_harmless(json: &str) -> bool {
    let escapes =
        || json.match_indices("\\u00").any(|(at, _)| matches!(json.as_bytes().get(at + 4), Some(b'2'..=b'7')));
    !has_long_number(json.as_bytes()) && !json.contains(TABLE) && !escapes()
}

/// Whether there is an integer of eight or more digits. Smaller ones are below [`MOST_TOKENS`].
fn has_long_number(json: &[u8]) -> bool {
    let mut from = 0;
    // One of eight digits in a row is at a position that is a multiple of eight.
    while let Some(at) = (from + 7..json.len()).step_by(8).find(|&at| json[at].is_ascii_digit()) {
        let before = json[from..at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let after = json[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let first = at - before;
        let is_number = first == 0 || matches!(json[first - 1], b':' | b',' | b'[' | b' ' | b'\n' | b'\r' | b'\t');
        if before + after >= 8 && is_number {
            return true;
        }
        // Each run is scanned once: a text may have a million digits in a row.
        from = at + after;
    }
    false
}

/// Values of a file that would take unbounded memory.
#[derive(Default)]
struct Violations {
    /// A field, and a token id in it that is too high.
    id_too_high: Option<(&'static str, f64)>,
    /// The declared length of a trie that exceeds its table, and the table's length, in bytes.
    table_too_short: Option<(u64, u64)>,
}

/// The part of the file that a value belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    Whole,
    Model,
    /// A field whose numbers are token ids.
    TokenIds(&'static str),
    Other,
}

/// Scans a value and all values within it, also repeated fields of one name.
struct Scan<'violations> {
    violations: &'violations mut Violations,
    section: Section,
}

impl Scan<'_> {
    fn within(&mut self, section: Section) -> Scan<'_> {
        Scan { violations: self.violations, section }
    }

    fn number(self, number: f64) {
        if let Section::TokenIds(field) = self.section
            && number >= MOST_TOKENS as f64
        {
            self.violations.id_too_high.get_or_insert((field, number));
        }
    }

    fn table(&mut self, table: &str) {
        let len = table.len() as u64 / 4 * 3;
        let trie = u64::from(first_number(table).unwrap_or(0));
        if trie > len {
            self.violations.table_too_short.get_or_insert((trie, len));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
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
        // The numbers of a vocabulary that is a list (Unigram) are scores.
        let section = if self.section == Section::TokenIds(VOCABULARY) { Section::Other } else { self.section };
        while list.next_element_seed(self.within(section))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<String>()? {
            let section = match (self.section, field.as_str()) {
                (Section::Whole, "model") => Section::Model,
                (Section::Whole, "added_tokens") => Section::TokenIds("added_tokens"),
                (Section::Whole, "post_processor") => Section::TokenIds("post_processor"),
                (Section::Whole, _) => Section::Other,
                (Section::Model, "vocab") => Section::TokenIds(VOCABULARY),
                (Section::Model, _) => Section::Other,
                (section, _) => section,
            };
            if field == TABLE {
                let value: serde_json::Value = map.next_value()?;
                value.as_str().into_iter().for_each(|table| self.table(table));
            } else {
                map.next_value_seed(self.within(section))?;
            }
        }
        Ok(())
    }
}

const VOCABULARY: &str = "model.vocab";

/// The first four bytes of base64 text, as a little-endian number.
fn first_number(base64: &str) -> Option<u32> {
    // Six base64 digits are four bytes and four bits.
    let digits =
        base64.bytes().take(6).map(base64_digit).collect::<Option<Vec<u8>>>().filter(|digits| digits.len() == 6)?;
    let bits = digits.into_iter().fold(0_u64, |bits, digit| bits << 6 | u64::from(digit));
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The six bits of a base64 digit.
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
    fn only_suspicious_files_are_scanned() {
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
