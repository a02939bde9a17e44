//! Any bytes read as safetensors: no panic, no view outside the file, errors of one line. What is checked is in
//! `probe`, which the ordinary tests of the crate share.

#![no_main]

#[allow(dead_code)] // each target uses one of the two probes
#[path = "../../crates/weights/tests/weights/probe.rs"]
mod probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    probe::safetensors(data);
});
