//! Tests with logits on another device: which settings need a row of them copied to the host, and which do not.

use std::sync::atomic::Ordering;

use foretoken_engine::{Engine, Race, Request};
use foretoken_speculation::Sampling;
use foretoken_testkit::conform;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::remote_logits::RemoteLogitsExecutor;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// Writes 30 tokens with these settings and checks them against the oracle's. Returns how many rows of logits were
/// copied to the host.
fn rows_fetched(sampling: &Sampling, top_log_probabilities: usize) -> usize {
    let (table, prompt) = (Table::seeded(11, 3, 8), vec![3, 1, 4]);
    let toy = RemoteLogitsExecutor::new(ToyExecutor::new(table.clone(), 4, 40, 64));
    let fetched = toy.rows_fetched();
    let mut engine = Engine::new(Box::new(toy), 1, usize::MAX);
    let request = Request {
        tokens_max: Some(30),
        sampling: sampling.clone(),
        seed: 5,
        log_probabilities: true,
        top_log_probabilities,
        ..Request::new(prompt.clone())
    };
    let id = engine.submit(request).expect("the request is valid");
    let outputs = conform::run(&mut engine, &mut Race);
    assert_eq!(outputs[&id], decode(&table, sampling, 5, &prompt, 30), "{sampling:?}");
    fetched.load(Ordering::Relaxed)
}

#[test]
fn greedy_and_top_k_sampling_need_only_the_largest_logits() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let top_k = Sampling { temperature: 0.8, top_k: 4, ..Sampling::default() };
    for sampling in [greedy.clone(), top_k.clone(), Sampling { top_p: 0.7, min_p: 0.02, ..top_k.clone() }] {
        for top_len in [0, 3, 6] {
            assert_eq!(rows_fetched(&sampling, top_len), 0, "{sampling:?}");
        }
    }
    // All other settings need the logits of all tokens, or change some logits first.
    for sampling in [
        Sampling::default(),
        Sampling { top_p: 0.9, ..Sampling::default() },
        Sampling { top_k: 11, ..Sampling::default() },
        Sampling { repetition_penalty: 1.2, ..greedy },
        Sampling { logit_bias: vec![(2, 1.0)], ..top_k },
    ] {
        assert!(rows_fetched(&sampling, 0) >= 30, "{sampling:?}");
    }
}
