//! Drafters that fail: in every call, for one sequence or now and then, by panic or by doing what they may not do. The
//! texts are those of no drafter, neighbours keep theirs, and the failure is counted and told. (Executors that fail are
//! in `broken`.)

use std::collections::BTreeMap;
use std::panic;
use std::sync::Once;

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, Stats};
use foretoken_speculation::{
    Ask, Chance, Drafter, Needs, News, Opening, Promise, Proposal, Sampling, SequenceId, Token,
};
use foretoken_testkit::conform::{Case, Form, Registered, Setting, law_error};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// Where a drafter is when it fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Open,
    Draft,
    Offered,
    Observe,
    Close,
}

const CALLS: [Call; 5] = [Call::Open, Call::Draft, Call::Offered, Call::Observe, Call::Close];

/// What a drafter does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Panics,
    /// Offers two nodes more than there is room for.
    Exceeds,
    /// Offers a token that does not exist.
    UnknownToken,
    /// Asks for probes without end.
    Probes,
}

/// A drafter that does something wrong where a rule says so: in which call, for whom, the how-manieth of all calls.
struct Faulty {
    inner: Box<dyn Drafter>,
    wrong: Wrong,
    fails: fn(Call, SequenceId, usize) -> bool,
    calls: usize,
}

const PLANNED: &str = "a planned failure";

/// Keeps planned failures quiet; others are shown as always.
fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            if !text.is_some_and(|text| text.contains(PLANNED) || text.contains(" probes of ")) {
                loud(info);
            }
        }));
    });
}

impl Faulty {
    fn make(inner: Box<dyn Drafter>, wrong: Wrong, fails: fn(Call, SequenceId, usize) -> bool) -> Box<Faulty> {
        quietly();
        Box::new(Faulty { inner, wrong, fails, calls: 0 })
    }

    fn is_wrong(&mut self, call: Call, sequence: SequenceId) -> bool {
        self.calls += 1;
        (self.fails)(call, sequence, self.calls)
    }

    fn meet(&mut self, call: Call, sequence: SequenceId) {
        if self.is_wrong(call, sequence) && self.wrong == Wrong::Panics {
            panic!("{PLANNED} in {call:?} of {sequence:?}");
        }
    }

    fn draft_one(&mut self, ask: &mut Ask<'_>, chance: &mut dyn Chance) {
        let room = ask.limits.nodes_max;
        let wrong = self.is_wrong(Call::Draft, ask.sequence);
        match self.wrong {
            Wrong::Panics if wrong => panic!("{PLANNED} in a draft of {:?}", ask.sequence),
            Wrong::Exceeds if wrong => ask.limits.nodes_max += 2,
            Wrong::UnknownToken if wrong && ask.has_room() => {
                ask.tree.offer(None, 4_000_000_000, Proposal::Point, ask.source);
            }
            Wrong::Probes if wrong => (0..1000).for_each(|token| _ = ask.probes.ask(None, token % 3, ask.source)),
            _ => {}
        }
        self.inner.draft(std::slice::from_mut(ask), chance);
        if self.wrong == Wrong::Exceeds && wrong && ask.promise == Promise::Exact {
            while ask.tree.len() < room + 2 {
                let last = ask.tree.nodes().last();
                ask.tree.offer(last, 1, Proposal::Point, ask.source);
            }
        }
        self.meet(Call::Offered, ask.sequence);
    }
}

impl Drafter for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }
    fn needs(&self) -> Needs {
        Needs { probes_max: if self.wrong == Wrong::Probes { 3 } else { 0 }, ..Needs::default() }
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.meet(Call::Open, opening.sequence);
        self.inner.open(opening);
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.draft_one(ask, chance));
    }
    fn observe(&mut self, news: &[News<'_>]) {
        for news in news {
            self.meet(Call::Observe, news.sequence);
            self.inner.observe(&[*news]);
        }
    }
    fn close(&mut self, sequence: SequenceId) {
        self.meet(Call::Close, sequence);
        self.inner.close(sequence);
    }
}

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

/// A draft model that is mostly right: the target itself.
fn model() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(ToyExecutor::new(table(), 4, 400, 64)))))
}

/// An engine for four texts with this drafter and a lookup behind it.
fn engine(drafter: Box<dyn Drafter>) -> Engine {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 400, 64)), 4, usize::MAX);
    engine.add_drafter(drafter);
    engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
    engine
}

/// Four texts by these drafters, which must be the oracle's. Their statistics, and the failures that were told.
fn texts(engine: &mut Engine, drafters: &[u8]) -> (Vec<Stats>, Vec<(SequenceId, u8, String)>) {
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
    let (mut written, mut stats, mut told) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new(), Vec::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let bits = emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits()));
                    written.entry(*sequence).or_default().extend(bits);
                }
                Event::DrafterFailed { sequence, drafter, message } => {
                    told.push((*sequence, *drafter, message.clone()));
                }
                Event::Finished { sequence, stats: found, .. } => _ = stats.insert(*sequence, found.clone()),
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } => {}
            }
        }
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(written[id], decode(&table(), &Sampling::default(), i as u64, &prompts[i], 30), "{id:?}");
    }
    (ids.iter().map(|id| (*stats[id]).clone()).collect(), told)
}

