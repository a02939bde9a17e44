//! Grammars in the notation of llama.cpp (GBNF), told to the library in its own.
//!
//! A rule there goes character by character: nothing is cut into words first, as Lark cuts. A grammar whose rules do
//! not lead back to themselves is therefore one regular expression, and told as one. Where they do, words are only what
//! is one however the text goes on, and all else is told by characters, of which several may stand at the same place
//! ([`words`]): the same texts.
//!
//! Left out: tokens by name or number (`<think>`, `<[1000]>`), which are of one vocabulary.

mod words;

use std::collections::HashMap;
use std::fmt::Write;

use llguidance::api::GrammarWithLexer;

use super::depth::STEPS_MAX;

/// How deep parentheses may nest: what reads them does so with its stack.
const NESTING_MAX: usize = 100;
/// Longest expression that a grammar may become.
const EXPRESSION_MAX_BYTES: usize = 1 << 20;
/// Most repetitions that may be asked for, as in llama.cpp.
const REPEATS_MAX: usize = 2000;

/// Whether a grammar of unknown notation is of this one.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| line.split(['#', '"', '[']).next().is_some_and(|begin| begin.contains("::=")))
}

/// The grammar as the library reads it.
///
/// # Errors
/// What was expected, with the line.
pub(super) fn grammar(text: &str) -> Result<GrammarWithLexer, String> {
    let rules = Parser { text, at: 0, depth: 0, parts: 0, rules: Rules::default() }.rules()?;
    if rules.leads_back() {
        return Ok(GrammarWithLexer::from_lark(words::lark(&rules)));
    }
    let expression = rules.expression()?;
    Ok(GrammarWithLexer::from_regex(&expression))
}

/// What a rule is made of.
#[derive(Debug)]
enum Part {
    /// One character, as an expression.
    Character(String),
    Rule(usize),
    Group(Vec<Vec<Part>>),
    /// At least, and at most.
    Repeated(Box<Part>, usize, Option<usize>),
}

/// The rules by number; the first is the root.
#[derive(Debug, Default)]
struct Rules {
    numbers: HashMap<String, usize>,
    /// Each with its alternatives; none yet for one that was only named.
    rules: Vec<(String, Option<Vec<Vec<Part>>>)>,
}

impl Rules {
    fn number(&mut self, name: &str) -> usize {
        *self.numbers.entry(name.to_string()).or_insert_with(|| {
            self.rules.push((name.to_string(), None));
            self.rules.len() - 1
        })
    }

    fn alternatives(&self, number: usize) -> &[Vec<Part>] {
        self.rules[number].1.as_deref().expect("all rules are there, as was checked")
    }

    /// The rules that a rule names.
    fn named(&self, rule: usize) -> Vec<usize> {
        let mut names = Vec::new();
        let mut open: Vec<&Part> = self.alternatives(rule).iter().flatten().collect();
        while let Some(part) = open.pop() {
            match part {
                Part::Character(_) => {}
                Part::Rule(rule) => names.push(*rule),
                Part::Group(alternatives) => open.extend(alternatives.iter().flatten()),
                Part::Repeated(part, ..) => open.push(part),
            }
        }
        names
    }

    /// Whether some rule that the root leads to leads to itself.
    fn leads_back(&self) -> bool {
        // Of each rule on the way from the root those that it names and that were not followed yet.
        let mut is_done = vec![false; self.rules.len()];
        let mut is_open = vec![false; self.rules.len()];
        let mut way: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut next = Some(0);
        loop {
            if let Some(rule) = next.take() {
                is_open[rule] = true;
                way.push((rule, self.named(rule)));
            }
            let Some((rule, names)) = way.last_mut() else { return false };
            match names.pop() {
                Some(named) if is_open[named] => return true,
                Some(named) => next = (!is_done[named]).then_some(named),
                None => {
                    (is_open[*rule], is_done[*rule]) = (false, true);
                    way.pop();
                }
            }
        }
    }

    /// All rules in one expression; they do not lead back.
    fn expression(&self) -> Result<String, String> {
        let mut expression = String::new();
        self.write_expression(self.alternatives(0), &mut expression)?;
        Ok(expression)
    }

