//! Any bytes as the body of a request: no panic, a refusal is OpenAI's error object of one line, and the engine takes
//! what is accepted or says why not. What is checked is in `probe`, which the ordinary tests of the crate share; the
//! first byte says where the body is sent to.

#![no_main]

#[path = "../../crates/server/tests/server/probe.rs"]
mod probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    probe::bytes(data);
});
