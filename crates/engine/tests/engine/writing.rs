//! What a request writes by itself, and what several write when they run together, to the bit.

use foretoken_engine::{Engine, Event, Race, Request, Stats};
use foretoken_speculation::{Chance, Token};

/// What a request alone in an engine writes with this source of chance, and what its end tells.
pub(crate) fn write_alone(engine: &mut Engine, request: Request, chance: &mut dyn Chance) -> (Vec<Token>, Stats) {
    engine.submit(request).unwrap();
    let (mut text, mut told) = (Vec::new(), None);
    while !engine.is_idle() {
        for event in engine.step(chance) {
            match event {
                Event::Tokens { emitted, .. } => text.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { stats, .. } => told = Some((**stats).clone()),
                _ => {}
            }
        }
    }
    (text, told.expect("the request ends"))
}

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

/// A token with the bits of its log-probability (0 for the first of a prompt) and of the most probable ones there.
pub(crate) type Said = (Token, u32, Vec<(Token, u32)>);

/// What several requests write when they run together, and what is said of their prompts, text by text.
pub(crate) fn write_and_score(engine: &mut Engine, requests: &[Request]) -> Vec<(Vec<Said>, Vec<Said>)> {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut all = vec![(Vec::new(), Vec::new()); ids.len()];
    let said = |token: Token, value: Option<f32>, top: &[(Token, f32)]| -> Said {
        (token, value.map_or(0, f32::to_bits), top.iter().map(|(token, value)| (*token, value.to_bits())).collect())
    };
    let at = |sequence: &_| ids.iter().position(|id| id == sequence).unwrap();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let written = emitted.iter().map(|one| said(one.token, one.log_probability, &one.top));
                    all[at(sequence)].0.extend(written);
                }
                Event::PromptScored { sequence, scored } => {
                    let scored = scored.iter().map(|one| said(one.token, one.log_probability, &one.top));
                    all[at(sequence)].1.extend(scored);
                }
                _ => {}
            }
        }
    }
    all
}
