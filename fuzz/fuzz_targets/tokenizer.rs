//! Damaged tokenizers: refused in one line, or they work; nothing panics. How bytes become one, and what is checked, is
//! in `tokenizer_probe`, which the ordinary tests of the crate share.

#![no_main]

#[path = "../../crates/text/tests/text/tokenizer_probe.rs"]
mod tokenizer_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tokenizer_probe::tokenizers(data);
});
