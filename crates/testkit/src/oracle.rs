//! The naive decoder: it decodes one sequence, one token at a time, without cache, tree or engine.
//!
//! It is the specification of *exact*: the output of a request is a function of the model, the sampling law and the
//! seed. It shares with the engine only the law of a row and the race, which have their own tests.

use foretoken_engine::Race;
use foretoken_speculation::{Address, Chance, Context, Sampling, Scratch, Token, log_probability};

use crate::table::Table;

/// The output that a request must have: tokens with the bits of their log-probabilities.
pub fn decode(table: &Table, sampling: &Sampling, seed: u64, prompt: &[Token], tokens_max: usize) -> Vec<(Token, u32)> {
    let mut tokens = prompt.to_vec();
    let mut text = Vec::new();
    while text.len() < tokens_max {
        let logits = table.logits(&tokens);
        let context = Context { tokens: &tokens, prompt_len: prompt.len(), path: &[], constraint: None };
        // If no token is possible the output ends.
        let Some(law) = sampling.possible_law_with(&logits, &context, &mut Scratch::default()) else { break };
        let token = Race.pick(&law, Address::token(seed, tokens.len() as u64));
        text.push((token, log_probability(&logits, token).to_bits()));
        tokens.push(token);
        if sampling.end_tokens.contains(&token) {
            break;
        }
    }
    text
}

/// The most probable tokens of a row with the bits of their log-probabilities, found by sorting all: the most probable
/// first, of ties the lowest token, and no impossible ones.
pub fn top(logits: &[f32], count: usize) -> Vec<(Token, u32)> {
    let logit = |token: Token| logits[token as usize];
    let mut all: Vec<Token> = (0..logits.len() as Token).filter(|token| logit(*token) > f32::NEG_INFINITY).collect();
    all.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
    all.into_iter().take(count).map(|token| (token, log_probability(logits, token).to_bits())).collect()
}
