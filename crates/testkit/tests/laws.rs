//! Losslessness by enumeration: every test walks every outcome of every draw and coin (see `enumerator`), and compares
//! the probability of every text under drafter, budget and verifier together with that under plain decoding.
//!
//! The tolerance is for rounding only. Canaries are injected faults, each of which must cause a thousand times as much.

#[path = "laws/canary.rs"]
mod canary;
#[path = "laws/drafter_sets.rs"]
mod drafter_sets;
#[path = "laws/drafts.rs"]
mod drafts;
#[path = "laws/harness.rs"]
mod harness;
#[path = "laws/lenience.rs"]
mod lenience;
#[path = "laws/reference.rs"]
mod reference;
#[path = "laws/requests.rs"]
mod requests;
#[path = "laws/shapes.rs"]
mod shapes;
#[path = "laws/transcript.rs"]
mod transcript;
#[path = "laws/translated.rs"]
mod translated;

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use foretoken_drafters::{HeadDrafter, ModelDrafter, NgramDrafter, NgramSource, RandomDrafter, SuffixDrafter};
use foretoken_speculation::budget::{Budget, Confidence, Fixed, Heuristic, Outcome, Threshold};
use foretoken_speculation::{DraftTree, Drafter, Evidence, Promise, Proposal, Sampling, Token, theory};
use foretoken_testkit::head::{HeadScorer, ToyHead, near};
use foretoken_testkit::table::{Table, TableScorer, mix};

use harness::{DrafterSet, Setup};
use reference::Fault;
use shapes::{Kind, Shaped, shapes};

const TOLERANCE: f64 = 1e-6;
/// A fault is detected if it causes an error above this.
const DETECTED: f64 = 1e-3;
const PROMISES: [Promise; 3] = [Promise::Exact, Promise::Rejection, Promise::Block];
const PROMPT: [Token; 4] = [1, 0, 1, 0];

fn model(table: &Table, depth_max: usize, p_min: f32) -> Box<dyn Drafter> {
    let mut drafter = ModelDrafter::new(TableScorer::new(table.clone()));
    (drafter.depth_max, drafter.settings.p_min) = (depth_max, Some(p_min));
    Box::new(drafter)
}

/// A draft model with a confidence rule from its second token on, and little room.
fn with_little_room(table: &Table, p_min: f32) -> Box<dyn Drafter> {
    let mut scorer = TableScorer::new(table.clone());
    scorer.room = PROMPT.len() + 2;
    let mut drafter = ModelDrafter::new(scorer);
    (drafter.settings.n_min, drafter.settings.p_min) = (Some(2), Some(p_min));
    Box::new(drafter)
}

fn lookup() -> Box<dyn Drafter> {
    Box::new(SuffixDrafter::lookup(1, 3, 10))
}

fn fixed(nodes: usize) -> impl Fn() -> Box<dyn Budget> {
    move || Box::new(Fixed(nodes))
}

/// All probability vectors with this denominator.
fn lattice(vocabulary: usize, denominator: usize) -> Vec<Vec<f64>> {
    if vocabulary == 1 {
        return vec![vec![denominator as f64]];
    }
    let mut all = Vec::new();
    for first in 0..=denominator {
        for rest in lattice(vocabulary - 1, denominator - first) {
            all.push([&[first as f64][..], &rest].concat());
        }
    }
    all
}

/// A table with one law after the prompt and another after everything longer.
fn two_rows(prompt_len: usize, first: &[f64], later: &[f64]) -> Table {
    let [first, later] = [first, later].map(foretoken_testkit::table::logits_of);
    Table::new(first.len(), move |tokens| if tokens.len() == prompt_len { first.clone() } else { later.clone() })
}

#[test]
fn a_model_drafts_chains_over_several_passes() {
    let sampling = Sampling::default();
    for (vocabulary, chain, len) in [(3, 1, 4), (3, 2, 4), (3, 3, 4), (4, 2, 3), (4, 3, 4)] {
        for seed in 0..2 {
            let target = Table::seeded(vocabulary, 2, seed);
            let draft = Table::seeded(vocabulary, 1, seed + 100);
            for promise in PROMISES {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, len);
                let error = setup.error(|| vec![model(&draft, chain, 0.0)], fixed(chain));
                assert!(error < TOLERANCE, "{promise:?} {vocabulary} tokens, chain of {chain}, seed {seed}: {error}");
            }
        }
    }
}

