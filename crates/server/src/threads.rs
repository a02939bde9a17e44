//! The server's threads, which all start before it listens, so that no request needs a thread that the operating system
//! may refuse. The engine's thread is started elsewhere.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use foretoken::caught;
use tokio::runtime::{Builder, Runtime};

/// Threads for long work: tokenizing texts, and writing answers as JSON.
const BLOCKING_THREADS: usize = 4;
/// How long an idle thread is kept: longer than the server runs.
const KEEP_ALIVE: Duration = Duration::from_secs(1 << 32);
/// Threads that the server needs, including the engine's.
const THREADS_NEEDED: usize = BLOCKING_THREADS + 1;

/// The runtime, which serves connections on the calling thread and has further threads for files and long work. One
/// thread suffices for connections; the other cores are for the engine.
///
/// # Errors
/// The operating system refuses a thread.
pub(crate) fn runtime() -> Result<Runtime, String> {
    check_available(THREADS_NEEDED, std::thread::Builder::new)?;
    let mut builder = Builder::new_current_thread();
    builder
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("foretoken-server")
        .thread_keep_alive(KEEP_ALIVE)
        .enable_all();
    // The runtime panics if no file can be opened.
    let runtime = caught("connections and threads", || builder.build().map_err(|error| error.to_string()));
    let runtime = runtime.flatten().map_err(|error| format!("connections: cannot be had: {error}"))?;
    let expected = format!("threads: expected {BLOCKING_THREADS} that wait for files and long work");
    // The threads may have become unavailable meanwhile. The runtime panics if it gets none, and does not report if it
    // gets fewer.
    match caught("threads", || start_blocking_threads(&runtime)) {
        Ok(BLOCKING_THREADS) => Ok(runtime),
        Ok(found) => Err(format!("{expected}, found {found}")),
        Err(words) => Err(format!("{expected}, found none: {words}")),
    }
}

/// Starts the blocking threads, which the runtime would start on demand. Returns their number.
fn start_blocking_threads(runtime: &Runtime) -> usize {
    let started = Arc::new((Mutex::new(0), Condvar::new()));
    let start = |_| {
        let started = Arc::clone(&started);
        runtime.spawn_blocking(move || {
            let (count, one_more) = &*started;
            let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            one_more.notify_all();
            // Each task waits for all others, so that no thread runs two; the timeout is for refused threads.
            drop(one_more.wait_timeout_while(count, Duration::from_secs(10), |count| *count < BLOCKING_THREADS));
            std::thread::current().id()
        })
    };
    let tasks: Vec<_> = (0..BLOCKING_THREADS).map(start).collect();
    let threads: HashSet<ThreadId> = tasks.into_iter().filter_map(|task| runtime.block_on(task).ok()).collect();
    threads.len()
}

/// Checks that `needed` threads can run at the same time: starts them, and ends them.
fn check_available(needed: usize, builder: impl Fn() -> std::thread::Builder) -> Result<(), String> {
    let all_started = Arc::new(Mutex::new(()));
    let lock = all_started.lock();
    let spawn = |_| {
        let all_started = Arc::clone(&all_started);
        builder().spawn(move || drop(all_started.lock()))
    };
    let (running, refused) = (0..needed).map(spawn).partition::<Vec<_>, _>(Result::is_ok);
    drop(lock);
    let found = running.len();
    running.into_iter().flatten().for_each(|thread| _ = thread.join());
    match refused.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(error) => Err(format!("threads: expected {needed} for the server, found {found}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_threads_are_reported() {
        assert_eq!(check_available(20, std::thread::Builder::new), Ok(()));
        // A stack larger than the address space of a process.
        let refused =
            check_available(3, || std::thread::Builder::new().stack_size(1 << 50)).expect_err("no such stack");
        assert!(refused.starts_with("threads: expected 3 for the server, found 0: "), "{refused}");
    }
}
