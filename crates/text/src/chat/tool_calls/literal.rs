//! An incremental scanner of arguments in Python's or Gemma's notation, which converts them to JSON.
//!
//! `city="Paris", days=[1, 2])` and `city:<|"|>Paris<|"|>,days:[1,2]}` become `{"city": "Paris", "days": [1, 2]}`. The
//! two differ in their quotes, in the separator of name and value, and in the closing bracket ([`Syntax`]).
//!
//! Supported of Python are strings, JSON's numbers, `True`, `False`, `None` (and JSON's keywords), lists, and
//! dictionaries with strings as keys. Not supported, so that such a call remains text: positional arguments (their
//! names would be a guess), tuples, sums, other numbers, string prefixes, triple-quoted strings.

use super::scan::{DEPTH_MAX, Scanned};

/// A notation of arguments.
#[derive(Debug)]
pub(super) struct Syntax {
    /// The delimiter on both sides of a string, which has no escapes; `None` for Python's quotes.
    pub quote: Option<&'static [u8]>,
    /// Between an argument's name and its value.
    pub separator: u8,
    /// After the last argument.
    pub close: u8,
}

/// `a=1, b="x")`.
pub(super) static PYTHON: Syntax = Syntax { quote: None, separator: b'=', close: b')' };
/// `a:1,b:<|"|>x<|"|>}`. The first byte of a delimiter occurs in it once.
pub(super) static GEMMA_4: Syntax = Syntax { quote: Some(b"<|\"|>"), separator: b':', close: b'}' };
/// `a:1,b:<escape>x<escape>}`.
pub(super) static FUNCTION_GEMMA: Syntax = Syntax { quote: Some(b"<escape>"), separator: b':', close: b'}' };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    Arguments,
    Map,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A key or a value, or the end.
    Item,
    /// In a key without quotes.
    Name,
    /// Before the separator of a key and its value.
    Separator,
    Value,
    /// In a number or a keyword, which begins at this position of the JSON.
    Token(usize),
    /// A comma or the end.
    Next,
    /// In the opening delimiter of a string, of which this many bytes were read.
    Opening(usize),
    /// In a string between delimiters; this many bytes of the closing one were read.
    Delimited(usize),
    /// In a string between these quotes.
    Quoted(u8),
    Escape(u8),
    /// In a hexadecimal escape: the number of missing digits, and the value so far.
    Hex {
        quote: u8,
        digits: u8,
        value: u32,
    },
}

/// Whether this byte may be part of a name.
fn is_of_name(syntax: &Syntax, byte: u8) -> bool {
    let is_word = byte.is_ascii_alphanumeric() || byte == b'_';
    let is_free = syntax.quote.is_some() && (!byte.is_ascii() || matches!(byte, b'-' | b'.' | b'$' | b' '));
    is_word || is_free
}

/// Whether a name can be written without quotes and is read back unchanged.
pub(super) fn is_name(syntax: &Syntax, name: &str) -> bool {
    let is_odd = name.starts_with(|first: char| first.is_ascii_digit()) || name.trim() != name || name.is_empty();
    !is_odd && name.bytes().all(|byte| is_of_name(syntax, byte))
}

/// The state of scanning the arguments of one call, from the byte after the opening bracket.
#[derive(Clone, Debug)]
pub(super) struct LiteralScan {
    syntax: &'static Syntax,
    /// The open brackets, each with whether it is still empty.
    open: Vec<(Bracket, bool)>,
    state: State,
    /// Whether the current string is a key.
    in_key: bool,
    json: Vec<u8>,
}

impl LiteralScan {
    pub(super) fn new(syntax: &'static Syntax) -> Self {
        let open = vec![(Bracket::Arguments, true)];
        Self { syntax, open, state: State::Item, in_key: false, json: vec![b'{'] }
    }

    /// The arguments as JSON, once they have ended.
    pub(super) fn into_json(self) -> Option<String> {
        String::from_utf8(self.json).ok()
    }

