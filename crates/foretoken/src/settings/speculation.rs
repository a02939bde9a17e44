//! Settings of speculation: who guesses, how far, and what is promised.

use std::path::PathBuf;

use foretoken_engine::{BudgetKind, Order, TranslationWay};
use foretoken_model::{CacheType, WeightType};
use foretoken_speculation::{DraftSettings, Promise};
use serde::{Deserialize, Serialize};

use super::drafters::{DrafterSettings, MemorySettings};
use super::names;
use crate::Error;
use crate::error::{Message, between};
use crate::models::{Opened, demo};
use crate::spec_type::{DrafterKind, DrafterSpec, SpecType};

/// Most tokens drafted a pass where nobody says it.
const NODES_MAX: usize = 16;

/// How much to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Budget {
    /// As much as pays on this machine, down to nothing.
    #[default]
    Auto,
    /// From 5 on, two more after a draft that was accepted whole, one less after another.
    Heuristic,
    /// Always the maximum.
    Fixed,
    /// A branch stops behind a token that looks wrong; how a wrong one looks is learned.
    Confidence,
    /// A branch stops where all of it has become improbable; how improbable is learned.
    Threshold,
}

impl Budget {
    /// The budget of so many nodes at most; without a limit, up to what ever pays, and where costs are not weighed up
    /// to 16.
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

/// How to guess, and what to do with the guesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeculationSettings {
    /// The drafters, whose guesses fill one tree.
    pub spec_type: SpecType,
    /// What speculation promises.
    #[serde(with = "names")]
    pub verify: Promise,
    /// How much to draft.
    pub budget: Budget,
    /// The draft models: directories or `.gguf` files. The n-th draft of `spec_type` takes the n-th; without any, the
    /// demo model has its own.
    pub model_draft: Vec<PathBuf>,
    /// How far drafts go.
    pub draft: DraftingSettings,
    /// How a draft model with another vocabulary drafts.
    #[serde(with = "names")]
    pub translate: TranslationWay,
    /// Tokens of the target behind which translated drafts are encoded.
    pub target_lookbehind: usize,
    /// Tokens of the draft model behind which the target's text is encoded.
    pub assistant_lookbehind: usize,
    /// What passes and drafts cost: this file is read and never changed, so that nothing depends on the clock; if it is
    /// not there it is measured and written first. `None`: measured once a model and machine, kept in the cache folder
    /// and corrected by every run.
    pub costs: Option<PathBuf>,
    /// As the target's, of draft models.
    #[serde(with = "names::optional")]
    pub dtype_draft: Option<WeightType>,
    /// What cached keys of draft models are rounded to.
    #[serde(with = "names")]
    pub cache_type_k_draft: CacheType,
    /// What cached values of draft models are rounded to.
    #[serde(with = "names")]
    pub cache_type_v_draft: CacheType,
    /// Of the single drafters.
    pub drafters: DrafterSettings,
    /// What drafters know from before.
    pub memory: MemorySettings,
}

impl Default for SpeculationSettings {
    fn default() -> Self {
        Self {
            spec_type: SpecType::Auto,
            verify: Promise::Exact,
            budget: Budget::Auto,
            model_draft: Vec::new(),
            draft: DraftingSettings::default(),
            translate: TranslationWay::ByPromise,
            target_lookbehind: 10,
            assistant_lookbehind: 10,
            costs: None,
            dtype_draft: None,
            cache_type_k_draft: CacheType::default(),
            cache_type_v_draft: CacheType::default(),
            drafters: DrafterSettings::default(),
            memory: MemorySettings::default(),
        }
    }
}

