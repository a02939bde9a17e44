//! Drafters: anything that guesses what the target will say.
//!
//! A guess may be wrong, late or missing, and can never change the law of the output, as long as two rules are kept.
//! They concern only drafters that draw by chance; offering [`crate::Proposal::Point`] is lawful always.
//!
//! - A token that was drawn is offered, whatever it is; whether to draw depends on what came before.
//! - A drawn token is offered as [`crate::Proposal::Drawn`], with the law it was drawn from.
//!
//! The trait is batched and reversible: it takes the asks of all sequences at once, and whoever keeps something about a
//! sequence can forget it back to a length. Several drafters may fill one tree, one after the other.
//!
//! Left out: how much to draft (a [`crate::budget::Budget`] decides) and who is asked (the engine's business).

mod lookup;
mod model;

pub use lookup::LookupDrafter;
pub use model::ModelDrafter;

use crate::{Chance, DraftTree, Promise, Sampling, SequenceId, Tenant, Token};

/// "Propose something for this sequence."
#[derive(Debug)]
pub struct Ask<'a> {
    /// The sequence, opened before.
    pub sequence: SequenceId,
    /// All its tokens, prompt and output; the last one is pending (the root of the tree). Never empty.
    pub tokens: &'a [Token],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// The settings that the target's logits will go through.
    pub sampling: &'a Sampling,
    /// How the tree will be verified.
    pub promise: Promise,
    /// The request's seed.
    pub seed: u64,
    /// The tree may hold this many nodes in all, those of earlier drafters counted.
    pub nodes_max: usize,
    /// Where to propose; earlier drafters' offers are there already.
    pub tree: &'a mut DraftTree,
    /// The drafter's number, to put on its offers.
    pub source: u8,
}

impl Ask<'_> {
    /// The first position that this pass chooses: the number of tokens so far.
    pub fn position(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Whether another node fits.
    pub fn has_room(&self) -> bool {
        self.tree.len() < self.nodes_max
    }
}

/// What came of a verify pass.
#[derive(Copy, Clone, Debug)]
pub struct News<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All its tokens now, the new ones included.
    pub tokens: &'a [Token],
    /// The new tokens, the end of `tokens`: the accepted ones, then the target's own (unless the text ended before).
    pub emitted: &'a [Token],
    /// Nodes in the tree that was verified.
    pub drafted: usize,
    /// Of these, how many were accepted.
    pub accepted: usize,
}

/// A source of guesses.
///
/// The engine calls, per sequence: `open` once; then per pass `draft`, `keep` (with the length of what was there before
/// plus what was accepted), `observe`; and `close`. `keep` may also come alone, when a sequence is set back.
pub trait Drafter {
    /// A short name for metrics, as on the command line.
    fn name(&self) -> &str;

    /// A sequence begins.
    fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant);

    /// Fills each ask's tree within its bound.
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance);

    /// Learns from what the target said. Nothing to learn by default.
    fn observe(&mut self, _news: &[News<'_>]) {}

    /// Forgets what is known of the sequence beyond its first `len` tokens; equal to never having known it.
    fn keep(&mut self, sequence: SequenceId, len: usize);

    /// Forgets the sequence.
    fn close(&mut self, sequence: SequenceId);
}
