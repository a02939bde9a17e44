//! Hidden states: those that a network outputs, and those that a network reads besides its tokens.
//!
//! A *head* (Li et al. 2024, EAGLE; 2025, EAGLE-3; the multi-token prediction layers of DeepSeek-V3) drafts for a
//! target from the target's own hidden states. It is an executor like any other, with a cache and rows to score, whose
//! spans carry hidden states besides their tokens: the target's for accepted text, its own for drafted tokens. A row
//! reads a token and the hidden states of the position *before* it, of the target or of the row that it continues, and
//! predicts what follows the token. The first token of a sequence has no position before it and no row: row `i` of a
//! head reads token `i + 1` of the sequence and the target's hidden states of token `i`.
//!
//! The two kinds of hidden states usually differ in width: a head reads several layers of the target and projects them
//! to its own width, and its own hidden states are not projected. So a span says which kind it carries.
//!
//! `foretoken_drafters::HeadDrafter` keeps the target's hidden states until they are read.

use crate::error::CapacityProblem;

/// The hidden states that the rows of a span read besides their tokens, one for each row that is not computed, in
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HiddenInput<'a> {
    /// No hidden states: the network reads tokens alone.
    #[default]
    None,
    /// The target's hidden states, `[rows, target_layers.len() * target_width]`: for each row those of the position
    /// before it, the layers concatenated in the order of [`HiddenReads::target_layers`].
    Target(&'a [f32]),
    /// The network's own hidden states, `[rows, width]` ([`HiddenStates::width`]): for each row that of the row that it
    /// continues, after [`HiddenReads::own_layer`].
    Own(&'a [f32]),
}

/// The hidden states that a network can output ([`Batch::hidden_layers`](crate::Batch::hidden_layers)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenStates {
    /// Number of layers, which are numbered from 0; 0 if the network outputs no hidden states.
    pub layers: usize,
    /// Number of elements of the hidden state after each layer.
    pub width: usize,
}

/// The hidden states that a network reads besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenReads {
    /// The layers of the target whose hidden states it reads, in this order: at least one, and none twice.
    pub target_layers: Vec<usize>,
    /// Number of elements of the target's hidden state after each layer.
    pub target_width: usize,
    /// Its own layer whose hidden states it reads for drafted tokens.
    pub own_layer: usize,
}

impl HiddenReads {
    /// Number of elements of the target's hidden states for one row, of all these layers.
    pub(crate) fn row_width(&self) -> usize {
        self.target_layers.len() * self.target_width
    }

    /// The first inconsistent field, for a network that outputs the hidden states `own`.
    pub(crate) fn problem(&self, own: HiddenStates) -> Option<CapacityProblem> {
        let problem = |field, expected, found| CapacityProblem::new(field, expected, found);
        let Self { target_layers, target_width, own_layer } = self;
        let twice = target_layers.iter().enumerate().find(|(i, layer)| target_layers[..*i].contains(layer));
        if target_layers.is_empty() {
            return problem("hidden_in.target_layers", "at least one", "none".to_string());
        }
        if let Some((_, layer)) = twice {
            return problem("hidden_in.target_layers", "each once", format!("{layer} twice"));
        }
        if *target_width == 0 {
            return problem("hidden_in.target_width", "at least 1", "0".to_string());
        }
        if *own_layer >= own.layers || own.width == 0 {
            let expected = format!("a layer that hidden has, {own:?}");
            return problem("hidden_in.own_layer", &expected, own_layer.to_string());
        }
        None
    }
}
