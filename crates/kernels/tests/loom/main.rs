//! The pool in a model of its locks and counters (loom): the orders in which its threads could come, those in which
//! each is interrupted a few times in every run of the tests and all of them on request, also such as memory allows on
//! other processors than this one.
//!
//! `pool.rs` is included here with loom's primitives in place of the standard library's (`src/sync.rs`). Some copies
//! have mistakes on purpose, which the model must see, or it could not fail. Left out: more tasks and threads, whose
//! orders are too many; `tests/kernels/pool.rs` has them at random.

#![allow(
    clippy::duplicate_mod,
    clippy::absurd_extreme_comparisons,
    reason = "copies of one file are the test, and the model yields at once"
)]

mod deaf;
mod hasty;
mod relaxed;
mod whole;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use loom::model::Builder;
use loom::sync::atomic::AtomicUsize as Number;

loom::thread_local! {
    /// Whether this is the thread that a job is given to the pool by.
    static IS_CALLER: Cell<bool> = Cell::new(false);
}

/// A copy of the pool.
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

copies!(deaf, hasty, relaxed, whole);

/// Tries orders of threads: all, or those in which a thread is interrupted at most so often. How many there were.
fn orders(interruptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) -> usize {
    let mut builder = Builder::new();
    builder.preemption_bound = interruptions;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        IS_CALLER.with(|is_caller| is_caller.set(true));
        run();
    });
    count.load(Ordering::Relaxed)
}

/// What a run of tasks leaves behind. Kept for ever: a pool with a mistake may come back to it after the run.
struct Left {
    /// How often each task was run: counted in the order of the model's steps.
    times: Vec<AtomicUsize>,
    /// Written by each task, in no order but the pool's.
    written: Vec<Number>,
    /// Whether the run is over.
    over: AtomicBool,
}

/// Runs tasks on a pool and requires that each ran once, before the end, and that the caller sees what it wrote.
fn each_once(pool: &impl Pool, tasks: usize) {
    let left: &Left = Box::leak(Box::new(Left {
        times: (0..tasks).map(|_| AtomicUsize::new(0)).collect(),
        written: (0..tasks).map(|_| Number::new(0)).collect(),
        over: AtomicBool::new(false),
    }));
    let threads = pool.threads();
    let task: &(dyn Fn(usize, usize) + Sync) = Box::leak(Box::new(move |task: usize, thread: usize| {
        assert!(!left.over.load(Ordering::SeqCst), "task {task} runs after the end");
        assert!(thread < threads);
        left.times[task].fetch_add(1, Ordering::SeqCst);
        left.written[task].store(1, Ordering::Relaxed);
    }));
    pool.run(tasks, task);
    left.over.store(true, Ordering::SeqCst);
    for task in 0..tasks {
        assert_eq!(left.times[task].load(Ordering::SeqCst), 1, "task {task}");
        assert_eq!(left.written[task].load(Ordering::Relaxed), 1, "what task {task} wrote is not seen");
    }
}

/// One run of so many tasks and the end of the pool.
fn one_run<P: Pool>(threads: usize, tasks: usize) {
    let pool = P::new(threads);
    assert_eq!(pool.threads(), threads);
    each_once(&pool, tasks);
}

/// Two runs, so that a worker may come to the second from the first, late, or parked.
fn two_runs<P: Pool>(threads: usize) {
    let pool = P::new(threads);
    each_once(&pool, 2);
    each_once(&pool, 2);
}

/// 709514 of them: `cargo test -p foretoken-kernels --test loom every_order -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn two_threads_and_two_tasks_in_every_order() {
    println!("{} orders", orders(None, || one_run::<whole::pool::Pool>(2, 2)));
}

#[test]
fn two_threads_and_two_tasks() {
    println!("{} orders", orders(Some(4), || one_run::<whole::pool::Pool>(2, 2)));
}

#[test]
fn two_threads_and_three_tasks() {
    println!("{} orders", orders(Some(3), || one_run::<whole::pool::Pool>(2, 3)));
}

#[test]
fn two_runs_one_after_the_other() {
    println!("{} orders", orders(Some(3), || two_runs::<whole::pool::Pool>(2)));
}

#[test]
fn three_threads() {
    println!("{} orders", orders(Some(2), || one_run::<whole::pool::Pool>(3, 3)));
}

#[test]
fn a_pool_that_is_dropped_while_its_workers_wait() {
    println!("{} orders", orders(None, || drop(whole::pool::Pool::new(2))));
    println!("{} orders", orders(Some(3), || drop(whole::pool::Pool::new(3))));
}

#[test]
fn a_task_that_panics() {
    let count = orders(Some(3), || {
        let pool = whole::pool::Pool::new(2);
        // Not `panic!`, which would print thousands of times where it happened.
        let bad = |task| {
            if task == 1 {
                resume_unwind(Box::new("task 1 is bad"))
            }
        };
        let payload = catch_unwind(AssertUnwindSafe(|| pool.run(2, &bad))).expect_err("the panic was swallowed");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"task 1 is bad"));
        each_once(&pool, 2);
    });
    println!("{count} orders");
}

/// Of four threads that are wanted the system has two, so the pool has one besides the caller's and leaves one.
#[test]
fn a_pool_that_leaves_threads_to_others() {
    let count = orders(Some(2), || {
        let mut started = 0;
        let pool = whole::pool::Pool::sharing(4, &mut |name, work| {
            started += 1;
            match started {
                3 => Err(std::io::ErrorKind::WouldBlock.into()),
                _ => loom::thread::Builder::new().name(name).spawn(work),
            }
        });
        assert_eq!(pool.threads(), 2);
        each_once(&pool, 2);
    });
    println!("{count} orders");
}

/// What the model says of a pool with a mistake.
fn found(run: impl Fn() + Sync + Send + 'static) -> String {
    let result = catch_unwind(AssertUnwindSafe(|| orders(Some(3), run)));
    let payload = result.expect_err("the model did not see the mistake");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[test]
fn the_model_sees_a_caller_that_does_not_wait() {
    let message = found(|| one_run::<hasty::pool::Pool>(2, 2));
    assert!(message.contains("task"), "{message}");
}

#[test]
fn the_model_sees_counters_that_order_nothing() {
    let message = found(|| one_run::<relaxed::pool::Pool>(2, 2));
    assert!(message.contains("is not seen"), "{message}");
}

#[test]
#[ignore = "ends the process: a pool that waits for ever is dropped by the model while it fails"]
fn a_worker_that_nobody_wakes() {
    orders(Some(3), || one_run::<deaf::pool::Pool>(2, 2));
}

#[test]
fn the_model_sees_a_worker_that_nobody_wakes() {
    let program = std::env::current_exe().expect("this program");
    let mut again = std::process::Command::new(program);
    let output = again.args(["--ignored", "--exact", "a_worker_that_nobody_wakes"]).env("RUST_BACKTRACE", "0").output();
    let output = output.expect("this program can be run again");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!output.status.success() && said.contains("deadlock"), "the model did not see the mistake: {said}");
}
