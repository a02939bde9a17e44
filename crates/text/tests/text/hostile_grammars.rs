//! Random grammars from pieces of their notations: each is refused in one line or works.

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
    fn any_grammar_is_refused_or_works(
        first in any::<u8>(),
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
    ) {
        grammars(&[&[first], pieces.concat().as_bytes()].concat());
    }
}

/// The fuzzer's seeds: the notation's number, and a grammar of it.
const SEEDS: [(u8, &str); 9] = [
    (
        0,
        r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/b"},"x":{"enum":["x",1]}},"required":["a"],
        "$defs":{"b":{"type":"array","items":{"type":"string","pattern":"^a+$"},"maxItems":3}}}"##,
    ),
    (0, r#"{"type":"string","pattern":"[\\w-.][[&&]\\cJ(?<n>.)$"}"#),
    (0, r#"{"patternProperties":{"^a":{"type":"null"}},"additionalProperties":{"type":"integer","minimum":1}}"#),
    (1, r#"{"anyOf":[{"type":"integer","multipleOf":3},{"type":"string","maxLength":4}],"minLength":1}"#),
    (2, r"(a|b){2,3}[x1]*\d?"),
    (3, "start: a (\",\" a){2,5} B?\na: /[a-z]+/ | \"(\" start \")\"\nB: \"b\"+\n"),
    (4, "root ::= \"[\" (item (\",\" item){0,3})? \"]\" # list\nitem ::= [^\\\"a-c] | root | \"\\u0041\"*\n"),
    (4, "root ::= \"(\" root \")\" | s\ns ::= \"\\\"\" [^\"]* \"\\\"\"\n"),
    (5, "a\nb\nab"),
];

#[test]
#[ignore = "writes the seeds of the fuzzer"]
fn write_the_seeds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/grammars");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    for (number, (notation, text)) in SEEDS.iter().enumerate() {
        let seed = [&[*notation], text.as_bytes()].concat();
        std::fs::write(folder.join(format!("{number}.bin")), seed).expect("a seed can be written");
    }
}

#[test]
fn the_seeds_are_refused_or_work() {
    SEEDS.iter().for_each(|(notation, text)| grammars(&[&[*notation], text.as_bytes()].concat()));
}