    /// Scans one byte.
    pub(super) fn push(&mut self, byte: u8) -> Scanned {
        match self.state {
            State::Quoted(quote) => self.quoted(byte, quote),
            State::Escape(quote) => self.escape(byte, quote),
            State::Hex { quote, digits, value } => self.hex(byte, quote, digits, value),
            State::Opening(seen) => self.opening(byte, seen),
            State::Delimited(seen) => self.delimited(byte, seen),
            State::Name => self.name(byte),
            State::Token(from) => self.token(byte, from),
            _ if byte.is_ascii_whitespace() => Scanned::More,
            State::Item => self.item(byte),
            State::Separator if byte == self.separator() => {
                self.json.extend_from_slice(b": ");
                self.go(State::Value)
            }
            State::Separator => Scanned::Fails,
            State::Value => self.value(byte),
            State::Next if byte == b',' => self.go(State::Item),
            State::Next => self.close(byte),
        }
    }

    fn go(&mut self, state: State) -> Scanned {
        self.state = state;
        Scanned::More
    }

    fn bracket(&self) -> Bracket {
        self.open.last().map_or(Bracket::Arguments, |open| open.0)
    }

    fn separator(&self) -> u8 {
        if self.bracket() == Bracket::Map { b':' } else { self.syntax.separator }
    }

    fn item(&mut self, byte: u8) -> Scanned {
        let end = match self.bracket() {
            Bracket::Arguments => self.syntax.close,
            Bracket::Map => b'}',
            Bracket::List => b']',
        };
        if byte == end {
            return self.close(byte);
        }
        if let Some((_, is_empty)) = self.open.last_mut()
            && !std::mem::take(is_empty)
        {
            self.json.extend_from_slice(b", ");
        }
        let has_quotes = self.syntax.quote.is_none();
        match self.bracket() {
            Bracket::List => self.value(byte),
            Bracket::Map if has_quotes || byte == b'<' => {
                self.in_key = true;
                self.string(byte)
            }
            Bracket::Map | Bracket::Arguments => {
                self.json.push(b'"');
                self.state = State::Name;
                // A name has at least one letter.
                if byte == self.separator() || byte.is_ascii_digit() { Scanned::Fails } else { self.name(byte) }
            }
        }
    }

    fn name(&mut self, byte: u8) -> Scanned {
        if is_of_name(self.syntax, byte) {
            self.json.push(byte);
            return Scanned::More;
        }
        self.json.push(b'"');
        self.state = State::Separator;
        self.push(byte)
    }

    fn value(&mut self, byte: u8) -> Scanned {
        match byte {
            b'[' => self.open(Bracket::List, byte),
            b'{' => self.open(Bracket::Map, byte),
            b'\'' | b'"' | b'<' => {
                self.in_key = false;
                self.string(byte)
            }
            _ => {
                self.state = State::Token(self.json.len());
                self.token(byte, self.json.len())
            }
        }
    }

    fn open(&mut self, bracket: Bracket, byte: u8) -> Scanned {
        if self.open.len() == DEPTH_MAX {
            return Scanned::Fails;
        }
        self.open.push((bracket, true));
        self.json.push(byte);
        self.go(State::Item)
    }

    fn close(&mut self, byte: u8) -> Scanned {
        let (end, json) = match self.bracket() {
            Bracket::Arguments => (self.syntax.close, b'}'),
            Bracket::Map => (b'}', b'}'),
            Bracket::List => (b']', b']'),
        };
        if byte != end {
            return Scanned::Fails;
        }
        self.open.pop();
        self.json.push(json);
        self.state = State::Next;
        if self.open.is_empty() { Scanned::Done } else { Scanned::More }
    }

