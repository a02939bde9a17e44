//! Any text read as a model's answer in any form of tool calls: no panic, no byte lost or invented, whatever its
//! pieces. What is checked is in `tool_probe`, which the ordinary tests of the crate share.

#![no_main]

#[path = "../../crates/text/tests/text/tool_probe.rs"]
mod tool_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tool_probe::tool_calls(data);
});