#[test]
fn a_panic_for_one_text_drops_the_drafter_for_that_text_only() {
    let rules: [fn(Call, SequenceId, usize) -> bool; 5] = [
        |call, sequence, _| call == Call::Open && sequence.0 == 1,
        |call, sequence, _| call == Call::Draft && sequence.0 == 1,
        |call, sequence, _| call == Call::Offered && sequence.0 == 1,
        |call, sequence, _| call == Call::Observe && sequence.0 == 1,
        |call, sequence, _| call == Call::Close && sequence.0 == 1,
    ];
    for (call, rule) in CALLS.into_iter().zip(rules) {
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let mut engine = engine(Faulty::make(model(), Wrong::Panics, rule));
            let (stats, told) = texts(&mut engine, drafters);
            // Closing is the end of the text: nothing is left to be dropped.
            let failures = usize::from(call != Call::Close);
            assert_eq!(told.len(), failures, "{call:?}: {told:?}");
            assert!(told.iter().all(|(id, drafter, text)| (id.0, *drafter) == (1, 0) && text.contains(PLANNED)));
            for (i, stats) in stats.iter().enumerate() {
                let found = (stats.drafters[0].failures, stats.drafters[1].failures);
                assert_eq!(found, (if i == 1 { failures } else { 0 }, 0), "{call:?} {drafters:?}");
                // Thirty tokens, six a pass at best: a drafter that went on was needed in many passes.
                assert!(i == 1 || stats.drafters[0].accepted >= 10, "{call:?} {drafters:?}: {:?}", stats.drafters[0]);
            }
            // The same engine takes the same requests again; their numbers are others, so nothing fails now.
            let (stats, told) = texts(&mut engine, drafters);
            assert!(
                told.is_empty() && stats.iter().all(|stats| stats.drafters[0].accepted >= 10),
                "{call:?}: {told:?}"
            );
        }
    }
}

#[test]
fn panics_now_and_then_change_no_text() {
    let rules: [fn(Call, SequenceId, usize) -> bool; 3] =
        [|_, _, calls| calls % 7 == 0, |_, _, calls| calls % 23 == 0, |call, _, _| call == Call::Offered];
    for rule in rules {
        let mut engine = engine(Faulty::make(model(), Wrong::Panics, rule));
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let (stats, told) = texts(&mut engine, drafters);
            let failures: usize = stats.iter().map(|stats| stats.drafters[0].failures).sum();
            assert_eq!(failures, told.len());
            assert!(stats.iter().all(|stats| stats.drafters[0].failures <= 1), "dropped is dropped");
            assert!(!told.is_empty());
        }
    }
}

#[test]
fn who_goes_too_far_is_dropped_and_what_it_may_have_offered_stands() {
    for (wrong, says) in [
        (Wrong::Exceeds, "expected a tree of at most "),
        (Wrong::UnknownToken, "expected tokens below 7 (the vocabulary), found 4000000000"),
        (Wrong::Probes, " probes of "),
    ] {
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let rule = |call, sequence: SequenceId, _| call == Call::Draft && sequence.0 == 2;
            let mut engine = engine(Faulty::make(model(), wrong, rule));
            let (stats, told) = texts(&mut engine, drafters);
            let [(id, 0, message)] = &told[..] else { panic!("{wrong:?} {drafters:?}: {told:?}") };
            assert!(id.0 == 2 && message.contains(says), "{message}");
            let failures: Vec<usize> = stats.iter().map(|stats| stats.drafters[0].failures).collect();
            assert_eq!(failures, [0, 0, 1, 0]);
            assert!(stats.iter().all(|stats| stats.drafted <= 5 * stats.drafts));
        }
    }
}

/// The law under *rejection* with drafters that fail in the middle of drawing, alone and in company.
#[test]
fn failures_keep_the_law() {
    fn draft(table: &Table, seed: u64) -> Box<dyn Drafter> {
        let toy = ToyExecutor::new(Table::dense(table.vocabulary(), 2, seed), 2, 50, 8);
        Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy))))
    }
    let faulty = [
        Registered {
            name: "one that exceeds its room",
            make: |t| Faulty::make(draft(t, 5), Wrong::Exceeds, |call, _, _| call == Call::Draft),
        },
        Registered {
            name: "one that panics behind its offers",
            make: |t| Faulty::make(draft(t, 5), Wrong::Panics, |call, _, calls| call == Call::Offered && calls > 4),
        },
        Registered {
            name: "one that offers what does not exist",
            make: |t| Faulty::make(draft(t, 5), Wrong::UnknownToken, |call, _, calls| call == Call::Draft && calls > 4),
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
                for team in [&[drafter][..], &[drafter, &healthy], &[&healthy, drafter]] {
                    let error = law_error(&table, &case, &setting, team);
                    assert!(error < 1e-6, "{} of {} under {promise:?}: {error}", drafter.name, team.len());
                }
            }
        }
    }
}
