//! Tests of draft models with another vocabulary, translated and over shared tokens: laws and drafts.

use foretoken_drafters::{ModelDrafter, SharedScorer, TranslatedDrafter};
use foretoken_engine::Race;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Ask, DraftTree, Drafter, Opening, Probes, Promise, Sampling, SequenceId, Token};
use foretoken_testkit::table::{Table, TableScorer, mix};
use foretoken_testkit::vocabulary::{spaced_translator, translator};

use crate::harness::Setup;
use crate::{PROMISES, PROMPT, TOLERANCE, fixed, lookup};

/// The drafter that translates text; greedy at temperature 0.
fn text(assistant: &Table, target: usize, temperature: f32, p_min: f32) -> Box<dyn Drafter> {
    let scorer = TableScorer::new(assistant.clone());
    let mut drafter = TranslatedDrafter::new(scorer, translator(target, assistant.vocabulary(), 10));
    let assistant = &mut drafter.assistant;
    (assistant.settings.temperature, assistant.settings.p_min, assistant.depth_max) =
        (Some(temperature), Some(p_min), 3);
    Box::new(drafter)
}

/// The drafter with a law over shared tokens.
fn shared(assistant: &Table, target: usize, p_min: f32) -> Box<dyn Drafter> {
    let translator = translator(target, assistant.vocabulary(), 10);
    let mut drafter = ModelDrafter::new(SharedScorer::new(TableScorer::new(assistant.clone()), translator));
    drafter.settings.p_min = Some(p_min);
    Box::new(drafter)
}

#[test]
fn the_law_is_the_targets_whatever_the_assistants_words_are() {
    let sampling = Sampling::default();
    // a, b, ab for the target; b, a, ba for the assistant, and also c, which the target does not have.
    for (words, assistant_words, seeds) in [(3, 3, 2), (3, 4, 1), (4, 5, 1)] {
        for seed in 0..seeds {
            let target = Table::seeded(words, 2, seed);
            let assistant = Table::dense(assistant_words, 1, seed + 100);
            for promise in PROMISES {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, if words == 3 { 3 } else { 2 });
                for p_min in [0.0, 0.4] {
                    let error = setup.error(|| vec![text(&assistant, words, 0.0, p_min)], fixed(2));
                    assert!(error < TOLERANCE, "{promise:?} text, greedy, {words} words, seed {seed}: {error}");
                    let error = setup.error(|| vec![text(&assistant, words, 1.0, p_min)], fixed(2));
                    assert!(error < TOLERANCE, "{promise:?} text, by chance, {words} words, seed {seed}: {error}");
                    let error = setup.error(|| vec![shared(&assistant, words, p_min)], fixed(3));
                    assert!(error < TOLERANCE, "{promise:?} shared tokens, {words} words, seed {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn two_ways_and_a_lookup_in_one_tree_change_nothing() {
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    for seed in 0..3 {
        let target = Table::dense(3, 2, seed);
        let assistant = Table::seeded(3, 2, seed + 40);
        for promise in PROMISES {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 3);
            let drafters = || vec![text(&assistant, 3, 0.0, 0.0), shared(&assistant, 3, 0.0), lookup()];
            let error = setup.error(drafters, fixed(3));
            assert!(error < TOLERANCE, "{promise:?} seed {seed}: {error}");
        }
    }
}

#[test]
fn an_assistant_that_adds_spaces_changes_nothing() {
    let sampling = Sampling::default();
    for seed in 0..3 {
        let (target, assistant) = (Table::seeded(3, 2, seed), Table::seeded(7, 2, seed + 10));
        for promise in PROMISES {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 3);
            let error = setup.error(
                || {
                    let scorer = TableScorer::new(assistant.clone());
                    let drafter = ModelDrafter::new(SharedScorer::new(scorer.clone(), spaced_translator(3)));
                    vec![Box::new(TranslatedDrafter::new(scorer, spaced_translator(3))), Box::new(drafter)]
                },
                fixed(2),
            );
            assert!(error < TOLERANCE, "{promise:?} seed {seed}: {error}");
        }
    }
}

#[test]
fn an_assistant_that_agrees_is_accepted() {
    // The target writes only "ab"; the assistant has no such token and alternates "a" and "b".
    let target = Table::constant(&[0.0, 0.0, 1.0]);
    let assistant = Table::new(3, |tokens| {
        let (a, b) = (1, 0);
        let next = if tokens.last() == Some(&a) { b } else { a };
        (0..3).map(|token| if token == next { 0.0 } else { f32::NEG_INFINITY }).collect()
    });
    let sampling = Sampling::default();
    for promise in PROMISES {
        let setup = Setup::new(&target, &sampling, promise, &PROMPT, 1);
        let accepted = setup.expected_accepted(1, || vec![text(&assistant, 3, 0.0, 0.0)]);
        assert!((accepted - 1.0).abs() < 1e-12, "{promise:?}: {accepted} accepted");
    }
    // Over shared tokens it can only propose a and b, which the target never writes.
    let setup = Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 1);
    assert_eq!(setup.expected_accepted(2, || vec![shared(&assistant, 3, 0.0)]), 0.0);
}

/// The drafter's tree after these tokens.
fn draft(drafter: &mut dyn Drafter, tokens: &[Token], promise: Promise) -> DraftTree {
    let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
    let ask = Ask {
        promise,
        seed: 5,
        ..Ask::new(SequenceId(1), tokens, &sampling, Limits::nodes(4), &mut tree, &mut probes)
    };
    drafter.draft(&mut [ask], &mut Race);
    tree
}

#[test]
fn a_draft_depends_on_the_tokens_and_not_on_earlier_drafts() {
    let assistant = Table::seeded(9, 3, 31);
    type Make = fn(&Table) -> Box<dyn Drafter>;
    let makes: [Make; 3] =
        [|table| text(table, 11, 0.0, 0.0), |table| text(table, 11, 1.0, 0.2), |table| shared(table, 11, 0.0)];
    for (make, promise) in makes.iter().flat_map(|make| PROMISES.map(|promise| (make, promise))) {
        let mut drafter = make(&assistant);
        let (mut tokens, mut state, mut drafted) = (vec![0], 77, 0);
        drafter.open(&Opening::new(SequenceId(1), &tokens));
        for _ in 0..200 {
            state = mix(state);
            // As in the engine: back to the accepted tokens (or further), then on with others.
            let back = tokens.len().saturating_sub((state >> 8) as usize % 7).max(1);
            tokens.truncate(back);
            tokens.extend((0..1 + (state >> 16) % 6).map(|i| (mix(state + i) % 11) as Token));
            tokens.drain(60.min(tokens.len())..);
            let found = draft(drafter.as_mut(), &tokens, promise);
            let mut fresh = make(&assistant);
            fresh.open(&Opening::new(SequenceId(1), &tokens));
            let expected = draft(fresh.as_mut(), &tokens, promise);
            assert_eq!((found.tokens(), found.offers()), (expected.tokens(), expected.offers()), "{tokens:?}");
            drafted += found.len();
        }
        assert!(drafted > 100, "{drafted} tokens were drafted");
        drafter.close(SequenceId(1));
    }
}
