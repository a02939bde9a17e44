//! Tests of probes, rows that drafters ask for besides the tree: each drafter gets its own rows, and the outputs and
//! the other drafters are not affected.

use std::collections::BTreeMap;

use foretoken_drafters::{JacobiDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, FinishReason, Race, Request};
use foretoken_speculation::{Ask, Chance, Drafter, Needs, Promise, Sampling, SequenceId, StepOutput, Token};
use foretoken_testkit::conform::run;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;

fn table() -> Table {
    Table::seeded(7, 3, 21)
}

/// A drafter that asks for a random tree of probes, offers up to two tokens, and checks every row that it gets back.
struct Prober {
    probes_max: usize,
    salt: u64,
    /// For each sequence its length at the last draft, and for each probe the tokens from the root down to it.
    asked: BTreeMap<SequenceId, (usize, Vec<Vec<Token>>)>,
}

impl Prober {
    fn boxed(probes_max: usize, salt: u64) -> Box<dyn Drafter> {
        Box::new(Prober { probes_max, salt, asked: BTreeMap::new() })
    }
}

impl Drafter for Prober {
    fn name(&self) -> &str {
        "prober"
    }

    fn needs(&self) -> Needs {
        Needs { probes_max: self.probes_max, ..Needs::default() }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let mut state = mix(ask.position() ^ self.salt << 32);
            let mut paths: Vec<Vec<Token>> = Vec::new();
            let first = ask.probes.len();
            for _ in 0..ask.probes.room().min(state as usize % (self.probes_max + 1)) {
                state = mix(state);
                let parent = (state >> 8) as usize % (paths.len() + 1);
                let token = ((state >> 40) % 7) as Token;
                let above = parent.checked_sub(1);
                ask.probes.ask(above.map(|above| first + above), token, ask.source);
                let path = above.map_or(Vec::new(), |above| paths[above].clone());
                paths.push([&path[..], &[token]].concat());
            }
            for offer in 0..state % 3 {
                let token = ((state >> 20) + offer) % 7;
                if ask.has_room() {
                    ask.tree.offer(None, token as Token, foretoken_speculation::Proposal::Point, ask.source);
                }
            }
            self.asked.insert(ask.sequence, (ask.tokens.len(), paths));
        }
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            let (len, paths) = self.asked.remove(&output.sequence).unwrap_or_default();
            assert_eq!(output.probes.len(), paths.len(), "rows for probes");
            for (row, path) in output.probes.iter().zip(paths) {
                let expected = table().logits(&[&output.tokens[..len], &path].concat());
                assert_eq!(row, &expected, "after {path:?}");
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        self.asked.remove(&sequence);
    }
}

fn sampled(i: u64, drafters: Vec<u8>, budget: BudgetKind, temperature: f32) -> Request {
    Request {
        tokens_max: Some(5 + (i as usize * 7) % 30),
        sampling: Sampling { temperature, ..Sampling::default() },
        seed: i,
        drafters,
        budget,
        log_probabilities: true,
        ..Request::new((0..1 + i * 5 % 11).map(|j| (mix(i * 50 + j) % 7) as Token).collect())
    }
}

#[test]
fn sequences_with_and_without_probes_share_passes_and_get_the_oracles_bits() {
    let budgets = [BudgetKind::Fixed { nodes: 3 }, BudgetKind::Heuristic { nodes_max: 9 }];
    let drafter_sets: [&[u8]; 8] = [&[], &[0], &[1], &[2], &[3, 4], &[0, 2, 1], &[4, 1, 3], &[1, 0]];
    for (rows_max, page_len) in [(3, 4), (6, 1), (11, 2), (17, 3), (40, 16), (200, 4)] {
        for budget in &budgets {
            let mut engine =
                Engine::new(Box::new(ToyExecutor::new(table(), page_len, 600 / page_len, rows_max)), 8, 90);
            engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
            engine.add_drafter(Box::new(JacobiDrafter::default()));
            engine.add_drafter(Box::new(JacobiDrafter::new(2, 3, 2)));
            engine.add_drafter(Prober::boxed(6, 1));
            engine.add_drafter(Prober::boxed(3, 2));
            let requests: Vec<Request> = (0..16u64)
                .map(|i| {
                    let temperature = [0.0, 0.8, 1.3][i as usize % 3];
                    sampled(i, drafter_sets[i as usize % 8].to_vec(), budget.clone(), temperature)
                })
                .collect();
            let ids: Vec<SequenceId> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
            let mut outputs: BTreeMap<SequenceId, Vec<(Token, u32)>> = BTreeMap::new();
            while !engine.is_idle() {
                for event in engine.step(&mut Race) {
                    match event {
                        Event::Tokens { sequence, emitted } => {
                            let bits = emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits()));
                            outputs.entry(*sequence).or_default().extend(bits);
                        }
                        // The prober panics if a row is wrong, which is reported as this event.
                        Event::DrafterFailed { message, .. } => panic!("{rows_max} rows: {message}"),
                        _ => {}
                    }
                }
            }
            for (request, id) in requests.iter().zip(ids) {
                let tokens_max = request.tokens_max.unwrap();
                let expected = decode(&table(), &request.sampling, request.seed, &request.prompt, tokens_max);
                assert_eq!(
                    outputs[&id], expected,
                    "{rows_max} rows, pages of {page_len}, drafters {:?}",
                    request.drafters
                );
            }
        }
    }
}