    fn write_expression(&self, alternatives: &[Vec<Part>], out: &mut String) -> Result<(), String> {
        if out.len() > EXPRESSION_MAX_BYTES {
            return Err(format!(
                "expected rules that are at most {EXPRESSION_MAX_BYTES} bytes without names, found more"
            ));
        }
        out.push_str("(?:");
        for (i, sequence) in alternatives.iter().enumerate() {
            out.push_str(if i > 0 { "|" } else { "" });
            for part in sequence {
                self.write_part(part, out)?;
            }
        }
        out.push(')');
        Ok(())
    }

    fn write_part(&self, part: &Part, out: &mut String) -> Result<(), String> {
        match part {
            Part::Character(expression) => out.push_str(expression),
            Part::Rule(rule) => self.write_expression(self.alternatives(*rule), out)?,
            Part::Group(alternatives) => self.write_expression(alternatives, out)?,
            Part::Repeated(part, least, most) => {
                out.push_str("(?:");
                self.write_part(part, out)?;
                out.push(')');
                write_count(*least, *most, out);
            }
        }
        Ok(())
    }
}

fn write_count(least: usize, most: Option<usize>, out: &mut String) {
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        (least, None) => write!(out, "{{{least},}}").expect("strings take all"),
        (least, Some(most)) => write!(out, "{{{least},{most}}}").expect("strings take all"),
    }
}

/// A character as an expression; those that mean something there by their number.
fn character(character: char) -> String {
    if character.is_ascii_alphanumeric() { character.to_string() } else { format!("\\x{{{:x}}}", u32::from(character)) }
}

