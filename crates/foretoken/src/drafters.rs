//! The register of drafters: a table with one row for each kind of drafter.
//!
//! A row has the drafter's name, what it drafts from, what else it needs, whether `auto` takes it, whether it learns
//! from earlier texts, its options and its constructor. The syntax of `spec_type`, the choice of drafters, costs,
//! records, and the options and help of front ends read this table. Each drafter's settings, options and constructor
//! are in a file of this folder; drafters with a network need models and are created in `generator/drafters.rs`.

mod jacobi;
mod llma;
mod lookup;
mod ngram;
mod options;
mod phrases;
mod suffix;
mod trie;

pub use jacobi::JacobiSettings;
pub use llma::LlmaSettings;
pub use lookup::LookupSettings;
pub use ngram::NgramSettings;
pub use options::{DrafterOption, Field};
pub use suffix::SuffixSettings;
pub use trie::TrieSettings;

use std::path::PathBuf;

use foretoken_drafters::{GrammarDrafter, NgramSource, PredictionDrafter, RandomDrafter};
use foretoken_speculation::Drafter;
use foretoken_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use options::option;

/// A kind of drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterKind {
    /// A draft model, or a head that reads the target's hidden states.
    Draft,
    /// The target's own first layers with its output head: an early exit.
    Exit,
    /// Prompt lookup: the tokens after earlier occurrences of the sequence's last tokens.
    Lookup,
    /// Span copying, named after its paper: the tokens after the answer's last tokens in the prompt.
    Llma,
    /// Trie lookahead: a tree of the tokens after the last ones, in this text and others of the same tenant.
    Trie,
    /// Suffix matching: the tokens after the longest match, in this text and others of the same tenant.
    Suffix,
    /// N-gram models: the tokens that most often follow the last ones, in a corpus and in the text.
    Ngram,
    /// The user's prediction of the output, for requests that have one.
    Prediction,
    /// Jacobi lookahead: the target's own predictions for later positions, in extra rows of its passes.
    Jacobi,
    /// The rest of a phrase whose beginning was generated.
    Phrases,
    /// The usual tokens of what a grammar requires next, for requests that have one.
    Grammar,
    /// Random tokens: a test.
    Random,
}

/// All kinds, in the order of help; the drafters of `auto` draft in this order until it has learned a better one.
static ROWS: &[DrafterRow] = &[
    DrafterRow {
        other_names: &["draft-simple", "draft-eagle3"],
        drafts_from: DraftsFrom::Model,
        auto: Some("if there is a draft model"),
        ..DrafterRow::new(DrafterKind::Draft, "draft", with_network)
    },
    DrafterRow { drafts_from: DraftsFrom::FirstLayers, ..DrafterRow::new(DrafterKind::Exit, "exit", with_network) },
    DrafterRow {
        other_names: &["ngram-simple"],
        options: lookup::OPTIONS,
        ..DrafterRow::new(DrafterKind::Lookup, "lookup", lookup::make)
    },
    DrafterRow { options: llma::OPTIONS, ..DrafterRow::new(DrafterKind::Llma, "llma", llma::make) },
    DrafterRow { learns: |_| true, options: trie::OPTIONS, ..DrafterRow::new(DrafterKind::Trie, "trie", trie::make) },
    DrafterRow {
        other_names: &["ngram-mod"],
        auto: Some(""),
        learns: |settings| settings.suffix.capacity > 0,
        options: suffix::OPTIONS,
        ..DrafterRow::new(DrafterKind::Suffix, "suffix", suffix::make)
    },
    DrafterRow {
        other_names: &["ngram-cache"],
        learns: |settings| settings.ngram.source != NgramSource::Text,
        options: ngram::OPTIONS,
        ..DrafterRow::new(DrafterKind::Ngram, "ngram", ngram::make)
    },
    DrafterRow {
        drafts_from: DraftsFrom::Prediction,
        ..DrafterRow::new(DrafterKind::Prediction, "prediction", |inputs| {
            let mut drafter = PredictionDrafter::default();
            drafter.gain_min = inputs.settings.gain_min();
            Ok(Box::new(drafter))
        })
    },
    DrafterRow {
        other_names: &["lookahead"],
        drafts_from: DraftsFrom::TargetRows,
        options: jacobi::OPTIONS,
        ..DrafterRow::new(DrafterKind::Jacobi, "jacobi", jacobi::make)
    },
    DrafterRow {
        file: Some(|settings| settings.phrases.as_ref()),
        auto: Some("if there are any"),
        options: phrases::OPTIONS,
        ..DrafterRow::new(DrafterKind::Phrases, "phrases", phrases::make)
    },
    DrafterRow {
        drafts_from: DraftsFrom::Grammar,
        auto: Some("for requests with a grammar"),
        ..DrafterRow::new(DrafterKind::Grammar, "grammar", |_| Ok(Box::new(GrammarDrafter::default())))
    },
    DrafterRow {
        drafts_from: DraftsFrom::Nothing,
        ..DrafterRow::new(DrafterKind::Random, "random", |inputs| {
            let mut drafter = RandomDrafter::new(inputs.vocabulary);
            drafter.nodes_max = inputs.nodes_max;
            Ok(Box::new(drafter))
        })
    },
];

