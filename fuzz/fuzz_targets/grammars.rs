//! Any text as a schema, an expression, a grammar or choices: refused in one line, or it says which tokens may come
//! next; nothing panics. What is checked is in `grammar_probe`, which the ordinary tests share.

#![no_main]

#[path = "../../crates/text/tests/text/grammar_probe.rs"]
mod grammar_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    grammar_probe::grammars(data);
});
