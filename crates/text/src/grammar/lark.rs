//! Checks of Lark grammars that the library would accept: attributes without effect here, schemas that it would not
//! fully enforce, and rules that never end.
//!
//! Schemas within a grammar (`%json`) are treated like schemas of their own: made strict, or refused with their
//! location.

use std::ops::Range;

use llguidance::TokenParser;
use llguidance::api::GrammarWithLexer;
use llguidance::earley::{CGrammar, CSymIdx};
use serde_json::Value;

use super::library_errors::{expected, locate_in_grammar};
use super::{Tables, depth, schema};

/// Attributes of rules that would change the text beyond the grammar.
const ATTRIBUTES: [&str; 4] = ["temperature", "max_tokens", "stop", "stop_capture"];
/// Options in JSON that would change what is allowed.
const OPTIONS: [&str; 2] = ["allow_invalid_utf8", "x-guidance"];

/// The parser of a grammar, or an error message.
pub(super) fn compiled(tables: &Tables, text: &str) -> Result<TokenParser, String> {
    check(text)?;
    let schemas = schemas(text);
    check_depth(text, &schemas)?;
    let mut strict = text.to_string();
    for place in schemas.iter().rev() {
        let Ok(schema) = serde_json::from_str::<Value>(&text[place.clone()]) else { continue };
        schema::check(&schema, "#", true).map_err(|found| in_schema(text, place, &found))?;
        let stricter = schema::strict_schema(&schema);
        if stricter != schema {
            // The number of lines is kept, so that later locations stay correct.
            let lines = "\n".repeat(text[place.clone()].matches('\n').count());
            strict.replace_range(place.clone(), &format!("{lines}{stricter}"));
        }
    }
    super::parser(tables, GrammarWithLexer::from_lark(strict)).map_err(|found| {
        let refused = |place: &Range<usize>| {
            let found = schema::compiled(tables, &text[place.clone()], true).err()?;
            Some(in_schema(text, place, &found))
        };
        schemas.iter().find_map(refused).unwrap_or_else(|| expected("a valid grammar", locate_in_grammar(found)))
    })
}

/// Refuses a grammar that would lead the library too deep, by its rules or by one of the schemas in these places.
pub(super) fn check_depth(text: &str, schemas: &[Range<usize>]) -> Result<(), String> {
    depth::check_lark(text, schemas)?;
    schemas.iter().try_for_each(|place| match serde_json::from_str(&text[place.clone()]) {
        Ok(schema) => depth::check_schema(&schema).map_err(|found| in_schema(text, place, &found)),
        Err(_) => Ok(()),
    })
}

/// An error in a schema within a grammar.
fn in_schema(text: &str, place: &Range<usize>, found: &str) -> String {
    let line = 1 + text[..place.start].matches('\n').count();
    format!("%json in line {line}: {found}")
}

/// The places of the schemas in a grammar, up to the first that is not JSON.
pub(super) fn schemas(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        rest = if let Some(after) = rest.strip_prefix("%json") {
            let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
            let Some(Ok(_)) = values.next() else { return found };
            let (begin, len) = (text.len() - after.len(), values.byte_offset());
            found.push(begin..begin + len);
            &after[len..]
        } else {
            skipped(rest).map_or(&rest[first.len_utf8()..], |(_, after)| after)
        };
    }
    found
}

/// The contents of the string or expression with which a text begins (empty for a comment or a special token), and the
/// rest of the text.
pub(super) fn skipped(text: &str) -> Option<(&str, &str)> {
    if text.starts_with("//") || text.starts_with('#') {
        return Some(("", text.split_once('\n').map_or("", |(_, after)| after)));
    }
    if let Some(name) = text.strip_prefix('<') {
        let end = name.find(|c: char| matches!(c, '<' | '>') || c.is_whitespace())?;
        return name[end..].strip_prefix('>').filter(|_| end > 0).map(|after| ("", after));
    }
    let delimiter = text.chars().next().filter(|delimiter| matches!(delimiter, '/' | '"'))?;
    Some(quoted(text, delimiter))
}

