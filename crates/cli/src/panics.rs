//! Prints panics in one line, like any other error.
//!
//! A panic is a bug of this program or of a library, or a lack of memory for starting a thread. The line says what
//! happened and where; with `RUST_BACKTRACE` Rust's own report is printed. Catching the panic is not changed.

use std::panic::{self, PanicHookInfo};

use foretoken_console::failure::on_one_line;
use foretoken_console::progress::warn;

/// From now on panics are printed in one line, unless `RUST_BACKTRACE` asks for more.
pub fn report_in_one_line() {
    if std::env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0") {
        panic::set_hook(Box::new(|panic| warn(line(panic))));
    }
}

fn line(panic: &PanicHookInfo<'_>) -> String {
    let words = on_one_line(panic.payload_as_str().unwrap_or("a panic without words"));
    let location = panic.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
    format!("error: a defect, please report it: {words}{location}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_with_its_location() {
        let (send, lines) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        let original_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| _ = send.lock().expect("nobody panics here").send(line(panic))));
        let ended = std::thread::spawn(|| panic!("one\ntwo \u{1b}[31m{}", 3)).join();
        panic::set_hook(original_hook);
        assert!(ended.is_err());
        let said = lines.recv().expect("the hook was called");
        assert!(said.starts_with("error: a defect, please report it: one") && said.ends_with(')'), "{said}");
        assert!(said.contains("panics.rs:") && !said.contains(['\n', '\u{1b}']), "{said}");
    }
}
