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
//! Left out: how much to draft (a [`crate::budget::Budget`] and [`Outlook`] decide), what of it is verified
//! ([`crate::choose`]) and who is asked (the engine's business).

mod continuations;
mod history;
mod jacobi;
mod lookup;
mod model;
mod ngram;
mod phrases;
mod probes;
mod random;
mod settings;
mod suffix;
mod translated;
#[cfg(test)]
mod trial;
mod trie;

pub use jacobi::JacobiDrafter;
pub use lookup::LookupDrafter;
pub use model::ModelDrafter;
pub use ngram::{NgramDrafter, NgramSource};
pub use phrases::PhrasesDrafter;
pub use probes::Probes;
pub use random::RandomDrafter;
pub use settings::DraftSettings;
pub use suffix::SuffixDrafter;
pub use translated::{SharedScorer, TranslatedDrafter};
pub use trie::{BRANCH_LENGTH_MAX, BranchSource, Layout, TrieDrafter, TrieOptions};

use crate::budget::Limits;
use crate::choose::{Branch, Outlook};
use crate::{Chance, DraftTree, NodeId, Pass, Promise, Sampling, SequenceId, Tenant, Token};

/// Guesses below this are not worth the time of weighing them.
const GAIN_MIN_WEIGHED: f32 = 0.01;
/// Nor are those below this part of what a row of the pass costs. A drafter's own estimates are rough, so the bound stays well
/// below the whole price.
const ROW_PART: f64 = 0.25;

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
    /// What the request says about drafting.
    pub settings: DraftSettings,
    /// How the tree will be verified.
    pub promise: Promise,
    /// The request's seed.
    pub seed: u64,
    /// The request's number, which keeps the draws of requests of one seed apart ([`Pass::request`]).
    pub request: u64,
    /// What a step of drafting must be worth to be made; `None` if only the limits count.
    pub outlook: Option<Outlook<'a>>,
    /// How far to go. The tree may hold `limits.nodes_max` nodes in all, those of earlier drafters counted.
    pub limits: Limits,
    /// Where to propose; earlier drafters' offers are there already.
    pub tree: &'a mut DraftTree,
    /// Where to ask for rows beside the tree; there is room for what [`Drafter::probes_max`] says or less.
    pub probes: &'a mut Probes,
    /// The drafter's number, to put on its offers and probes.
    pub source: u8,
}

impl Ask<'_> {
    /// The first position that this pass chooses: the number of tokens so far.
    pub fn position(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Where the noise of this pass is.
    pub fn pass(&self) -> Pass {
        Pass { seed: self.seed, request: self.request, start: self.position() }
    }

    /// A branch ends behind a token whose estimated acceptance is below this: what request and budget say.
    pub fn token_min(&self) -> f32 {
        self.settings.p_min.unwrap_or(0.0).max(self.limits.token_min)
    }

    /// Whether this drafter should make another step behind a branch, as far as its worth goes.
    pub fn pays(&self, branch: Branch) -> bool {
        self.outlook.is_none_or(|outlook| outlook.pays(self.source, branch))
    }

    /// A guess that is accepted more rarely than this, by a drafter's own estimate, is not proposed: what the request says; or
    /// else the drafter's `own` bound, which stands in for costs where these are not weighed.
    pub fn gain_min(&self, own: f32) -> f32 {
        let weighed = |outlook: Outlook<'_>| own.min(GAIN_MIN_WEIGHED).max((ROW_PART * outlook.row_min) as f32);
        self.settings.gain_min.unwrap_or(self.outlook.map_or(own, weighed))
    }

    /// Whether another node fits.
    pub fn has_room(&self) -> bool {
        self.tree.len() < self.limits.nodes_max
    }
}

/// What a drafter's network did so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Its passes.
    pub passes: u64,
    /// Tokens of texts that these passes read, guesses not counted.
    pub read: u64,
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
    /// The tree that was verified; empty after a plain pass.
    pub tree: &'a DraftTree,
    /// Its accepted nodes, from below the root downwards.
    pub path: &'a [NodeId],
    /// Logits after each of the probes that this drafter asked for, in the order in which it asked.
    pub probes: &'a [&'a [f32]],
}

/// A source of guesses.
///
/// The engine calls, per sequence: `open` once; then per pass `draft`, `keep` (with the length of what was there before
/// plus what was accepted), `observe`; and `close`. `keep` may also come alone, when a sequence is set back.
pub trait Drafter: Send {
    /// A short name for metrics, as on the command line.
    fn name(&self) -> &str;

    /// Most rows beside the tree that it may ask for, per sequence and pass; the engine keeps room for them.
    fn probes_max(&self) -> usize {
        0
    }

    /// What its network did since it was made, for one that runs a network: it is asked only while a step pays.
    fn work(&self) -> Option<Work> {
        None
    }

    /// Of the first `len` tokens of a sequence, those that its network would read first if it were asked.
    fn unread(&self, _sequence: SequenceId, _len: usize) -> usize {
        0
    }

    /// Learns a text from before or elsewhere: a prompt of `prompt_len` tokens and what was written after it. `tenant`:
    /// whose it is; `None` is everybody's. Drafters that only know their own sequences have no use for it.
    fn warm_up(&mut self, _tokens: &[Token], _prompt_len: usize, _tenant: Option<Tenant>) {}

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
