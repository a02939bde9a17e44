//! Which special tokens of a rendered conversation the template wrote, and which the messages.
//!
//! A rendered text does not say where its parts come from, and templates trim, split, join and compare what they are
//! given. So the conversation is rendered a second time from marked messages: in them every sign that a special token
//! is spelt with (`<`, `|`, `>`, but no letters, digits and underscores) is another character, one for one, that occurs
//! nowhere else. Where the marked text, unmarked, is the text, each sign in it is known to be the template's or a
//! message's. Special tokens without signs ("EOT") are marked where a message spells one whole.
//!
//! Letters are not marked. So a template may write `'<|' + message.role + '|>'`, and a role of letters makes a special
//! token with it, as the template's author meant it; a role that brings its own `|>` does not.
//!
//! Templates that look for a word with such signs (`'</think>' in content`) do not find it in marked messages. For them
//! there is a source in which the words that are looked for are marked too ([`Marking::mark_tests`]).
//!
//! Left out: a Jinja parser. Strings are found by their quotes and by what stands next to them; where that is not
//! enough, the two texts differ and it shows.

use std::collections::HashMap;

use crate::tokenizer::{SpecialSpan, unused_characters};
use crate::{Token, Tokenizer};

/// Methods and filters of strings whose first argument is looked for and not written.
#[rustfmt::skip]
const SEARCHES: [&str; 18] = [
    "split", "rsplit", "replace", "startswith", "endswith", "strip", "lstrip", "rstrip", "trim", "find", "rfind",
    "index", "rindex", "count", "partition", "rpartition", "removeprefix", "removesuffix",
];

/// Characters that stand for others, so that they can be told apart from what a template writes.
pub(super) struct Marking {
    /// Signs that special tokens are spelt with: marked everywhere.
    signs: String,
    /// Special tokens without signs: marked as a whole.
    words: Vec<String>,
    mark_of: HashMap<char, char>,
    original_of: HashMap<char, char>,
}

/// Letters, digits, underscores and white space: what messages are made of and templates trim, change and count.
fn is_ordinary(character: char) -> bool {
    character.is_alphanumeric() || character.is_whitespace() || character == '_'
}

impl Marking {
    /// A marking for the special tokens of a tokenizer, with marks that none of these texts has. `None` if the texts
    /// leave too few characters: then they are many megabytes long.
    pub fn new(tokenizer: &Tokenizer, texts: &[&str]) -> Option<Self> {
        let special = (0..tokenizer.vocabulary_len() as Token).filter(|&token| tokenizer.is_special(token));
        let spellings = special.filter_map(|token| std::str::from_utf8(tokenizer.token_bytes(token)).ok());
        let (mut signs, mut words) = (String::new(), Vec::new());
        for spelling in spellings.filter(|spelling| !spelling.is_empty()) {
            let before = signs.len();
            signs.extend(spelling.chars().filter(|&found| !is_ordinary(found)));
            if signs.len() == before {
                words.push(spelling.to_owned());
            }
        }
        let mut all: Vec<char> = signs.chars().chain(words.iter().flat_map(|word| word.chars())).collect();
        all.sort_unstable();
        all.dedup();
        let mark_of: HashMap<char, char> = all.iter().copied().zip(unused_characters(texts)).collect();
        let original_of = mark_of.iter().map(|(&original, &mark)| (mark, original)).collect();
        let signs = all.iter().filter(|found| !is_ordinary(**found)).collect();
        (mark_of.len() == all.len()).then_some(Self { signs, words, mark_of, original_of })
    }

    /// A string of a message, marked.
    pub fn mark(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        let mut word_end = 0;
        for (at, character) in text.char_indices() {
            let rest = &text[at..];
            let words = self.words.iter().filter(|word| rest.starts_with(word.as_str()));
            word_end = words.map(|word| at + word.len()).fold(word_end, usize::max);
            let is_marked = at < word_end || self.signs.contains(character);
            marked.push(if is_marked { self.mark_of[&character] } else { character });
        }
        marked
    }

    /// What stands for a character, if it is marked.
    pub fn mark_of(&self, found: char) -> Option<char> {
        self.mark_of.get(&found).copied()
    }

    /// What was marked, as it was.
    pub fn unmark(&self, marked: &str) -> String {
        marked.chars().map(|found| self.original(found)).collect()
    }

    fn original(&self, found: char) -> char {
        self.original_of.get(&found).copied().unwrap_or(found)
    }

    /// The special tokens that the template wrote into a marked text, with their places in the text without marks.
    pub fn own_specials(&self, tokenizer: &Tokenizer, marked: &str) -> Vec<SpecialSpan> {
        let (mut done, mut unmarked) = (0, 0);
        let mut place = |at: usize| {
            let between = marked[done..at].chars().map(|found| self.original(found).len_utf8());
            unmarked += between.sum::<usize>();
            done = at;
            unmarked
        };
        let found = spelt_out(tokenizer, marked, tokenizer.specials(marked)).into_iter();
        found.map(|span| SpecialSpan { range: place(span.range.start)..place(span.range.end), ..span }).collect()
    }

    /// The source of a template in which the strings that are looked for are marked: what is compared (`==`, `!=`,
    /// `in`) and the first argument of methods such as `split`. Strings that are written stay as they are.
    pub fn mark_tests(&self, source: &str) -> String {
        let mut marked = String::with_capacity(source.len());
        let mut done = 0;
        for (start, end) in strings(source) {
            let (before, after) = (source[..start - 1].trim_end(), source[end + 1..].trim_start());
            marked.push_str(&source[done..start]);
            let string = &source[start..end];
            // A backslash and what follows it are one character, or part of one.
            let is_plain = !string.contains('\\') || !self.signs.contains('\\');
            marked.push_str(&if is_plain && is_looked_for(before, after) { self.mark(string) } else { string.into() });
            done = end;
        }
        marked.push_str(&source[done..]);
        marked
    }
}

/// The tokens that a text spells as they are: a normalizer may find them in other characters ("＜s＞"), which no template
/// writes.
pub(super) fn spelt_out(tokenizer: &Tokenizer, text: &str, mut specials: Vec<SpecialSpan>) -> Vec<SpecialSpan> {
    specials.retain(|span| {
        let spelling = tokenizer.token_bytes(span.token);
        text[span.range.clone()].trim().as_bytes() == spelling.trim_ascii()
    });
    specials
}

/// Whether a string between these is an operand of a comparison or what a method looks for.
fn is_looked_for(before: &str, after: &str) -> bool {
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

/// Where the next tag or comment begins, and its second sign.
fn next_tag(source: &str, mut at: usize) -> Option<(usize, u8)> {
    loop {
        at += source.get(at..)?.find('{')?;
        match source.as_bytes().get(at + 1) {
            Some(&kind @ (b'{' | b'%' | b'#')) => return Some((at, kind)),
            _ => at += 1,
        }
    }
}

/// Where the string ends that begins at `at`: at its quote.
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
