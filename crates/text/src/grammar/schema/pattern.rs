//! Translates the patterns of schemas, which are ECMA-262 expressions, to the syntax of Rust's `regex`.
//!
//! Most expressions mean the same in both. Differences are translated: `.` and `\s`, brackets and set operators within
//! brackets, and escapes. Lookaround, backreferences and word boundaries have no counterpart and are refused. The
//! library checks the syntax of the rest; ECMA-262's legacy syntax for browsers is not supported.

/// ECMA-262's `\s`, as the inside of brackets.
const SPACE: &str =
    r"\t\n\x0b\x0c\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";
/// Characters that `.` does not match.
const LINE_ENDS: &str = r"\n\r\x{2028}\x{2029}";

/// The pattern in Rust's syntax.
///
/// # Errors
/// If it has no counterpart.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { rest: pattern, out: String::with_capacity(pattern.len()) };
    while let Some(character) = reader.next() {
        match character {
            '\\' => drop(reader.escape(false)?),
            '[' => reader.class()?,
            ']' => reader.out.push_str(r"\]"),
            '.' => reader.out.push_str(&format!("[^{LINE_ENDS}]")),
            '(' if reader.rest.starts_with('?') => reader.group()?,
            _ => reader.out.push(character),
        }
    }
    Ok(reader.out)
}

struct Reader<'a> {
    rest: &'a str,
    out: String,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    /// A group after `(` that begins with `?`.
    fn group(&mut self) -> Result<(), String> {
        let rest = &self.rest[1..];
        if let Some(inner) = rest.strip_prefix(':') {
            self.rest = inner;
        } else if let Some(name) = rest.strip_prefix('<').filter(|name| !name.starts_with(['=', '!'])) {
            // The name is dropped, since the library gives names of groups a meaning.
            self.rest = name.split_once('>').ok_or("expected > after the name of a group, found none")?.1;
        } else {
            let found: String = rest.chars().take(2).collect();
            return Err(format!("expected groups that do not look around and set no flags, found (?{found}"));
        }
        self.out.push_str("(?:");
        Ok(())
    }

    /// An escape after a backslash; returns whether it is a class of characters.
    fn escape(&mut self, is_class: bool) -> Result<bool, String> {
        let character = self.next().ok_or("expected an escape, found the end of a pattern")?;
        match character {
            'd' | 'D' | 'w' | 'W' => self.out.extend(['\\', character]),
            's' => self.out.push_str(&format!("[{SPACE}]")),
            'S' => self.out.push_str(&format!("[^{SPACE}]")),
            'p' | 'P' => {
                let (name, rest) = self.rest.split_once('}').ok_or("expected } after \\p, found none")?;
                self.out.push_str(&format!("\\{character}{name}}}"));
                self.rest = rest;
            }
            _ => {
                let code = self.character(character, is_class)?;
                self.out.push_str(&format!("\\x{{{code:x}}}"));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The character of an escape for a single character.
    fn character(&mut self, escape: char, is_class: bool) -> Result<u32, String> {
        Ok(match escape {
            't' => 0x09,
            'n' => 0x0a,
            'v' => 0x0b,
            'f' => 0x0c,
            'r' => 0x0d,
            'b' if is_class => 0x08,
            '0' if !self.rest.starts_with(|next: char| next.is_ascii_digit()) => 0,
            'x' => self.hexadecimal(2)?,
            'u' if self.rest.starts_with('{') => {
                let end = self.rest.find('}').ok_or("expected } after \\u{, found none")?;
                self.rest = &self.rest[1..];
                let code = self.hexadecimal(end - 1)?;
                self.rest = &self.rest[1..];
                code
            }
            'u' => match self.hexadecimal(4)? {
                high @ 0xd800..0xdc00 if self.rest.starts_with("\\u") => {
                    self.rest = &self.rest[2..];
                    let low = self.hexadecimal(4)?;
                    let low = low.checked_sub(0xdc00).filter(|low| *low < 0x400);
                    0x10000 + ((high - 0xd800) << 10) + low.ok_or("expected a pair of surrogates, found half of one")?
                }
                code => code,
            },
            'c' => match self.next() {
                Some(letter) if letter.is_ascii_alphabetic() => u32::from(letter) % 32,
                _ => return Err("expected a letter after \\c, found none".to_string()),
            },
            sign if !sign.is_ascii_alphanumeric() => u32::from(sign),
            _ => {
                return Err(format!(
                    "expected an escape of ECMA-262 that is neither a reference nor a boundary, found \\{escape}"
                ));
            }
        })
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32, String> {
        let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let code = code.ok_or_else(|| format!("expected {digits} hexadecimal digits, found others"))?;
        self.rest = &self.rest[digits..];
        Ok(code)
    }

    /// A class after `[`, with its `]`.
    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.rest.starts_with('^') {
            self.next();
            self.out.push('^');
        }
        if self.rest.starts_with(']') {
            return Err("expected something in brackets, found nothing".to_string());
        }
        // A hyphen makes a range only between two characters.
        let mut can_begin = false;
        loop {
            match self.next().ok_or("expected ], found the end of a pattern")? {
                ']' => break,
                '-' if can_begin && self.ends_a_range() => {
                    self.out.push('-');
                    match self.next() {
                        Some('\\') => drop(self.escape(true)?),
                        Some(last) => self.literal(last),
                        None => {}
                    }
                    can_begin = false;
                }
                '\\' => can_begin = !self.escape(true)?,
                character => {
                    self.literal(character);
                    can_begin = true;
                }
            }
        }
        self.out.push(']');
        Ok(())
    }

    fn ends_a_range(&self) -> bool {
        let many = ["\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\p", "\\P", "]"];
        !many.iter().any(|many| self.rest.starts_with(many))
    }

    /// A character within brackets, escaped where Rust has operators.
    fn literal(&mut self, character: char) {
        match character {
            '[' | '&' | '~' | '^' | '-' => self.out.push_str(&format!("\\{character}")),
            _ => self.out.push(character),
        }
    }
}
