//! Options of speculation: who guesses, how far, and what is promised.
//!
//! [`DraftingOptions`] are what all commands share; [`SpeculationOptions`] adds the choices that a measurement makes
//! several times over.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken_engine::{BudgetKind, Order, TranslationWay};
use foretoken_model::{CacheType, WeightType};
use foretoken_speculation::{DraftSettings, Promise};

use super::drafters::{DrafterOptions, MemoryOptions};
use super::spec_type::{DrafterSpec, Kind, SpecType};
use crate::demo;
use crate::failure::Failure;
use crate::models::Opened;
use crate::progress::say;
use crate::values;

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

impl Budget {
    /// The budget of so many nodes at most; without a limit, up to what ever pays, and where costs are not weighed up to 16.
    pub fn up_to(self, limit: Option<usize>) -> BudgetKind {
        let nodes_max = limit.unwrap_or(NODES_MAX);
        match self {
            Self::Auto => BudgetKind::Auto { nodes_max: limit.unwrap_or(BudgetKind::AUTO_NODES_MAX) },
            Self::Heuristic => BudgetKind::Heuristic { nodes_max },
            Self::Fixed => BudgetKind::Fixed { nodes: nodes_max },
            Self::Confidence => BudgetKind::Confidence { nodes_max },
            Self::Threshold => BudgetKind::Threshold { nodes_max },
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

impl Translate {
    /// The way.
    pub fn way(self) -> TranslationWay {
        match self {
            Self::Auto => TranslationWay::ByPromise,
            Self::Text => TranslationWay::Text,
            Self::Shared => TranslationWay::Shared,
        }
    }
}

/// Most tokens drafted a pass where nobody says it.
const NODES_MAX: usize = 16;

/// How to guess, and what to do with the guesses.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationOptions {
    /// Drafters, whose guesses fill one tree: none, or some of draft, lookup, trie, suffix, ngram, jacobi, phrases, random;
    /// draft:lookup lets the second draft for the model of the first; auto is draft, if there is a model, suffix and
    /// phrases, if there are any [default: auto]
    #[arg(long, value_name = "KIND,..", value_parser = str::parse::<SpecType>)]
    pub spec_type: Option<SpecType>,
    /// What speculation promises
    #[arg(long, value_name = "PROMISE", default_value = "exact")]
    pub verify: Verify,
    /// How much to draft. auto weighs what each guess is worth against what it costs on this machine; a drafter that does
    /// not pay rests. Under --verify rejection or block the text of a seed then depends on the clock, unless --costs is
    /// given
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub budget: Budget,
    #[command(flatten)]
    pub drafting: DraftingOptions,
}

/// How to guess.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct DraftingOptions {
    /// The draft model: a directory or a .gguf file (also -md); given several times, the n-th draft of --spec-type takes
    /// the n-th
    #[arg(long, value_name = "MODEL")]
    pub model_draft: Vec<PathBuf>,
    /// Most tokens drafted a pass [default: as many as pay; of the other budgets 16]
    #[arg(long, aliases = ["draft-max", "draft"], value_name = "N",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_max: Option<usize>,
    /// Fewest tokens that a draft model or an n-gram table drafts when it drafts, however improbable they are (see
    /// --spec-draft-p-min); --budget auto may let it rest, verifies only those that are worth it, and heuristic may allow
    /// fewer
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
    #[arg(long, alias = "draft-p-split", value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
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
    /// What passes and drafts cost, for --budget auto: this file is read and never changed, so that nothing depends on the
    /// clock; if it is not there it is measured and written first [default: measured once a model and machine, kept in
    /// the cache folder and corrected by every run]
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// As --dtype, of draft models
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype_draft: Option<WeightType>,
    /// What cached keys of draft models are rounded to (also -ctkd)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k_draft: CacheType,
    /// What cached values of draft models are rounded to (also -ctvd)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v_draft: CacheType,
    #[command(flatten)]
    pub own: DrafterOptions,
    #[command(flatten)]
    pub memory: MemoryOptions,
}

impl DraftingOptions {
    /// The order in which the drafters are asked.
    pub fn order(spec_type: Option<&SpecType>) -> Order {
        if matches!(spec_type, None | Some(SpecType::Auto)) { Order::Learned } else { Order::Given }
    }

