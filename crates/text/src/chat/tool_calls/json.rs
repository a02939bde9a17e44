//! An incremental JSON scanner: it finds where a value ends, or the first invalid byte.
//!
//! Text that may be a call is held back until that is decided, so an invalid value such as `{"name" is` must be
//! detected at once, and no byte may be read twice. `serde_json` parses only complete values; this scanner follows RFC
//! 8259 up to the last bracket, and then `serde_json` parses the value ([`super::call`]).

use super::scan::{DEPTH_MAX, Scanned};

/// The fields of a call without delimiters. An object with other fields is an answer in JSON, not a call.
const FIELDS: [&[u8]; 6] = [b"name", b"parameters", b"arguments", b"type", b"function", b"id"];
const FIELD_LEN_MAX: usize = 10;

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Value,
    /// After `[`.
    ValueOrEnd,
    Key,
    /// After `{`.
    KeyOrEnd,
    Colon,
    /// After a value in a list or an object: a comma or the end.
    Comma,
    Text,
    Escape,
    /// The remaining hexadecimal digits of an escape.
    Hex(u8),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(Number),
}

/// The last part of a number that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// The state of scanning one JSON value.
#[derive(Clone, Debug)]
pub(super) struct JsonScan {
    /// A bit for each open bracket, the innermost lowest: set for objects.
    objects: u128,
    depth: usize,
    expected: Expected,
    in_key: bool,
    /// The field of a call that is being read, if fields are checked.
    field: Option<([u8; FIELD_LEN_MAX], usize)>,
}

impl JsonScan {
    /// A scan before the first byte. With `checks_fields`, an object (or one in a list) fails at the first field that a
    /// call cannot have.
    pub(super) fn new(checks_fields: bool) -> Self {
        let field = checks_fields.then_some(([0; FIELD_LEN_MAX], 0));
        Self { objects: 0, depth: 0, expected: Expected::Value, in_key: false, field }
    }

    /// Scans one byte.
    pub(super) fn push(&mut self, byte: u8) -> Scanned {
        match self.expected {
            Expected::Text => self.text(byte),
            Expected::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.expect(Expected::Text),
                b'u' => self.expect(Expected::Hex(4)),
                _ => Scanned::Fails,
            },
            Expected::Hex(left) if byte.is_ascii_hexdigit() => {
                self.expect(if left == 1 { Expected::Text } else { Expected::Hex(left - 1) })
            }
            Expected::Word([next, rest @ ..]) if byte == *next => {
                if rest.is_empty() {
                    self.value_ended()
                } else {
                    self.expect(Expected::Word(rest))
                }
            }
            Expected::Hex(_) | Expected::Word(_) => Scanned::Fails,
            Expected::Number(part) => match part.next(byte) {
                Some(next) => self.expect(Expected::Number(next)),
                None if part.may_end() => {
                    // A number ends at the first byte that is not part of it.
                    self.expected = Expected::Comma;
                    if self.depth == 0 { Scanned::Fails } else { self.push(byte) }
                }
                None => Scanned::Fails,
            },
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => Scanned::More,
            Expected::Value => self.value(byte),
            Expected::ValueOrEnd if byte == b']' => self.close(),
            Expected::ValueOrEnd => self.value(byte),
            Expected::KeyOrEnd if byte == b'}' => self.close(),
            Expected::KeyOrEnd | Expected::Key if byte == b'"' => {
                self.in_key = true;
                if let Some((_, len)) = &mut self.field {
                    *len = 0;
                }
                self.expect(Expected::Text)
            }
            Expected::Colon if byte == b':' => self.expect(Expected::Value),
            Expected::Comma => match byte {
                b',' => self.expect(if self.in_object() { Expected::Key } else { Expected::Value }),
                b'}' if self.in_object() => self.close(),
                b']' if !self.in_object() => self.close(),
                _ => Scanned::Fails,
            },
            Expected::KeyOrEnd | Expected::Key | Expected::Colon => Scanned::Fails,
        }
    }

    fn expect(&mut self, expected: Expected) -> Scanned {
        self.expected = expected;
        Scanned::More
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn value(&mut self, byte: u8) -> Scanned {
        match byte {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'"' => self.expect(Expected::Text),
            b't' => self.expect(Expected::Word(b"rue")),
            b'f' => self.expect(Expected::Word(b"alse")),
            b'n' => self.expect(Expected::Word(b"ull")),
            b'-' => self.expect(Expected::Number(Number::Minus)),
            b'0' => self.expect(Expected::Number(Number::Zero)),
            b'1'..=b'9' => self.expect(Expected::Number(Number::Digits)),
            _ => Scanned::Fails,
        }
    }

    fn open(&mut self, is_object: bool) -> Scanned {
        if self.depth == DEPTH_MAX {
            return Scanned::Fails;
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(is_object);
        self.expect(if is_object { Expected::KeyOrEnd } else { Expected::ValueOrEnd })
    }

    fn close(&mut self) -> Scanned {
        self.depth -= 1;
        self.objects >>= 1;
        self.value_ended()
    }

    fn value_ended(&mut self) -> Scanned {
        self.expected = Expected::Comma;
        if self.depth == 0 { Scanned::Done } else { Scanned::More }
    }

    fn text(&mut self, byte: u8) -> Scanned {
        match byte {
            b'"' if self.in_key => {
                if !self.is_field_of_a_call() {
                    return Scanned::Fails;
                }
                self.in_key = false;
                self.expect(Expected::Colon)
            }
            b'"' => self.value_ended(),
            0..0x20 => Scanned::Fails,
            _ => {
                if let (true, Some((field, len))) = (self.in_key, &mut self.field) {
                    if let Some(place) = field.get_mut(*len) {
                        *place = byte;
                    }
                    *len += 1;
                }
                self.expect(if byte == b'\\' { Expected::Escape } else { Expected::Text })
            }
        }
    }

    /// Whether a call may have the key that ends here.
    fn is_field_of_a_call(&self) -> bool {
        let Some((field, len)) = &self.field else { return true };
        let is_of_call = self.depth == 1 || (self.depth == 2 && self.objects == 0b01);
        !is_of_call || field.get(..*len).is_some_and(|field| FIELDS.contains(&field))
    }
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::Exponent)
    }
}

