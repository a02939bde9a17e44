//! The words of a grammar whose rules lead back to themselves.
//!
//! The library cuts a text into words from left to right, each as long as it can be. That is what the grammar means
//! only where a word cannot be cut in another way: where no word is the beginning of another, of its own kind or of any
//! kind in the grammar. Then the end of a word is its end whatever follows. Such are strings in quotes, names in quotes
//! with what stands around them, and `true`; numbers are not. A word costs the parser nothing while it is written, so a
//! mask within a string takes some microseconds where one of single characters takes milliseconds.
//!
//! Words are looked for in each sequence of parts, the longest first, and given up where another is their beginning.
//! Whether that is so is decided by the library's expressions (the intersection with what has something behind it is
//! empty); where it cannot say so quickly, parts are not one word.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};

use super::{Part, Rules, write_count};
use crate::grammar::lark::with_all_that_follows;

/// Work for the question whether an expression is empty.
const FUEL: u64 = 10_000;
/// Length of all expressions that are asked about for a grammar; what was not asked by then is told by characters.
const ASKED_MAX_BYTES: usize = 300_000;
/// Most parts and longest expression of a word.
const PARTS_MAX: usize = 32;
const WORD_MAX_BYTES: usize = 2048;

/// The rules in Lark's notation.
pub(super) fn lark(rules: &Rules) -> String {
    let mut words = Words {
        rules,
        is_plain: plain(rules),
        asked: HashMap::new(),
        given_up: HashSet::new(),
        bytes_left: ASKED_MAX_BYTES,
    };
    loop {
        let mut text = Text::default();
        for number in 0..rules.rules.len() {
            write!(text.lark, "{}: ", name(number)).expect("strings take all");
            words.write_alternatives(rules.alternatives(number), &mut text);
            text.lark.push('\n');
        }
        let others = words.with_a_beginning(&text);
        if others.is_empty() {
            return text.lark;
        }
        words.given_up.extend(others);
    }
}

/// Which rules do not lead to any that leads back to itself.
fn plain(rules: &Rules) -> Vec<bool> {
    let names: Vec<Vec<Vec<usize>>> = (0..rules.rules.len()).map(|rule| vec![rules.named(rule)]).collect();
    with_all_that_follows(&names, vec![false; rules.rules.len()])
}

fn name(rule: usize) -> String {
    if rule == 0 { "start".to_string() } else { format!("rule_{rule}") }
}

/// What was written, with the expressions of its words and of its characters.
#[derive(Default)]
struct Text {
    lark: String,
    words: Vec<String>,
    characters: Vec<String>,
}

impl Text {
    fn push(&mut self, expression: &str, is_word: bool) {
        write!(self.lark, " /{expression}/").expect("strings take all");
        let known = if is_word { &mut self.words } else { &mut self.characters };
        if !known.iter().any(|other| other == expression) {
            known.push(expression.to_string());
        }
    }
}

struct Words<'a> {
    rules: &'a Rules,
    is_plain: Vec<bool>,
    /// What was found about expressions that could be words.
    asked: HashMap<String, bool>,
    /// Those that are not, for others are their beginnings.
    given_up: HashSet<String>,
    /// Of expressions that may still be asked about.
    bytes_left: usize,
}

