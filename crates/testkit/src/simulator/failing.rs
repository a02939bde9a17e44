//! A drafter that sometimes fails, in any of its calls; no output may change.
//!
//! Whether it fails is a function of the tokens that it sees, so that runs are reproducible. Drafters that break the
//! rules without failing are tested with the engine (`engine/tests/engine/failing_drafters.rs`).

use std::panic::resume_unwind;

use foretoken_speculation::{Ask, Chance, Drafter, Opening, Proposal, SequenceId, StepOutput, Token};

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

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        outputs.iter().for_each(|output| fail(hash(output.tokens) >> 8, 20));
    }

    fn close(&mut self, sequence: SequenceId) {
        fail(mix(sequence.0), 4);
    }
}
