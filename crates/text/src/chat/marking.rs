//! Determines which special tokens of a rendered conversation come from the template, and which from messages.
//!
//! A rendered text does not show where its parts come from, and templates trim, split, join and compare their input. So
//! the conversation is rendered a second time from marked messages (a form of taint tracking): every symbol of special
//! tokens (`<`, `|`, `>`, but no letters, digits and underscores) is replaced by a placeholder character that occurs
//! nowhere else. If the marked text, unmarked, equals the text, the origin of each symbol in it is known. Special
//! tokens without symbols ("EOT") are marked where a message has the whole token.
//!
//! Letters are not marked. So a template may write `'<|' + message.role + '|>'`, and a role of letters forms a special
//! token with it, as the template's author intended; a role with its own `|>` does not.
//!
//! Templates that search for a string with such symbols (`'</think>' in content`) do not find it in marked messages.
//! For them the searched strings of the source are marked, too ([`Marking::mark_searched_strings`]).
//!
//! There is no Jinja parser here: strings are found by their quotes and their neighbours. If that is wrong, the two
//! texts differ, which is detected.

use std::collections::HashMap;

use crate::tokenizer::{SpecialSpan, unused_characters};
use crate::{Token, Tokenizer};

/// Methods and filters of strings whose first argument is searched for and not written.
#[rustfmt::skip]
const SEARCHES: [&str; 18] = [
    "split", "rsplit", "replace", "startswith", "endswith", "strip", "lstrip", "rstrip", "trim", "find", "rfind",
    "index", "rindex", "count", "partition", "rpartition", "removeprefix", "removesuffix",
];

/// Placeholder characters for the symbols of special tokens.
pub(super) struct Marking {
    /// Symbols of special tokens, which are marked everywhere.
    symbols: String,
    /// Special tokens without symbols, which are marked as a whole.
    words: Vec<String>,
    placeholder_of: HashMap<char, char>,
    original_of: HashMap<char, char>,
}

/// Whether a character is never marked: letters, digits, underscores and white space, which templates trim and change.
fn is_ordinary(character: char) -> bool {
    character.is_alphanumeric() || character.is_whitespace() || character == '_'
}

impl Marking {
    /// A marking for the special tokens of a tokenizer, with placeholders that none of these texts has. `None` if the
    /// texts leave too few characters, in which case they are many megabytes long.
    pub fn new(tokenizer: &Tokenizer, texts: &[&str]) -> Option<Self> {
        let special = (0..tokenizer.vocabulary_len() as Token).filter(|&token| tokenizer.is_special(token));
        let spellings = special.filter_map(|token| std::str::from_utf8(tokenizer.token_bytes(token)).ok());
        let (mut symbols, mut words) = (String::new(), Vec::new());
        for spelling in spellings.filter(|spelling| !spelling.is_empty()) {
            let before = symbols.len();
            symbols.extend(spelling.chars().filter(|&found| !is_ordinary(found)));
            if symbols.len() == before {
                words.push(spelling.to_owned());
            }
        }
        let mut all: Vec<char> = symbols.chars().chain(words.iter().flat_map(|word| word.chars())).collect();
        all.sort_unstable();
        all.dedup();
        let placeholder_of: HashMap<char, char> = all.iter().copied().zip(unused_characters(texts)).collect();
        let original_of = placeholder_of.iter().map(|(&original, &placeholder)| (placeholder, original)).collect();
        let symbols = all.iter().filter(|found| !is_ordinary(**found)).collect();
        (placeholder_of.len() == all.len()).then_some(Self { symbols, words, placeholder_of, original_of })
    }

    /// Marks a string of a message.
    pub fn mark(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        let mut word_end = 0;
        for (at, character) in text.char_indices() {
            let rest = &text[at..];
            let words = self.words.iter().filter(|word| rest.starts_with(word.as_str()));
            word_end = words.map(|word| at + word.len()).fold(word_end, usize::max);
            let is_marked = at < word_end || self.symbols.contains(character);
            marked.push(if is_marked { self.placeholder_of[&character] } else { character });
        }
        marked
    }

    /// The placeholder of a character, if it has one.
    pub fn placeholder_of(&self, found: char) -> Option<char> {
        self.placeholder_of.get(&found).copied()
    }

    /// Replaces placeholders by their original characters.
    pub fn unmark(&self, marked: &str) -> String {
        marked.chars().map(|found| self.original(found)).collect()
    }

