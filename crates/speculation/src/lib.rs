//! What a correct speculative step is: trees, laws, the trait of drafters, verification, budgets.
//!
//! # Vocabulary
//!
//! The *target* is the model whose output is wanted; a *drafter* is anything that proposes tokens for it, a small model
//! or a lookup in the text. Proposals form a [`DraftTree`]; a *chain* is a tree without forks, and the *draft length*
//! is the maximum number of its tokens. The *pending token* is the last one written: it is not in the KV cache yet, and
//! it is the root of the next tree. One *verify pass* runs the target over the pending token and the whole tree, one
//! *row* each.
//!
//! A *law* ([`Law`]) is a probability distribution over the next token, after the [`Sampling`] settings (temperature,
//! top-k, penalties and so on). *p* is the target's law and *q* the drafter's. A token is drawn from a law by an
//! *exponential race*, the Gumbel-max trick in another form: each token gets a random time, exponentially distributed
//! with its probability as the rate, and the earliest wins. An *offer* is a proposal as one drafter made it: *drawn*
//! from a law q, or a *point*, without any chance that verification would have to know.
//!
//! *Verification* accepts offers or rejects them, and writes one token of the target's own after the accepted ones. A
//! [`Promise`] says what of plain decoding is kept: *exact* keeps every token of the same seed, *rejection* keeps the
//! distribution, by rejection sampling. The *gain* of a node is the estimated probability that it is accepted together
//! with all nodes above it. A *budget* limits how far drafters go.
//!
//! # Why the output does not change
//!
//! Let plain decoding be: at each position n compute p from the tokens before it, and draw from p. Claim: a drafter, a
//! budget and [`verify`] together write tokens of the same law, whatever the drafter is.
//!
//! Under [`Promise::Exact`] the proof is short. The token at position n is a function of p at n and of the noise at
//! [`Address::token`]`(seed, n)`. Neither depends on the tree. By induction over positions the text is that of plain
//! decoding, byte for byte, provided only that p is computed to the same bits in a wide pass as alone, which the
//! kernels guarantee. A drafter may use the same noise, and should, since it then agrees with the target more often.
//!
//! Under [`Promise::Rejection`] only the law is kept. At one node, let r be the residual law, at first p. An offer x
//! drawn from q is accepted with probability min(1, r(x)/q(x)), which contributes min(q, r); after a rejection the
//! residual is norm((r - q)+), against which the next offer is judged; the two contributions add up to r. So by
//! induction over the offers the token written at this node has law p, and no offer below that token has been judged
//! yet. The argument has three premises, each of which implementations have violated:
//!
//! 1. *A drawn token is offered, whatever it is.* Whether to draw may depend on what came before, never on the draw
//!    itself. With p = q = (0.9, 0.1), dropping draws below 0.5 and resampling from p writes the first token with
//!    probability 0.99 instead of 0.9. So a confidence rule stops after the token that fell below, and [`DraftTree`]
//!    cannot forget an offer.
//! 2. *q is the law that the token was drawn from*: for later siblings the law without replacement, in the order of
//!    drawing, also when another drafter proposed the same token in between. So a tree keeps offers apart from nodes.
//! 3. *Draw, coin and last draw are independent*, of each other and of all that the drafters know. So each has its own
//!    [`Address`], which no later pass repeats, and no later request either: some drafters remember earlier outputs,
//!    and an output reveals its coins. Therefore an address contains the request's number, which keeps two requests of
//!    one seed apart ([`Pass::request`]).
//!
//! Tests check these claims: `foretoken_testkit` implements [`Chance`] by an enumerator that walks every outcome, and
//! compares the computed law of drafter, budget and verifier together with that of plain decoding. Each of the bugs
//! above is made on purpose in a test (a *canary*), which must detect it.
//!
//! None of this holds for [`verify_leniently`], which is lossy and says so; what it keeps is proved in its file.
//!
//! # What is not here
//!
//! This crate has no I/O, no clock, no random numbers, no dependency and no `Result`: a violated contract is an
//! assertion with the values in its message. Drafters implement the trait [`Drafter`] in `foretoken_drafters`; this
//! crate knows none of them, and no network, tokenizer or grammar.

#![forbid(unsafe_code)]

pub mod budget;
mod chance;
mod choose;
pub mod costs;
mod draft;
mod experience;
mod sampling;
pub mod theory;
mod tree;
mod verify;

pub use chance::{Address, Chance, Pass, Purpose};
pub use choose::{Branch, Choice, Outlook, PassSoFar, Policy, Prospect};
pub use choose::{choose, lawful_offers, retain, share};
pub use costs::{Costs, DrafterCosts};
pub use draft::{
    Ask, BeamAsk, BeamLeaf, DraftSettings, Drafter, Draws, Needs, Opening, Probes, ReadAsk, StepOutput, Work,
};
pub use experience::{Experience, Judged};
pub use sampling::{
    Constrained, Constraint, Context, Ending, Law, NumberRange, ParameterKind, RawLaw, Sampling, SamplingParameter,
    SamplingProblem, Scratch, TokenSet,
};
pub use sampling::{argmax, log_probability};
pub use tree::{DraftTree, Evidence, LawId, NodeId, Offer, Proposal};
pub use verify::{Lenience, Promise, TargetLaws, Verdict, verify, verify_leniently};

/// A token of the target's vocabulary.
pub type Token = u32;

/// One sequence being generated, for as long as it lives.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// The user on whose behalf a sequence is generated: what drafters learn from one tenant is never shown to another.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u64);
