//! Drafters that take far too long, and clocks that leap: who is slow again and again is not asked any more, one leap
//! drops nobody, and no text changes. No test waits: the clock is ours.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foretoken_drafters::SuffixDrafter;
use foretoken_engine::{BudgetKind, Clock, Costs, Engine, Event, Race, Request, Stats, Token};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Source};
use foretoken_speculation::{Ask, Chance, Drafter, News, Opening, Sampling, SequenceId};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// What time it is, when it leaps where, and what a pass of the target takes.
#[derive(Debug, Default)]
struct Time {
    now: Duration,
    asked: usize,
    leap: Option<(usize, Leap)>,
    pass: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Leap {
    Forward,
    Back,
    Far,
}

#[derive(Clone, Default)]
struct Hands(Arc<Mutex<Time>>);

impl Hands {
    fn pass(&self, time: Duration) {
        let mut hands = self.0.lock().unwrap();
        hands.now = hands.now.saturating_add(time);
    }
}

impl Clock for Hands {
    fn now(&self) -> Duration {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut hands = self.0.lock().unwrap();
        hands.asked += 1;
        if let Some((_, leap)) = hands.leap.filter(|(at, _)| *at == hands.asked) {
            hands.now = match leap {
                Leap::Forward => hands.now + HOUR,
                Leap::Back => hands.now.saturating_sub(HOUR),
                Leap::Far => Duration::MAX - HOUR,
            };
        }
        hands.now
    }
}

/// A toy whose passes take time.
struct Timed(ToyExecutor, Hands);

impl Executor for Timed {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.0.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.0.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        let takes = self.1.0.lock().unwrap().pass;
        self.1.pass(takes);
        self.0.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self.0.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.0.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.0.capacity()
    }
}

/// A lookup that takes its time.
struct Slow {
    inner: Box<dyn Drafter>,
    hands: Hands,
    takes: Duration,
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
        self.hands.pass(self.takes);
        self.inner.draft(asks, chance);
    }

    fn observe(&mut self, news: &[News<'_>]) {
        self.inner.observe(news);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.inner.close(sequence);
    }
}

/// Says one token more than the last, and begins again.
fn counting() -> Table {
    Table::new(7, |tokens| {
        let mut row = vec![f32::NEG_INFINITY; 7];
        row[tokens.last().map_or(0, |last| (*last as usize + 1) % 7)] = 0.0;
        row
    })
}

/// An engine with one drafter that takes so long, its clock, and how often the drafter was asked.
fn engine(takes: Duration, leap: Option<(usize, Leap)>) -> (Engine, Hands, Arc<AtomicUsize>) {
    let hands = Hands::default();
    *hands.0.lock().unwrap() =
        Time { now: Duration::from_secs(100_000), leap, pass: Duration::from_millis(10), asked: 0 };
    let toy = ToyExecutor::new(counting(), 4, 400, 64);
    let mut engine = Engine::new(Box::new(Timed(toy, hands.clone())), 3, usize::MAX);
    engine.set_clock(Box::new(hands.clone()));
    let asked = Arc::<AtomicUsize>::default();
    let inner = Box::new(SuffixDrafter::lookup(1, 3, 10));
    engine.add_drafter(Box::new(Slow { inner, hands: hands.clone(), takes, asked: asked.clone() }));
    (engine, hands, asked)
}

/// Three texts that count on, checked; how many tokens were drafted, and what was said of the drafter.
fn texts(engine: &mut Engine, budget: &BudgetKind) -> (usize, Vec<String>) {
    let request = |first: Token| Request {
        tokens_max: Some(30),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        drafters: vec![0],
        budget: budget.clone(),
        ..Request::new((first..first + 9).map(|token| token % 7).collect())
    };
    let ids: Vec<SequenceId> = (0..3).map(|first| engine.submit(request(first)).unwrap()).collect();
    let (mut written, mut drafted, mut told) = (vec![Vec::new(); 3], 0, Vec::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            let at = ids.iter().position(|id| *id == event.sequence()).unwrap();
            match event {
                Event::Tokens { emitted, .. } => written[at].extend(emitted.iter().map(|emitted| emitted.token)),
                Event::DrafterFailed { message, .. } => told.push(message.clone()),
                Event::Finished { stats, .. } => {
                    let Stats { drafted: found, .. } = **stats;
                    drafted += found;
                }
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } => {}
            }
        }
    }
    for (first, text) in written.iter().enumerate() {
        assert!(text.iter().copied().eq((first as Token + 9..).map(|token| token % 7).take(30)), "{text:?}");
    }
    (drafted, told)
}

const FIXED: BudgetKind = BudgetKind::Fixed { nodes: 5 };
const QUICK: Duration = Duration::from_micros(100);

#[test]
fn who_takes_far_too_long_twice_in_a_row_is_not_asked_again() {
    let (mut engine, _, asked) = engine(Duration::from_secs(3), None);
    let (_, told) = texts(&mut engine, &FIXED);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert_eq!(told, ["expected a draft within 2 s a pass, found one of 3.0 s, again"; 3]);
    // Nor by later requests, which need not be told again.
    assert_eq!(texts(&mut engine, &FIXED), (0, Vec::new()));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn who_is_slow_beside_a_slow_target_or_under_held_costs_stays() {
    // Passes that take a second allow for twenty.
    let (mut slow, hands, _) = engine(Duration::from_secs(3), None);
    hands.0.lock().unwrap().pass = Duration::from_secs(1);
    slow.measure_costs();
    // Where costs are held nothing goes by the clock.
    let (mut held, ..) = engine(Duration::from_secs(3), None);
    held.hold_costs(Costs::default());
    for engine in [&mut slow, &mut held] {
        let (drafted, told) = texts(engine, &FIXED);
        assert!(drafted > 20 && told.is_empty(), "{drafted} {told:?}");
    }
}

#[test]
fn a_clock_that_leaps_once_drops_nobody() {
    for leap in [Leap::Forward, Leap::Back, Leap::Far] {
        for at in 1.. {
            let (mut engine, hands, _) = engine(QUICK, Some((at, leap)));
            let (drafted, told) = texts(&mut engine, &FIXED);
            if hands.0.lock().unwrap().asked < at {
                assert!(at > 30, "the clock is asked {at} times");
                break;
            }
            assert!(drafted > 20 && told.is_empty(), "{leap:?} at {at}: {drafted} {told:?}");
        }
    }
}

/// Where drafts are weighed by what they take, a leap may keep a drafter silent for a while, and not for ever.
#[test]
fn who_rests_because_the_clock_leapt_comes_back() {
    let budget = BudgetKind::Auto { nodes_max: 5 };
    for leap in [Leap::Forward, Leap::Back, Leap::Far] {
        for at in [1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 30, 57, 58, 59, 60, 61, 62, 63] {
            let (mut engine, _, _) = engine(QUICK, Some((at, leap)));
            engine.measure_costs();
            let drafted: Vec<usize> = (0..60)
                .map(|_| {
                    let (drafted, told) = texts(&mut engine, &budget);
                    assert!(told.is_empty(), "{leap:?} at {at}: {told:?}");
                    drafted
                })
                .collect();
            assert!(drafted[50..].iter().all(|drafted| *drafted > 20), "{leap:?} at {at}: {drafted:?}");
        }
    }
}
