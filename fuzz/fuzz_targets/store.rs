//! Any bytes as a file that an earlier run kept (texts, rows of a prompt's beginning, costs): no panic, a refusal is
//! one line that names the field, and what is accepted is written as it was read. What is checked is in `file_probe`,
//! which the ordinary tests of the crate share; the first byte says which file it is.

#![no_main]

#[path = "../../crates/foretoken/tests/foretoken/file_probe.rs"]
mod file_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    file_probe::file(data);
});