/// Refuses a grammar with attributes that would have no effect: temperature, length and stop strings are settings of
/// the request, and texts are always UTF-8.
fn check(text: &str) -> Result<(), String> {
    let refused = |(word, is_string): (&str, bool)| {
        if !is_string {
            return ATTRIBUTES.into_iter().find(|name| *name == word);
        }
        // The name may be written with escapes.
        let name: Option<String> = serde_json::from_str(&format!("\"{word}\"")).ok();
        OPTIONS.into_iter().find(|option| name.as_deref() == Some(*option))
    };
    match assigned_names(text).find_map(refused) {
        Some(word) => Err(format!("expected rules without {word}, found it")),
        None => Ok(()),
    }
}

/// The names outside strings, expressions and comments that are followed by `=`, and the strings that are followed by a
/// colon, each with whether it is a string.
fn assigned_names(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let first = rest.chars().next()?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if let Some((word, after)) = skipped(rest) {
                rest = after;
                if first == '"' && rest.trim_start().starts_with(':') {
                    return Some((word, true));
                }
            } else if is_name(first) {
                let (word, after) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
                rest = after;
                if rest.trim_start().starts_with('=') {
                    return Some((word, false));
                }
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
    })
}

/// The text between two delimiters, the first of which the text begins with, and the rest of it.
fn quoted(text: &str, delimiter: char) -> (&str, &str) {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == delimiter => return (&text[1..at], &text[at + 1..]),
            _ => {}
        }
    }
    (&text[1..], "")
}

/// Whether the start rule has a finite derivation.
pub(super) fn has_end(grammar: &CGrammar) -> bool {
    // All symbols that the start reaches, each with its alternatives.
    let mut symbols: Vec<CSymIdx> = vec![grammar.start()];
    let mut place = std::collections::HashMap::from([(grammar.start(), 0)]);
    let mut alternatives: Vec<Vec<Vec<usize>>> = Vec::new();
    let mut ends: Vec<bool> = Vec::new();
    while let Some(&symbol) = symbols.get(alternatives.len()) {
        let data = grammar.sym_data(symbol);
        ends.push(data.is_terminal || data.is_nullable || !data.cond_nullable.is_empty());
        let mut number_of = |symbol: &CSymIdx| {
            *place.entry(*symbol).or_insert_with(|| {
                symbols.push(*symbol);
                symbols.len() - 1
            })
        };
        let rules = data.rules.iter().map(|rule| grammar.rule_rhs(*rule).0.iter().map(&mut number_of).collect());
        alternatives.push(rules.collect());
    }
    closure(&alternatives, ends)[0]
}

/// The closure of a set of settled symbols: a symbol is settled if all parts of one of its alternatives are. Each is
/// visited when the last part of an alternative is settled, so the time is linear.
pub(super) fn closure(alternatives: &[Vec<Vec<usize>>], mut settled: Vec<bool>) -> Vec<bool> {
    let all: Vec<(usize, &Vec<usize>)> = alternatives
        .iter()
        .enumerate()
        .flat_map(|(symbol, all)| all.iter().map(move |parts| (symbol, parts)))
        .collect();
    let mut waits_for: Vec<usize> = all.iter().map(|(_, parts)| parts.len()).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); alternatives.len()];
    for (number, (_, parts)) in all.iter().enumerate() {
        parts.iter().for_each(|part| waiting[*part].push(number));
    }
    let of_nothing = all.iter().filter(|(_, parts)| parts.is_empty()).map(|(symbol, _)| *symbol);
    of_nothing.for_each(|symbol| settled[symbol] = true);
    let mut todo: Vec<usize> = (0..settled.len()).filter(|symbol| settled[*symbol]).collect();
    while let Some(part) = todo.pop() {
        for number in &waiting[part] {
            waits_for[*number] -= 1;
            let symbol = all[*number].0;
            if waits_for[*number] == 0 && !settled[symbol] {
                settled[symbol] = true;
                todo.push(symbol);
            }
        }
    }
    settled
}