/// The row of a kind of drafter.
pub struct DrafterRow {
    /// The kind.
    pub kind: DrafterKind,
    /// Its name in settings and in metrics.
    pub name: &'static str,
    /// Other programs' names of it or of the most similar drafter.
    pub other_names: &'static [&'static str],
    /// Its source of drafts.
    pub drafts_from: DraftsFrom,
    /// The condition under which `auto` takes it, in words; empty if always, `None` if never.
    pub auto: Option<&'static str>,
    /// The file that it needs, whose setting has the drafter's name.
    file: Option<fn(&DrafterSettings) -> Option<&PathBuf>>,
    learns: fn(&DrafterSettings) -> bool,
    options: &'static [DrafterOption],
    make: fn(&DrafterInputs<'_>) -> Created,
}

impl DrafterRow {
    /// The row of a drafter that drafts from texts.
    const fn new(kind: DrafterKind, name: &'static str, make: fn(&DrafterInputs<'_>) -> Created) -> Self {
        Self {
            kind,
            name,
            other_names: &[],
            drafts_from: DraftsFrom::Texts,
            auto: None,
            file: None,
            learns: |_| false,
            options: &[],
            make,
        }
    }
}

/// The source of a drafter's drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftsFrom {
    /// A draft model or head, for which another drafter can draft.
    Model,
    /// The target's first layers.
    FirstLayers,
    /// The text of the sequence, other texts, or a file of them.
    Texts,
    /// The prediction of a request.
    Prediction,
    /// The grammar of a request.
    Grammar,
    /// Additional rows of the target's passes.
    TargetRows,
    /// Nothing: the drafter is a test, which requests cannot choose.
    Nothing,
}

/// The inputs of the constructors of drafters without a network.
#[derive(Clone, Copy, Debug)]
pub struct DrafterInputs<'a> {
    /// The drafters' settings.
    pub settings: &'a DrafterSettings,
    /// The most tokens drafted in a pass.
    pub nodes_max: usize,
    /// The number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// The result of a constructor.
type Created = Result<Box<dyn Drafter>, Error>;

fn with_network(_: &DrafterInputs<'_>) -> Created {
    panic!("a drafter with a network is created from a model")
}

impl DrafterKind {
    /// Every kind, in the order of help.
    pub fn all() -> impl Iterator<Item = DrafterKind> {
        ROWS.iter().map(|row| row.kind)
    }

    /// Its row of the register.
    pub fn row(self) -> &'static DrafterRow {
        ROWS.iter().find(|row| row.kind == self).expect("every kind has a row")
    }

    /// Its name in settings and in metrics.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The kind of this name, which may be another program's.
    pub(crate) fn named(word: &str) -> Option<DrafterKind> {
        ROWS.iter().find(|row| row.name == word || row.other_names.contains(&word)).map(|row| row.kind)
    }

    /// Whether it runs a draft model or head, for which another drafter can draft.
    pub fn has_model(self) -> bool {
        self.row().drafts_from == DraftsFrom::Model
    }

    /// Whether it runs a network: a draft model or head, or layers of the target.
    pub(crate) fn has_network(self) -> bool {
        matches!(self.row().drafts_from, DraftsFrom::Model | DraftsFrom::FirstLayers)
    }

    /// The file that it needs, if it needs one and the settings name it.
    pub(crate) fn file(self, settings: &DrafterSettings) -> Option<&PathBuf> {
        self.row().file.and_then(|file| file(settings))
    }

    /// Whether it needs no file, or has it.
    pub fn has_its_file(self, settings: &DrafterSettings) -> bool {
        self.row().file.is_none_or(|file| file(settings).is_some())
    }

    /// Creates a drafter of this kind.
    ///
    /// # Errors
    /// A setting that it needs is missing, or its file cannot be used.
    ///
    /// # Panics
    /// Panics if the kind runs a network.
    pub fn make(self, inputs: &DrafterInputs<'_>) -> Created {
        (self.row().make)(inputs)
    }
}

