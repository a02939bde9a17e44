//! Panics of libraries as errors.
//!
//! The libraries for tokenizers and templates trust what they are given more than we trust those who made it, and panic
//! at some of it; that of the server's threads panics where the system refuses one. What they are asked to do is done
//! behind [`caught`], where a panic becomes an error and is not printed. Left out: stacks that overflow and memory that
//! ends, which nobody can catch. What a source may take of either is bounded before the library sees it, by whoever
//! calls: of grammars in `grammar/depth.rs`, of templates in `chat/metered.rs`.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and told by [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function that calls a library for these things, and says what it panicked with.
pub fn caught<T>(things: &str, act: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.try_with(Cell::get).unwrap_or(false) {
                loud(info);
            }
        }));
    });
    let was_caught = IS_CAUGHT.replace(true);
    // What the library was given is only read here, or thrown away with the error.
    let outcome = panic::catch_unwind(AssertUnwindSafe(act));
    IS_CAUGHT.set(was_caught);
    outcome.map_err(|payload| {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        format!("the library of {things} failed: {words}")
    })
}
