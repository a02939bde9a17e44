//! The terminals (lexemes) of a recursive grammar.
//!
//! The library's lexer splits a text into terminals from left to right, each as long as possible. That matches the
//! grammar only if no terminal is a proper prefix of another, of its own kind or of any kind in the grammar: then the
//! end of a terminal does not depend on what follows. This holds for quoted strings, for quoted names with punctuation
//! around them, and for `true`, but not for numbers. Within a terminal the parser does no work, so a mask within a
//! string takes some microseconds instead of the milliseconds that single characters take.
//!
//! Terminals are searched in each sequence of parts, the longest first, and dropped if another is a prefix of them. The
//! prefix test uses the library's expressions (whether the intersection with the extended expression is empty); if it
//! is not decided quickly, the parts are not one terminal.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};

use super::{Part, Rules, write_count};
use crate::grammar::lark::closure;

/// Work limit of a test whether an expression is empty.
const FUEL: u64 = 10_000;
/// Total length of all expressions that are tested for a grammar; beyond it parts are translated to characters.
const TESTED_MAX_BYTES: usize = 300_000;
/// Maximum number of parts, and length of the longest expression, of a terminal.
const PARTS_MAX: usize = 32;
const TERMINAL_MAX_BYTES: usize = 2048;

/// Translates the rules to Lark's notation.
pub(super) fn lark(rules: &Rules) -> String {
    let mut terminals = TerminalFinder {
        rules,
        is_non_recursive: non_recursive(rules),
        tested: HashMap::new(),
        rejected: HashSet::new(),
        bytes_left: TESTED_MAX_BYTES,
    };
    loop {
        let mut text = LarkText::default();
        for number in 0..rules.rules.len() {
            write!(text.lark, "{}: ", name(number)).expect("strings take all");
            terminals.write_alternatives(rules.alternatives(number), &mut text);
            text.lark.push('\n');
        }
        let others = terminals.with_a_prefix(&text);
        if others.is_empty() {
            return text.lark;
        }
        terminals.rejected.extend(others);
    }
}

/// Which rules reach no recursive rule.
fn non_recursive(rules: &Rules) -> Vec<bool> {
    let names: Vec<Vec<Vec<usize>>> = (0..rules.rules.len()).map(|rule| vec![rules.named(rule)]).collect();
    closure(&names, vec![false; rules.rules.len()])
}

fn name(rule: usize) -> String {
    if rule == 0 { "start".to_string() } else { format!("rule_{rule}") }
}

/// The grammar written so far, with the expressions of its terminals and of its characters.
#[derive(Default)]
struct LarkText {
    lark: String,
    terminals: Vec<String>,
    characters: Vec<String>,
}

impl LarkText {
    fn push(&mut self, expression: &str, is_terminal: bool) {
        write!(self.lark, " /{expression}/").expect("strings take all");
        let known = if is_terminal { &mut self.terminals } else { &mut self.characters };
        if !known.iter().any(|other| other == expression) {
            known.push(expression.to_string());
        }
    }
}

struct TerminalFinder<'a> {
    rules: &'a Rules,
    is_non_recursive: Vec<bool>,
    /// Cached results: whether an expression can be a terminal.
    tested: HashMap<String, bool>,
    /// Expressions that cannot, because others are prefixes of them.
    rejected: HashSet<String>,
    /// Remaining bytes of expressions that may be tested.
    bytes_left: usize,
}

