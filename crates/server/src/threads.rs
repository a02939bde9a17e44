//! Threads of a server, all of them there before it begins: the runtime panics where the system refuses one.
//!
//! Left out: the engine's thread, which says itself that it cannot be had.

use std::panic;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

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
/// The system refuses one; in words.
pub(crate) fn runtime() -> Result<Runtime, String> {
    had(NEEDED, std::thread::Builder::new)?;
    // All that are needed could be had just now. One that is refused all the same is not a defect to be reported.
    let loud = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let built = panic::catch_unwind(|| {
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(BLOCKING).thread_name("foretoken-server");
        let runtime = builder.thread_keep_alive(FOR_EVER).enable_all().build()?;
        begin_blocking(&runtime);
        Ok::<_, std::io::Error>(runtime)
    });
    panic::set_hook(loud);
    let refused = || "threads: expected those of the server, found that the system refuses one".to_string();
    built.map_err(|_| refused())?.map_err(|error| format!("threads: cannot be had: {error}"))
}

/// Begins the threads that wait, which the runtime would begin when it needs them.
fn begin_blocking(runtime: &Runtime) {
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    let begin = |_| {
        let begun = Arc::clone(&begun);
        runtime.spawn_blocking(move || {
            let (count, one_more) = &*begun;
            let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            one_more.notify_all();
            // Each waits for all others, so that none does the work of two; but not for one that is refused.
            drop(one_more.wait_timeout_while(count, Duration::from_secs(1), |count| *count < BLOCKING));
        })
    };
    let tasks: Vec<_> = (0..BLOCKING).map(begin).collect();
    tasks.into_iter().for_each(|task| drop(runtime.block_on(task)));
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