/// Settings of the drafters that need no model. In each group `nodes_max` is the most tokens that the drafter proposes
/// in a pass, `depth_max` the most along a branch. Settings that all drafters share are in
/// [`DraftingSettings`](crate::settings::DraftingSettings).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrafterSettings {
    /// lookup, trie, suffix, prediction: a token whose estimated acceptance is less than this is not proposed. `None`:
    /// the limit below which it does not pay, or 0.1 with budgets that ignore costs. Lookup with one candidate ignores
    /// it.
    pub gain_min: Option<f32>,
    /// Settings of lookup.
    pub lookup: LookupSettings,
    /// Settings of span copying.
    pub llma: LlmaSettings,
    /// Settings of the trie.
    pub trie: TrieSettings,
    /// Settings of suffix matching.
    pub suffix: SuffixSettings,
    /// Settings of n-gram models.
    pub ngram: NgramSettings,
    /// Settings of Jacobi lookahead.
    pub jacobi: JacobiSettings,
    /// The file of phrases, one on each line, the most important first.
    pub phrases: Option<PathBuf>,
}

/// Options of settings that several drafters share.
static SHARED_OPTIONS: &[DrafterOption] =
    &[option("gain_min", "spec-gain-min", |all| Field::OptionalNumber(&mut all.gain_min, 1.0)).help(
        "lookup, trie, suffix, prediction: a token whose estimated acceptance is less than this is not proposed \
         [default: where it does not pay; 0.1 with budgets that ignore costs; 0 in bench replay, where rows cost \
         nothing]; ignored by lookup with --prompt-lookup-candidates 1",
    )];

impl DrafterSettings {
    /// The options of all drafters, in the order of help.
    pub fn options() -> impl Iterator<Item = &'static DrafterOption> {
        SHARED_OPTIONS.iter().chain(ROWS.iter().flat_map(|row| row.options))
    }

    /// The least estimated acceptance of a proposed token.
    fn gain_min(&self) -> f32 {
        self.gain_min.unwrap_or(0.1)
    }

    /// Whether drafters of this kind learn texts before a run. A draft model does so only through an inner drafter.
    pub fn learns(&self, kind: DrafterKind) -> bool {
        (kind.row().learns)(self)
    }

    /// Sets the limit of tokens in a pass of each drafter that has a limit of its own.
    pub fn limit_nodes(&mut self, nodes_max: usize) {
        for option in Self::options() {
            if let Field::Nodes(limit) = (option.field)(self) {
                *limit = nodes_max;
            }
        }
    }

    /// Calls `change` with each path in the settings.
    pub(crate) fn change_paths(&mut self, mut change: impl FnMut(&mut PathBuf)) {
        for option in Self::options() {
            if let Field::Path(Some(path)) = (option.field)(self) {
                change(path);
            }
        }
    }

    /// Checks the range of each setting.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut settings = self.clone();
        Self::options().try_for_each(|option| option.check(&mut settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_drafters::{JacobiDrafter, LlmaDrafter, NgramDrafter, SuffixDrafter, TrieOptions};

    #[test]
    fn defaults_are_the_drafters_own() {
        let DrafterSettings { lookup, llma, trie, suffix, ngram, jacobi, .. } = DrafterSettings::default();
        let own = SuffixDrafter::lookup(1, 3, 10);
        assert_eq!((lookup.nodes_max, lookup.candidates), (own.nodes_max, own.candidates));
        assert_eq!((llma.run_min, llma.nodes_max), (1, LlmaDrafter::default().copied_max));
        assert_eq!(trie.options(), TrieOptions::default());
        let own = SuffixDrafter::default();
        assert_eq!((suffix.nodes_max, suffix.depth_max), (own.nodes_max, own.depth_max));
        assert_eq!((suffix.depth_factor, suffix.token_min), (own.depth_factor, own.token_min));
        let own = NgramDrafter::default();
        assert_eq!((ngram.depth_max, ngram.branches_max), (own.depth_max, own.branches_max));
        let window = JacobiDrafter::new(jacobi.window, jacobi.level, jacobi.guesses);
        assert_eq!(window.probes(), JacobiDrafter::default().probes());
    }

    #[test]
    fn names_are_given_once() {
        let mut seen = std::collections::BTreeSet::new();
        for row in ROWS {
            for name in row.other_names.iter().chain([&row.name]) {
                assert!(seen.insert(*name) && DrafterKind::named(name) == Some(row.kind), "{name}");
            }
        }
    }

    #[test]
    fn the_limit_of_a_pass_is_that_of_each_drafter() {
        let mut settings = DrafterSettings::default();
        settings.limit_nodes(7);
        let DrafterSettings { lookup, llma, trie, suffix, ngram, .. } = &settings;
        let limits = [lookup.nodes_max, llma.nodes_max, trie.nodes_max, suffix.nodes_max, ngram.depth_max];
        assert_eq!(limits, [7; 5]);
        assert_eq!(suffix.depth_max, SuffixSettings::default().depth_max);
    }

    /// Every kind has a row of the table at the beginning of the document.
    #[test]
    fn every_drafter_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/drafters.md");
        let text = std::fs::read_to_string(path).expect("the document is there");
        let is_there = |kind: &DrafterKind| text.contains(&format!("\n| `{}", kind.name()));
        let missing: Vec<&str> = DrafterKind::all().filter(|kind| !is_there(kind)).map(DrafterKind::name).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
