//! Beam search: the most probable continuations of a prompt instead of one.
//!
//! What is asked for ([`BeamSearch`]) and what is answered ([`Beam`]).

use foretoken_speculation::Token;

use crate::output::FinishReason;

/// A beam search, with the names and the meaning of transformers' `generate` (5.24, `_beam_search`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// `num_beams`: how many hypotheses are continued at each step, at least 2.
    pub beams: usize,
    /// `length_penalty`: a finished hypothesis scores its log-probability divided by its generated tokens, the end
    /// token included, to the power of this. Above 0 longer hypotheses are favoured; 0 is off.
    pub length_penalty: f32,
    /// `early_stopping`: when to stop.
    pub early_stopping: EarlyStopping,
    /// `num_return_sequences`: how many hypotheses are returned, 1 to `beams`.
    pub returned: usize,
}

impl BeamSearch {
    /// This many beams, with transformers' defaults: a length penalty of 1, [`EarlyStopping::False`], and one
    /// hypothesis returned.
    pub fn new(beams: usize) -> Self {
        Self { beams, length_penalty: 1.0, early_stopping: EarlyStopping::False, returned: 1 }
    }
}

/// When a beam search stops that has as many finished hypotheses as beams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// At once.
    True,
    /// When the most probable running beam, divided by the length penalty at its current length, is no better than the
    /// worst finished one.
    #[default]
    False,
    /// As `False`, but with the length penalty at the greatest possible length if it favours longer hypotheses: then
    /// none that could be better is missed.
    Never,
}

/// One hypothesis of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct Beam {
    /// The generated tokens, the end token included.
    pub tokens: Vec<Token>,
    /// Their text, up to a stop string; empty without a tokenizer.
    pub text: String,
    /// The log-probability divided by the number of tokens to the power of the length penalty.
    pub score: f64,
    /// The sum of the tokens' log-probabilities, each after penalties, bias and bans, which are applied to the
    /// logarithm of the model's law and not normalized again.
    pub log_probability: f64,
    /// Why it ended.
    pub reason: FinishReason,
}
