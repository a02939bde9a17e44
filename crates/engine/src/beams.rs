//! Beam search: the most probable continuations of a prompt instead of one, as transformers' `generate` finds them.
//!
//! A request has a [`BeamSearch`]; a [`Beam`](crate::Beam) is one of the answers. The search itself (`search`) sees
//! scores and tokens only. The rows of its hypotheses are a tree behind the text that all of them share (`tree`),
//! in the pages of one sequence: a hypothesis that branches copies nothing, and drafted tokens are further rows of the
//! tree. `step/beams.rs` runs both.

mod draft;
mod rates;
mod search;
mod tree;

pub(crate) use draft::{BeamCheck, BeamStep, DraftedSteps};
pub(crate) use rates::{BeamRates, WIDTHS, width};
pub(crate) use search::{Ended, Hypothesis, Search, Writing};
pub(crate) use tree::{BeamTree, Compaction};

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
