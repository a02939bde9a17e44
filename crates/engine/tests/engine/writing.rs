//! What several requests write when they run together, to the bit.

use foretoken_engine::{Engine, Event, Race, Request};
use foretoken_speculation::Token;

/// Tokens and bits of their log-probabilities, text by text.
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
