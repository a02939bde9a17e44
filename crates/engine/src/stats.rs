//! Counts of one sequence: how many passes, how much was drafted, how much of it was right.

use std::time::Duration;

/// What one drafter did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrafterStats {
    /// Nodes it was the first to propose.
    pub drafted: usize,
    /// Of these, accepted ones.
    pub accepted: usize,
}

/// What happened to one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens emitted.
    pub emitted: usize,
    /// Of these, by the first pass that emitted any.
    pub emitted_first: usize,
    /// Passes of the target that emitted tokens.
    pub passes: usize,
    /// Passes of the target that only computed a part of the prompt.
    pub prompt_passes: usize,
    /// Of the emitting passes, those that had a draft.
    pub drafts: usize,
    /// Nodes of all draft trees.
    pub drafted: usize,
    /// Accepted nodes.
    pub accepted: usize,
    /// How many drafts had 0, 1, 2, ... accepted nodes.
    pub accepted_lens: Vec<usize>,
    /// One a drafter of the engine.
    pub drafters: Vec<DrafterStats>,
    /// From submission to the first emitted token: waiting for room counts.
    pub time_to_first_token: Duration,
    /// From submission to the last emitted token.
    pub time: Duration,
}

impl Stats {
    /// 1 + accepted / drafts, over passes that had a draft; 1 without any.
    pub fn mean_accepted_len(&self) -> f64 {
        if self.drafts == 0 { 1.0 } else { 1.0 + self.accepted as f64 / self.drafts as f64 }
    }

    /// Emitted tokens over passes; plain decoding gives 1.
    pub fn tokens_per_pass(&self) -> f64 {
        if self.passes == 0 { 0.0 } else { self.emitted as f64 / self.passes as f64 }
    }

    /// Accepted over drafted tokens; `None` if nothing was drafted.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Tokens after the first emitting pass, over the time that they took; `None` if there are none.
    ///
    /// The first pass may emit several tokens and computes the prompt; both would make the rate mean something else.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.time.saturating_sub(self.time_to_first_token).as_secs_f64();
        let tokens = self.emitted - self.emitted_first;
        (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}
