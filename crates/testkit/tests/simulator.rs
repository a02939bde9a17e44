//! Tests with runs of the simulator, ten thousand or as many as are requested; and its canaries, mistakes that it must
//! detect.
//!
//! `FORETOKEN_RUNS=0..1000000 cargo test --release -p foretoken-testkit --test simulator every_text` runs a million;
//! `FORETOKEN_RUNS=7..8` runs number 7 alone. A run has six or seven requests: `0..156000` are a million of them, for
//! which two threads take three minutes.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use foretoken_engine::faults;
use foretoken_testkit::simulator::{Run, Summary};
use foretoken_testkit::toy::Fault;

/// The numbers of the runs.
fn numbers() -> Range<u64> {
    let Ok(asked) = std::env::var("FORETOKEN_RUNS") else { return 0..10_000 };
    let bounds = asked.split_once("..").map(|(from, to)| (from.parse(), to.parse()));
    match bounds {
        Some((Ok(from), Ok(to))) => from..to,
        _ => panic!("FORETOKEN_RUNS: expected FROM..TO, found {asked:?}"),
    }
}

/// A mistake of the executor or of the engine.
#[derive(Clone, Copy, Debug, Default)]
struct Mistake {
    executor: Option<Fault>,
    engine: faults::Fault,
    /// Whether the mistake has to be found by comparing outputs alone, and not by a check of pages or an assertion.
    by_outputs_alone: bool,
}

impl Mistake {
    /// Makes the mistake in a run; returns an error if it was found as it has to be.
    fn check(&self, run: &Run) -> Result<Summary, String> {
        faults::make(self.engine);
        let outcome = run.check();
        faults::make(faults::Fault::None);
        match outcome {
            Err(error) if self.by_outputs_alone && !error.contains(": expected") => Ok(Summary::default()),
            outcome => outcome,
        }
    }

    fn run(&self, number: u64) -> Run {
        Run {
            fault: self.executor.unwrap_or(Fault::None),
            pages_are_checked: !self.by_outputs_alone,
            ..Run::of(number)
        }
    }
}

/// The first of these runs that fails, and the counters of all of them.
fn first_failure(numbers: Range<u64>, mistake: Mistake) -> (Option<(u64, Run)>, Summary) {
    let next = AtomicU64::new(numbers.start);
    let found = Mutex::new((None::<(u64, Run)>, Summary::default()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            let run = mistake.run(number);
            let outcome = mistake.check(&run);
            let mut found = found.lock().unwrap();
            match outcome {
                Ok(Summary {
                    requests,
                    cancelled,
                    tokens,
                    scored,
                    accepted,
                    shared,
                    continued,
                    preemptions,
                    dropped,
                    steps,
                }) => {
                    let all = &mut found.1;
                    all.requests += requests;
                    all.cancelled += cancelled;
                    all.tokens += tokens;
                    all.scored += scored;
                    all.accepted += accepted;
                    all.shared += shared;
                    all.continued += continued;
                    all.preemptions += preemptions;
                    all.dropped += dropped;
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
fn every_text_is_the_naive_decoders() {
    let numbers = numbers();
    let (failure, all) = first_failure(numbers.clone(), Mistake::default());
    if let Some((number, run)) = failure {
        let shrunk = run.shrunk(|run| run.check().is_err());
        let error = shrunk.check().err();
        panic!("run {number}: {}\n{shrunk}", error.unwrap_or_default());
    }
    println!("{numbers:?}: {all:?}");
    if numbers.end - numbers.start >= 10_000 {
        // The cases that are to be tested have occurred.
        assert!(all.requests > 50_000 && all.cancelled > 2_000 && all.accepted > 20_000, "{all:?}");
        assert!(all.scored > 100_000, "{all:?}");
        assert!(all.shared > 50_000 && all.preemptions > 2_000 && all.dropped > 1_000, "{all:?}");
        assert!(all.continued > 10_000, "{all:?}");
    }
}

/// Number of runs within which a mistake has to be found. (Each is found in the first fifty runs.)
const RUNS_OF_A_MISTAKE: u64 = 500;

/// One of this many runs that find a mistake has to shrink to a few requests. (Nearly always the first does. If a
/// mistake shows only by a coincidence of hashes, leaving out any request can hide it.)
const SHRUNK_OF: usize = 3;

/// Checks that a mistake is found, and that a run which shows it shrinks to a few requests.
fn assert_found(mistake: Mistake) {
    let mut from = 0;
    for _ in 0..SHRUNK_OF {
        let (failure, _) = first_failure(from..RUNS_OF_A_MISTAKE, mistake);
        let (number, run) = failure.unwrap_or_else(|| panic!("{mistake:?} was not found from run {from} on"));
        let shrunk = run.clone().shrunk(|run| mistake.check(run).is_err());
        let error = mistake.check(&shrunk).expect_err("it failed a moment ago");
        println!("{mistake:?}: run {number}: {error}\n{shrunk}");
        if shrunk.arrivals.len() <= run.arrivals.len().min(4) {
            return;
        }
        from = number + 1;
    }
    panic!("{mistake:?} was not shrunk to a few requests");
}

#[test]
fn mistakes_of_the_executor_are_found_and_shrunk() {
    use Fault::*;
    let of_rows = [RowsNotMoved, SiblingsSeen, RowsDependOnBatch, PageForgotten];
    let others = [SumOfLargestAlone, GuessPassed, PassedTwice, StaleHiddenRows, RankNotReached, PartsSwapped];
    for fault in of_rows.into_iter().chain(others) {
        assert_found(Mistake { executor: Some(fault), ..Mistake::default() });
    }
}

#[test]
fn mistakes_of_the_engine_are_found_and_shrunk() {
    use faults::Fault::*;
    for fault in [
        PageGivenBackEarly,
        PrefixByHashAlone,
        PrefixOfAnotherTenant,
        WindowNotHeld,
        SharedPageWritten,
        RowsNotCopied,
        ResumedLate,
        DraftKept,
        RejectedRowKept,
        UnscoredAdopted,
        ScoredAgain,
        DraftRowsNotMoved,
        HiddenRowsOfRejectedNodes,
        HiddenRowsOfFirstPart,
        SourceByHashAlone,
        PrefixOfAnotherSource,
        ReleaseForgotten,
        CheckpointOfAnotherTenant,
        CheckpointLate,
    ] {
        assert_found(Mistake { engine: fault, ..Mistake::default() });
    }
}

#[test]
fn mistakes_of_the_engine_are_found_by_outputs_alone() {
    use faults::Fault::*;
    for fault in [
        PageGivenBackEarly,
        PrefixByHashAlone,
        RowsNotCopied,
        ResumedLate,
        UnscoredAdopted,
        ScoredAgain,
        SourceByHashAlone,
        PrefixOfAnotherSource,
    ] {
        assert_found(Mistake { engine: fault, by_outputs_alone: true, ..Mistake::default() });
    }
}
