//! SentencePiece's normalization: replacement by a table of characters, and handling of spaces.
//!
//! The table is a double-array trie, which finds the longest entry that a text begins with, and the replacements, each
//! ended by a zero. It comes from an untrusted file, so every index is checked.

use crate::TextError;

/// The settings that a model was trained with.
#[derive(Debug)]
pub(crate) struct Normalizer {
    characters: Option<CharacterTable>,
    /// Whether spaces at both ends are dropped and several become one (`remove_extra_whitespaces`).
    removes_spaces: bool,
}

/// How pieces write a space.
const SPACE: &str = "▁";

impl Normalizer {
    /// `table`: the compiled table of characters, empty for none.
    pub fn new(place: &str, table: &[u8], removes_spaces: bool) -> Result<Self, TextError> {
        let characters = if table.is_empty() { None } else { Some(CharacterTable::read(place, table)?) };
        Ok(Self { characters, removes_spaces })
    }

    /// The normalized text with spaces as ▁, with one before it if `prefix`. `kept` returns the length of a
    /// user-defined piece at the beginning of a text, which is not normalized.
    pub fn normalize(&self, text: &str, prefix: bool, kept: impl Fn(&str) -> Option<usize>) -> String {
        let first = |rest: &str| -> (String, usize) {
            if let Some(len) = kept(rest) {
                return (rest[..len].to_owned(), len);
            }
            if let Some((len, replacement)) = self.characters.as_ref().and_then(|table| table.longest(rest)) {
                return (replacement.to_owned(), len);
            }
            let len = rest.chars().next().map_or(0, char::len_utf8);
            (rest[..len].to_owned(), len)
        };
        let mut rest = text;
        while self.removes_spaces && !rest.is_empty() {
            let (changed, len) = first(rest);
            if changed != " " {
                break;
            }
            rest = &rest[len..];
        }
        let mut normalized = String::with_capacity(rest.len() + rest.len() / 4 + SPACE.len());
        if prefix && !rest.is_empty() {
            normalized.push_str(SPACE);
        }
        let mut after_space = self.removes_spaces;
        while !rest.is_empty() {
            let (changed, len) = first(rest);
            rest = &rest[len..];
            let changed = if after_space { changed.trim_start_matches(' ') } else { changed.as_str() };
            if !changed.is_empty() {
                normalized.push_str(&changed.replace(' ', SPACE));
                after_space = self.removes_spaces && changed.ends_with(' ');
            }
        }
        while self.removes_spaces && normalized.ends_with(SPACE) {
            normalized.truncate(normalized.len() - SPACE.len());
        }
        normalized
    }
}

/// The replacements of characters.
#[derive(Debug)]
struct CharacterTable {
    units: Vec<u32>,
    texts: String,
}

impl CharacterTable {
    fn read(place: &str, table: &[u8]) -> Result<Self, TextError> {
        let malformed = |found: &str| TextError::format(place, "a compiled table of characters", found);
        let (len, rest) = table.split_first_chunk::<4>().ok_or_else(|| malformed("an end in its length"))?;
        let len = u32::from_le_bytes(*len) as usize;
        if !len.is_multiple_of(4) || len > rest.len() {
            return Err(malformed(&format!("a length of {len} where {} bytes are left", rest.len())));
        }
        let (units, texts) = rest.split_at(len);
        let units = units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        let texts = std::str::from_utf8(texts).map_err(|_| malformed("texts that are not UTF-8"))?;
        Ok(Self { units: units.collect(), texts: texts.to_owned() })
    }

    /// The longest entry that a text begins with: its length in bytes and its replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = offset(*self.units.first()?);
        let mut found = None;
        for (at, byte) in text.bytes().enumerate() {
            node ^= usize::from(byte);
            let Some(&unit) = self.units.get(node) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            if unit & (1 << 8) != 0 {
                found = self.units.get(node).map(|value| (at + 1, (value & !(1 << 31)) as usize)).or(found);
            }
        }
        let (len, start) = found.filter(|&(len, _)| text.is_char_boundary(len))?;
        let replacement = self.texts.get(start..)?;
        Some((len, replacement.split('\0').next().unwrap_or("")))
    }
}
