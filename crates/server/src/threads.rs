//! Threads of a server, all of them there before it listens: a request never waits for one that the system refuses.
//!
//! Left out: the engine's thread, which says itself that it cannot be had.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use foretoken::caught;
use tokio::runtime::{Builder, Runtime};

/// Of texts that become tokens, and answers that become JSON.
const BLOCKING: usize = 4;
/// Threads that wait never end before the server does.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);
/// The engine's own is one more.
const NEEDED: usize = BLOCKING + 1;

/// What serves connections on the thread that asks it to, with threads that wait for files and long work. Connections
/// take little, and the machine is for the engine.
///
/// # Errors
/// The system refuses a thread; in words.
pub(crate) fn runtime() -> Result<Runtime, String> {
    had(NEEDED, std::thread::Builder::new)?;
    let mut builder = Builder::new_current_thread();
    builder.max_blocking_threads(BLOCKING).thread_name("foretoken-server").thread_keep_alive(FOR_EVER).enable_all();
    // It panics where no file can be opened.
    let runtime = caught("connections and threads", || builder.build().map_err(|error| error.to_string()));
    let runtime = runtime.flatten().map_err(|error| format!("connections: cannot be had: {error}"))?;
    let expected = format!("threads: expected {BLOCKING} that wait for files and long work");
    // They could be had a moment ago. The runtime panics where it gets none, and goes on without a word with fewer.
    match caught("threads", || begin_blocking(&runtime)) {
        Ok(BLOCKING) => Ok(runtime),
        Ok(found) => Err(format!("{expected}, found {found}")),
        Err(words) => Err(format!("{expected}, found none: {words}")),
    }
}

/// Begins the threads that wait, which the runtime would begin when it needs them. How many there are.
fn begin_blocking(runtime: &Runtime) -> usize {
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    let begin = |_| {
        let begun = Arc::clone(&begun);
        runtime.spawn_blocking(move || {
            let (count, one_more) = &*begun;
            let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            one_more.notify_all();
            // Each waits for all others, so that none does the work of two; but not for one that is refused.
            drop(one_more.wait_timeout_while(count, Duration::from_secs(10), |count| *count < BLOCKING));
            std::thread::current().id()
        })
    };
    let tasks: Vec<_> = (0..BLOCKING).map(begin).collect();
    let threads: HashSet<ThreadId> = tasks.into_iter().filter_map(|task| runtime.block_on(task).ok()).collect();
    threads.len()
}

/// Starts so many threads, at a time, and ends them.
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
