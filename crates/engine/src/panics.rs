//! The message of a caught panic, in one line.

use std::any::Any;

/// The message of a panic that [`std::panic::catch_unwind`] returned, in one line.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("a panic without words").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_one_line() {
        assert_eq!(panic_message(&"3 of\n  2 nodes\n"), "3 of 2 nodes");
        assert_eq!(panic_message(&"3 of 2".to_string()), "3 of 2");
        assert_eq!(panic_message(&7), "a panic without words");
    }
}
