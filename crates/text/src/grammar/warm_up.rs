//! Warm-up of a compiled grammar: its parser accepts a short text once, so that all sequences share the lexer's tables.
//!
//! The library builds its lexer's tables lazily, and every sequence starts with a copy of the initial parser's. So a
//! short text is followed when the grammar is compiled, and the transitions for plain characters ([`super::strings`]),
//! which are expensive, are computed along it. The usage of the warm-up does not count towards a sequence's limits
//! ([`super::limits`]).

use super::limits::{LexerUsage, Limits};
use super::parser::Parser;
use super::tables::Tables;

/// Maximum number of positions that are visited, and of those in a row that add no state.
const POSITIONS_MAX: usize = 200;
const UNCHANGED_MAX: usize = 30;
/// What the lexer may use at most for the warm-up: about a millisecond.
const USAGE_MAX: LexerUsage = LexerUsage { fuel: 10_000, states: 2_000 };
/// Bytes to continue with, the first one that is allowed. Strings and lists end at once, objects get all members.
const BYTES: &[u8] = b"\"],}0tn{[-a: ";

/// The parser at the beginning after a warm-up, or unchanged if that failed.
pub(super) fn warmed_up(parser: Parser, tables: &Tables) -> Parser {
    let mut warmed = parser.duplicate();
    if follow_text(&mut warmed, tables).is_ok() { warmed } else { parser }
}

/// Accepts a short text, and rolls back.
fn follow_text(parser: &mut Parser, tables: &Tables) -> Result<(), String> {
    let limits = Limits::new(parser.usage());
    let max =
        LexerUsage { fuel: limits.baseline.fuel + USAGE_MAX.fuel, states: limits.baseline.states + USAGE_MAX.states };
    let (mut written, mut last_change, mut usage) = (0, 0, parser.usage());
    while written < POSITIONS_MAX.min(last_change + UNCHANGED_MAX) && usage.fuel < max.fuel && usage.states < max.states
    {
        parser.query(limits, 0, |parser, _| Ok(parser.look_ahead()))?;
        if !accept_byte(parser, tables, limits)? {
            break;
        }
        written += 1;
        if parser.usage() != usage {
            (last_change, usage) = (written, parser.usage());
        }
    }
    if parser.roll_back(written) { Ok(()) } else { Err("the parser cannot roll back".to_string()) }
}

/// Accepts one byte; false if none is allowed.
fn accept_byte(parser: &mut Parser, tables: &Tables, limits: Limits) -> Result<bool, String> {
    let forced = parser.query(limits, 0, |parser, _| parser.forced_bytes())?;
    let bytes = forced.first().into_iter().chain(BYTES).copied().chain(b' '..=b'~');
    for token in bytes.filter_map(|byte| tables.byte(byte)) {
        if parser.query(limits, token, Parser::advance)? {
            return Ok(true);
        }
    }
    Ok(false)
}