#[test]
fn a_head_drafts_chains_and_trees_over_several_passes() {
    let sampling = Sampling::default();
    for (p_split, len) in [(1.0, 5), (0.2, 4)] {
        for seed in 0..2 {
            let target = Table::seeded(3, 2, seed);
            let heads = [near(&target, 3), Table::seeded(3, 1, seed + 100)];
            for (promise, table) in PROMISES.into_iter().flat_map(|one| heads.iter().map(move |head| (one, head))) {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, len);
                let (texts, passes) = (Cell::new(0), RefCell::new(Vec::new()));
                let head = || -> DrafterSet<'_> {
                    let head = ToyHead::new(table.clone(), 2, 20, 3);
                    texts.set(texts.get() + 1);
                    passes.borrow_mut().push(head.pass_count());
                    let mut drafter = HeadDrafter::new(HeadScorer::new(head));
                    drafter.settings.p_split = Some(p_split);
                    vec![Box::new(drafter)]
                };
                let error = setup.error(head, fixed(3));
                assert!(error < TOLERANCE, "{promise:?} split {p_split}, seed {seed}: {error}");
                let passes: usize = passes.borrow().iter().map(|passes| passes.load(Ordering::Relaxed)).sum();
                assert!(passes > 2 * texts.get(), "{passes} passes of the head for {} texts", texts.get());
            }
        }
    }
}

#[test]
fn a_confidence_rule_and_a_heuristic_budget_change_nothing() {
    let sampling = Sampling::default();
    for seed in 0..6 {
        let target = Table::seeded(3, 2, seed);
        let draft = Table::seeded(3, 1, seed + 50);
        for promise in PROMISES {
            for p_min in [0.3, 0.6] {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
                let error = setup.error(|| vec![model(&draft, 3, p_min)], || Box::new(Heuristic::new(3)));
                assert!(error < TOLERANCE, "{promise:?} p-min {p_min}, seed {seed}: {error}");
                let error = setup.error(|| vec![with_little_room(&draft, p_min)], fixed(3));
                assert!(error < TOLERANCE, "{promise:?} p-min {p_min} after two, seed {seed}: {error}");
            }
        }
    }
}

/// A budget that has learned from five verified chains, so that it adapts while a few tokens are written.
fn trained(mut budget: Box<dyn Budget>) -> Box<dyn Budget> {
    for (i, confidence) in [0.9, 0.35, 0.6, 0.45, 0.5].into_iter().enumerate() {
        let mut tree = DraftTree::new();
        let evidence = Evidence::of_law(confidence, 1.0);
        let node = tree.suggest(None, 0, Proposal::Point, 0, evidence);
        budget.learn(&Outcome { tree: &tree, path: &[node][..i % 2] });
    }
    budget
}

#[test]
fn budgets_that_learn_from_confidence_change_nothing() {
    let sampling = Sampling::default();
    let budgets: [&dyn Fn() -> Box<dyn Budget>; 4] = [
        &|| Box::new(Confidence::new(3)),
        &|| trained(Box::new(Confidence::new(3))),
        &|| Box::new(Threshold::new(3)),
        &|| trained(Box::new(Threshold::new(2))),
    ];
    for seed in 0..4 {
        let target = Table::seeded(3, 2, seed);
        let draft = Table::seeded(3, 1, seed + 50);
        for promise in PROMISES {
            for (i, budget) in budgets.iter().enumerate() {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, 5);
                let error = setup.error(|| vec![model(&draft, 3, 0.0)], budget);
                assert!(error < TOLERANCE, "{promise:?} budget {i}, seed {seed}: {error}");
            }
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
            let error = setup.error(|| vec![lookup(), model(&draft, 3, 0.0)], budgets[1]);
            assert!(error < TOLERANCE, "{promise:?} two drafters, seed {seed}: {error}");
        }
    }
}

