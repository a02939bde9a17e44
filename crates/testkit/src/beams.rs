//! A naive beam search over a table, with which that of the engine is compared: every step sorts all continuations of
//! all hypotheses, and nothing is cached.

use foretoken_engine::{Beam, BeamSearch, EarlyStopping, Token};
use foretoken_speculation::{Sampling, log_probability};

use crate::table::Table;

/// A hypothesis that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its tokens, the end token included.
    pub tokens: Vec<Token>,
    /// The sum of their scores.
    pub log_probability: f64,
    /// The sum divided by the length to the power of the length penalty.
    pub score: f64,
}

impl Found {
    /// The hypotheses that an engine has found, to be compared.
    pub fn all(beams: &[Beam]) -> Vec<Found> {
        let found = |beam: &Beam| Found {
            tokens: beam.tokens.clone(),
            log_probability: beam.log_probability,
            score: beam.score,
        };
        beams.iter().map(found).collect()
    }
}

/// The scores of all tokens after these: log-probabilities with the settings that change single logits.
fn scores(table: &Table, sampling: &Sampling, tokens: &[Token], generated: usize) -> Vec<f32> {
    let logits = table.logits(tokens);
    let score = |token: Token| {
        let is_end = sampling.end_tokens.contains(&token);
        if sampling.banned_tokens.contains(&token) || is_end && generated < sampling.tokens_min {
            return f32::NEG_INFINITY;
        }
        let biases = sampling.logit_bias.iter().filter(|(other, _)| *other == token);
        let score = biases.fold(log_probability(&logits, token), |score, (_, bias)| score + bias);
        match tokens.iter().filter(|other| **other == token).count() {
            0 => score,
            count => {
                let penalty = sampling.repetition_penalty;
                let repeated = if score < 0.0 { score * penalty } else { score / penalty };
                repeated - count as f32 * sampling.frequency_penalty - sampling.presence_penalty
            }
        }
    };
    (0..table.vocabulary() as Token).map(score).collect()
}

/// The hypotheses that a beam search finds after a prompt, the best first. `len_max`: the most tokens of one.
pub fn search(
    table: &Table,
    sampling: &Sampling,
    prompt: &[Token],
    settings: &BeamSearch,
    len_max: usize,
) -> Vec<Found> {
    let BeamSearch { beams, length_penalty, early_stopping, returned } = *settings;
    let score = |sum: f64, len: usize| sum / (len as f64).powf(f64::from(length_penalty));
    let (mut running, mut found) = (vec![(Vec::new(), 0.0)], Vec::<Found>::new());
    for len in 1..=len_max {
        let mut all: Vec<(Vec<Token>, f64)> = Vec::new();
        for (text, sum) in &running {
            let after = scores(table, sampling, &[prompt, text].concat(), len - 1);
            let possible = (0..).zip(after).filter(|(_, score)| *score > f32::NEG_INFINITY);
            all.extend(possible.map(|(token, score)| ([&text[..], &[token]].concat(), sum + f64::from(score))));
        }
        // Stable, so of ties the better hypothesis and then the lower token.
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(beams * (1 + sampling.end_tokens.len()).max(2));
        let ends = |text: &[Token]| len == len_max || sampling.end_tokens.contains(&text[len - 1]);
        if !(early_stopping == EarlyStopping::True && found.len() == beams) {
            let ended = all.iter().take(beams).filter(|(text, _)| ends(text));
            found.extend(ended.map(|(tokens, sum)| Found {
                tokens: tokens.clone(),
                log_probability: *sum,
                score: score(*sum, len),
            }));
            found.sort_by(|a, b| b.score.total_cmp(&a.score));
            found.truncate(beams);
        }
        running = all.into_iter().filter(|(text, _)| !ends(text)).take(beams).collect();
        let Some((_, best)) = running.first() else { break };
        let at = if early_stopping == EarlyStopping::Never && length_penalty > 0.0 { len_max } else { len };
        let no_better = || found.last().is_some_and(|worst| score(*best, at) <= worst.score);
        if found.len() == beams && (early_stopping == EarlyStopping::True || no_better()) {
            break;
        }
    }
    found.truncate(returned);
    found
}