/// How far drafts go, and the law that a draft model draws them from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DraftingSettings {
    /// Most tokens drafted a pass; `None`: as many as pay, and of the other budgets 16.
    pub n_max: Option<usize>,
    /// Fewest tokens that a draft model or an n-gram model drafts when it drafts, however improbable they are.
    pub n_min: usize,
    /// Drafting stops after a token that a drafter finds less probable than this; `None`: where it does not pay, and of
    /// the other budgets 0.
    pub p_min: Option<f32>,
    /// Drafts branch where another token has at least this probability under the draft model; 1 never branches; `None`
    /// is up to the drafter.
    pub p_split: Option<f32>,
    /// The draft model's own temperature; `None` is the target's, as of the next three.
    pub temperature: Option<f32>,
    /// The draft model's own top-k; 0 is off.
    pub top_k: Option<usize>,
    /// The draft model's own top-p; 1 is off.
    pub top_p: Option<f32>,
    /// The draft model's own min-p; 0 is off.
    pub min_p: Option<f32>,
}

impl DraftingSettings {
    /// Checks each setting by itself.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fractions = [
            ("draft.p_min", self.p_min),
            ("draft.p_split", self.p_split),
            ("draft.top_p", self.top_p),
            ("draft.min_p", self.min_p),
        ];
        for (setting, found) in fractions {
            between(setting, found.unwrap_or(0.0), 0.0, 1.0)?;
        }
        between("draft.temperature", self.temperature.unwrap_or(0.0), 0.0, f32::MAX)
    }
}

impl SpeculationSettings {
    /// The order in which the drafters of a method are asked.
    pub fn order(spec_type: &SpecType) -> Order {
        if *spec_type == SpecType::Auto { Order::Learned } else { Order::Given }
    }

    /// The drafters of a method. `demo`: the target is the demo model, which brings a draft model along.
    ///
    /// # Errors
    /// More drafts than draft models, or phrases without a file.
    pub fn specs(&self, spec_type: &SpecType, demo: bool) -> Result<Vec<DrafterSpec>, Error> {
        let wrong = |message: Message| Err(Error::Setting(message));
        if let Some(most) = self.draft.n_max.filter(|most| *most < self.draft.n_min) {
            let expected = Message::setting("draft.n_min").and(": expected at most ").and_setting("draft.n_max");
            return wrong(expected.and(format!(" ({most}), found {}", self.draft.n_min)));
        }
        let models = self.model_draft.len().max(usize::from(demo));
        let specs = match spec_type {
            SpecType::None => return Ok(Vec::new()),
            SpecType::Auto => self.auto(models > 0),
            SpecType::Drafters(specs) => specs.clone(),
        };
        if specs.iter().any(|spec| spec.has(DrafterKind::Phrases)) && self.drafters.phrases.is_none() {
            let expected = Message::setting("spec_type").and(" phrases: expected a file of them (");
            return wrong(expected.and_setting("phrases").and("), found none"));
        }
        let needed: usize = specs.iter().map(DrafterSpec::models).sum();
        if needed > models {
            let expected = if needed == 1 { "a draft model".to_string() } else { format!("{needed} draft models") };
            let found = if models == 0 { "none".to_string() } else { models.to_string() };
            let given = SpecType::Drafters(specs);
            let expected = Message::setting("spec_type").and(format!(" {given}: expected {expected} ("));
            return wrong(expected.and_setting("model_draft").and(format!("), found {found}")));
        }
        Ok(specs)
    }