    /// A number or a keyword. It is written to the JSON directly, and replaced at its end if JSON has another keyword.
    fn token(&mut self, byte: u8, from: usize) -> Scanned {
        const WORDS: [(&[u8], &[u8]); 6] = [
            (b"True", b"true"),
            (b"False", b"false"),
            (b"None", b"null"),
            (b"true", b"true"),
            (b"false", b"false"),
            (b"null", b"null"),
        ];
        if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.') {
            self.json.push(byte);
            let so_far = &self.json[from..];
            let is_number = matches!(so_far[0], b'-' | b'0'..=b'9')
                && matches!(byte, b'0'..=b'9' | b'e' | b'E' | b'+' | b'-' | b'.');
            let is_word = WORDS.iter().any(|(word, _)| word.starts_with(so_far));
            return if is_number || is_word { Scanned::More } else { Scanned::Fails };
        }
        let token = &self.json[from..];
        if let Some((_, json)) = WORDS.iter().find(|(word, _)| *word == token) {
            self.json.truncate(from);
            self.json.extend_from_slice(json);
        } else if !std::str::from_utf8(token).is_ok_and(super::json::is_value) {
            return Scanned::Fails;
        }
        self.state = State::Next;
        self.push(byte)
    }

    fn string(&mut self, byte: u8) -> Scanned {
        match (self.syntax.quote, byte) {
            (None, b'\'' | b'"') => {
                self.json.push(b'"');
                self.go(State::Quoted(byte))
            }
            (Some(delimiter), _) if byte == delimiter[0] => {
                self.json.push(b'"');
                self.go(State::Opening(1))
            }
            _ => Scanned::Fails,
        }
    }

    fn string_ended(&mut self) -> Scanned {
        self.json.push(b'"');
        let next = if std::mem::take(&mut self.in_key) { State::Separator } else { State::Next };
        self.go(next)
    }

    /// A byte of a string's text.
    fn write(&mut self, byte: u8) {
        match byte {
            b'"' | b'\\' => self.json.extend_from_slice(&[b'\\', byte]),
            b'\n' => self.json.extend_from_slice(b"\\n"),
            b'\t' => self.json.extend_from_slice(b"\\t"),
            0..0x20 => self.json.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => self.json.push(byte),
        }
    }

    fn opening(&mut self, byte: u8, seen: usize) -> Scanned {
        let delimiter = self.syntax.quote.unwrap_or_default();
        match delimiter.get(seen) {
            Some(&next) if byte == next => {
                self.go(if seen + 1 == delimiter.len() { State::Delimited(0) } else { State::Opening(seen + 1) })
            }
            _ => Scanned::Fails,
        }
    }

    fn delimited(&mut self, byte: u8, seen: usize) -> Scanned {
        let delimiter = self.syntax.quote.unwrap_or_default();
        if byte == delimiter[seen] {
            return if seen + 1 == delimiter.len() { self.string_ended() } else { self.go(State::Delimited(seen + 1)) };
        }
        delimiter[..seen].iter().for_each(|&byte| self.write(byte));
        if byte == delimiter[0] {
            return self.go(State::Delimited(1));
        }
        self.write(byte);
        self.go(State::Delimited(0))
    }

    fn quoted(&mut self, byte: u8, quote: u8) -> Scanned {
        match byte {
            b'\\' => self.go(State::Escape(quote)),
            b'\n' | b'\r' => Scanned::Fails,
            _ if byte == quote => self.string_ended(),
            _ => {
                self.write(byte);
                Scanned::More
            }
        }
    }

    fn escape(&mut self, byte: u8, quote: u8) -> Scanned {
        let digits = match byte {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            return self.go(State::Hex { quote, digits, value: 0 });
        }
        match byte {
            b'\\' | b'\'' | b'"' => self.write(byte),
            b'n' => self.write(b'\n'),
            b't' => self.write(b'\t'),
            b'r' => self.write(b'\r'),
            b'a' => self.write(7),
            b'b' => self.write(8),
            b'v' => self.write(11),
            b'f' => self.write(12),
            // A line continuation.
            b'\n' => {}
            // Octal and named escapes.
            b'0'..=b'7' | b'N' => return Scanned::Fails,
            _ => {
                // Python keeps the backslash of an unknown escape.
                self.write(b'\\');
                self.state = State::Quoted(quote);
                return self.quoted(byte, quote);
            }
        }
        self.go(State::Quoted(quote))
    }

    fn hex(&mut self, byte: u8, quote: u8, digits: u8, value: u32) -> Scanned {
        let Some(digit) = char::from(byte).to_digit(16) else { return Scanned::Fails };
        let Some(value) = value.checked_mul(16).map(|value| value + digit) else { return Scanned::Fails };
        if digits > 1 {
            return self.go(State::Hex { quote, digits: digits - 1, value });
        }
        match (char::from_u32(value), value) {
            (Some(character), _) => {
                let mut bytes = [0; 4];
                character.encode_utf8(&mut bytes).bytes().for_each(|byte| self.write(byte));
            }
            // A surrogate; JSON combines two of them to a character.
            (None, 0..=0xffff) => self.json.extend_from_slice(format!("\\u{value:04x}").as_bytes()),
            _ => return Scanned::Fails,
        }
        self.go(State::Quoted(quote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(syntax: &'static Syntax, text: &str) -> Result<String, usize> {
        let mut scan = LiteralScan::new(syntax);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            match scan.push(byte) {
                Scanned::More => {}
                Scanned::Done => {
                    assert_eq!(at + 1, text.len(), "{text}");
                    let json = scan.into_json().unwrap();
                    serde_json::from_str::<serde_json::Value>(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
                    return Ok(json);
                }
                Scanned::Fails => return Err(at),
            }
        }
        Err(text.len())
    }

    #[test]
    fn python_s_keywords_become_json() {
        let cases = [
            (")", "{}"),
            ("a=1)", r#"{"a": 1}"#),
            (" a = -1.5e3 , b = 'x' , )", r#"{"a": -1.5e3, "b": "x"}"#),
            (r#"s='it\'s "so"\n\x41\u00e9\q')"#, r#"{"s": "it's \"so\"\nAé\\q"}"#),
            (r#"s="\ud83d\ude00\U0001F600")"#, "{\"s\": \"\\ud83d\\ude00\u{1F600}\"}"),
            ("a=True,b=False,c=None,d=true,e=null)", r#"{"a": true, "b": false, "c": null, "d": true, "e": null}"#),
            ("a=[1, [], {'k': 'v', \"l\": [2,],}])", r#"{"a": [1, [], {"k": "v", "l": [2]}]}"#),
            ("s='tab\there é')", r#"{"s": "tab\there é"}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(json(&PYTHON, text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unsupported_syntax_fails_at_its_byte() {
        let cases = [
            ("1)", 0),
            ("'x')", 0),
            ("a)", 1),
            ("a=b)", 2),
            ("a=Trux)", 5),
            ("a=01)", 4),
            ("a=1 2)", 4),
            ("a=(1, 2))", 2),
            ("a=[1)", 4),
            ("a={1: 2})", 3),
            ("a='x\n')", 4),
            ("a=,", 2),
            (",)", 0),
            (r"a='\N{DASH}')", 4),
            (r"a='\U99999999')", 12),
            ("a='unclosed)", 12),
            ("é=1)", 0),
        ];
        for (text, at) in cases {
            assert_eq!(json(&PYTHON, text), Err(at), "{text}");
        }
        assert_eq!(json(&PYTHON, &format!("a={}", "[".repeat(100_000))), Err(DEPTH_MAX + 1));
    }

    #[test]
    fn gemma_s_arguments_become_json() {
        let text = "city:<|\"|>Paris <| \"x\"\n<|\"|>,days:[1,2],more:{deep key:true,<|\"|>k<|\"|>:<|\"|><|\"|>}}";
        let expected = r#"{"city": "Paris <| \"x\"\n", "days": [1, 2], "more": {"deep key": true, "k": ""}}"#;
        assert_eq!(json(&GEMMA_4, text).as_deref(), Ok(expected));
        let text = "path:<escape>a<esca<escape>,n:500}";
        assert_eq!(json(&FUNCTION_GEMMA, text).as_deref(), Ok(r#"{"path": "a<esca", "n": 500}"#));
        for (text, at) in [("a:'x'}", 2), ("a=1}", 1), ("a:<|x", 4), (":1}", 0), ("a:word}", 2)] {
            assert_eq!(json(&GEMMA_4, text), Err(at), "{text}");
        }
    }
}
