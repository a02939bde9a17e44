//! Options of speculation: which drafters, how much they draft, and how drafts are verified.
//!
//! All commands share the [`DraftingOptions`]; [`SpeculationOptions`] adds the options of which a benchmark takes
//! several values.

use std::path::PathBuf;

use clap::Args;
use foretoken::drafters::{DrafterKind, DraftsFrom};
use foretoken::settings::{Budget, DraftingSettings, SpeculationSettings};
use foretoken::{CacheType, Promise, SpecType, TranslationWay, WeightType};
use foretoken_hub::Name;

use super::drafters::{DrafterOptions, MemoryOptions};
use crate::failure::Failure;
use crate::{hub, values};

/// The short description of `--spec-type` in help.
const SPEC_TYPE_HELP: &str = "Drafters: none, draft, lookup, suffix, .. [default: auto]";

/// The long description of `--spec-type` in help, with the drafters of the library's register.
fn spec_type_help() -> String {
    let named = DrafterKind::all().filter(|kind| kind.row().drafts_from != DraftsFrom::FirstLayers);
    let named: Vec<&str> = named.map(DrafterKind::name).collect();
    let in_auto = DrafterKind::all().filter_map(|kind| Some((kind.name(), kind.row().auto?)));
    let in_auto = in_auto.map(|(name, case)| if case.is_empty() { name.into() } else { format!("{name}, {case}") });
    let in_auto: Vec<String> = in_auto.collect();
    let (last, others) = in_auto.split_last().expect("auto has drafters");
    format!(
        "{SPEC_TYPE_HELP}\n\nDrafters, whose drafts fill one tree: none, or some of {}; with draft:lookup the second \
         drafts for the model of the first; auto is {}, and {last}.",
        named.join(", "),
        others.join(", ")
    )
}

/// How to draft, and how drafts are verified.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationOptions {
    /// The drafters; `None` are those of `auto`.
    #[arg(long, value_name = "KIND,..", value_parser = str::parse::<SpecType>, help = SPEC_TYPE_HELP,
        long_help = spec_type_help())]
    pub spec_type: Option<SpecType>,
    /// What speculation promises
    #[arg(long, value_name = "PROMISE", default_value = "exact", value_parser = values::one_of::<Promise>())]
    pub verify: Promise,
    /// How much to draft
    ///
    /// auto weighs what each guess is worth against what it costs on this machine; a drafter that does not pay rests.
    /// Under --verify rejection or block the text of a seed then depends on the clock, unless --costs is given.
    #[arg(long, hide_short_help = true, value_name = "KIND", default_value = "auto",
        value_parser = values::one_of::<Budget>())]
    pub budget: Budget,
    /// Draft models, and limits of drafts.
    #[command(flatten)]
    pub drafting: DraftingOptions,
}

/// How to draft.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Draft models")]
pub struct DraftingOptions {
    /// A draft model: a directory, a .gguf file or a name of the hub
    ///
    /// If given several times, the n-th draft of --spec-type takes the n-th.
    #[arg(help_heading = "Speculation", long, value_name = "MODEL")]
    pub model_draft: Vec<PathBuf>,
    /// The draft model by its name on the hub, after those of --model-draft (also -hfd, -hfrd)
    #[arg(long, value_name = "ORG/NAME[:QUANT]", value_parser = hub::name)]
    pub hf_repo_draft: Vec<Name>,
    /// Most tokens drafted in a pass [default: as many as pay; 16 with other budgets]
    #[arg(help_heading = "Speculation", hide_short_help = true, long, aliases = ["draft-max", "draft"],
        value_name = "N",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_max: Option<usize>,
    /// Fewest tokens that a draft model or an n-gram model drafts when it drafts, however improbable they are (see
    /// --spec-draft-p-min); --budget auto may skip the drafter and verifies only tokens that pay, and heuristic may
    /// allow fewer
    #[arg(long, alias = "draft-min", value_name = "N", default_value = "0",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_min: usize,
    /// Stop drafting after a token whose probability under the drafter is less than this [default: where it does not
    /// pay; 0 with other budgets]
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
    /// How drafts of a model with another vocabulary are translated: text (uag), shared (tli), or auto: text for greedy
    /// requests, under --verify exact and where vocabularies share little, else shared
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = values::one_of::<TranslationWay>())]
    pub spec_draft_translate: TranslationWay,
    /// How many of the target's last tokens are encoded together with a translated draft
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub target_lookbehind: usize,
    /// How many of the draft model's last tokens are encoded together with new text of the target
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub assistant_lookbehind: usize,
    /// LOSSY: accept more drafted tokens, down to this lenience; 1 is off
    ///
    /// The text then has another law than plain decoding's, and --verify's promise is not kept. Above temperature 0 it
    /// needs --verify rejection, and no token gets more than 1/L times its probability; at --temp 0 a drafted token is
    /// accepted that is at least L times as probable as the best one, and there is no such bound (Leviathan et al.
    /// 2023, appendix A.5).
    #[arg(help_heading = "Speculation", hide_short_help = true, long, value_name = "L", default_value = "1",
        value_parser = values::positive_fraction, allow_negative_numbers = true)]
    pub lossy_lenience: f32,
    /// A file of what passes and drafts cost, for --budget auto: it is read and never changed, so that nothing depends
    /// on the clock; if it does not exist, costs are measured and written first [default: measured once for each model
    /// and machine, kept in the cache folder and updated by every run]
    #[arg(help_heading = "Speculation", hide_short_help = true, long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// As --dtype, for draft models
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype_draft: Option<WeightType>,
    /// Type of cached keys of draft models
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k_draft: CacheType,
    /// Type of cached values of draft models
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v_draft: CacheType,
    /// Options of each kind of drafter.
    #[command(flatten)]
    pub own: DrafterOptions,
    /// Texts that drafters learn before a run.
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
            verify: self.verify,
            budget: self.budget,
            ..self.drafting.settings()?
        })
    }
}

impl DraftingOptions {
    /// Whether a draft model is named.
    pub fn has_model(&self) -> bool {
        !self.model_draft.is_empty() || !self.hf_repo_draft.is_empty()
    }

    /// The library's settings, with defaults for those of [`SpeculationOptions`]. Draft models of the hub are fetched
    /// if they are not in the cache.
    ///
    /// # Errors
    /// A draft model is not in the cache and cannot be fetched.
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
            lossy_lenience: self.lossy_lenience,
            translate: self.spec_draft_translate,
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
    fn help_names_the_drafters_of_the_register() {
        let help = spec_type_help();
        assert!(help.contains("none, or some of draft, lookup, llma, trie, suffix, "), "{help}");
        assert!(help.contains("; auto is draft, if there is a draft model, suffix, phrases, if "), "{help}");
        assert!(help.ends_with(" a grammar."), "{help}");
    }

    #[test]
    fn values_have_their_names() {
        let line = ["line", "--verify", "block", "--budget", "confidence", "--spec-draft-translate", "uag"];
        let found = Line::parse_from(line).speculation.settings().expect("nothing is to be fetched");
        let expected = (Promise::Block, Budget::Confidence, TranslationWay::Text);
        assert_eq!((found.verify, found.budget, found.translate), expected);
    }
}
