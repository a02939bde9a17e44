//! Tests of the output law of a real network with draft heads under *rejection* and *block*, by enumeration: an EAGLE-3
//! head whose vocabulary is a part of the target's, in chains and in trees, and Medusa heads.
//!
//! A head draws from its own law, in which tokens outside its vocabulary have probability 0; the output's law must be
//! the target's nevertheless, up to rounding. Under *exact*, outputs are compared to the bit (`networks.rs`).

use std::path::Path;

use foretoken_engine::{BudgetKind, Engine, Request};
use foretoken_speculation::{Chance, Promise, Sampling, Token};
use foretoken_testkit::enumerator::enumerate;
use foretoken_testkit::network::{Head, Network};
use foretoken_testkit::table::{Joint, distance};

use crate::writing::write_alone;

/// Tokens of the target; the EAGLE-3 head has only the last three of them.
const TOKENS: usize = 5;
const PROMPT: [Token; 3] = [1, 0, 3];
const LEN: usize = 3;

fn network() -> Network {
    Network::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama"), TOKENS)
}

/// An engine whose only drafter is a head.
fn engine(kind: Head, split: Option<f32>) -> Engine {
    let mut engine = Engine::new(Box::new(network().load(4, 16)), 1, usize::MAX);
    let mut head = network().head(kind, 2, 5);
    head.settings.p_split = split;
    if kind == Head::Medusa {
        head.depth_max = 3;
    }
    engine.add_drafter(Box::new(head));
    engine
}

/// Writes an output as the engine's first request, and counts the accepted tokens.
fn write(
    engine: &mut Engine,
    (promise, sampling): (Promise, &Sampling),
    accepted: &mut usize,
    chance: &mut dyn Chance,
) -> Vec<Token> {
    engine.set_next_request(0);
    let request = Request {
        tokens_max: Some(LEN),
        sampling: sampling.clone(),
        seed: 9,
        promise,
        budget: BudgetKind::Fixed { nodes: 3 },
        drafters: vec![0],
        ..Request::new(PROMPT.to_vec())
    };
    let (tokens, stats) = write_alone(engine, request, chance);
    *accepted += stats.drafters[0].accepted;
    tokens
}

#[test]
fn outputs_have_the_targets_law_whatever_the_vocabulary_of_a_head() {
    let samplings = [Sampling::default(), Sampling { temperature: 1.5, top_k: 4, ..Sampling::default() }];
    let table = network().table();
    for promise in [Promise::Rejection, Promise::Block] {
        for (kind, split) in [(Head::Layers, None), (Head::Layers, Some(0.1)), (Head::Medusa, None)] {
            for sampling in &samplings {
                let (mut engine, mut accepted) = (engine(kind, split), 0);
                let found: Joint = enumerate(|chance| write(&mut engine, (promise, sampling), &mut accepted, chance));
                let error = distance(&found, &table.plain(sampling, &PROMPT, LEN));
                assert!(error < 1e-6, "{promise:?} {kind:?} {split:?}: {error}");
                assert!(accepted > 0, "{promise:?} {kind:?} {split:?}: no drafted token was accepted");
            }
        }
    }
}
