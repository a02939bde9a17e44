//! Drafters: everything that proposes tokens for the target, behind one trait ([`Drafter`]).
//!
//! - [`ModelDrafter`]: a small network, for chains and trees, which may have a drafter of its own (Leviathan et al.
//!   2023, Chen et al. 2023).
//! - [`HeadDrafter`]: a head that continues the target's own hidden states, then its own (Li et al. 2024 and 2025,
//!   EAGLE and EAGLE-3).
//! - [`TranslatedDrafter`]: a small network with another vocabulary, by its text (Universal Assisted Generation 2024);
//!   [`SharedScorer`]: the same by the distribution over the tokens that both have (Timor et al. 2025).
//! - [`SuffixDrafter`]: what followed the longest match, in this sequence or an earlier one (Oliaro et al. 2024);
//!   prompt lookup (Saxena 2023) is the same in this sequence alone.
//! - [`LlmaDrafter`]: spans of the prompt that the answer has begun to repeat (Yang et al. 2023).
//! - [`TrieDrafter`]: branches of prompts and outputs, counted in tries (Zhao et al. 2024).
//! - [`NgramDrafter`]: what followed most often (Leviathan et al. 2023, section 3.6).
//! - [`JacobiDrafter`]: n-grams that the target itself computes by Jacobi iteration, in additional rows of its pass (Fu
//!   et al. 2024).
//! - [`PredictionDrafter`]: the output that the user predicts, aligned with the output so far.
//! - [`GrammarDrafter`]: the usual tokens of a string that a constraint requires next.
//! - [`PhrasesDrafter`]: a list of phrases. [`RandomDrafter`]: random tokens, for tests.
//!
//! A drafter may be slow or wrong; it can never change the output, as long as it keeps the two rules of the trait. It
//! sees the sequence's tokens, its limits and, if it asked for them, rows of the target. Shared parts are a history of
//! tokens indexed by n-grams (`history`), which lookups, suffix matching and n-grams read; memory for each tenant
//! (`tenants`), so that no tenant is shown another's text; and best-first growth (`frontier`). Networks are used
//! through [`Scorer`], other vocabularies through [`translate::Translator`]; the engine implements both.
//!
//! As in `foretoken_speculation` there are no files, clocks, random numbers or `Result`. How much is drafted and what
//! of it is verified is decided there.

#![forbid(unsafe_code)]

mod continuations;
mod distinct;
mod frontier;
mod grammar;
mod head;
mod history;
mod jacobi;
mod llma;
mod model;
mod ngram;
mod phrases;
mod prediction;
mod random;
mod scorer;
mod suffix;
mod tenants;
mod texts;
pub mod translate;
mod translated;
#[cfg(test)]
mod trial;
mod trie;

pub use grammar::GrammarDrafter;
pub use head::HeadDrafter;
pub use jacobi::JacobiDrafter;
pub use llma::LlmaDrafter;
pub use model::ModelDrafter;
pub use ngram::{NgramDrafter, NgramSource};
pub use phrases::PhrasesDrafter;
pub use prediction::PredictionDrafter;
pub use random::RandomDrafter;
pub use scorer::{HiddenInput, LogitRows, ScoreAsk, Scorer};
pub use suffix::SuffixDrafter;
pub use translated::{SharedScorer, TranslatedDrafter};
pub use trie::{BRANCH_LENGTH_MAX, BranchSource, Layout, RetrievalRule, TrieDrafter, TrieOptions};

#[cfg(doc)]
use foretoken_speculation::Drafter;
