//! The bytes of every token, in one table.
//!
//! Vocabularies spell bytes in three ways: byte-level BPE gives each byte a printable character (GPT-2's alphabet),
//! SentencePiece writes spaces as "▁" and single bytes as "<0xNN>", others use the text as it is. The spellings are
//! decoded once, at load. The table is one string with offsets, a few megabytes for the largest vocabularies.

use std::fmt::Write;

use crate::Token;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// One printable character for each byte, as GPT-2 does.
    ByteLevel,
    /// This character for a space, and `<0xNN>` for a byte if `bytes`.
    SentencePiece { space: char, bytes: bool },
    /// Text as it is.
    Plain,
}

impl Alphabet {
    /// The bytes of an ordinary token spelt this way.
    pub fn bytes(self, spelling: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                // A spelling with a character outside the alphabet is taken as text.
                spelling.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| spelling.into())
            }
            Self::SentencePiece { space, bytes } => match byte_token(spelling) {
                Some(byte) if bytes => vec![byte],
                _ => spelling.replace(space, " ").into_bytes(),
            },
            Self::Plain => spelling.into(),
        }
    }
}

/// The byte of a spelling like `<0x0A>`.
pub(crate) fn byte_token(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Bytes that GPT-2's alphabet writes as themselves; the others are mapped to U+0100 and up, in order.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte that a character of GPT-2's alphabet stands for.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0..=0xff => is_printable(code as u8).then_some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character of GPT-2's alphabet for a byte.
pub(crate) fn byte_character(byte: u8) -> char {
    let code = match byte {
        _ if is_printable(byte) => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0xad => 0x143,
        _ => 0x121 + u32::from(byte) - 0x7f,
    };
    char::from_u32(code).expect("these codes are characters")
}

/// The bytes of every token, and whether it is special.
#[derive(Debug)]
pub(crate) struct Spellings {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<usize>,
    special: Vec<bool>,
}

impl Spellings {
    pub fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), special: Vec::new() }
    }

    pub fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn bytes(&self, token: Token) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        let start = if token == 0 { 0 } else { self.ends[token - 1] };
        &self.bytes[start..end]
    }

    pub fn is_special(&self, token: Token) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    /// FNV-1a over lengths and bytes: no dependency, and stable between runs and machines.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        for token in 0..self.len() as Token {
            let bytes = self.bytes(token);
            (bytes.len() as u32).to_le_bytes().into_iter().for_each(&mut add);
            bytes.iter().copied().for_each(&mut add);
        }
        hash
    }
}

/// The spelling of a byte in vocabularies that have byte tokens.
pub(crate) fn byte_spelling(byte: u8) -> String {
    let mut spelling = String::with_capacity(6);
    write!(spelling, "<0x{byte:02X}>").expect("writing to a string cannot fail");
    spelling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_the_library_s() {
        let mut found: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        found.sort_unstable();
        assert_eq!(found, (0..=255).collect::<Vec<u8>>());
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert!(alphabet.into_iter().all(|character| byte_of(character).is_some()));
        assert!((0..=255).all(|byte| byte_of(byte_character(byte)) == Some(byte)));
        assert_eq!(Alphabet::ByteLevel.bytes("ĠHelloĊ"), b" Hello\n");
        assert_eq!(Alphabet::ByteLevel.bytes("a b"), b"a b");
    }

    #[test]
    fn marks_and_bytes_are_undone() {
        let marked = Alphabet::SentencePiece { space: '▁', bytes: true };
        assert_eq!(marked.bytes("▁▁a"), b"  a");
        assert_eq!(marked.bytes("<0xE2>"), b"\xe2");
        assert_eq!(marked.bytes("<0x+2>"), b"<0x+2>");
        assert_eq!(
            (0..=255).map(|byte| byte_token(&byte_spelling(byte))).collect::<Option<Vec<u8>>>().map(|all| all.len()),
            Some(256)
        );
        assert_eq!(Alphabet::SentencePiece { space: '▁', bytes: false }.bytes("<0xE2>"), b"<0xE2>");
    }

    #[test]
    fn fingerprints_see_where_a_token_ends() {
        let table = |spellings: &[&str]| {
            let mut table = Spellings::new();
            spellings.iter().for_each(|spelling| table.push(spelling.as_bytes(), false));
            table.fingerprint()
        };
        assert_eq!(table(&["ab", "c"]), table(&["ab", "c"]));
        assert_ne!(table(&["ab", "c"]), table(&["a", "bc"]));
        assert_ne!(table(&["a"]), table(&["a", ""]));
    }
}