#[test]
fn probes_stay_within_the_context_and_the_output_fills_it() {
    for pages in 3..9 {
        for nodes in [1, 2, 5] {
            let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, pages, 64)), 1, usize::MAX);
            engine.add_drafter(Box::new(JacobiDrafter::new(2, 3, 2)));
            engine.add_drafter(Prober::boxed(5, 3));
            let request = Request { tokens_max: None, ..sampled(2, vec![0, 1], BudgetKind::Fixed { nodes }, 1.0) };
            let (prompt, context) = (request.prompt.clone(), engine.context());
            assert!(prompt.len() < context);
            let id = engine.submit(request.clone()).unwrap();
            let (mut tokens, mut reason) = (Vec::new(), None);
            while !engine.is_idle() {
                for event in engine.step(&mut Race) {
                    match event {
                        Event::Tokens { sequence, emitted } if *sequence == id => {
                            tokens.extend(emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits())));
                        }
                        Event::Finished { reason: why, .. } => reason = Some(why.clone()),
                        Event::DrafterFailed { message, .. } => panic!("{message}"),
                        _ => {}
                    }
                }
            }
            assert_eq!(reason, Some(FinishReason::Context));
            let expected = decode(&table(), &request.sampling, request.seed, &prompt, context - prompt.len());
            assert_eq!(tokens, expected, "{pages} pages, {nodes} nodes");
        }
    }
}

#[test]
fn jacobi_drafts_several_tokens_per_pass_of_a_periodic_target() {
    // Each token is always followed by its successor, which the prompt does not show.
    let target = Table::new(9, |tokens| {
        let next = (tokens[tokens.len() - 1] as usize + 1) % 9;
        (0..9).map(|token| if token == next { 0.0 } else { f32::NEG_INFINITY }).collect()
    });
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(target.clone(), 4, 100, 64)), 1, usize::MAX);
        let mut drafter = JacobiDrafter::default();
        drafter.pool_from_text = false;
        engine.add_drafter(Box::new(drafter));
        let request = Request {
            tokens_max: Some(200),
            drafters: vec![0],
            promise,
            budget: BudgetKind::Fixed { nodes: 16 },
            sampling: Sampling::default(),
            ..Request::new(vec![4, 1, 7])
        };
        engine.submit(request).unwrap();
        let mut passes = 0;
        let mut tokens = Vec::new();
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => tokens.extend(emitted.iter().map(|e| e.token)),
                    Event::Finished { stats, .. } => passes = stats.passes,
                    _ => {}
                }
            }
        }
        assert_eq!(tokens, (8..208).map(|token| token % 9).collect::<Vec<Token>>());
        assert!(passes < 100, "{promise:?}: {passes} passes for 200 tokens");
    }
}

#[test]
fn a_drafter_that_fails_after_asking_for_probes_does_not_affect_others() {
    struct Failing(Box<dyn Drafter>, usize);
    impl Drafter for Failing {
        fn name(&self) -> &str {
            "failing"
        }
        fn needs(&self) -> Needs {
            self.0.needs()
        }
        fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
            self.0.draft(asks, chance);
            self.1 += 1;
            assert!(self.1 != 3, "the third draft");
        }
        fn observe(&mut self, outputs: &[StepOutput<'_>]) {
            self.0.observe(outputs);
        }
        fn close(&mut self, _sequence: SequenceId) {}
    }
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 100, 40)), 1, usize::MAX);
    engine.add_drafter(Box::new(Failing(Prober::boxed(6, 1), 0)));
    engine.add_drafter(Prober::boxed(4, 2));
    let request = sampled(3, vec![0, 1], BudgetKind::Fixed { nodes: 3 }, 1.0);
    let id = engine.submit(request.clone()).unwrap();
    let outputs = run(&mut engine, &mut Race);
    let expected = decode(&table(), &request.sampling, request.seed, &request.prompt, request.tokens_max.unwrap());
    assert_eq!(outputs[&id], expected);
}
