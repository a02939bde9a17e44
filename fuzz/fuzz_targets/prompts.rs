//! Any text as a file of prompts or of records, as the command line reads them: no panic, and a refusal names the file
//! and says what was expected. What is checked is in `probe`, which the ordinary tests share; the first
//! byte says what the file is.

#![no_main]

#[path = "../../crates/console/tests/console/probe.rs"]
mod probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    probe::file(data);
});
