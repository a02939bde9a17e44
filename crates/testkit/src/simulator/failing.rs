//! A drafter that sometimes fails, in any of its calls; no output may change.
//!
//! Whether it fails is a function of the tokens that it sees, so that runs are reproducible. Drafters that break the
//! rules without failing are tested with the engine (`engine/tests/engine/failing_drafters.rs`).

use std::panic::resume_unwind;

use foretoken_speculation::{Ask, BeamAsk, Chance, Drafter, Opening, Proposal, SequenceId, StepOutput, Token};

use crate::table::mix;

/// The message of its panics.
pub(super) const MESSAGE: &str = "it fails now and then";

/// The drafter that fails.
pub(super) struct Failing {
    /// The size of the target's vocabulary.
    pub(super) vocabulary: usize,
}

/// A hash of these tokens.
fn hash(tokens: &[Token]) -> u64 {
    tokens.iter().fold(1, |state, token| mix(state ^ u64::from(*token)))
}

/// Panics for one hash in `once_in`. Unlike an ordinary panic it prints nothing.
fn fail(hash: u64, once_in: u64) {
    if hash.is_multiple_of(once_in) {
        resume_unwind(Box::new(MESSAGE));
    }
}

impl Drafter for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn open(&mut self, opening: &Opening<'_>) {
        fail(hash(opening.prompt), 20);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let state = hash(ask.tokens);
            if ask.has_room() {
                let token = (state >> 30) % self.vocabulary as u64;
                ask.tree.offer(None, token as Token, Proposal::Point, ask.source);
            }
            fail(state, 12);
        }
    }

    fn drafts_beams(&self) -> bool {
        true
    }

    fn draft_beams(&mut self, ask: &mut BeamAsk<'_>) {
        let state = ask.rows.iter().fold(hash(ask.tokens), |state, token| mix(state ^ u64::from(*token)));
        for place in 0..ask.depth_max * ask.width {
            let hash = mix(state ^ place as u64);
            let rows = ask.rows.len() + ask.drafted.len();
            let row = rows - 1 - (hash >> 20) as usize % rows.min(2 * ask.width);
            ask.propose(row as u32, ((hash >> 40) % self.vocabulary as u64) as Token);
        }
        fail(state, 12);
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        outputs.iter().for_each(|output| fail(hash(output.tokens) >> 8, 20));
    }

    fn close(&mut self, sequence: SequenceId) {
        fail(mix(sequence.0), 4);
    }
}
