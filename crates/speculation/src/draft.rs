//! Drafters: anything that proposes tokens for the target.
//!
//! A proposal may be wrong or missing, and can never change the distribution of the output, as long as two rules are
//! kept. They concern only drafters that draw by chance; a [`crate::Proposal::Point`] may always be offered.
//!
//! - A token that was drawn is offered, whatever it is; whether to draw depends on what came before.
//! - A drawn token is offered as [`crate::Proposal::Drawn`], with the law it was drawn from ([`Ask::draw`] does both).
//!
//! The trait is batched: it takes the asks of all sequences at once. Tokens that were written are never taken back, so
//! drafters keep no undo state for them. What a drafter has computed for rejected tokens (the KV cache of a draft
//! model) is compared with the sequence's tokens when it is asked next. Several drafters may fill one tree, one after
//! the other.
//!
//! Decided elsewhere: how much to draft (a [`crate::budget::Budget`] and [`crate::Outlook`]), what of it is verified
//! ([`crate::choose`]) and which drafters are asked (the engine).

mod ask;
mod beams;
mod probes;
mod settings;

pub use ask::{Ask, Draws};
pub use beams::{BeamAsk, BeamLeaf};
pub use probes::Probes;
pub use settings::DraftSettings;

use crate::{Chance, DraftTree, NodeId, Promise, Sampling, SequenceId, Tenant, Token};

/// What drafters are told of a sequence when it begins.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its prompt.
    pub prompt: &'a [Token],
    /// The tenant of the sequence: what is learned from it is shown to no other tenant.
    pub tenant: Tenant,
    /// The output that the user predicts, empty if none was given. The prediction may be wrong.
    pub prediction: &'a [Token],
    /// What the target's encoder reads, if it has one; empty otherwise.
    pub source: &'a [Token],
}

impl<'a> Opening<'a> {
    /// A sequence of the default tenant, without a prediction and without a source.
    pub fn new(sequence: SequenceId, prompt: &'a [Token]) -> Opening<'a> {
        Opening { sequence, prompt, tenant: Tenant::default(), prediction: &[], source: &[] }
    }
}

/// What a drafter wants computed besides its tree. Most drafters want nothing ([`Needs::default`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Maximum number of rows besides the tree that it may ask for ([`Ask::probes`]), per sequence and pass. The engine
    /// reserves them.
    pub probes_max: usize,
    /// Layers of the target whose hidden states (the residual stream after the layer) it wants for every token that is
    /// written. Drafters that continue the target's own states want them (EAGLE, Li et al. 2024). See
    /// [`StepOutput::hidden`].
    pub hidden_layers: Vec<usize>,
    /// Whether it wants the hidden states of the prompt's tokens as well. If other requests have computed a part of the
    /// prompt before, only the last rows of that part are computed again: [`StepOutput::hidden`] begins with these.
    pub prompt_rows: bool,
    /// Whether it drafts from what a constraint foresees: only sequences with a constraint have such a drafter, and it
    /// is asked after the others, whose branches it continues.
    pub constraint: bool,
}

/// Counters of a drafter's network.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of its passes.
    pub passes: u64,
    /// Number of the sequences' tokens that these passes read, without drafted ones.
    pub read: u64,
    /// Number of rows with a NaN among their logits: the network has failed, and nothing was drafted from them.
    pub not_numbers: u64,
}

/// What a pass wrote for one sequence.
#[derive(Copy, Clone, Debug)]
pub struct StepOutput<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens of the sequence now, the new ones included.
    pub tokens: &'a [Token],
    /// The new tokens, the end of `tokens`: the accepted ones, then the target's own (unless the sequence ended
    /// before). It is empty after a pass that only computed a part of the prompt, which drafters that need the prompt's
    /// rows observe, too.
    pub emitted: &'a [Token],
    /// The tree that was verified; empty after a plain pass.
    pub tree: &'a DraftTree,
    /// The accepted nodes of the tree, beginning with a child of the root, each the parent of the next.
    pub path: &'a [NodeId],
    /// Logits after each of the probes that this drafter asked for, in the order in which it asked.
    pub probes: &'a [&'a [f32]],
    /// Position of the first token whose hidden states are given.
    pub hidden_from: usize,
    /// The hidden states that this drafter needs: those of the token at `hidden_from`, one per layer in the order of
    /// [`Needs::hidden_layers`], then those of the next token that was computed, and so on.
    pub hidden: &'a [&'a [f32]],
}

/// A part of a sequence that a drafter's network is to read without drafting: a chunk of its prefill.
#[derive(Copy, Clone, Debug)]
pub struct ReadAsk<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens of the sequence, also those of the prompt that the target has not read yet.
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// How many of `tokens` are to be read, counted from the first; at least one.
    pub until: usize,
    /// How the target's tokens are drawn.
    pub sampling: &'a Sampling,
    /// How drafts will be verified.
    pub promise: Promise,
}

/// A source of proposals.
///
/// The engine calls, per sequence: `open` once; then per pass `read` or `draft`, and `observe`; and `close`. A pass in
/// which this drafter was not asked is observed too.
pub trait Drafter: Send {
    /// A short name for metrics, as in settings.
    fn name(&self) -> &str;

    /// What the drafter wants computed besides its tree; the same for every sequence.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// The counters of the drafter's network; `None` without a network. A drafter with a network is asked only while a
    /// step of it pays.
    fn work(&self) -> Option<Work> {
        None
    }

    /// How many of the first `len` tokens of a sequence the drafter's network would have to read before it could draft.
    fn unread(&self, _sequence: SequenceId, _len: usize) -> usize {
        0
    }

    /// Learns an earlier text: a prompt of `prompt_len` tokens and the output after it. `tenant` is the owner of the
    /// text; `None` means that it is public. Does nothing by default, for drafters that use only the sequence they
    /// draft for.
    fn warm_up(&mut self, _tokens: &[Token], _prompt_len: usize, _tenant: Option<Tenant>) {}

    /// Begins a sequence. Does nothing by default, for drafters that keep no state per sequence.
    fn open(&mut self, _opening: &Opening<'_>) {}

    /// Lets the drafter's network read parts of sequences, so that a long prompt is read in chunks, alongside the
    /// target's chunked prefill. This affects only the time: what was not read before is read when a draft is asked
    /// for. Does nothing by default, for drafters without a network.
    fn read(&mut self, _asks: &[ReadAsk<'_>]) {}

    /// Fills each ask's tree within its limits.
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance);

    /// Whether it drafts for beam searches.
    fn drafts_beams(&self) -> bool {
        false
    }

    /// Proposes the next hypotheses of a beam search; only if it [drafts for them](Drafter::drafts_beams). Beam
    /// searches are not observed.
    fn draft_beams(&mut self, _ask: &mut BeamAsk<'_>) {}

    /// Learns from what the target wrote. Does nothing by default.
    fn observe(&mut self, _outputs: &[StepOutput<'_>]) {}

    /// Forgets the sequence.
    fn close(&mut self, _sequence: SequenceId) {}
}
