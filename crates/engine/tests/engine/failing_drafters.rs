//! Tests with drafters that fail: in every call, for one sequence or sometimes, by panic or by breaking their contract.
//! The outputs stay the same, other requests keep their drafter, and the failure is counted and reported.

use std::collections::BTreeMap;
use std::panic;
use std::sync::Once;

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, Stats};
use foretoken_speculation::{
    Ask, Chance, Drafter, Needs, Opening, Promise, Proposal, Sampling, SequenceId, StepOutput, Token,
};
use foretoken_testkit::conform::{Case, Form, Registered, Setting, law_error};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// The call in which a drafter fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Open,
    Draft,
    Offered,
    Observe,
    Close,
}

const CALLS: [Call; 5] = [Call::Open, Call::Draft, Call::Offered, Call::Observe, Call::Close];

/// How a drafter fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Panics,
    /// Offers two nodes more than there is room for.
    Exceeds,
    /// Offers a token that is not in the vocabulary.
    UnknownToken,
    /// Asks for too many probes.
    Probes,
}

/// A drafter that fails where a rule says so, by the call, the sequence and the number of the call.
struct Faulty {
    inner: Box<dyn Drafter>,
    failure: Failure,
    fails: fn(Call, SequenceId, usize) -> bool,
    calls: usize,
}

const PLANNED: &str = "a planned failure";

/// Suppresses the output of planned panics; others are printed as usual.
fn silence_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            if !text.is_some_and(|text| text.contains(PLANNED) || text.contains(" probes of ")) {
                print(info);
            }
        }));
    });
}

impl Faulty {
    fn make(inner: Box<dyn Drafter>, failure: Failure, fails: fn(Call, SequenceId, usize) -> bool) -> Box<Faulty> {
        silence_planned_panics();
        Box::new(Faulty { inner, failure, fails, calls: 0 })
    }

    fn fails_now(&mut self, call: Call, sequence: SequenceId) -> bool {
        self.calls += 1;
        (self.fails)(call, sequence, self.calls)
    }

    fn maybe_panic(&mut self, call: Call, sequence: SequenceId) {
        if self.fails_now(call, sequence) && self.failure == Failure::Panics {
            panic!("{PLANNED} in {call:?} of {sequence:?}");
        }
    }

    fn draft_one(&mut self, ask: &mut Ask<'_>, chance: &mut dyn Chance) {
        let room = ask.limits.nodes_max;
        let fails = self.fails_now(Call::Draft, ask.sequence);
        match self.failure {
            Failure::Panics if fails => panic!("{PLANNED} in a draft of {:?}", ask.sequence),
            Failure::Exceeds if fails => ask.limits.nodes_max += 2,
            Failure::UnknownToken if fails && ask.has_room() => {
                ask.tree.offer(None, 4_000_000_000, Proposal::Point, ask.source);
            }
            Failure::Probes if fails => (0..1000).for_each(|token| _ = ask.probes.ask(None, token % 3, ask.source)),
            _ => {}
        }
        self.inner.draft(std::slice::from_mut(ask), chance);
        if self.failure == Failure::Exceeds && fails && ask.promise == Promise::Exact {
            while ask.tree.len() < room + 2 {
                let last = ask.tree.nodes().last();
                ask.tree.offer(last, 1, Proposal::Point, ask.source);
            }
        }
        self.maybe_panic(Call::Offered, ask.sequence);
    }
}

impl Drafter for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }
    fn needs(&self) -> Needs {
        Needs { probes_max: if self.failure == Failure::Probes { 3 } else { 0 }, ..Needs::default() }
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.maybe_panic(Call::Open, opening.sequence);
        self.inner.open(opening);
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.draft_one(ask, chance));
    }
    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            self.maybe_panic(Call::Observe, output.sequence);
            self.inner.observe(&[*output]);
        }
    }
    fn close(&mut self, sequence: SequenceId) {
        self.maybe_panic(Call::Close, sequence);
        self.inner.close(sequence);
    }
}

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

/// A draft model that is usually right: the target itself.
fn model() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(ToyExecutor::new(table(), 4, 400, 64)))))
}

/// An engine for four sequences with this drafter and a prompt lookup after it.
fn engine(drafter: Box<dyn Drafter>) -> Engine {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 400, 64)), 4, usize::MAX);
    engine.add_drafter(drafter);
    engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
    engine
}

/// Runs four requests with these drafters and checks their outputs against the oracle's. Returns their statistics and
/// the reported failures.
fn run(engine: &mut Engine, drafters: &[u8]) -> (Vec<Stats>, Vec<(SequenceId, u8, String)>) {
    let prompts = [vec![1, 2, 1, 2], vec![3, 3, 3], vec![4, 5, 6, 4, 5], vec![2]];
    let request = |seed: u64, prompt: &Vec<Token>| Request {
        tokens_max: Some(30),
        sampling: Sampling::default(),
        seed,
        drafters: drafters.to_vec(),
        budget: BudgetKind::Fixed { nodes: 5 },
        log_probabilities: true,
        ..Request::new(prompt.clone())
    };
    let ids: Vec<SequenceId> =
        (0..).zip(&prompts).map(|(seed, prompt)| engine.submit(request(seed, prompt)).unwrap()).collect();
    let (mut written, mut stats, mut reported) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new(), Vec::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let bits = emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits()));
                    written.entry(*sequence).or_default().extend(bits);
                }
                Event::DrafterFailed { sequence, drafter, message } => {
                    reported.push((*sequence, *drafter, message.clone()));
                }
                Event::Finished { sequence, stats: found, .. } => _ = stats.insert(*sequence, found.clone()),
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
            }
        }
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(written[id], decode(&table(), &Sampling::default(), i as u64, &prompts[i], 30), "{id:?}");
    }
    (ids.iter().map(|id| (*stats[id]).clone()).collect(), reported)
}

