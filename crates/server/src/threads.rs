//! Threads of a server, asked for before they are used: the runtime panics where the system refuses one.
//!
//! Left out: threads that others take afterwards. A request that needs one then ends alone.

use std::sync::{Arc, Mutex};

/// Of connections; they take little, and the machine is for the engine.
pub(crate) const WORKERS: usize = 2;
/// Of texts that become tokens, and answers that become JSON.
pub(crate) const BLOCKING: usize = 4;
/// The engine's own is one more.
const NEEDED: usize = WORKERS + BLOCKING + 1;

/// Starts as many threads as a server needs, at a time, and ends them.
///
/// # Errors
/// The system refuses one; in words.
pub(crate) fn check() -> Result<(), String> {
    had(NEEDED, std::thread::Builder::new)
}

fn had(needed: usize, builder: impl Fn() -> std::thread::Builder) -> Result<(), String> {
    let all_are_there = Arc::new(Mutex::new(()));
    let waits = all_are_there.lock();
    let spawn = |_| {
        let all_are_there = Arc::clone(&all_are_there);
        builder().spawn(move || drop(all_are_there.lock()))
    };
    let (had, refused) = (0..needed).map(spawn).partition::<Vec<_>, _>(Result::is_ok);
    drop(waits);
    let found = had.len();
    had.into_iter().flatten().for_each(|thread| _ = thread.join());
    match refused.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(error) => Err(format!("threads: expected {needed} for the server, found {found}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_cannot_be_had_are_said() {
        assert_eq!(had(20, std::thread::Builder::new), Ok(()));
        // More of the address space than a process can have.
        let refused = had(3, || std::thread::Builder::new().stack_size(1 << 50)).expect_err("no such stack");
        assert!(refused.starts_with("threads: expected 3 for the server, found 0: "), "{refused}");
    }
}
