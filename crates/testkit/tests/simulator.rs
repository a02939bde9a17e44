//! Tests with runs of the simulator, ten thousand or as many as are requested; and its canaries, faults that it must
//! detect.
//!
//! `FORETOKEN_RUNS=0..1000000 cargo test --release -p foretoken-testkit --test simulator every_text` runs a million
//! seeds; `FORETOKEN_RUNS=7..8` runs seed 7 alone. A run has six or seven requests, so the seeds `0..156000` have a
//! million requests, for which two threads take three minutes.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use foretoken_engine::faults;
use foretoken_testkit::simulator::{Run, Summary};
use foretoken_testkit::toy::Fault;

/// The seeds of the runs.
fn seeds() -> Range<u64> {
    let Ok(word) = std::env::var("FORETOKEN_RUNS") else { return 0..10_000 };
    let bounds = word.split_once("..").map(|(from, to)| (from.parse(), to.parse()));
    match bounds {
        Some((Ok(from), Ok(to))) => from..to,
        _ => panic!("FORETOKEN_RUNS: expected FROM..TO, found {word:?}"),
    }
}

/// A fault that is injected into the executor or the engine.
#[derive(Clone, Copy, Debug, Default)]
struct InjectedFault {
    executor: Option<Fault>,
    engine: faults::Fault,
    /// Whether comparing outputs alone has to find the fault, and not a check of pages or an assertion.
    by_outputs_alone: bool,
}

impl InjectedFault {
    /// Runs with the fault; returns an error if it was found as it has to be.
    fn check(&self, run: &Run) -> Result<Summary, String> {
        faults::make(self.engine);
        let outcome = run.check();
        faults::make(faults::Fault::None);
        match outcome {
            Err(error) if self.by_outputs_alone && !error.contains(": expected") => Ok(Summary::default()),
            outcome => outcome,
        }
    }

    fn run(&self, seed: u64) -> Run {
        Run { fault: self.executor.unwrap_or(Fault::None), pages_are_checked: !self.by_outputs_alone, ..Run::of(seed) }
    }
}

/// The first of these runs that fails, and the counters of all of them.
fn first_failure(seeds: Range<u64>, injected: InjectedFault) -> (Option<(u64, Run)>, Summary) {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new((None::<(u64, Run)>, Summary::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let run = injected.run(seed);
            let outcome = injected.check(&run);
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
                    searches,
                    included,
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
                    all.searches += searches;
                    all.included += included;
                    all.steps += steps;
                }
                Err(_) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    if found.0.as_ref().is_none_or(|(other, _)| seed < *other) {
                        found.0 = Some((seed, run));
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
    let seeds = seeds();
    let (failure, all) = first_failure(seeds.clone(), InjectedFault::default());
    if let Some((seed, run)) = failure {
        let shrunk = run.shrunk(|run| run.check().is_err());
        let error = shrunk.check().err();
        panic!("run {seed}: {}\n{shrunk}", error.unwrap_or_default());
    }
    println!("{seeds:?}: {all:?}");
    if seeds.end - seeds.start >= 10_000 {
        // The cases that are to be tested have occurred.
        assert!(all.requests > 50_000 && all.cancelled > 2_000 && all.accepted > 20_000, "{all:?}");
        assert!(all.scored > 100_000, "{all:?}");
        assert!(all.shared > 50_000 && all.preemptions > 2_000 && all.dropped > 1_000, "{all:?}");
        assert!(all.continued > 10_000, "{all:?}");
        assert!(all.searches > 1_000 && all.included > 1_000, "{all:?}");
    }
}

/// Number of runs within which a fault has to be found. (Each is found in the first fifty runs.)
const RUNS_OF_A_FAULT: u64 = 500;

/// One of this many runs that find a fault has to shrink to a few requests. (Nearly always the first does. If a fault
/// shows only by a coincidence of hashes, leaving out any request can hide it.)
const SHRUNK_OF: usize = 3;

/// Checks that a fault is found, and that a run which shows it shrinks to a few requests.
fn assert_found(injected: InjectedFault) {
    let mut from = 0;
    for _ in 0..SHRUNK_OF {
        let (failure, _) = first_failure(from..RUNS_OF_A_FAULT, injected);
        let (seed, run) = failure.unwrap_or_else(|| panic!("{injected:?} was not found from run {from} on"));
        let shrunk = run.clone().shrunk(|run| injected.check(run).is_err());
        let error = injected.check(&shrunk).expect_err("it failed a moment ago");
        println!("{injected:?}: run {seed}: {error}\n{shrunk}");
        if shrunk.arrivals.len() <= run.arrivals.len().min(4) {
            return;
        }
        from = seed + 1;
    }
    panic!("{injected:?} was not shrunk to a few requests");
}

#[test]
fn faults_of_the_executor_are_found_and_shrunk() {
    use Fault::*;
    let of_rows = [RowsNotMoved, SiblingsSeen, RowsDependOnBatch, PageForgotten];
    let others = [SumOfLargestAlone, GuessPassed, PassedTwice, StaleHiddenRows, RankNotReached, PartsSwapped];
    for fault in of_rows.into_iter().chain(others).chain([RowsOfLongerSource]) {
        assert_found(InjectedFault { executor: Some(fault), ..InjectedFault::default() });
    }
}

#[test]
fn faults_of_the_engine_are_found_and_shrunk() {
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
        assert_found(InjectedFault { engine: fault, ..InjectedFault::default() });
    }
}

#[test]
fn faults_of_the_engine_are_found_by_outputs_alone() {
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
        assert_found(InjectedFault { engine: fault, by_outputs_alone: true, ..InjectedFault::default() });
    }
}
