//! Any `config.json` of any family: no panic, a refusal is one line that names the field, and what is accepted can be
//! described, packed and run. What is checked is in `config_probe`, which the ordinary tests of the crate share; the
//! first byte says whose configuration is edited.

#![no_main]

#[allow(dead_code)] // how many checkpoints there are matters to tests
#[path = "../../crates/model/tests/model/config_probe.rs"]
mod config_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    config_probe::config(data);
});
