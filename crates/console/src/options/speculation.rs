//! Options of speculation: who guesses, how far, and what is promised.
//!
//! [`DraftingOptions`] are what all commands share; [`SpeculationOptions`] adds the choices that a measurement makes
//! several times over.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken::settings::{self, DraftingSettings, SpeculationSettings};
use foretoken::{CacheType, Promise, SpecType, TranslationWay, WeightType};
use foretoken_hub::Name;

use super::drafters::{DrafterOptions, MemoryOptions};
use crate::failure::Failure;
use crate::{hub, values};

/// What speculation promises, as `--verify` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// The same seed gives the same text as plain decoding, byte for byte.
    Exact,
    /// The same distribution as plain decoding.
    Rejection,
    /// The same distribution, a chain verified as one block.
    Block,
}

impl From<Verify> for Promise {
    fn from(verify: Verify) -> Self {
        match verify {
            Verify::Exact => Self::Exact,
            Verify::Rejection => Self::Rejection,
            Verify::Block => Self::Block,
        }
    }
}

/// How much to draft, as `--budget` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Budget {
    /// As much as pays on this machine, down to nothing.
    Auto,
    /// From 5 on, two more after a draft that was accepted whole (of a tree its longest branch, which keeps wide trees
    /// small), one less after another; each request begins anew, as heuristic_transient of transformers.
    Heuristic,
    /// Always the maximum.
    Fixed,
    /// A branch stops behind a token that looks wrong; how a wrong one looks is learned.
    Confidence,
    /// A branch stops where all of it has become improbable; how improbable is learned.
    Threshold,
}

impl From<Budget> for settings::Budget {
    fn from(budget: Budget) -> Self {
        match budget {
            Budget::Auto => Self::Auto,
            Budget::Heuristic => Self::Heuristic,
            Budget::Fixed => Self::Fixed,
            Budget::Confidence => Self::Confidence,
            Budget::Threshold => Self::Threshold,
        }
    }
}

/// How a draft model with a vocabulary of its own drafts, as `--spec-draft-translate` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Translate {
    /// By what each request is promised: text where the text is (exact, or greedy), or where little is shared.
    Auto,
    /// Its text is translated (universal assisted generation).
    #[value(alias = "uag")]
    Text,
    /// Its law over the tokens that both have (token-level intersection).
    #[value(alias = "tli")]
    Shared,
}

impl From<Translate> for TranslationWay {
    fn from(translate: Translate) -> Self {
        match translate {
            Translate::Auto => Self::ByPromise,
            Translate::Text => Self::Text,
            Translate::Shared => Self::Shared,
        }
    }
}

/// How to guess, and what to do with the guesses.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationOptions {
    /// Drafters: none, draft, lookup, suffix, .. [default: auto]
    ///
    /// Drafters, whose guesses fill one tree: none, or some of draft, lookup, llma, trie, suffix, ngram, prediction,
    /// jacobi, phrases, grammar, random; draft:lookup lets the second draft for the model of the first; auto is draft,
    /// if there is a model, suffix, phrases, if there are any, and grammar, where a text has a form.
    #[arg(long, value_name = "KIND,..", value_parser = str::parse::<SpecType>)]
    pub spec_type: Option<SpecType>,
    /// What speculation promises
    #[arg(long, value_name = "PROMISE", default_value = "exact")]
    pub verify: Verify,
    /// How much to draft
    ///
    /// auto weighs what each guess is worth against what it costs on this machine; a drafter that does not pay rests.
    /// Under --verify rejection or block the text of a seed then depends on the clock, unless --costs is given.
    #[arg(long, hide_short_help = true, value_name = "KIND", default_value = "auto")]
    pub budget: Budget,
    /// How drafts are made.
    #[command(flatten)]
    pub drafting: DraftingOptions,
}

