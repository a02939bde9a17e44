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
use super::{Tables, schema};

/// Attributes of rules with which a text would be another one than the grammar's.
const ATTRIBUTES: [&str; 4] = ["temperature", "max_tokens", "stop", "stop_capture"];
/// Names in the JSON of options and schemas that would change what is allowed.
const OPTIONS: [&str; 2] = ["allow_invalid_utf8", "x-guidance"];

/// The parser of a grammar, or what is wrong with it.
pub(super) fn compiled(tables: &Tables, text: &str) -> Result<TokenParser, String> {
    check(text)?;
    let schemas = schemas(text);
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

/// What is wrong with a schema within a grammar.
fn of_schema(text: &str, place: &Range<usize>, found: &str) -> String {
    let line = 1 + text[..place.start].matches('\n').count();
    format!("%json in line {line}: {found}")
}

/// Where schemas stand in a grammar, up to the first that is no JSON.
fn schemas(text: &str) -> Vec<Range<usize>> {
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

/// What stands in the string or the expression with which a text begins (nothing in a comment), and what stands behind.
fn skipped(text: &str) -> Option<(&str, &str)> {
    if text.starts_with("//") || text.starts_with('#') {
        return Some(("", text.split_once('\n').map_or("", |(_, behind)| behind)));
    }
    let mark = text.chars().next().filter(|mark| matches!(mark, '/' | '"'))?;
    Some(quoted(text, mark))
}

/// Refuses a grammar with attributes that would not be kept to: of temperatures, lengths and stops requests have their
/// own, and texts are UTF-8.
fn check(text: &str) -> Result<(), String> {
    let is_refused =
        |word: &(&str, bool)| if word.1 { OPTIONS.contains(&word.0) } else { ATTRIBUTES.contains(&word.0) };
    match words(text).find(is_refused) {
        Some((word, _)) => Err(format!("expected rules without {word}, found it")),
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
    loop {
        let mut is_changed = false;
        for (symbol, alternatives) in alternatives.iter().enumerate() {
            if !ends[symbol] && alternatives.iter().any(|parts| parts.iter().all(|part| ends[*part])) {
                (ends[symbol], is_changed) = (true, true);
            }
        }
        if !is_changed {
            return ends[0];
        }
    }
}
