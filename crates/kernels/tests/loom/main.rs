//! Tests of the pool with loom, a model of locks and counters that tries the interleavings of threads, including those
//! that only the memory orders of other processors allow. Every run of the tests tries those with a few preemptions,
//! and all of them on request.
//!
//! `pool.rs` is included here with loom's primitives in place of the standard library's (`src/sync.rs`). Some copies
//! have deliberate bugs, which the model must find. Larger numbers of tasks and threads have too many interleavings;
//! `tests/kernels/pool.rs` runs them at random.

#![allow(
    clippy::duplicate_mod,
    clippy::absurd_extreme_comparisons,
    reason = "copies of one file are the test, and the model yields at once"
)]

mod correct;
mod lost_wakeup;
mod no_wait;
mod relaxed;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use loom::model::Builder;
use loom::sync::atomic::AtomicUsize as Number;

loom::thread_local! {
    /// Whether the current thread is the one that calls the pool.
    static IS_CALLER: Cell<bool> = Cell::new(false);
}

/// The functions that every copy of the pool has.
trait Pool {
    fn new(threads: usize) -> Self;
    fn threads(&self) -> usize;
    fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync));
}

macro_rules! copies {
    ($($copy:ident),*) => {
        $(impl Pool for $copy::pool::Pool {
            fn new(threads: usize) -> Self {
                Self::new(threads)
            }

            fn threads(&self) -> usize {
                self.threads()
            }

            fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
                self.run_as(tasks, &|number, thread| task(number, thread));
            }
        })*
    };
}

copies!(lost_wakeup, no_wait, relaxed, correct);

/// Tries interleavings of threads: all, or those with at most this many preemptions. Returns the number of
/// interleavings.
fn interleavings(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) -> usize {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        IS_CALLER.with(|is_caller| is_caller.set(true));
        run();
    });
    count.load(Ordering::Relaxed)
}

/// What tasks record. It is leaked, since a pool with a bug may use it after the run.
struct RunState {
    /// How often each task was run, counted with sequential consistency.
    times: Vec<AtomicUsize>,
    /// Written by each task with relaxed stores, which only the pool orders.
    written: Vec<Number>,
    /// Whether the run is over.
    is_over: AtomicBool,
}

/// Runs tasks on a pool and asserts that each ran once, before the end, and that the caller sees what it wrote.
fn each_once(pool: &impl Pool, tasks: usize) {
    let state: &RunState = Box::leak(Box::new(RunState {
        times: (0..tasks).map(|_| AtomicUsize::new(0)).collect(),
        written: (0..tasks).map(|_| Number::new(0)).collect(),
        is_over: AtomicBool::new(false),
    }));
    let threads = pool.threads();
    let task: &(dyn Fn(usize, usize) + Sync) = Box::leak(Box::new(move |task: usize, thread: usize| {
        assert!(!state.is_over.load(Ordering::SeqCst), "task {task} runs after the end");
        assert!(thread < threads);
        state.times[task].fetch_add(1, Ordering::SeqCst);
        state.written[task].store(1, Ordering::Relaxed);
    }));
    pool.run(tasks, task);
    state.is_over.store(true, Ordering::SeqCst);
    for task in 0..tasks {
        assert_eq!(state.times[task].load(Ordering::SeqCst), 1, "task {task}");
        assert_eq!(state.written[task].load(Ordering::Relaxed), 1, "what task {task} wrote is not seen");
    }
}

/// Runs this many tasks once, then ends the pool.
fn one_run<P: Pool>(threads: usize, tasks: usize) {
    let pool = P::new(threads);
    assert_eq!(pool.threads(), threads);
    each_once(&pool, tasks);
}

/// Runs tasks twice, so that a worker may join the second run directly after the first, late, or after parking.
fn two_runs<P: Pool>(threads: usize) {
    let pool = P::new(threads);
    each_once(&pool, 2);
    each_once(&pool, 2);
}

/// There are 709514 interleavings: `cargo test -p foretoken-kernels --test loom every_interleaving -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn two_threads_and_two_tasks_in_every_interleaving() {
    println!("{} interleavings", interleavings(None, || one_run::<correct::pool::Pool>(2, 2)));
}

#[test]
fn two_threads_and_two_tasks() {
    println!("{} interleavings", interleavings(Some(4), || one_run::<correct::pool::Pool>(2, 2)));
}

#[test]
fn two_threads_and_three_tasks() {
    println!("{} interleavings", interleavings(Some(3), || one_run::<correct::pool::Pool>(2, 3)));
}

#[test]
fn two_runs_one_after_the_other() {
    println!("{} interleavings", interleavings(Some(3), || two_runs::<correct::pool::Pool>(2)));
}

#[test]
fn three_threads() {
    println!("{} interleavings", interleavings(Some(2), || one_run::<correct::pool::Pool>(3, 3)));
}

#[test]
fn a_pool_that_is_dropped_while_its_workers_wait() {
    println!("{} interleavings", interleavings(None, || drop(correct::pool::Pool::new(2))));
    println!("{} interleavings", interleavings(Some(3), || drop(correct::pool::Pool::new(3))));
}

#[test]
fn a_task_that_panics() {
    let count = interleavings(Some(3), || {
        let pool = correct::pool::Pool::new(2);
        // `panic!` is not used, since it would print its location thousands of times.
        let bad = |task| {
            if task == 1 {
                resume_unwind(Box::new("task 1 is bad"))
            }
        };
        let payload = catch_unwind(AssertUnwindSafe(|| pool.run(2, &bad))).expect_err("the panic was swallowed");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"task 1 is bad"));
        each_once(&pool, 2);
    });
    println!("{count} interleavings");
}

/// Four threads are requested and the system has two besides the caller's, of which the pool gives one back.
#[test]
fn a_pool_that_gives_threads_back() {
    let count = interleavings(Some(2), || {
        let mut started = 0;
        let pool = correct::pool::Pool::with_spawn(4, &mut |name, work| {
            started += 1;
            match started {
                3 => Err(std::io::ErrorKind::WouldBlock.into()),
                _ => loom::thread::Builder::new().name(name).spawn(work),
            }
        });
        assert_eq!(pool.threads(), 2);
        each_once(&pool, 2);
    });
    println!("{count} interleavings");
}

/// The message with which the model fails for a pool with a bug.
fn failure(run: impl Fn() + Sync + Send + 'static) -> String {
    let result = catch_unwind(AssertUnwindSafe(|| interleavings(Some(3), run)));
    let payload = result.expect_err("the model did not find the bug");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[test]
fn the_model_finds_a_caller_that_does_not_wait() {
    let message = failure(|| one_run::<no_wait::pool::Pool>(2, 2));
    assert!(message.contains("task"), "{message}");
}

#[test]
fn the_model_finds_counters_that_order_nothing() {
    let message = failure(|| one_run::<relaxed::pool::Pool>(2, 2));
    assert!(message.contains("is not seen"), "{message}");
}

#[test]
#[ignore = "ends the process: a pool that waits forever is dropped by the model while it fails"]
fn a_worker_that_is_never_woken() {
    interleavings(Some(3), || one_run::<lost_wakeup::pool::Pool>(2, 2));
}

#[test]
fn the_model_finds_a_worker_that_is_never_woken() {
    let program = std::env::current_exe().expect("this program");
    let mut again = std::process::Command::new(program);
    let output =
        again.args(["--ignored", "--exact", "a_worker_that_is_never_woken"]).env("RUST_BACKTRACE", "0").output();
    let output = output.expect("this program can be run again");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(!output.status.success() && printed.contains("deadlock"), "the model did not find the bug: {printed}");
}