impl Words<'_> {
    fn write_alternatives(&mut self, alternatives: &[Vec<Part>], text: &mut Text) {
        for (i, sequence) in alternatives.iter().enumerate() {
            text.lark.push_str(if i > 0 { " | " } else { "" });
            text.lark.push_str(if sequence.is_empty() { "\"\"" } else { "" });
            let mut rest = sequence.as_slice();
            while let Some(part) = rest.first() {
                if let Some((parts, word)) = self.word(rest) {
                    text.push(&word, true);
                    rest = &rest[parts..];
                } else {
                    self.write_part(part, text);
                    rest = &rest[1..];
                }
            }
        }
    }

    fn write_part(&mut self, part: &Part, text: &mut Text) {
        match part {
            Part::Character(expression) => text.push(expression, false),
            Part::Rule(rule) => write!(text.lark, " {}", name(*rule)).expect("strings take all"),
            Part::Group(alternatives) => {
                text.lark.push_str(" (");
                self.write_alternatives(alternatives, text);
                text.lark.push(')');
            }
            Part::Repeated(part, least, most) => {
                text.lark.push_str(" (");
                self.write_alternatives_of(part, text);
                text.lark.push(')');
                write_count(*least, *most, &mut text.lark);
            }
        }
    }

    /// What is repeated: a group, whose words can be found.
    fn write_alternatives_of(&mut self, part: &Part, text: &mut Text) {
        match part {
            Part::Group(alternatives) => self.write_alternatives(alternatives, text),
            part => self.write_part(part, text),
        }
    }

    /// The longest word with which a sequence begins, and how many parts it has.
    fn word(&mut self, sequence: &[Part]) -> Option<(usize, String)> {
        // What has a word of one character is as good without.
        let plain = sequence.iter().take(PARTS_MAX).take_while(|part| self.is_plain(part)).count();
        (1..=plain).rev().find_map(|parts| {
            let parts = &sequence[..parts];
            if let [Part::Character(_)] = parts {
                return None;
            }
            let mut expression = String::new();
            for part in parts {
                self.rules.write_part(part, &mut expression).ok()?;
                if expression.len() > WORD_MAX_BYTES {
                    return None;
                }
            }
            (!self.given_up.contains(&expression) && self.is_word(&expression)).then_some((parts.len(), expression))
        })
    }

    fn is_plain(&self, part: &Part) -> bool {
        match part {
            Part::Character(_) => true,
            Part::Rule(rule) => self.is_plain[*rule],
            Part::Group(alternatives) => alternatives.iter().flatten().all(|part| self.is_plain(part)),
            Part::Repeated(part, ..) => self.is_plain(part),
        }
    }

    /// Whether a text of this expression is never empty nor the beginning of another.
    fn is_word(&mut self, expression: &str) -> bool {
        if let Some(known) = self.asked.get(expression) {
            return *known;
        }
        let is_word = self.begins(expression, expression) == Some(false) && is_full(expression) == Some(true);
        self.asked.insert(expression.to_string(), is_word);
        is_word
    }

    /// The words of which others are beginnings.
    fn with_a_beginning(&mut self, text: &Text) -> Vec<String> {
        let all: Vec<&String> = text.words.iter().chain(&text.characters).collect();
        if all.len() > 1 && !text.words.is_empty() {
            let every = all.iter().map(|expression| format!("(?:{expression})")).collect::<Vec<_>>().join("|");
            if self.begins(&every, &every) == Some(false) {
                return Vec::new();
            }
        }
        let mut has_beginning = |word: &String| all.iter().any(|other| self.begins(other, word) != Some(false));
        text.words.iter().filter(|word| has_beginning(word)).cloned().collect()
    }

    /// Whether a text of one expression is the beginning of a longer one of another; `None`: that is not known.
    fn begins(&mut self, begin: &str, whole: &str) -> Option<bool> {
        self.bytes_left = self.bytes_left.checked_sub(begin.len() + whole.len())?;
        is_empty(|builder| {
            let (begin, whole) = (builder.mk_regex(begin).ok()?, builder.mk_regex(whole).ok()?);
            let more = builder.mk_regex("(?s:.)+").ok()?;
            let longer = RegexAst::Concat(vec![RegexAst::ExprRef(begin), RegexAst::ExprRef(more)]);
            builder.mk(&RegexAst::And(vec![RegexAst::ExprRef(whole), longer])).ok()
        })
        .map(|is_empty| !is_empty)
    }
}

/// Whether there are texts of this expression, and none of them is empty.
fn is_full(expression: &str) -> Option<bool> {
    let mut is_nullable = false;
    let is_empty = is_empty(|builder| {
        let expression = builder.mk_regex(expression).ok()?;
        is_nullable = builder.is_nullable(expression);
        Some(expression)
    })?;
    Some(!is_empty && !is_nullable)
}

/// Whether no text is of this expression; `None`: that is not known.
fn is_empty(make: impl FnOnce(&mut RegexBuilder) -> Option<ExprRef>) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let expression = make(&mut builder)?;
    builder.to_regex_limited(expression, FUEL).ok().map(|mut regex| regex.always_empty())
}
