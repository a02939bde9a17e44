//! Grammars put together from what their notations are made of: whatever they are, they are refused in one line or say
//! what may come next.

use proptest::prelude::*;

use crate::grammar_probe::grammars;

/// Pieces of the notations.
#[rustfmt::skip]
const PIECES: [&str; 46] = [
    "{", "}", "[", "]", "(", ")", "\"", "\\", "/", "|", "*", "+", "?", ".", "{2,3}", "{900}", ",", ":", " ", "\n", "#",
    "root ::= ", "start: ", "a", "b", "A: ", "r1", "\"a\"", "[a-z]", "[^x]", "\"type\":", "\"object\"", "\"string\"",
    "\"properties\":", "\"items\":", "\"enum\":", "\"pattern\":", "\"$ref\":", "\"#\"", "\"required\":", "true", "1",
    "%json ", "%ignore ", "é", "\\d",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_grammar_is_refused_or_keeps_its_word(
        first in any::<u8>(),
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
    ) {
        grammars(&[&[first], pieces.concat().as_bytes()].concat());
    }
}
