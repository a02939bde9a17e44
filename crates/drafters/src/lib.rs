//! Drafters: everything that guesses what the target will say, behind one trait ([`Drafter`]).
//!
//! - [`ModelDrafter`]: a small network, for chains and trees, which may be drafted for itself (Leviathan et al. 2023,
//!   Chen et al. 2023).
//! - [`HeadDrafter`]: a head that continues the target's own hidden states, then its own (Li et al. 2024 and 2025,
//!   EAGLE and EAGLE-3).
//! - [`TranslatedDrafter`]: a small network with another vocabulary, by its text (Universal Assisted Generation 2024);
//!   [`SharedScorer`]: the same by the distribution over the tokens that both have (Timor et al. 2025).
//! - [`SuffixDrafter`]: what followed the longest match, in this text or another (Oliaro et al. 2024); prompt lookup
//!   (Saxena 2023) is the same in this text alone.
//! - [`LlmaDrafter`]: spans of the prompt that the answer has begun to repeat (Yang et al. 2023).
//! - [`TrieDrafter`]: branches of prompts and outputs, counted in tries (Zhao et al. 2024).
//! - [`NgramDrafter`]: what followed most often (Leviathan et al. 2023, section 3.6).
//! - [`JacobiDrafter`]: n-grams that the target makes itself by Jacobi iteration, in rows beside the draft (Fu et al.
//!   2024).
//! - [`PredictionDrafter`]: what the user expects to be written, followed along the text.
//! - [`GrammarDrafter`]: the usual spelling of what has to come next, where a request has a constraint.
//! - [`PhrasesDrafter`]: a list of phrases. [`RandomDrafter`]: random tokens, for tests.
//!
//! A drafter may be slow or wrong; it can never change the text, as long as it keeps the two rules of the trait. It
//! sees the text, its limits and, where it asked for it, rows of the target. What is shared: a history of tokens
//! indexed by n-grams (`history`), which lookups, suffix matching and n-grams read; memory by tenant (`tenants`), so
//! that nobody is shown another's text; best-first growth (`frontier`). Networks are seen through [`Scorer`], other
//! vocabularies through [`translate::Translator`]; the engine has both.
//!
//! Left out, as in `foretoken_speculation`: files, clocks, random numbers and `Result`. How much is drafted and what of
//! it is verified is decided there.

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
pub use trie::{BRANCH_LENGTH_MAX, BranchSource, Layout, TrieDrafter, TrieOptions};

#[cfg(doc)]
use foretoken_speculation::Drafter;