    fn original(&self, found: char) -> char {
        self.original_of.get(&found).copied().unwrap_or(found)
    }

    /// The special tokens that the template wrote into a marked text, with their places in the unmarked text.
    pub fn template_special_spans(&self, tokenizer: &Tokenizer, marked: &str) -> Vec<SpecialSpan> {
        let (mut done, mut unmarked) = (0, 0);
        let mut place = |at: usize| {
            let between = marked[done..at].chars().map(|found| self.original(found).len_utf8());
            unmarked += between.sum::<usize>();
            done = at;
            unmarked
        };
        let found = written_exactly(tokenizer, marked, tokenizer.special_spans(marked)).into_iter();
        found.map(|span| SpecialSpan { range: place(span.range.start)..place(span.range.end), ..span }).collect()
    }

    /// Marks the strings of a template's source that are searched for: operands of comparisons (`==`, `!=`, `in`) and
    /// first arguments of methods such as `split`. Strings that are written are unchanged.
    pub fn mark_searched_strings(&self, source: &str) -> String {
        let mut marked = String::with_capacity(source.len());
        let mut done = 0;
        for (start, end) in strings(source) {
            let (before, after) = (source[..start - 1].trim_end(), source[end + 1..].trim_start());
            marked.push_str(&source[done..start]);
            let string = &source[start..end];
            // A backslash may begin an escape, so such strings are not marked.
            let is_plain = !string.contains('\\') || !self.symbols.contains('\\');
            marked.push_str(&if is_plain && is_searched_for(before, after) {
                self.mark(string)
            } else {
                string.into()
            });
            done = end;
        }
        marked.push_str(&source[done..]);
        marked
    }
}

/// Keeps the special tokens whose exact spelling is in the text: a normalizer may match them in other characters
/// ("＜s＞"), which no template writes.
pub(super) fn written_exactly(
    tokenizer: &Tokenizer,
    text: &str,
    mut special_spans: Vec<SpecialSpan>,
) -> Vec<SpecialSpan> {
    special_spans.retain(|span| {
        let spelling = tokenizer.token_bytes(span.token);
        text[span.range.clone()].trim().as_bytes() == spelling.trim_ascii()
    });
    special_spans
}

/// Whether a string between these is an operand of a comparison or an argument that a method searches for.
fn is_searched_for(before: &str, after: &str) -> bool {
    let compares = |text: &str| ["==", "!="].iter().any(|operator| text.starts_with(operator));
    let contained = after.strip_prefix("not").unwrap_or(after).trim_start().strip_prefix("in");
    if compares(after) || contained.is_some_and(|rest| rest.starts_with(char::is_whitespace)) {
        return true;
    }
    if before.ends_with("==") || before.ends_with("!=") {
        return true;
    }
    let Some(call) = before.strip_suffix('(') else { return false };
    let name_start = call.trim_end_matches(|found: char| found.is_alphanumeric() || found == '_').len();
    let receiver = call[..name_start].trim_end();
    SEARCHES.contains(&&call[name_start..]) && (receiver.ends_with('.') || receiver.ends_with('|'))
}

/// The strings of a Jinja source, without their quotes, as ranges of bytes.
fn strings(source: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((open, kind)) = next_tag(source, at) {
        at = open + 2;
        if kind == b'#' {
            at += source[at..].find("#}").map_or(source.len() - at, |end| end + 2);
            continue;
        }
        while let Some(&byte) = source.as_bytes().get(at) {
            match byte {
                b'\'' | b'"' => {
                    let start = at + 1;
                    let Some(end) = string_end(source.as_bytes(), start, byte) else { return found };
                    found.push((start, end));
                    at = end + 1;
                }
                b'}' | b'%' if source[at + 1..].starts_with('}') => {
                    at += 2;
                    break;
                }
                _ => at += 1,
            }
        }
    }
    found
}

/// Where the next tag or comment begins, and its second character.
fn next_tag(source: &str, mut at: usize) -> Option<(usize, u8)> {
    loop {
        at += source.get(at..)?.find('{')?;
        match source.as_bytes().get(at + 1) {
            Some(&kind @ (b'{' | b'%' | b'#')) => return Some((at, kind)),
            _ => at += 1,
        }
    }
}

/// The position of the quote that ends the string beginning at `at`.
fn string_end(source: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    while let Some(&byte) = source.get(at) {
        match byte {
            _ if byte == quote => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}
