//! Defects: what a panic says, in one line like any other error.
//!
//! A panic is a mistake of this program or of a library, or a machine without memory for a thread's beginning. Whoever
//! uses the program reads what happened and where, and not how Rust found out; `RUST_BACKTRACE` brings that back. What
//! happens then is left to whoever catches it, as before.

use std::panic::{self, PanicHookInfo};

use foretoken_console::failure::on_one_line;
use foretoken_console::progress::warn;

/// From now on panics are told in one line, unless `RUST_BACKTRACE` asks for more.
pub fn tell_in_one_line() {
    if std::env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0") {
        panic::set_hook(Box::new(|panic| warn(line(panic))));
    }
}

fn line(panic: &PanicHookInfo<'_>) -> String {
    let words = on_one_line(panic.payload_as_str().unwrap_or("a panic without words"));
    let place = panic.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
    format!("error: a defect, please report it: {words}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_line_with_its_place() {
        let (send, said) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |panic| _ = send.lock().expect("nobody panics here").send(line(panic))));
        let ended = std::thread::spawn(|| panic!("one\ntwo \u{1b}[31m{}", 3)).join();
        panic::set_hook(loud);
        assert!(ended.is_err());
        let said = said.recv().expect("it was said");
        assert!(said.starts_with("error: a defect, please report it: one") && said.ends_with(')'), "{said}");
        assert!(said.contains("defects.rs:") && !said.contains(['\n', '\u{1b}']), "{said}");
    }
}