/// Reads the notation, byte by byte where it is ASCII.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Parentheses and counts so far.
    parts: usize,
    rules: Rules,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error<T>(&self, expected: &str) -> Result<T, String> {
        let line = 1 + self.text[..self.at].matches('\n').count();
        let found: String = self.rest().chars().take(20).collect();
        Err(format!("line {line}: expected {expected}, found {found:?}"))
    }

    /// Goes on if these characters come next.
    fn eat(&mut self, expected: &str) -> bool {
        let comes = self.rest().starts_with(expected);
        self.at += if comes { expected.len() } else { 0 };
        comes
    }

    /// Passes spaces and comments; line ends, too, where a rule may go on behind them.
    fn space(&mut self, goes_on: bool) {
        loop {
            let rest = self.rest();
            let is_space = |c: char| c == ' ' || c == '\t' || goes_on && (c == '\n' || c == '\r');
            let behind = rest.trim_start_matches(is_space);
            self.at += rest.len() - behind.len();
            if !behind.starts_with('#') {
                return;
            }
            self.at += behind.find('\n').unwrap_or(behind.len());
        }
    }

    /// One more pair of parentheses or count. Whoever follows the rules does so with a stack, so there is a bound on
    /// them and the rules together.
    fn part(&mut self) -> Result<(), String> {
        self.parts += 1;
        self.check_steps()
    }

    fn check_steps(&self) -> Result<(), String> {
        if self.rules.rules.len() + self.parts <= STEPS_MAX {
            return Ok(());
        }
        Err(format!("expected at most {STEPS_MAX} rules, parentheses and counts, found more"))
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        if len == 0 {
            return self.error("the name of a rule");
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn rules(mut self) -> Result<Rules, String> {
        self.rules.number("root");
        self.space(true);
        while !self.rest().is_empty() {
            let name = self.name()?;
            self.space(false);
            if !self.eat("::=") {
                return self.error("::=");
            }
            self.space(true);
            let alternatives = self.alternatives(false)?;
            let number = self.rules.number(name);
            self.check_steps()?;
            if self.rules.rules[number].1.replace(alternatives).is_some() {
                return Err(format!("{name}: expected one rule of this name, found another"));
            }
            if !self.rest().is_empty() && !self.rest().starts_with(['\n', '\r']) {
                return self.error("the end of a rule");
            }
            self.space(true);
        }
        match self.rules.rules.iter().find(|(_, alternatives)| alternatives.is_none()) {
            Some((name, _)) => Err(format!("{name}: expected a rule of this name, found none")),
            None => Ok(self.rules),
        }
    }

    fn alternatives(&mut self, is_group: bool) -> Result<Vec<Vec<Part>>, String> {
        let mut alternatives = vec![self.sequence(is_group)?];
        while self.eat("|") {
            self.space(true);
            alternatives.push(self.sequence(is_group)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, is_group: bool) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        loop {
            // What a count behind it repeats: a character of a word, or one thing.
            let first = parts.len();
            match self.rest().chars().next() {
                Some('"') => self.word(&mut parts)?,
                Some('[') => parts.push(self.class()?),
                Some('.') => {
                    self.at += 1;
                    parts.push(Part::Character("(?s:.)".to_string()));
                }
                Some('(') => parts.push(self.group()?),
                Some('<' | '!') => return self.error("no tokens, which are of one vocabulary"),
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let name = self.name()?;
                    parts.push(Part::Rule(self.rules.number(name)));
                }
                _ => return Ok(parts),
            }
            self.space(is_group);
            while let Some((least, most)) = self.count()? {
                if parts.len() == first {
                    return self.error("something to repeat");
                }
                self.part()?;
                // As in llama.cpp a count repeats the whole word.
                let word: Vec<Part> = parts.drain(first..).collect();
                parts.push(Part::Repeated(Box::new(Part::Group(vec![word])), least, most));
                self.space(is_group);
            }
        }
    }

    fn group(&mut self) -> Result<Part, String> {
        self.at += 1;
        self.depth += 1;
        self.part()?;
        if self.depth > NESTING_MAX {
            return self.error(&format!("parentheses that nest at most {NESTING_MAX} deep"));
        }
        self.space(true);
        let alternatives = self.alternatives(true)?;
        if !self.eat(")") {
            return self.error(")");
        }
        self.depth -= 1;
        Ok(Part::Group(alternatives))
    }

    /// A count, if one comes next: at least, and at most.
    fn count(&mut self) -> Result<Option<(usize, Option<usize>)>, String> {
        let simple = [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))];
        if let Some((_, count)) = simple.into_iter().find(|(sign, _)| self.eat(sign)) {
            return Ok(Some(count));
        }
        if !self.eat("{") {
            return Ok(None);
        }
        self.space(true);
        let least = self.number()?;
        self.space(true);
        let most = if self.eat(",") {
            self.space(true);
            if self.rest().starts_with('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.space(true);
        if !self.eat("}") || most.is_some_and(|most| most < least) {
            return self.error("a count: {m}, {m,} or {m,n}");
        }
        Ok(Some((least, most)))
    }

    fn number(&mut self) -> Result<usize, String> {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        match rest[..len].parse() {
            Ok(number) if number <= REPEATS_MAX => {
                self.at += len;
                Ok(number)
            }
            _ => self.error(&format!("a number up to {REPEATS_MAX}")),
        }
    }

    /// The characters of a word in quotes.
    fn word(&mut self, parts: &mut Vec<Part>) -> Result<(), String> {
        self.at += 1;
        while !self.eat("\"") {
            parts.push(Part::Character(character(self.letter()?)));
        }
        Ok(())
    }

    /// A class in brackets.
    fn class(&mut self) -> Result<Part, String> {
        self.at += 1;
        let mut class = String::from(if self.eat("^") { "[^" } else { "[" });
        let mut is_empty = true;
        while !self.eat("]") {
            let first = self.letter()?;
            class.push_str(&character(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = self.letter()?;
                if last < first {
                    return self.error("a range that ascends");
                }
                write!(class, "-{}", character(last)).expect("strings take all");
            }
            is_empty = false;
        }
        match is_empty {
            true => self.error("characters in the brackets"),
            false => Ok(Part::Character(class + "]")),
        }
    }

    /// A character of a word or class, which may be escaped.
    fn letter(&mut self) -> Result<char, String> {
        let Some(letter) = self.rest().chars().next() else { return self.error("the end of a word or class") };
        if letter != '\\' {
            self.at += letter.len_utf8();
            return Ok(letter);
        }
        let digits = match self.rest().as_bytes().get(1) {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            Some(sign) => {
                let letter = match sign {
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    b'\\' | b'"' | b'[' | b']' | b'-' | b'^' | b'/' => char::from(*sign),
                    _ => return self.error("an escape: \\n, \\r, \\t, \\\\, \\\", \\[, \\], \\xHH, \\uHHHH"),
                };
                self.at += 2;
                return Ok(letter);
            }
            None => return self.error("an escape"),
        };
        let number = self.rest().get(2..2 + digits).and_then(|number| u32::from_str_radix(number, 16).ok());
        let Some(letter) = number.and_then(char::from_u32) else {
            return self.error(&format!("{digits} hexadecimal digits of a character"));
        };
        self.at += 2 + digits;
        Ok(letter)
    }
}