/// How to guess.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Draft models")]
pub struct DraftingOptions {
    /// A draft model: a directory, a .gguf file or a name of the hub
    ///
    /// Given several times, the n-th draft of --spec-type takes the n-th.
    #[arg(help_heading = "Speculation", long, value_name = "MODEL")]
    pub model_draft: Vec<PathBuf>,
    /// The draft model by its name on the hub, behind those of --model-draft (also -hfd, -hfrd)
    #[arg(long, value_name = "ORG/NAME[:QUANT]", value_parser = hub::name)]
    pub hf_repo_draft: Vec<Name>,
    /// Most tokens drafted a pass [default: as many as pay; of the other budgets 16]
    #[arg(help_heading = "Speculation", hide_short_help = true, long, aliases = ["draft-max", "draft"],
        value_name = "N",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_max: Option<usize>,
    /// Fewest tokens that a draft model or an n-gram model drafts when it drafts, however improbable they are (see
    /// --spec-draft-p-min); --budget auto may let it rest, verifies only those that are worth it, and heuristic may
    /// allow fewer
    #[arg(long, alias = "draft-min", value_name = "N", default_value = "0",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_min: usize,
    /// Stop drafting after a token that a drafter finds less probable than this [default: where it does not pay; of the
    /// other budgets 0]
    #[arg(long, alias = "draft-p-min", value_name = "P",
        value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_draft_p_min: Option<f32>,
    /// Branch where another token has at least this probability under the draft model; 1 never branches [default: up to
    /// the drafter]
    #[arg(long, alias = "draft-p-split", value_name = "P",
        value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_draft_p_split: Option<f32>,
    /// The draft model's own temperature [default: the target's]
    #[arg(long, value_name = "T", value_parser = values::zero_up, allow_negative_numbers = true)]
    pub spec_draft_temp: Option<f32>,
    /// The draft model's own top-k; 0 is off [default: the target's]
    #[arg(long, value_name = "K", value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_top_k: Option<usize>,
    /// The draft model's own top-p; 1 is off [default: the target's]
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_draft_top_p: Option<f32>,
    /// The draft model's own min-p; 0 is off [default: the target's]
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_draft_min_p: Option<f32>,
    /// How a draft model with another vocabulary drafts: text (uag), shared (tli), or auto: text for greedy
    /// requests, under --verify exact and where vocabularies share little, else shared
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub spec_draft_translate: Translate,
    /// Tokens of the target behind which translated drafts are encoded
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub target_lookbehind: usize,
    /// Tokens of the draft model behind which the target's text is encoded
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub assistant_lookbehind: usize,
    /// What passes and drafts cost, for --budget auto: this file is read and never changed, so that nothing depends on
    /// the clock; if it is not there it is measured and written first [default: measured once a model and machine, kept
    /// in the cache folder and corrected by every run]
    #[arg(help_heading = "Speculation", hide_short_help = true, long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// As --dtype, of draft models
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype_draft: Option<WeightType>,
    /// What cached keys of draft models are rounded to
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k_draft: CacheType,
    /// What cached values of draft models are rounded to
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v_draft: CacheType,
    /// Options of single drafters.
    #[command(flatten)]
    pub own: DrafterOptions,
    /// What drafters know from before.
    #[command(flatten)]
    pub memory: MemoryOptions,
}

impl SpeculationOptions {
    /// The library's settings.
    ///
    /// # Errors
    /// As [`DraftingOptions::settings`].
    pub fn settings(&self) -> Result<SpeculationSettings, Failure> {
        Ok(SpeculationSettings {
            spec_type: self.spec_type.clone().unwrap_or_default(),
            verify: self.verify.into(),
            budget: self.budget.into(),
            ..self.drafting.settings()?
        })
    }
}

impl DraftingOptions {
    /// Whether a draft model is named.
    pub fn has_model(&self) -> bool {
        !self.model_draft.is_empty() || !self.hf_repo_draft.is_empty()
    }

    /// The library's settings, with defaults for what a measurement takes several of. Draft models of the hub are
    /// fetched if they are not in the cache.
    ///
    /// # Errors
    /// One is not there and cannot be fetched.
    pub fn settings(&self) -> Result<SpeculationSettings, Failure> {
        Ok(SpeculationSettings {
            model_draft: hub::drafts(&self.model_draft, &self.hf_repo_draft)?,
            draft: DraftingSettings {
                n_max: self.spec_draft_n_max,
                n_min: self.spec_draft_n_min,
                p_min: self.spec_draft_p_min,
                p_split: self.spec_draft_p_split,
                temperature: self.spec_draft_temp,
                top_k: self.spec_draft_top_k,
                top_p: self.spec_draft_top_p,
                min_p: self.spec_draft_min_p,
            },
            translate: self.spec_draft_translate.into(),
            target_lookbehind: self.target_lookbehind,
            assistant_lookbehind: self.assistant_lookbehind,
            costs: self.costs.clone(),
            dtype_draft: self.dtype_draft,
            cache_type_k_draft: self.cache_type_k_draft,
            cache_type_v_draft: self.cache_type_v_draft,
            drafters: self.own.settings(),
            memory: self.memory.settings(),
            ..SpeculationSettings::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        speculation: SpeculationOptions,
    }

    #[test]
    fn defaults_are_the_librarys() {
        let settings = Line::parse_from(["line"]).speculation.settings().expect("nothing is to be fetched");
        assert_eq!(settings, SpeculationSettings::default());
    }

    #[test]
    fn a_way_that_is_not_chosen_is_chosen_by_each_request() {
        let ways = [Translate::Auto, Translate::Text, Translate::Shared].map(TranslationWay::from);
        assert_eq!(ways, [TranslationWay::ByPromise, TranslationWay::Text, TranslationWay::Shared]);
    }
}