#[test]
fn a_panic_for_one_request_drops_the_drafter_for_that_request_only() {
    let rules: [fn(Call, SequenceId, usize) -> bool; 5] = [
        |call, sequence, _| call == Call::Open && sequence.0 == 1,
        |call, sequence, _| call == Call::Draft && sequence.0 == 1,
        |call, sequence, _| call == Call::Offered && sequence.0 == 1,
        |call, sequence, _| call == Call::Observe && sequence.0 == 1,
        |call, sequence, _| call == Call::Close && sequence.0 == 1,
    ];
    for (call, rule) in CALLS.into_iter().zip(rules) {
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let mut engine = engine(Faulty::make(model(), Failure::Panics, rule));
            let (stats, reported) = run(&mut engine, drafters);
            // When it is closed the request has ended, so the drafter is not dropped.
            let failures = usize::from(call != Call::Close);
            assert_eq!(reported.len(), failures, "{call:?}: {reported:?}");
            assert!(reported.iter().all(|(id, drafter, text)| (id.0, *drafter) == (1, 0) && text.contains(PLANNED)));
            for (i, stats) in stats.iter().enumerate() {
                let found = (stats.drafters[0].failures, stats.drafters[1].failures);
                assert_eq!(found, (if i == 1 { failures } else { 0 }, 0), "{call:?} {drafters:?}");
                // Thirty tokens take at least five passes, so a drafter that was not dropped has many tokens accepted.
                assert!(i == 1 || stats.drafters[0].accepted >= 10, "{call:?} {drafters:?}: {:?}", stats.drafters[0]);
            }
            // The same requests again have other numbers, so the drafter does not fail.
            let (stats, reported) = run(&mut engine, drafters);
            assert!(
                reported.is_empty() && stats.iter().all(|stats| stats.drafters[0].accepted >= 10),
                "{call:?}: {reported:?}"
            );
        }
    }
}

#[test]
fn occasional_panics_do_not_change_the_outputs() {
    let rules: [fn(Call, SequenceId, usize) -> bool; 3] =
        [|_, _, calls| calls % 7 == 0, |_, _, calls| calls % 23 == 0, |call, _, _| call == Call::Offered];
    for rule in rules {
        let mut engine = engine(Faulty::make(model(), Failure::Panics, rule));
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let (stats, reported) = run(&mut engine, drafters);
            let failures: usize = stats.iter().map(|stats| stats.drafters[0].failures).sum();
            assert_eq!(failures, reported.len());
            assert!(stats.iter().all(|stats| stats.drafters[0].failures <= 1), "a dropped drafter is not called again");
            assert!(!reported.is_empty());
        }
    }
}

#[test]
fn a_drafter_that_exceeds_its_limits_is_dropped_and_its_allowed_offers_are_kept() {
    for (failure, expected) in [
        (Failure::Exceeds, "expected a tree of at most "),
        (Failure::UnknownToken, "expected tokens below 7 (the vocabulary), found 4000000000"),
        (Failure::Probes, " probes of "),
    ] {
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let rule = |call, sequence: SequenceId, _| call == Call::Draft && sequence.0 == 2;
            let mut engine = engine(Faulty::make(model(), failure, rule));
            let (stats, reported) = run(&mut engine, drafters);
            let [(id, 0, message)] = &reported[..] else { panic!("{failure:?} {drafters:?}: {reported:?}") };
            assert!(id.0 == 2 && message.contains(expected), "{message}");
            let failures: Vec<usize> = stats.iter().map(|stats| stats.drafters[0].failures).collect();
            assert_eq!(failures, [0, 0, 1, 0]);
            assert!(stats.iter().all(|stats| stats.drafted <= 5 * stats.drafts));
        }
    }
}

/// The law under *rejection* with drafters that fail while they draw, alone and together with another drafter.
#[test]
fn failures_keep_the_law() {
    fn draft(table: &Table, seed: u64) -> Box<dyn Drafter> {
        let toy = ToyExecutor::new(Table::dense(table.vocabulary(), 2, seed), 2, 50, 8);
        Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy))))
    }
    let faulty = [
        Registered {
            name: "one that exceeds its room",
            make: |t| Faulty::make(draft(t, 5), Failure::Exceeds, |call, _, _| call == Call::Draft),
        },
        Registered {
            name: "one that panics after its offers",
            make: |t| Faulty::make(draft(t, 5), Failure::Panics, |call, _, calls| call == Call::Offered && calls > 4),
        },
        Registered {
            name: "one that offers unknown tokens",
            make: |t| {
                Faulty::make(draft(t, 5), Failure::UnknownToken, |call, _, calls| call == Call::Draft && calls > 4)
            },
        },
    ];
    let healthy = Registered { name: "a draft model", make: |t| draft(t, 6) };
    for seed in [21, 22] {
        let table = Table::dense(3, 2, seed);
        let case = Case {
            target: (seed, 3, 2),
            prompt: vec![1, 2, 1],
            sampling: Sampling::default(),
            seed: 0,
            tokens_max: 4,
            form: Form::Free,
        };
        for promise in [Promise::Rejection, Promise::Block] {
            let setting = Setting { promise, budget: BudgetKind::Fixed { nodes: 2 }, ..Setting::plain() };
            for drafter in &faulty {
                for drafters in [&[drafter][..], &[drafter, &healthy], &[&healthy, drafter]] {
                    let error = law_error(&table, &case, &setting, drafters);
                    assert!(error < 1e-6, "{} of {} under {promise:?}: {error}", drafter.name, drafters.len());
                }
            }
        }
    }
}
