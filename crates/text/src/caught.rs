//! Panics of libraries as errors.
//!
//! The libraries for tokenizers and templates panic on some untrusted input, and the server's runtime panics if the
//! system refuses a thread. They are called through [`caught`], which turns a panic into an error and does not print
//! it. Stack overflow and exhausted memory cannot be caught. Callers bound both before the library sees a source:
//! `grammar/depth.rs` for grammars, `chat/metered.rs` for templates.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and returned by [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `act`, which uses the library of `things`, and returns the message of a panic as an error.
pub fn caught<T>(things: &str, act: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print_panic = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.try_with(Cell::get).unwrap_or(false) {
                print_panic(info);
            }
        }));
    });
    let was_caught = IS_CAUGHT.replace(true);
    // Unwind safety: the arguments are only read, or are dropped with the error.
    let outcome = panic::catch_unwind(AssertUnwindSafe(act));
    IS_CAUGHT.set(was_caught);
    outcome.map_err(|payload| {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        format!("the library of {things} failed: {words}")
    })
}