/// Whether a text is one JSON value, of any kind, with nothing after it.
pub(super) fn is_value(text: &str) -> bool {
    let mut scan = JsonScan::new(false);
    for (at, &byte) in text.as_bytes().iter().enumerate() {
        match scan.push(byte) {
            Scanned::More => {}
            Scanned::Done => return at + 1 == text.len(),
            Scanned::Fails => return false,
        }
    }
    matches!(scan.expected, Expected::Number(part) if part.may_end() && scan.depth == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, checks_fields: bool) -> (Scanned, usize) {
        let mut scan = JsonScan::new(checks_fields);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let scanned = scan.push(byte);
            if scanned != Scanned::More {
                return (scanned, at);
            }
        }
        (Scanned::More, text.len())
    }

    #[test]
    fn values_end_where_their_bracket_closes() {
        let text = r#"{"a": [1, -2.5e+3, "x\"}]\u00e9", true, null, {}, []], "b": {"c": false}}"#;
        assert_eq!(scan(&format!("{text} more"), false), (Scanned::Done, text.len() - 1));
        assert_eq!(scan(&text[..text.len() - 1], false), (Scanned::More, text.len() - 1));
    }

    #[test]
    fn the_first_wrong_byte_is_found() {
        let cases = [
            ("{a", 1),
            (r#"{"a" 1"#, 5),
            (r#"{"a": 01"#, 7),
            ("[1,]", 3),
            ("[1}", 2),
            ("{\"a\n", 3),
            (r#"["\x"#, 3),
            (r#"["\u00g"#, 6),
            ("[-x", 2),
            ("[trux", 4),
            ("[1.]", 3),
            (r#"{"a":1,}"#, 7),
            ("[é", 1),
        ];
        for (text, at) in cases {
            assert_eq!(scan(text, false), (Scanned::Fails, at), "{text}");
        }
    }

    #[test]
    fn values_agree_with_serde_json() {
        let values = ["1", "-0", "1e5", "\"a\"", "true", "[]", "{}", "[[1]]", "0.5", "null"];
        let others = ["", "01", "-", "1.", "1e", "tru", "\"a", "[1", "1 ", "{}x", "a", "1 2", "+1", ".5", "NaN"];
        for text in values.iter().chain(&others) {
            let is_trimmed = text.trim() == *text;
            let theirs = is_trimmed && serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!((is_value(text), theirs), (values.contains(text), values.contains(text)), "{text}");
        }
    }

    #[test]
    fn fields_are_checked_where_a_call_has_them() {
        assert_eq!(scan(r#"{"name": "f", "parameters": {"other": 1}}"#, true).0, Scanned::Done);
        assert_eq!(scan(r#"[{"name": "f", "arguments": {"other": 1}}]"#, true).0, Scanned::Done);
        assert_eq!(scan(r#"{"city": 1}"#, true), (Scanned::Fails, 6));
        assert_eq!(scan(r#"[{"names": 1}]"#, true), (Scanned::Fails, 8));
        assert_eq!(scan(r#"{"parameters_and_more": 1}"#, true).0, Scanned::Fails);
    }

    #[test]
    fn depth_is_bounded() {
        assert_eq!(scan(&"[".repeat(100_000), false), (Scanned::Fails, DEPTH_MAX));
        let deep = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert_eq!(scan(&deep, false), (Scanned::Done, deep.len() - 1));
        assert!(serde_json::from_str::<serde_json::Value>(&deep).is_ok());
    }
}