#[test]
fn drafters_that_repeat_each_other_change_nothing() {
    let sampling = Sampling::default();
    for seed in 0..4 {
        let target = Table::seeded(3, 2, seed);
        let drafts = [Table::seeded(3, 1, seed + 20), Table::seeded(3, 2, seed + 30)];
        for promise in PROMISES {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
            let [first, second] = &drafts;
            let drafter_sets: [&dyn Fn() -> DrafterSet<'static>; 4] = [
                &|| vec![lookup()],
                &|| vec![lookup(), model(first, 2, 0.0)],
                &|| vec![model(first, 2, 0.5), lookup()],
                &|| vec![model(first, 1, 0.0), model(second, 2, 0.0), lookup()],
            ];
            for (i, drafters) in drafter_sets.iter().enumerate() {
                // With a small budget the room of one drafter depends on what another has drawn.
                for nodes in [2, 4] {
                    let error = setup.error(drafters, fixed(nodes));
                    assert!(error < TOLERANCE, "{promise:?} set {i}, {nodes} nodes, seed {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn tables_and_random_tokens_draw_chains_and_trees_lawfully() {
    let sampling = Sampling { temperature: 1.3, ..Sampling::default() };
    let ngram = |branches_max: usize, source: NgramSource| -> Box<dyn Drafter> {
        let mut drafter = NgramDrafter::new(2, source);
        (drafter.branches_max, drafter.unigram_min) = (branches_max, 0.0);
        drafter.settings.p_split = Some(0.05);
        drafter.warm_up(&[0, 1, 2, 0, 2, 1, 1, 0], 0, None);
        Box::new(drafter)
    };
    let random = |forks: bool, support_max: usize| -> Box<dyn Drafter> {
        let mut drafter = RandomDrafter::new(3);
        (drafter.forks, drafter.support_max) = (forks, support_max);
        Box::new(drafter)
    };
    for seed in 0..2 {
        let target = Table::seeded(3, 2, seed);
        for promise in PROMISES {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 3);
            let drafter_sets: [&dyn Fn() -> DrafterSet<'static>; 7] = [
                &|| vec![Box::new(NgramDrafter::new(1, NgramSource::Text))],
                &|| vec![ngram(1, NgramSource::Both)],
                &|| vec![ngram(2, NgramSource::Corpus)],
                &|| vec![ngram(3, NgramSource::Text)],
                &|| vec![random(false, 9), ngram(1, NgramSource::Both)],
                &|| vec![random(true, 9)],
                &|| vec![ngram(2, NgramSource::Both), random(true, 2)],
            ];
            for (i, drafters) in drafter_sets.iter().enumerate() {
                let error = setup.error(drafters, fixed(3));
                assert!(error < TOLERANCE, "{promise:?} set {i}, seed {seed}: {error}");
                let error = setup.error_of_one_pass(4, drafters);
                assert!(error < TOLERANCE, "{promise:?} set {i} in one pass, seed {seed}: {error}");
            }
        }
    }
}

#[test]
fn random_tokens_are_accepted_as_often_as_in_theory() {
    let sampling = Sampling::default();
    let p = [0.5, 0.3, 0.15, 0.05];
    let target = Table::constant(&p);
    let setup = Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 1);
    let accepted = setup.expected_accepted(1, || vec![Box::new(RandomDrafter::new(4))]);
    let alpha: f64 = p.iter().map(|p| p.min(0.25)).sum();
    assert!((accepted - alpha).abs() < 1e-6, "{accepted} for {alpha}");
}

#[test]
fn sampling_settings_apply_position_by_position() {
    let settings = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { temperature: 0.7, top_k: 2, ..Sampling::default() },
        Sampling { top_p: 0.8, repetition_penalty: 1.5, penalty_window: Some(2), ..Sampling::default() },
        Sampling { presence_penalty: 0.5, frequency_penalty: 0.3, min_p: 0.2, ..Sampling::default() },
        Sampling { typical_p: 0.6, logit_bias: vec![(1, 1.0)], ..Sampling::default() },
        Sampling { tokens_min: 2, end_tokens: vec![2], banned_tokens: vec![0], ..Sampling::default() },
    ];
    for (i, sampling) in settings.iter().enumerate() {
        for seed in 0..3 {
            let target = Table::seeded(4, 2, seed);
            let draft = Table::seeded(4, 1, seed + 70);
            for promise in PROMISES {
                let setup = Setup::new(&target, sampling, promise, &PROMPT, 4);
                for temperature in [None, Some(0.3)] {
                    let drafter = || {
                        let mut drafter = ModelDrafter::new(TableScorer::new(draft.clone()));
                        drafter.settings.temperature = temperature;
                        vec![Box::new(drafter), lookup()]
                    };
                    let error = setup.error(drafter, fixed(3));
                    assert!(error < TOLERANCE, "{promise:?} settings {i}, seed {seed}: {error}");
                }
            }
        }
    }
}

/// Tests every shape of up to `nodes_max` nodes, in every kind, with laws from seeds, with and without zeros.
fn every_shape(vocabulary: usize, nodes_max: usize, kinds: &[Kind], promises: &[Promise]) {
    let sampling = Sampling::default();
    for nodes in 1..=nodes_max {
        for (i, shape) in shapes(nodes).iter().enumerate() {
            let seed = mix((nodes * 1000 + i) as u64);
            let [sparse, dense] = [Table::seeded, Table::dense];
            for [target, draft] in [[sparse, sparse], [dense, sparse], [dense, dense]] {
                let (target, draft) = (target(vocabulary, 2, seed), draft(vocabulary, 2, seed + 1));
                for (&kind, &promise) in
                    kinds.iter().flat_map(|kind| promises.iter().map(move |promise| (kind, promise)))
                {
                    let setup = Setup::new(&target, &sampling, promise, &PROMPT, nodes.min(3) + 1);
                    let drafter = || -> DrafterSet<'_> { vec![Box::new(Shaped { shape, kind, table: draft.clone() })] };
                    // The drafter fills its shape whatever the budget is, since mixed siblings may be more nodes.
                    let error = setup.error_of_one_pass(usize::MAX, drafter);
                    assert!(error < TOLERANCE, "{promise:?} {kind:?} {shape:?} over {vocabulary} tokens: {error}");
                }
            }
        }
    }
}

#[test]
fn shapes_are_counted_by_catalan() {
    let counts: Vec<usize> = (0..=6).map(|nodes| shapes(nodes).len()).collect();
    assert_eq!(counts, [1, 1, 2, 5, 14, 42, 132]);
}

#[test]
fn every_tree_of_up_to_six_nodes_with_drawn_siblings() {
    every_shape(3, 6, &[Kind::Drawn], &[Promise::Rejection]);
    every_shape(4, 6, &[Kind::Drawn], &[Promise::Rejection]);
}

#[test]
fn every_tree_of_up_to_six_nodes_with_point_siblings() {
    every_shape(3, 6, &[Kind::Point], &PROMISES);
    every_shape(4, 6, &[Kind::Point], &PROMISES);
}

#[test]
fn every_tree_of_up_to_four_nodes_in_every_kind() {
    every_shape(3, 4, &[Kind::Drawn, Kind::Mixed], &PROMISES);
    every_shape(4, 3, &[Kind::Drawn, Kind::Mixed], &PROMISES);
    every_shape(3, 2, &[Kind::Twice], &PROMISES);
}

/// Tests one node, and two siblings, for every p and q of a lattice; `later` is the target's law after the first token.
fn lattice_of_siblings(laws: &[Vec<f64>], later: &[f64]) {
    let (sampling, chain, fork) = (Sampling::default(), vec![None], vec![None, None]);
    for p in laws {
        let target = two_rows(PROMPT.len(), p, later);
        for q in laws {
            for (shape, kind) in
                [(&chain, Kind::Drawn), (&fork, Kind::Drawn), (&fork, Kind::Mixed), (&chain, Kind::Twice)]
            {
                for promise in PROMISES {
                    let setup = Setup::new(&target, &sampling, promise, &PROMPT, 2);
                    let table = Table::constant(q);
                    let error = setup.error_of_one_pass(usize::MAX, || -> DrafterSet<'_> {
                        vec![Box::new(Shaped { shape, kind, table: table.clone() })]
                    });
                    assert!(error < TOLERANCE, "{promise:?} {kind:?} p {p:?} q {q:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn the_whole_lattice_of_one_node_and_of_two_siblings() {
    lattice_of_siblings(&lattice(3, 4), &[0.0, 0.5, 0.5]);
    lattice_of_siblings(&lattice(4, 3), &[0.0, 0.5, 0.25, 0.25]);
}

/// Tests a chain of two, for every p and q of a lattice at both positions.
fn lattice_of_chains(laws: &[Vec<f64>]) {
    let sampling = Sampling::default();
    let shape = vec![None, Some(0)];
    for (first, later) in laws.iter().flat_map(|first| laws.iter().map(move |later| (first, later))) {
        let target = two_rows(PROMPT.len(), first, later);
        for (q_first, q_later) in laws.iter().flat_map(|first| laws.iter().map(move |later| (first, later))) {
            let table = two_rows(PROMPT.len(), q_first, q_later);
            for promise in [Promise::Rejection, Promise::Block] {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, 3);
                let drafter = || -> DrafterSet<'_> {
                    vec![Box::new(Shaped { shape: &shape, kind: Kind::Drawn, table: table.clone() })]
                };
                let error = setup.error_of_one_pass(usize::MAX, drafter);
                assert!(error < TOLERANCE, "{promise:?} p {first:?} {later:?} q {q_first:?} {q_later:?}: {error}");
            }
        }
    }
}

#[test]
fn the_whole_lattice_of_a_chain_of_two() {
    lattice_of_chains(&lattice(3, 3));
    lattice_of_chains(&lattice(4, 2));
}

#[test]
fn the_reference_implementation_agrees_where_it_has_no_fault() {
    assert!(canary::worst(Fault::None) < TOLERANCE);
}

#[test]
fn acceptance_is_that_of_the_theory() {
    let sampling = Sampling::default();
    let (p, q) = ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]);
    let (target, draft) = (Table::constant(&p), Table::constant(&q));
    let [p, q] = [&target, &draft].map(|table| table.law(&sampling, &PROMPT, 4, &[]));
    let alpha = theory::acceptance(&p, &q);
    assert!((alpha - 0.6).abs() < 1e-6);
    for gamma in 1..=4 {
        let setup = Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 1);
        let accepted = setup.expected_accepted(gamma, || vec![model(&draft, gamma, 0.0)]);
        let expected = theory::expected_tokens(alpha, gamma as u32) - 1.0;
        assert!((accepted - expected).abs() < 1e-9, "gamma {gamma}: {accepted} for {expected}");
    }
}

#[test]
fn a_tree_is_accepted_as_far_as_in_theory() {
    let sampling = Sampling::default();
    let target = Table::constant(&[0.4, 0.3, 0.2, 0.1]);
    let p = target.law(&sampling, &PROMPT, 4, &[]);
    let shape = vec![None, Some(0), Some(0), Some(1), None];
    // The tokens that `Shaped` proposes for this shape.
    let mut tree = DraftTree::new();
    let offer = |tree: &mut DraftTree, parent, token| tree.offer(parent, token, Proposal::Point, 0);
    let first = Some(offer(&mut tree, None, 0));
    let below = Some(offer(&mut tree, first, 1));
    for (parent, token) in [(first, 3), (below, 2), (None, 2)] {
        offer(&mut tree, parent, token);
    }
    let setup = Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 1);
    let shaped = || Shaped { shape: &shape, kind: Kind::Point, table: target.clone() };
    let accepted = setup.expected_accepted(usize::MAX, || vec![Box::new(shaped())]);
    let expected = theory::tree::expected_tokens(&tree, |node| p.probability(tree.token(node))) - 1.0;
    assert!((accepted - expected).abs() < 1e-9, "{accepted} for {expected}");
}

#[test]
fn block_verification_accepts_at_least_as_much_as_rejection() {
    let sampling = Sampling::default();
    let mut gain = 0.0_f64;
    for seed in 0..12 {
        let (target, draft) = (Table::dense(3, 2, seed), Table::dense(3, 1, seed + 60));
        let accepted = |promise| {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 1);
            setup.expected_accepted(3, || vec![model(&draft, 3, 0.0)])
        };
        let (one_by_one, block) = (accepted(Promise::Rejection), accepted(Promise::Block));
        assert!(block >= one_by_one - 1e-12, "seed {seed}: {block} is less than {one_by_one}");
        gain = gain.max(block - one_by_one);
    }
    assert!(gain > 0.01, "the largest gain is {gain}");
}
