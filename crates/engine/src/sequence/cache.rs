//! The cache state of a sequence: its cached rows and their pages, and what was reported of them.

use crate::pages::SequencePages;

/// Whether a sequence is in its prefill or decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// More rows are missing than the pending tokens': they may be computed in several passes.
    Prefill,
    /// All rows but those of the pending tokens are cached: each pass emits tokens.
    Decode,
}

/// The cached rows of a sequence.
pub(crate) struct SequenceCache {
    /// The number of leading tokens that have cached rows.
    pub(crate) cached: usize,
    pub(crate) phase: Phase,
    pub(crate) pages: SequencePages,
    /// Positions of the prompt at which recurrent states are saved, ascending: later prompts may diverge there.
    pub(crate) checkpoints: Vec<usize>,
    /// The number of leading tokens whose hidden states its drafters have observed or do not need, if they need any.
    pub(crate) hidden_observed: usize,
    /// The number of leading tokens of the prompt that were scored, if the request asks for it.
    pub(crate) scored: usize,
}

impl SequenceCache {
    pub(super) fn new(prompt_len: usize) -> Self {
        Self {
            cached: 0,
            phase: if prompt_len == 1 { Phase::Decode } else { Phase::Prefill },
            pages: SequencePages::default(),
            checkpoints: Vec::new(),
            hidden_observed: 0,
            scored: 0,
        }
    }

    /// The next position at which states are saved.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        self.checkpoints.iter().copied().find(|at| *at > self.cached)
    }
}
