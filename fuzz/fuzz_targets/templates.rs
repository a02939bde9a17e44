//! Any text as a chat template: refused in one line, or it writes a short conversation; nothing panics, and no stack,
//! memory or time is taken without measure. What is checked is in `template_probe`, which the ordinary tests share.

#![no_main]

#[path = "../../crates/text/tests/text/template_probe.rs"]
mod template_probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    template_probe::templates(data);
});
