//! Runs of the simulator: ten thousand of them, or as many as are asked for.
//!
//! `FORETOKEN_RUNS=0..1000000 cargo test --release -p foretoken-testkit --test simulator` runs a million;
//! `FORETOKEN_RUNS=7..8` runs number 7 alone.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use foretoken_testkit::simulator::{Run, Summary};
use foretoken_testkit::toy::Fault;

/// The numbers that are asked for.
fn numbers() -> Range<u64> {
    let Ok(asked) = std::env::var("FORETOKEN_RUNS") else { return 0..10_000 };
    let bounds = asked.split_once("..").map(|(from, to)| (from.parse(), to.parse()));
    match bounds {
        Some((Ok(from), Ok(to))) => from..to,
        _ => panic!("FORETOKEN_RUNS: expected FROM..TO, found {asked:?}"),
    }
}

/// The first of these runs that fails, and what all of them came to.
fn first_failure(numbers: Range<u64>, fault: Fault) -> (Option<(u64, Run)>, Summary) {
    let next = AtomicU64::new(numbers.start);
    let found = Mutex::new((None::<(u64, Run)>, Summary::default()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            let run = Run { fault, ..Run::of(number) };
            let outcome = run.check();
            let mut found = found.lock().unwrap();
            match outcome {
                Ok(Summary { requests, cancelled, tokens, accepted, shared, preemptions, steps }) => {
                    let all = &mut found.1;
                    all.requests += requests;
                    all.cancelled += cancelled;
                    all.tokens += tokens;
                    all.accepted += accepted;
                    all.shared += shared;
                    all.preemptions += preemptions;
                    all.steps += steps;
                }
                Err(_) => {
                    next.store(numbers.end, Ordering::Relaxed);
                    if found.0.as_ref().is_none_or(|(other, _)| number < *other) {
                        found.0 = Some((number, run));
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
    found.into_inner().unwrap()
}

#[test]
fn every_text_is_the_naive_decoders_whatever_arrives_and_goes() {
    let numbers = numbers();
    let (failure, all) = first_failure(numbers.clone(), Fault::None);
    if let Some((number, run)) = failure {
        let smallest = run.smallest();
        let error = smallest.check().err();
        panic!("run {number}: {}\n{smallest:#?}", error.unwrap_or_default());
    }
    println!("{numbers:?}: {all:?}");
    if numbers.end - numbers.start >= 10_000 {
        // What is to be tested did happen.
        assert!(all.requests > 50_000 && all.cancelled > 2_000 && all.accepted > 20_000, "{all:?}");
        assert!(all.shared > 50_000 && all.preemptions > 2_000, "{all:?}");
    }
}

#[test]
fn mistakes_of_the_executor_are_found_and_shown_small() {
    for fault in [Fault::RowsNotMoved, Fault::SiblingsSeen, Fault::RowsKnowTheirNeighbours, Fault::PageForgotten] {
        let (failure, _) = first_failure(0..2000, fault);
        let (number, run) = failure.unwrap_or_else(|| panic!("{fault:?} was not found"));
        let smallest = run.clone().smallest();
        assert!(smallest.check().is_err(), "{fault:?}, run {number}");
        assert!(smallest.arrivals.len() <= run.arrivals.len().min(3), "{fault:?}, run {number}: {smallest:#?}");
    }
}
