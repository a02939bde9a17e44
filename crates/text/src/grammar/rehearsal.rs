//! A text of a grammar that nobody asked for, walked once when the grammar is compiled.
//!
//! The library works its lexer out as texts need it, and every text begins with a copy of what was known before the
//! first. So what many texts will need is looked at once: the text that says as little as it can is followed for some
//! way, with where plain characters would lead ([`super::strings`]), which is what is dear. What the parser takes for
//! that is not counted as a text's ([`super::limits`]).

use super::limits::{Limits, Taken};
use super::parser::Parser;
use super::tables::Tables;

/// Places that are visited at most, and of them behind each other such that teach nothing new.
const PLACES_MAX: usize = 200;
const NOTHING_NEW_MAX: usize = 30;
/// What the lexer may take for them at most: about a millisecond.
const MOST: Taken = Taken { fuel: 10_000, states: 2_000 };
/// Bytes to go on with, the first that may come. Strings and lists end at once, objects have all of their members.
const BYTES: &[u8] = b"\"],}0tn{[-a: ";

/// The same parser at its beginning, behind a rehearsal; as it was where that went wrong.
pub(super) fn rehearsed(parser: Parser, tables: &Tables) -> Parser {
    let mut walked = parser.duplicate();
    if walk(&mut walked, tables).is_ok() { walked } else { parser }
}

/// Walks along a short text, and back.
fn walk(parser: &mut Parser, tables: &Tables) -> Result<(), String> {
    let limits = Limits::new(parser.taken());
    let enough = Taken { fuel: limits.before.fuel + MOST.fuel, states: limits.before.states + MOST.states };
    let (mut written, mut learned, mut taken) = (0, 0, parser.taken());
    while written < PLACES_MAX.min(learned + NOTHING_NEW_MAX)
        && taken.fuel < enough.fuel
        && taken.states < enough.states
    {
        parser.within(limits, 0, |parser, _| Ok(parser.look_ahead()))?;
        if !goes_on(parser, tables, limits)? {
            break;
        }
        written += 1;
        if parser.taken() != taken {
            (learned, taken) = (written, parser.taken());
        }
    }
    if parser.roll_back(written) { Ok(()) } else { Err("a parser that cannot go back".to_string()) }
}

/// Goes on with a byte; false where none may come.
fn goes_on(parser: &mut Parser, tables: &Tables, limits: Limits) -> Result<bool, String> {
    let forced = parser.within(limits, 0, |parser, _| parser.forced_bytes())?;
    let bytes = forced.first().into_iter().chain(BYTES).copied().chain(b' '..=b'~');
    for token in bytes.filter_map(|byte| tables.byte(byte)) {
        if parser.within(limits, token, Parser::go_on)? {
            return Ok(true);
        }
    }
    Ok(false)
}