impl TerminalFinder<'_> {
    fn write_alternatives(&mut self, alternatives: &[Vec<Part>], text: &mut LarkText) {
        for (i, sequence) in alternatives.iter().enumerate() {
            text.lark.push_str(if i > 0 { " | " } else { "" });
            text.lark.push_str(if sequence.is_empty() { "\"\"" } else { "" });
            let mut rest = sequence.as_slice();
            while let Some(part) = rest.first() {
                if let Some((parts, terminal)) = self.terminal(rest) {
                    text.push(&terminal, true);
                    rest = &rest[parts..];
                } else {
                    self.write_part(part, text);
                    rest = &rest[1..];
                }
            }
        }
    }

    fn write_part(&mut self, part: &Part, text: &mut LarkText) {
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

    /// The content of a repetition: a group, in which terminals are searched.
    fn write_alternatives_of(&mut self, part: &Part, text: &mut LarkText) {
        match part {
            Part::Group(alternatives) => self.write_alternatives(alternatives, text),
            part => self.write_part(part, text),
        }
    }

    /// The longest terminal with which a sequence begins, and its number of parts.
    fn terminal(&mut self, sequence: &[Part]) -> Option<(usize, String)> {
        // A terminal of a single character has no advantage.
        let non_recursive = sequence.iter().take(PARTS_MAX).take_while(|part| self.is_non_recursive(part)).count();
        (1..=non_recursive).rev().find_map(|parts| {
            let parts = &sequence[..parts];
            if let [Part::Character(_)] = parts {
                return None;
            }
            let mut expression = String::new();
            for part in parts {
                self.rules.write_part(part, &mut expression).ok()?;
                if expression.len() > TERMINAL_MAX_BYTES {
                    return None;
                }
            }
            (!self.rejected.contains(&expression) && self.is_terminal(&expression)).then_some((parts.len(), expression))
        })
    }

    fn is_non_recursive(&self, part: &Part) -> bool {
        match part {
            Part::Character(_) => true,
            Part::Rule(rule) => self.is_non_recursive[*rule],
            Part::Group(alternatives) => alternatives.iter().flatten().all(|part| self.is_non_recursive(part)),
            Part::Repeated(part, ..) => self.is_non_recursive(part),
        }
    }

    /// Whether a text of this expression is never empty and never a proper prefix of another.
    fn is_terminal(&mut self, expression: &str) -> bool {
        if let Some(known) = self.tested.get(expression) {
            return *known;
        }
        let is_terminal =
            self.is_prefix(expression, expression) == Some(false) && is_non_empty(expression) == Some(true);
        self.tested.insert(expression.to_string(), is_terminal);
        is_terminal
    }

    /// The terminals of which others are prefixes.
    fn with_a_prefix(&mut self, text: &LarkText) -> Vec<String> {
        let all: Vec<&String> = text.terminals.iter().chain(&text.characters).collect();
        if all.len() > 1 && !text.terminals.is_empty() {
            let union = all.iter().map(|expression| format!("(?:{expression})")).collect::<Vec<_>>().join("|");
            if self.is_prefix(&union, &union) == Some(false) {
                return Vec::new();
            }
        }
        let mut has_prefix = |terminal: &String| all.iter().any(|other| self.is_prefix(other, terminal) != Some(false));
        text.terminals.iter().filter(|terminal| has_prefix(terminal)).cloned().collect()
    }

    /// Whether a text of one expression is a proper prefix of a text of another; `None` if that is not known.
    fn is_prefix(&mut self, prefix: &str, whole: &str) -> Option<bool> {
        self.bytes_left = self.bytes_left.checked_sub(prefix.len() + whole.len())?;
        is_empty(|builder| {
            let (prefix, whole) = (builder.mk_regex(prefix).ok()?, builder.mk_regex(whole).ok()?);
            let more = builder.mk_regex("(?s:.)+").ok()?;
            let longer = RegexAst::Concat(vec![RegexAst::ExprRef(prefix), RegexAst::ExprRef(more)]);
            builder.mk(&RegexAst::And(vec![RegexAst::ExprRef(whole), longer])).ok()
        })
        .map(|is_empty| !is_empty)
    }
}

/// Whether some text matches this expression, and none of them is empty.
fn is_non_empty(expression: &str) -> Option<bool> {
    let mut is_nullable = false;
    let is_empty = is_empty(|builder| {
        let expression = builder.mk_regex(expression).ok()?;
        is_nullable = builder.is_nullable(expression);
        Some(expression)
    })?;
    Some(!is_empty && !is_nullable)
}

/// Whether no text matches this expression; `None` if that is not known.
fn is_empty(make: impl FnOnce(&mut RegexBuilder) -> Option<ExprRef>) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let expression = make(&mut builder)?;
    builder.to_regex_limited(expression, FUEL).ok().map(|mut regex| regex.always_empty())
}
