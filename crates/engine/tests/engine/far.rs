//! Logits that lie far away: which settings need a row of them brought over, and which do not.

use std::sync::atomic::Ordering;

use foretoken_engine::{Engine, Race, Request};
use foretoken_speculation::Sampling;
use foretoken_testkit::conform;
use foretoken_testkit::far::FarExecutor;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// Rows of logits that a text of 30 tokens with these settings has brought over; the text is the oracle's.
fn brought(sampling: &Sampling, top_log_probabilities: usize) -> usize {
    let (table, prompt) = (Table::seeded(11, 3, 8), vec![3, 1, 4]);
    let far = FarExecutor::new(ToyExecutor::new(table.clone(), 4, 40, 64));
    let brought = far.brought();
    let mut engine = Engine::new(Box::new(far), 1, usize::MAX);
    let request = Request {
        tokens_max: Some(30),
        sampling: sampling.clone(),
        seed: 5,
        log_probabilities: true,
        top_log_probabilities,
        ..Request::new(prompt.clone())
    };
    let id = engine.submit(request).expect("it can run");
    let texts = conform::run(&mut engine, &mut Race);
    assert_eq!(texts[&id], decode(&table, sampling, 5, &prompt, 30), "{sampling:?}");
    brought.load(Ordering::Relaxed)
}

#[test]
fn the_largest_logits_decide_greedy_texts_and_those_of_a_top_k() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let top_k = Sampling { temperature: 0.8, top_k: 4, ..Sampling::default() };
    for sampling in [greedy.clone(), top_k.clone(), Sampling { top_p: 0.7, min_p: 0.02, ..top_k.clone() }] {
        for top_len in [0, 3, 6] {
            assert_eq!(brought(&sampling, top_len), 0, "{sampling:?}");
        }
    }
    // Everything else is decided by all tokens, or changes some before.
    for sampling in [
        Sampling::default(),
        Sampling { top_p: 0.9, ..Sampling::default() },
        Sampling { top_k: 11, ..Sampling::default() },
        Sampling { repetition_penalty: 1.2, ..greedy },
        Sampling { logit_bias: vec![(2, 1.0)], ..top_k },
    ] {
        assert!(brought(&sampling, 0) >= 30, "{sampling:?}");
    }
}
