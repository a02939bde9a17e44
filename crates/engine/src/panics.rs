//! What a panic said, in one line: for whoever catches one and has to tell it.

use std::any::Any;

/// The words of a panic, as [`std::panic::catch_unwind`] gives it back, in one line.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("a panic without words").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_in_one_line() {
        assert_eq!(panic_message(&"3 of\n  2 nodes\n"), "3 of 2 nodes");
        assert_eq!(panic_message(&"3 of 2".to_string()), "3 of 2");
        assert_eq!(panic_message(&7), "a panic without words");
    }
}
