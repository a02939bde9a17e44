//! A drafter that fails now and then, wherever it can; the texts must not notice.
//!
//! When it fails is a function of the tokens that it sees, so that a run is a number. Left out: drafters that break the
//! rules without failing, which are tested with the engine (`engine/tests/engine/failing.rs`).

use std::panic::resume_unwind;

use foretoken_speculation::{Ask, Chance, Drafter, News, Opening, Proposal, SequenceId, Token};

use crate::table::mix;

/// What it says when it fails.
pub(super) const MESSAGE: &str = "it fails now and then";

/// See the head of this file.
pub(super) struct Failing {
    /// Tokens of the target.
    pub(super) vocabulary: usize,
}

/// A number made of these tokens.
fn number(tokens: &[Token]) -> u64 {
    tokens.iter().fold(1, |state, token| mix(state ^ u64::from(*token)))
}

/// Fails for one text in so many. Nothing is printed, as a panic would.
fn fail(number: u64, once_in: u64) {
    if number.is_multiple_of(once_in) {
        resume_unwind(Box::new(MESSAGE));
    }
}

impl Drafter for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn open(&mut self, opening: &Opening<'_>) {
        fail(number(opening.prompt), 20);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let state = number(ask.tokens);
            if ask.has_room() {
                let token = (state >> 30) % self.vocabulary as u64;
                ask.tree.offer(None, token as Token, Proposal::Point, ask.source);
            }
            fail(state, 12);
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        news.iter().for_each(|news| fail(number(news.tokens) >> 8, 20));
    }

    fn close(&mut self, sequence: SequenceId) {
        fail(mix(sequence.0), 4);
    }
}
