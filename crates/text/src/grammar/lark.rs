//! What we look for in grammars that the library would accept: attributes that it would not keep to here, schemas that
//! it would take loosely, and rules that never come to an end.
//!
//! Schemas within a grammar (`%json`) are held to what they are held to by themselves: told strictly, and refused by
//! their place where that cannot be.

use std::ops::Range;

use llguidance::TokenParser;
use llguidance::api::GrammarWithLexer;
use llguidance::earley::{CGrammar, CSymIdx};
use serde_json::Value;

use super::complaint::{expected, of_grammar};
use super::{Tables, depth, schema};

/// Attributes of rules with which a text would be another one than the grammar's.
const ATTRIBUTES: [&str; 4] = ["temperature", "max_tokens", "stop", "stop_capture"];
/// Names in the JSON of options and schemas that would change what is allowed.
const OPTIONS: [&str; 2] = ["allow_invalid_utf8", "x-guidance"];

/// The parser of a grammar, or what is wrong with it.
pub(super) fn compiled(tables: &Tables, text: &str) -> Result<TokenParser, String> {
    check(text)?;
    let schemas = schemas(text);
    check_depth(text, &schemas)?;
    let mut strict = text.to_string();
    for place in schemas.iter().rev() {
        let Ok(schema) = serde_json::from_str::<Value>(&text[place.clone()]) else { continue };
        schema::check(&schema, "#", true).map_err(|found| of_schema(text, place, &found))?;
        let told = schema::told_strictly(&schema);
        if told != schema {
            // As many lines as before, so that places behind it stay where they are.
            let lines = "\n".repeat(text[place.clone()].matches('\n').count());
            strict.replace_range(place.clone(), &format!("{lines}{told}"));
        }
    }
    super::parser(tables, GrammarWithLexer::from_lark(strict)).map_err(|found| {
        let refused = |place: &Range<usize>| {
            let found = schema::compiled(tables, &text[place.clone()], true).err()?;
            Some(of_schema(text, place, &found))
        };
        schemas.iter().find_map(refused).unwrap_or_else(|| expected("what can be understood", of_grammar(found)))
    })
}

/// Refuses a grammar that would lead the library too deep, by itself or by one of its schemas, which stand there.
pub(super) fn check_depth(text: &str, schemas: &[Range<usize>]) -> Result<(), String> {
    depth::of_lark(text, schemas)?;
    schemas.iter().try_for_each(|place| match serde_json::from_str(&text[place.clone()]) {
        Ok(schema) => depth::of_schema(&schema).map_err(|found| of_schema(text, place, &found)),
        Err(_) => Ok(()),
    })
}

/// What is wrong with a schema within a grammar.
fn of_schema(text: &str, place: &Range<usize>, found: &str) -> String {
    let line = 1 + text[..place.start].matches('\n').count();
    format!("%json in line {line}: {found}")
}

/// Where schemas stand in a grammar, up to the first that is no JSON.
pub(super) fn schemas(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        rest = if let Some(behind) = rest.strip_prefix("%json") {
            let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
            let Some(Ok(_)) = values.next() else { return found };
            let (begin, len) = (text.len() - behind.len(), values.byte_offset());
            found.push(begin..begin + len);
            &behind[len..]
        } else {
            skipped(rest).map_or(&rest[first.len_utf8()..], |(_, behind)| behind)
        };
    }
    found
}

/// What stands in the string or the expression with which a text begins (nothing in a comment or in the name of a
/// special token), and what stands behind.
pub(super) fn skipped(text: &str) -> Option<(&str, &str)> {
    if text.starts_with("//") || text.starts_with('#') {
        return Some(("", text.split_once('\n').map_or("", |(_, behind)| behind)));
    }
    if let Some(name) = text.strip_prefix('<') {
        let end = name.find(|c: char| matches!(c, '<' | '>') || c.is_whitespace())?;
        return name[end..].strip_prefix('>').filter(|_| end > 0).map(|behind| ("", behind));
    }
    let mark = text.chars().next().filter(|mark| matches!(mark, '/' | '"'))?;
    Some(quoted(text, mark))
}

/// Refuses a grammar with attributes that would not be kept to: of temperatures, lengths and stops requests have their
/// own, and texts are UTF-8.
fn check(text: &str) -> Result<(), String> {
    let refused = |(word, is_string): (&str, bool)| {
        if !is_string {
            return ATTRIBUTES.into_iter().find(|name| *name == word);
        }
        // The same name may be spelt with escapes.
        let name: Option<String> = serde_json::from_str(&format!("\"{word}\"")).ok();
        OPTIONS.into_iter().find(|option| name.as_deref() == Some(*option))
    };
    match words(text).find_map(refused) {
        Some(word) => Err(format!("expected rules without {word}, found it")),
        None => Ok(()),
    }
}

/// The names outside of strings, expressions and comments that `=` follows, and the strings that a colon follows, with
/// whether it is a string.
fn words(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let first = rest.chars().next()?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if let Some((word, behind)) = skipped(rest) {
                rest = behind;
                if first == '"' && rest.trim_start().starts_with(':') {
                    return Some((word, true));
                }
            } else if is_name(first) {
                let (word, behind) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
                rest = behind;
                if rest.trim_start().starts_with('=') {
                    return Some((word, false));
                }
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
    })
}

/// What stands between these marks, at the first of which the text begins, and what stands behind.
fn quoted(text: &str, mark: char) -> (&str, &str) {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == mark => return (&text[1..at], &text[at + 1..]),
            _ => {}
        }
    }
    (&text[1..], "")
}

/// Whether a text can be finished: whether the first rule has a derivation that is finite.
pub(super) fn has_end(grammar: &CGrammar) -> bool {
    // All symbols that the first can lead to, each with its alternatives.
    let mut symbols: Vec<CSymIdx> = vec![grammar.start()];
    let mut place = std::collections::HashMap::from([(grammar.start(), 0)]);
    let mut alternatives: Vec<Vec<Vec<usize>>> = Vec::new();
    let mut ends: Vec<bool> = Vec::new();
    while let Some(&symbol) = symbols.get(alternatives.len()) {
        let data = grammar.sym_data(symbol);
        ends.push(data.is_terminal || data.is_nullable || !data.cond_nullable.is_empty());
        let mut of = |symbol: &CSymIdx| {
            *place.entry(*symbol).or_insert_with(|| {
                symbols.push(*symbol);
                symbols.len() - 1
            })
        };
        let rules = data.rules.iter().map(|rule| grammar.rule_rhs(*rule).0.iter().map(&mut of).collect());
        alternatives.push(rules.collect());
    }
    with_all_that_follows(&alternatives, ends)[0]
}

/// Of symbols those that are settled: these, and each that has an alternative all of whose parts are settled. Each is
/// looked at when the last part that its alternative waits for is settled, so a chain costs no more than its length.
pub(super) fn with_all_that_follows(alternatives: &[Vec<Vec<usize>>], mut settled: Vec<bool>) -> Vec<bool> {
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
