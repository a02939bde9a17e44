//! Tests that the pool runs every task once, survives panics and serves several callers; also measures a fork-join.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foretoken_kernels::Pool;

/// Runs `tasks` tasks and asserts that each was run once, by a thread of the pool.
#[track_caller]
fn assert_each_once(pool: &Pool, tasks: usize) {
    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run_as(tasks, &|task, thread| {
        assert!(thread < pool.threads());
        counts[task].fetch_add(1, Ordering::Relaxed);
    });
    for (task, count) in counts.iter().enumerate() {
        let count = count.load(Ordering::Relaxed);
        assert_eq!(count, 1, "task {task} of {tasks} with {} threads was run {count} times", pool.threads());
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

/// A pool of a system that has only `available` threads at a time.
fn pool_of_at_most(available: usize, threads: usize) -> Pool {
    let alive = Arc::new(AtomicUsize::new(0));
    Pool::with_spawn(threads, &mut |name, work| {
        let alive = Arc::clone(&alive);
        if alive.fetch_add(1, Ordering::SeqCst) >= available {
            alive.fetch_sub(1, Ordering::SeqCst);
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        std::thread::Builder::new().name(name).spawn(move || {
            work();
            alive.fetch_sub(1, Ordering::SeqCst);
        })
    })
}

#[test]
fn a_pool_uses_the_threads_that_it_gets_and_gives_some_back() {
    for (available, requested, expected) in
        [(0, 8, 1), (1, 8, 1), (2, 8, 2), (3, 8, 2), (4, 8, 3), (7, 8, 8), (20, 40, 13)]
    {
        let pool = pool_of_at_most(available, requested);
        assert_eq!(pool.threads(), expected, "{available} available");
        for tasks in [1, 2, 7, 100] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run_as(tasks, &|task, thread| {
                assert!(thread < expected);
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                "{available} available, {tasks} tasks"
            );
        }
    }
}

#[test]
fn every_task_is_run_once() {
    for threads in 0..=6 {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 3, 7, 64, 1000] {
            for _ in 0..5 {
                assert_each_once(&pool, tasks);
            }
        }
    }
}

#[test]
fn a_thread_runs_one_task_at_a_time() {
    let pool = Pool::new(4);
    let busy: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    pool.run_as(500, &|_, thread| {
        assert_eq!(busy[thread].fetch_add(1, Ordering::SeqCst), 0, "thread {thread} was busy");
        std::hint::spin_loop();
        busy[thread].fetch_sub(1, Ordering::SeqCst);
    });
}

#[test]
fn chunks_cover_the_slice() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        for (len, chunk) in [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 7), (5, 100)] {
            let mut data = vec![0.0; len];
            pool.each_chunk(&mut data, chunk, &|i, part| {
                assert!(part.len() == chunk || i == len / chunk);
                part.iter_mut().enumerate().for_each(|(j, x)| *x += (i * chunk + j) as f32);
            });
            assert!(data.iter().enumerate().all(|(i, x)| *x == i as f32), "{threads} threads, {len} by {chunk}");
        }
    }
}

/// Cases that are small enough for Miri: runs of few tasks, chunks, a panic, and a pool that ends while its workers
/// wait.
#[test]
fn small_runs() {
    for threads in 1..=3 {
        let pool = Pool::new(threads);
        (0..4).for_each(|tasks| assert_each_once(&pool, tasks));
        let mut data = [0; 7];
        pool.each_chunk(&mut data, 3, &|i, part| part.fill(i + 1));
        assert_eq!(data, [1, 1, 1, 2, 2, 2, 3]);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(3, &|task| assert!(task != 1, "task {task} is bad"))));
        assert_eq!(message(&*result.expect_err("the panic was swallowed")), "task 1 is bad");
        assert_each_once(&pool, 3);
    }
}

/// The message is passed on, every other task that was started ends, and the pool still works.
#[test]
fn a_panic_is_passed_on_and_the_pool_still_works() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        for (tasks, bad) in [(1, 0), (2, 1), (100, 0), (100, 57), (100, 99)] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(tasks, &|task| assert!(task != bad, "task {task} of {tasks} is bad"));
            }));
            let payload = result.expect_err("the panic was swallowed");
            assert_eq!(message(&*payload), format!("task {bad} of {tasks} is bad"));
            assert_each_once(&pool, 50);
        }
        let all_bad = catch_unwind(AssertUnwindSafe(|| pool.run(9, &|_| panic!("all bad"))));
        assert_eq!(message(&*all_bad.expect_err("the panic was swallowed")), "all bad");
        assert_each_once(&pool, 50);
    }
}

#[test]
fn several_pools_work_at_once() {
    std::thread::scope(|scope| {
        for threads in 1..=3 {
            scope.spawn(move || {
                let pool = Pool::new(threads);
                (0..50).for_each(|round| assert_each_once(&pool, 1 + round));
            });
        }
    });
}

#[test]
fn two_callers_share_a_pool() {
    let pool = Pool::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..200).for_each(|round| assert_each_once(&pool, round % 20)));
        }
    });
}

#[test]
fn a_pool_runs_from_within_another() {
    let (outer, inner) = (Pool::new(2), Pool::new(2));
    outer.run(8, &|_| assert_each_once(&inner, 10));
}

/// Waits long enough for every worker to park, which must neither lose the next job nor keep the pool from ending.
#[test]
fn parked_workers_wake_and_end() {
    for _ in 0..5 {
        let pool = Pool::new(4);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(15));
            assert_each_once(&pool, 20);
        }
        std::thread::sleep(Duration::from_millis(15));
        let start = Instant::now();
        drop(pool);
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    drop(Pool::new(4));
}

/// Starts jobs just as workers park, the moment at which a wake-up could be lost.
#[test]
fn jobs_that_come_as_workers_park() {
    let pool = Pool::new(3);
    for round in 0..300 {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(round * 2) {
            std::hint::spin_loop();
        }
        assert_each_once(&pool, 6);
    }
}

/// The figure in the opening paragraph of `pool.rs`:
/// `cargo test --release -p foretoken-kernels --test kernels fork_join -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn fork_join() {
    for threads in 1..=std::thread::available_parallelism().map_or(1, usize::from) {
        let pool = Pool::new(threads);
        let sink = AtomicUsize::new(0);
        let mut times: Vec<f64> = (0..2000)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..10 {
                    pool.run(threads, &|task| {
                        sink.fetch_add(task, Ordering::Relaxed);
                    });
                }
                start.elapsed().as_secs_f64() / 10.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(share * times.len() as f64) as usize] * 1e6;
        println!("{threads} threads: fork-join {:.2} us (median), {:.2} us (99 of 100)", at(0.5), at(0.99));
    }
}
