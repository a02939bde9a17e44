//! Tests with drafters that take far too long and with clocks that leap: a drafter that is slow repeatedly is not asked
//! any more, a single leap drops no drafter, and no output changes. No test waits: the clock is simulated.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foretoken_drafters::SuffixDrafter;
use foretoken_engine::{BudgetKind, Clock, Costs, Engine, Event, Race, Request, Stats, Token};
use foretoken_speculation::{Ask, Chance, Drafter, Opening, Sampling, SequenceId, StepOutput};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::{ToyExecutor, Watched};

/// The state of a [`LeapingClock`].
#[derive(Debug, Default)]
struct Time {
    now: Duration,
    /// How often the clock was read.
    asked: usize,
    /// At which reading the clock leaps, and how.
    leap: Option<(usize, Leap)>,
    /// The time of a pass of the target.
    pass: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Leap {
    Forward,
    Back,
    Far,
}

#[derive(Clone, Default)]
struct LeapingClock(Arc<Mutex<Time>>);

impl LeapingClock {
    fn advance(&self, duration: Duration) {
        let mut time = self.0.lock().unwrap();
        time.now = time.now.saturating_add(duration);
    }
}

impl Clock for LeapingClock {
    fn now(&self) -> Duration {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut time = self.0.lock().unwrap();
        time.asked += 1;
        if let Some((_, leap)) = time.leap.filter(|(at, _)| *at == time.asked) {
            time.now = match leap {
                Leap::Forward => time.now + HOUR,
                Leap::Back => time.now.saturating_sub(HOUR),
                Leap::Far => Duration::MAX - HOUR,
            };
        }
        time.now
    }
}

/// A prompt lookup that takes a given time.
struct Slow {
    inner: Box<dyn Drafter>,
    clock: LeapingClock,
    duration: Duration,
    asked: Arc<AtomicUsize>,
}

impl Drafter for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn open(&mut self, opening: &Opening<'_>) {
        self.inner.open(opening);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.clock.advance(self.duration);
        self.inner.draft(asks, chance);
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        self.inner.observe(outputs);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.inner.close(sequence);
    }
}

/// A model that counts up to the end of its vocabulary and starts again.
fn counting() -> Table {
    Table::new(7, |tokens| {
        let mut row = vec![f32::NEG_INFINITY; 7];
        row[tokens.last().map_or(0, |last| (*last as usize + 1) % 7)] = 0.0;
        row
    })
}

/// An engine with one drafter that takes the given time, its clock, and how often the drafter was asked.
fn engine(duration: Duration, leap: Option<(usize, Leap)>) -> (Engine, LeapingClock, Arc<AtomicUsize>) {
    let clock = LeapingClock::default();
    *clock.0.lock().unwrap() =
        Time { now: Duration::from_secs(100_000), leap, pass: Duration::from_millis(10), asked: 0 };
    let passes = clock.clone();
    let timed = Watched::new(ToyExecutor::new(counting(), 4, 400, 64), move |_| {
        let duration = passes.0.lock().unwrap().pass;
        passes.advance(duration);
        Ok(())
    });
    let mut engine = Engine::new(Box::new(timed), 3, usize::MAX);
    engine.set_clock(Box::new(clock.clone()));
    let asked = Arc::<AtomicUsize>::default();
    let inner = Box::new(SuffixDrafter::lookup(1, 3, 10));
    engine.add_drafter(Box::new(Slow { inner, clock: clock.clone(), duration, asked: asked.clone() }));
    (engine, clock, asked)
}

/// Runs three requests that count up and checks their outputs. Returns how many tokens were drafted, and the reported
/// failures of the drafter.
fn run(engine: &mut Engine, budget: &BudgetKind) -> (usize, Vec<String>) {
    let request = |first: Token| Request {
        tokens_max: Some(30),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        drafters: vec![0],
        budget: budget.clone(),
        ..Request::new((first..first + 9).map(|token| token % 7).collect())
    };
    let ids: Vec<SequenceId> = (0..3).map(|first| engine.submit(request(first)).unwrap()).collect();
    let (mut written, mut drafted, mut failures) = (vec![Vec::new(); 3], 0, Vec::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            let at = ids.iter().position(|id| *id == event.sequence()).unwrap();
            match event {
                Event::Tokens { emitted, .. } => written[at].extend(emitted.iter().map(|emitted| emitted.token)),
                Event::DrafterFailed { message, .. } => failures.push(message.clone()),
                Event::Finished { stats, .. } => {
                    let Stats { drafted: found, .. } = **stats;
                    drafted += found;
                }
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
            }
        }
    }
    for (first, output) in written.iter().enumerate() {
        assert!(output.iter().copied().eq((first as Token + 9..).map(|token| token % 7).take(30)), "{output:?}");
    }
    (drafted, failures)
}

const FIXED: BudgetKind = BudgetKind::Fixed { nodes: 5 };
const QUICK: Duration = Duration::from_micros(100);

#[test]
fn a_drafter_that_takes_far_too_long_twice_in_a_row_is_not_asked_again() {
    let (mut engine, _, asked) = engine(Duration::from_secs(3), None);
    let (_, failures) = run(&mut engine, &FIXED);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert_eq!(failures, ["expected a draft within 2 s a pass, found one of 3.0 s, again"; 3]);
    // Later requests do not ask it either, and do not report the failure again.
    assert_eq!(run(&mut engine, &FIXED), (0, Vec::new()));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn a_slow_drafter_stays_with_a_slow_target_or_under_held_costs() {
    // With passes of a second a draft may take twenty.
    let (mut slow, clock, _) = engine(Duration::from_secs(3), None);
    clock.0.lock().unwrap().pass = Duration::from_secs(1);
    slow.measure_costs();
    // While costs are held, nothing depends on the clock.
    let (mut held, ..) = engine(Duration::from_secs(3), None);
    held.hold_costs(Costs::default());
    for engine in [&mut slow, &mut held] {
        let (drafted, failures) = run(engine, &FIXED);
        assert!(drafted > 20 && failures.is_empty(), "{drafted} {failures:?}");
    }
}

#[test]
fn a_clock_that_leaps_once_drops_no_drafter() {
    for leap in [Leap::Forward, Leap::Back, Leap::Far] {
        for at in 1.. {
            let (mut engine, clock, _) = engine(QUICK, Some((at, leap)));
            let (drafted, failures) = run(&mut engine, &FIXED);
            if clock.0.lock().unwrap().asked < at {
                assert!(at > 30, "the clock is read only {at} times");
                break;
            }
            assert!(drafted > 20 && failures.is_empty(), "{leap:?} at {at}: {drafted} {failures:?}");
        }
    }
}

/// If the budget depends on measured times, a leap may pause a drafter for a while, but not for ever.
#[test]
fn a_drafter_that_pauses_because_the_clock_leapt_resumes() {
    let budget = BudgetKind::Auto { nodes_max: 5 };
    for leap in [Leap::Forward, Leap::Back, Leap::Far] {
        for at in [1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 30, 57, 58, 59, 60, 61, 62, 63] {
            let (mut engine, _, _) = engine(QUICK, Some((at, leap)));
            engine.measure_costs();
            let drafted: Vec<usize> = (0..60)
                .map(|_| {
                    let (drafted, failures) = run(&mut engine, &budget);
                    assert!(failures.is_empty(), "{leap:?} at {at}: {failures:?}");
                    drafted
                })
                .collect();
            assert!(drafted[50..].iter().all(|drafted| *drafted > 20), "{leap:?} at {at}: {drafted:?}");
        }
    }
}