    /// What is to be said of files that were given and that none of the methods takes, unless all of them are plain
    /// decoding.
    pub(crate) fn unused(&self, methods: &[Vec<DrafterSpec>]) -> Vec<Message> {
        let mut notes = Vec::new();
        if methods.iter().all(Vec::is_empty) {
            return notes;
        }
        let no_use = |path: &std::path::Path| Message::words(format!(" {}: ", path.display()));
        let mut note = |setting: &'static str, path: &std::path::Path, why: Message| {
            notes.push(Message::setting(setting).followed_by(no_use(path)).followed_by(why));
        };
        let useless = || Message::setting("spec_type").and(" has no use for it");
        let needed = methods.iter().map(|specs| specs.iter().map(DrafterSpec::models).sum()).max().unwrap_or(0);
        if let Some(unused) = self.model_draft.get(needed) {
            note("model_draft", unused, useless());
        }
        let any = |right: &dyn Fn(DrafterKind) -> bool| methods.iter().flatten().any(|spec| spec.any(right));
        if let (Some(phrases), false) = (&self.drafters.phrases, any(&|kind| kind == DrafterKind::Phrases)) {
            note("phrases", phrases, useless());
        }
        let MemorySettings { lookup_cache_static, lookup_cache_dynamic, .. } = &self.memory;
        let texts = [("lookup_cache_static", lookup_cache_static), ("lookup_cache_dynamic", lookup_cache_dynamic)];
        for (setting, path) in texts.into_iter().filter(|_| !any(&|kind| self.drafters.learns(kind))) {
            if let Some(path) = path {
                let none = Message::words("no drafter of ").and_setting("spec_type");
                note(setting, path, none.and(" learns from texts of before"));
            }
        }
        notes
    }

    /// What `auto` stands for. Suffix matching finds what lookup and tries find, and a drafter that says little which
    /// others do not say better takes room from them: two that differ much are the best company. `has_prediction`: a
    /// prediction is followed first. A grammar has its say where a request has one.
    pub(crate) fn auto_kinds(has_prediction: bool) -> impl Iterator<Item = DrafterKind> {
        let followed = has_prediction.then_some(DrafterKind::Prediction);
        followed.into_iter().chain([
            DrafterKind::Draft,
            DrafterKind::Suffix,
            DrafterKind::Phrases,
            DrafterKind::Grammar,
        ])
    }

    /// The same of requests without a prediction, as far as it can be had.
    fn auto(&self, has_draft: bool) -> Vec<DrafterSpec> {
        let kinds = Self::auto_kinds(false);
        kinds.filter(|kind| self.can_be_had(*kind, has_draft)).map(DrafterSpec::new).collect()
    }

    /// Whether a drafter of this kind, alone, needs nothing that is not given.
    fn can_be_had(&self, kind: DrafterKind, has_draft: bool) -> bool {
        match kind {
            DrafterKind::Draft => has_draft,
            DrafterKind::Phrases => self.drafters.phrases.is_some(),
            DrafterKind::Exit => false,
            _ => true,
        }
    }

    /// Every way of drafting by one drafter alone that requests may choose: those that need nothing that is not given,
    /// and guess better than by chance. `demo`: as of [`specs`](Self::specs).
    pub(crate) fn choices(&self, demo: bool) -> Vec<SpecType> {
        let has_draft = demo || !self.model_draft.is_empty();
        let kinds = DrafterKind::all().filter(|kind| *kind != DrafterKind::Random && self.can_be_had(*kind, has_draft));
        kinds.map(|kind| SpecType::Drafters(vec![DrafterSpec::new(kind)])).collect()
    }

    /// Opens the draft model of this number, from 0.
    ///
    /// # Errors
    /// As [`Opened::at`].
    pub(crate) fn open_draft(&self, number: usize) -> Result<Opened, Error> {
        match (self.model_draft.get(number), demo::draft()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => Err(Error::Setting(Message::setting("model_draft").and(": expected a model, found none"))),
        }
    }

    /// Most tokens of a branch of a draft model.
    pub(crate) fn branch_max(&self) -> usize {
        self.draft.n_max.unwrap_or(NODES_MAX)
    }

    /// What requests say about drafting.
    pub(crate) fn of_requests(&self) -> DraftSettings {
        let DraftingSettings { n_min, p_min, p_split, temperature, top_k, top_p, min_p, .. } = self.draft;
        let gain_min = self.drafters.gain_min;
        DraftSettings { n_min: Some(n_min), p_min, gain_min, p_split, temperature, top_k, top_p, min_p }
    }
}
