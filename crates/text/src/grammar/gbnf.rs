//! Grammars in llama.cpp's notation (GBNF), translated to the library's.
//!
//! GBNF matches character by character, without the lexer that Lark has. A grammar without recursion is translated to
//! one regular expression. In a recursive grammar only parts that the lexer certainly delimits correctly become
//! terminals, and everything else is translated to single characters ([`terminals`]), so the same texts match.
//!
//! Not supported: tokens by name or number (`<think>`, `<[1000]>`), which belong to one vocabulary.

mod terminals;

use std::collections::HashMap;
use std::fmt::Write;

use llguidance::api::GrammarWithLexer;

use super::depth::STEPS_MAX;

/// How deep parentheses may nest, since the parser is recursive.
const NESTING_MAX: usize = 100;
/// Longest regular expression that a grammar may become.
const EXPRESSION_MAX_BYTES: usize = 1 << 20;
/// Maximum number of repetitions in a count, as in llama.cpp.
const REPEATS_MAX: usize = 2000;

/// Whether a grammar of unknown notation is GBNF.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| line.split(['#', '"', '[']).next().is_some_and(|begin| begin.contains("::=")))
}

/// Translates a grammar for the library.
///
/// # Errors
/// Syntax errors, with the line.
pub(super) fn grammar(text: &str) -> Result<GrammarWithLexer, String> {
    let rules = Parser { text, at: 0, depth: 0, parts: 0, rules: Rules::default() }.rules()?;
    if rules.is_recursive() {
        return Ok(GrammarWithLexer::from_lark(terminals::lark(&rules)));
    }
    let expression = rules.expression()?;
    Ok(GrammarWithLexer::from_regex(&expression))
}

/// An element of a rule.
#[derive(Debug)]
enum Part {
    /// One character, as an expression.
    Character(String),
    Rule(usize),
    Group(Vec<Vec<Part>>),
    /// With the minimum and the maximum count.
    Repeated(Box<Part>, usize, Option<usize>),
}

/// The rules by index; the first is the root.
#[derive(Debug, Default)]
struct Rules {
    numbers: HashMap<String, usize>,
    /// Name and alternatives of each; `None` if a rule was only named so far.
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
        self.rules[number].1.as_deref().expect("the parser has checked that all rules are defined")
    }

    /// The rules that a rule refers to.
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

    /// Whether a rule that the root reaches reaches itself.
    fn is_recursive(&self) -> bool {
        // The rules on the path from the root, each with the references that were not followed yet.
        let mut is_done = vec![false; self.rules.len()];
        let mut is_open = vec![false; self.rules.len()];
        let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut next = Some(0);
        loop {
            if let Some(rule) = next.take() {
                is_open[rule] = true;
                path.push((rule, self.named(rule)));
            }
            let Some((rule, names)) = path.last_mut() else { return false };
            match names.pop() {
                Some(named) if is_open[named] => return true,
                Some(named) => next = (!is_done[named]).then_some(named),
                None => {
                    (is_open[*rule], is_done[*rule]) = (false, true);
                    path.pop();
                }
            }
        }
    }

    /// All rules in one expression; they must not be recursive.
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

/// A character as an expression; special characters by their code.
fn character(character: char) -> String {
    if character.is_ascii_alphanumeric() { character.to_string() } else { format!("\\x{{{:x}}}", u32::from(character)) }
}

/// A recursive-descent parser of the notation.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Number of parentheses and counts so far.
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

    /// Consumes these characters if they come next.
    fn eat(&mut self, expected: &str) -> bool {
        let comes = self.rest().starts_with(expected);
        self.at += if comes { expected.len() } else { 0 };
        comes
    }

    /// Skips spaces and comments; line ends, too, where a rule may continue after them.
    fn space(&mut self, with_line_ends: bool) {
        loop {
            let rest = self.rest();
            let is_space = |c: char| c == ' ' || c == '\t' || with_line_ends && (c == '\n' || c == '\r');
            let after = rest.trim_start_matches(is_space);
            self.at += rest.len() - after.len();
            if !after.starts_with('#') {
                return;
            }
            self.at += after.find('\n').unwrap_or(after.len());
        }
    }

    /// Counts a pair of parentheses or a count. The rules are compiled recursively, so their number together with these
    /// is limited.
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
            // The elements that a following count repeats: those of one string, or one other element.
            let first = parts.len();
            match self.rest().chars().next() {
                Some('"') => self.string(&mut parts)?,
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
                // As in llama.cpp a count repeats the whole string.
                let string: Vec<Part> = parts.drain(first..).collect();
                parts.push(Part::Repeated(Box::new(Part::Group(vec![string])), least, most));
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

    /// The minimum and the maximum count, if a count comes next.
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

    /// The characters of a quoted string.
    fn string(&mut self, parts: &mut Vec<Part>) -> Result<(), String> {
        self.at += 1;
        while !self.eat("\"") {
            parts.push(Part::Character(character(self.escaped_char()?)));
        }
        Ok(())
    }

    /// A character class in brackets.
    fn class(&mut self) -> Result<Part, String> {
        self.at += 1;
        let mut class = String::from(if self.eat("^") { "[^" } else { "[" });
        let mut is_empty = true;
        while !self.eat("]") {
            let first = self.escaped_char()?;
            class.push_str(&character(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = self.escaped_char()?;
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

    /// A character of a string or class, which may be escaped.
    fn escaped_char(&mut self) -> Result<char, String> {
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
