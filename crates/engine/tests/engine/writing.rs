//! Helpers that run requests, alone or together, and return their outputs.

use foretoken_engine::{Engine, Event, Race, Request, Stats};
use foretoken_speculation::{Chance, Token};

/// The output and the statistics of a request that runs alone with these random numbers.
pub(crate) fn write_alone(engine: &mut Engine, request: Request, chance: &mut dyn Chance) -> (Vec<Token>, Stats) {
    engine.submit(request).unwrap();
    let (mut tokens, mut stats) = (Vec::new(), None);
    while !engine.is_idle() {
        for event in engine.step(chance) {
            match event {
                Event::Tokens { emitted, .. } => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { stats: found, .. } => stats = Some((**found).clone()),
                _ => {}
            }
        }
    }
    (tokens, stats.expect("the request ends"))
}

/// The tokens of each request with the bits of their log-probabilities.
pub(crate) fn write(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<(Token, u32)>> {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut all = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            if let Event::Tokens { sequence, emitted } = event {
                let at = ids.iter().position(|id| id == sequence).unwrap();
                all[at].extend(emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits())));
            }
        }
    }
    all
}

/// A token with the bits of its log-probability (0 for the first of a prompt), and the most probable tokens there with
/// theirs.
pub(crate) type ScoredToken = (Token, u32, Vec<(Token, u32)>);

/// The output and the scored prompt of each of several requests that run together.
pub(crate) fn write_and_score(engine: &mut Engine, requests: &[Request]) -> Vec<(Vec<ScoredToken>, Vec<ScoredToken>)> {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut all = vec![(Vec::new(), Vec::new()); ids.len()];
    let scored_token = |token: Token, value: Option<f32>, top: &[(Token, f32)]| -> ScoredToken {
        (token, value.map_or(0, f32::to_bits), top.iter().map(|(token, value)| (*token, value.to_bits())).collect())
    };
    let at = |sequence: &_| ids.iter().position(|id| id == sequence).unwrap();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let written = emitted.iter().map(|one| scored_token(one.token, one.log_probability, &one.top));
                    all[at(sequence)].0.extend(written);
                }
                Event::PromptScored { sequence, scored } => {
                    let scored = scored.iter().map(|one| scored_token(one.token, one.log_probability, &one.top));
                    all[at(sequence)].1.extend(scored);
                }
                _ => {}
            }
        }
    }
    all
}