    /// The drafters to use. `demo`: the target is the demo model, which brings a draft model along.
    ///
    /// # Errors
    /// More drafts than draft models, or phrases without a file.
    pub fn drafters(&self, spec_type: Option<&SpecType>, demo: bool) -> Result<Vec<DrafterSpec>, Failure> {
        if let Some(most) = self.spec_draft_n_max.filter(|most| *most < self.spec_draft_n_min) {
            let found = self.spec_draft_n_min;
            let message = format!("--spec-draft-n-min: expected at most --spec-draft-n-max ({most}), found {found}");
            return Err(Failure::Usage(message));
        }
        let models = self.model_draft.len().max(usize::from(demo));
        let specs = match spec_type.unwrap_or(&SpecType::Auto) {
            SpecType::None => return Ok(Vec::new()),
            SpecType::Auto => self.all(models > 0),
            SpecType::Drafters(specs) => specs.clone(),
        };
        if specs.iter().any(|spec| spec.has(Kind::Phrases)) && self.own.phrases.is_none() {
            return Err(Failure::Usage("--spec-type phrases: expected a file of them (--phrases), found none".into()));
        }
        let needed: usize = specs.iter().map(DrafterSpec::models).sum();
        if needed > models {
            let expected = if needed == 1 { "a draft model".to_string() } else { format!("{needed} draft models") };
            let found = if models == 0 { "none".to_string() } else { models.to_string() };
            let given = SpecType::Drafters(specs);
            let message = format!("--spec-type {given}: expected {expected} (-md, --model-draft), found {found}");
            return Err(Failure::Usage(message));
        }
        Ok(specs)
    }

    /// Tells of files that were given and that none of the methods takes, unless all of them are plain decoding.
    pub fn tell_unused(&self, methods: &[Vec<DrafterSpec>]) {
        if methods.iter().all(Vec::is_empty) {
            return;
        }
        let needed = methods.iter().map(|specs| specs.iter().map(DrafterSpec::models).sum()).max().unwrap_or(0);
        if let Some(unused) = self.model_draft.get(needed) {
            say(format_args!("note: --model-draft {}: --spec-type has no use for it", unused.display()));
        }
        let any = |right: &dyn Fn(Kind) -> bool| methods.iter().flatten().any(|spec| spec.any(right));
        if let (Some(phrases), false) = (&self.own.phrases, any(&|kind| kind == Kind::Phrases)) {
            say(format_args!("note: --phrases {}: --spec-type has no use for it", phrases.display()));
        }
        let MemoryOptions { lookup_cache_static, lookup_cache_dynamic, .. } = &self.memory;
        let texts = [("static", lookup_cache_static), ("dynamic", lookup_cache_dynamic)];
        for (option, path) in texts.into_iter().filter(|_| !any(&|kind| self.own.learns(kind))) {
            if let Some(path) = path {
                let none = "no drafter of --spec-type learns from texts of before";
                say(format_args!("note: --lookup-cache-{option} {}: {none}", path.display()));
            }
        }
    }

    /// What `auto` stands for. Suffix matching finds what lookup and tries find, and a drafter that says little which
    /// others do not say better takes room from them: two that differ much are the best company.
    fn all(&self, has_draft: bool) -> Vec<DrafterSpec> {
        let can_be_had = |kind: &Kind| match kind {
            Kind::Draft => has_draft,
            Kind::Phrases => self.own.phrases.is_some(),
            _ => true,
        };
        let kinds = [Kind::Draft, Kind::Suffix, Kind::Phrases];
        kinds.into_iter().filter(can_be_had).map(DrafterSpec::new).collect()
    }

    /// Opens the draft model of this number, from 0.
    ///
    /// # Errors
    /// As [`Opened::at`].
    pub fn open_draft(&self, number: usize) -> Result<Opened, Failure> {
        match (self.model_draft.get(number), demo::draft()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => Err(Failure::Usage("--model-draft: expected a model, found none".into())),
        }
    }

    /// Most tokens of a branch of a draft model.
    pub fn branch_max(&self) -> usize {
        self.spec_draft_n_max.unwrap_or(NODES_MAX)
    }

    /// What requests say about drafting.
    pub fn settings(&self) -> DraftSettings {
        DraftSettings {
            n_min: Some(self.spec_draft_n_min),
            p_min: self.spec_draft_p_min,
            gain_min: self.own.spec_gain_min,
            p_split: self.spec_draft_p_split,
            temperature: self.spec_draft_temp,
            top_k: self.spec_draft_top_k,
            top_p: self.spec_draft_top_p,
            min_p: self.spec_draft_min_p,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_is_not_chosen_is_chosen_by_each_request() {
        let ways = [Translate::Auto, Translate::Text, Translate::Shared].map(Translate::way);
        assert_eq!(ways, [TranslationWay::ByPromise, TranslationWay::Text, TranslationWay::Shared]);
    }
}
