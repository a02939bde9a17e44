//! Settings of speculation: which drafters, how much they draft, and how drafts are verified.

use std::path::{Path, PathBuf};

use foretoken_engine::{BudgetKind, Order, TranslationWay};
use foretoken_model::{CacheType, WeightType};
use foretoken_speculation::{DraftSettings, Promise};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::drafters::{DrafterKind, DrafterSettings, DraftsFrom};
use crate::error::{Message, between};
use crate::models::{Opened, demo};
use crate::names::{self, Named, NamedValue, OneOf};
use crate::spec_type::{DrafterSpec, SpecType};

/// The default limit of tokens drafted in a pass.
const NODES_MAX: usize = 16;

/// How much to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Budget {
    /// As many tokens as pay on this machine, down to none.
    #[default]
    Auto,
    /// Starts with 5 tokens; two more after a draft that was accepted completely, one less after any other.
    Heuristic,
    /// Always the maximum.
    Fixed,
    /// A branch stops after a token of low probability; the threshold is learned.
    Confidence,
    /// A branch stops where its probability as a whole is low; the threshold is learned.
    Threshold,
}

impl OneOf for Budget {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Auto, &["auto"], "As much as pays on this machine, down to nothing"),
        NamedValue::new(
            Self::Heuristic,
            &["heuristic"],
            "Starts with 5, two more after a draft that was accepted completely (of a tree its longest branch, which \
             keeps wide trees small), one less after any other; each request starts again, as heuristic_transient of \
             transformers",
        ),
        NamedValue::new(Self::Fixed, &["fixed"], "Always the maximum"),
        NamedValue::new(
            Self::Confidence,
            &["confidence"],
            "A branch stops after a token of low probability; the threshold is learned",
        ),
        NamedValue::new(
            Self::Threshold,
            &["threshold"],
            "A branch stops where its probability as a whole is low; the threshold is learned",
        ),
    ];
}

impl Budget {
    /// The budget with at most `limit` nodes; without a limit, `auto` drafts as many as can ever pay, the others 16.
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

/// How to draft, and how drafts are verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeculationSettings {
    /// The drafters; their drafts form one tree.
    pub spec_type: SpecType,
    /// What speculation promises about texts.
    #[serde(with = "names")]
    pub verify: Promise,
    /// The lenience with which drafts are verified, above 0 and at most 1. 1 is off. Below 1 verification is **lossy**:
    /// more drafted tokens are accepted, and the promise is not kept. Above temperature 0 it stands beside rejection
    /// alone, and no token gets more than 1 / lenience times its probability; at temperature 0 a drafted token is
    /// accepted that is at least this fraction as probable as the best, and there is no such bound.
    pub lossy_lenience: f32,
    /// How much to draft.
    pub budget: Budget,
    /// The draft models: directories or `.gguf` files. The n-th `draft` of `spec_type` takes the n-th. If there are
    /// none, the demo target has its own draft model.
    pub model_draft: Vec<PathBuf>,
    /// Limits of drafts, and the draft model's sampling parameters.
    pub draft: DraftingSettings,
    /// How drafts of a draft model with another vocabulary are translated.
    #[serde(with = "names")]
    pub translate: TranslationWay,
    /// How many of the target's last tokens are encoded together with a translated draft.
    pub target_lookbehind: usize,
    /// How many of the draft model's last tokens are encoded together with new text of the target.
    pub assistant_lookbehind: usize,
    /// A file with the costs of passes and drafts. It is read and never changed, so nothing depends on the clock; if it
    /// does not exist, costs are measured and written first. `None`: costs are measured once for each model and
    /// machine, kept in the cache folder and updated by every run.
    pub costs: Option<PathBuf>,
    /// As [`dtype`](super::ModelSettings::dtype), of draft models.
    #[serde(with = "names::optional")]
    pub dtype_draft: Option<WeightType>,
    /// The type of cached keys of draft models.
    #[serde(with = "names")]
    pub cache_type_k_draft: CacheType,
    /// The type of cached values of draft models.
    #[serde(with = "names")]
    pub cache_type_v_draft: CacheType,
    /// Settings of each kind of drafter.
    pub drafters: DrafterSettings,
    /// Texts that drafters learn before a run.
    pub memory: MemorySettings,
}

impl Default for SpeculationSettings {
    fn default() -> Self {
        Self {
            spec_type: SpecType::Auto,
            verify: Promise::Exact,
            lossy_lenience: 1.0,
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

/// Texts that drafters learn before a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// Texts that drafters learn before the first prompt: a file of a [`Store`](crate::store::Store).
    pub lookup_cache_static: Option<PathBuf>,
    /// A file of texts of earlier runs, read if it exists, to which those of this run may be added. Under rejection or
    /// block verification each run then generates other texts, also for the same seed.
    pub lookup_cache_dynamic: Option<PathBuf>,
    /// The most tokens kept in that file, those of the newest texts; a file that has more is refused.
    pub lookup_cache_tokens: usize,
    /// Whether texts of earlier runs are used for requests of any tenant, not only of their own.
    pub shared: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { lookup_cache_static: None, lookup_cache_dynamic: None, lookup_cache_tokens: 1 << 20, shared: false }
    }
}

/// Checks that a lenience is above 0 and at most 1, and, if it is below 1, that the promise allows it at this
/// temperature ([`SpeculationSettings::lossy_lenience`]).
///
/// # Errors
/// It is out of its range, or it stands beside exact or block above temperature 0.
pub fn check_lenience(lenience: f32, promise: Promise, temperature: f32) -> Result<(), Error> {
    let setting = Message::setting("lossy_lenience");
    if !(lenience > 0.0 && lenience <= 1.0) {
        let expected = format!(": expected a number above 0 and up to 1, found {lenience}");
        return Err(Error::Setting(setting.and(expected)));
    }
    if lenience == 1.0 || promise == Promise::Rejection || temperature == 0.0 {
        return Ok(());
    }
    let beside = setting.and(format!(" {lenience}: expected ")).and_setting("verify").and(" rejection beside it, or ");
    let found = format!(" 0, since it is lossy, found {}", promise.name());
    Err(Error::Setting(beside.and_setting("temperature").and(found)))
}

/// Limits of drafts, and the sampling parameters that a draft model draws them with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DraftingSettings {
    /// The most tokens drafted in a pass; `None`: as many as pay with the budget `auto`, 16 with others.
    pub n_max: Option<usize>,
    /// The fewest tokens that a draft model or an n-gram model drafts when it drafts, however improbable they are.
    pub n_min: usize,
    /// Drafting stops after a token whose probability under the drafter is less than this; `None`: where it does not
    /// pay with the budget `auto`, 0 with others.
    pub p_min: Option<f32>,
    /// Drafts branch where another token has at least this probability under the draft model; 1 never branches; `None`:
    /// the drafter decides.
    pub p_split: Option<f32>,
    /// The draft model's temperature; `None` is the target's.
    pub temperature: Option<f32>,
    /// The draft model's top-k; 0 is off, `None` is the target's.
    pub top_k: Option<usize>,
    /// The draft model's top-p; 1 is off, `None` is the target's.
    pub top_p: Option<f32>,
    /// The draft model's min-p; 0 is off, `None` is the target's.
    pub min_p: Option<f32>,
}

impl DraftingSettings {
    /// Checks the range of each setting.
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
    /// The order in which the drafters of a method draft.
    pub fn order(spec_type: &SpecType) -> Order {
        if *spec_type == SpecType::Auto { Order::Learned } else { Order::Given }
    }

    /// The drafters of a method. `demo`: the target is the demo model, which has a draft model.
    ///
    /// # Errors
    /// The method has more `draft`s than there are draft models, or a drafter without the file that it needs; or
    /// `n_min` exceeds `n_max`.
    pub fn specs(&self, spec_type: &SpecType, demo: bool) -> Result<Vec<DrafterSpec>, Error> {
        let wrong = |message: Message| Err(Error::Setting(message));
        if let Some(most) = self.draft.n_max.filter(|most| *most < self.draft.n_min) {
            let expected = Message::setting("draft.n_min").and(": expected at most ").and_setting("draft.n_max");
            return wrong(expected.and(format!(" ({most}), found {}", self.draft.n_min)));
        }
        let models = self.model_draft.len().max(usize::from(demo));
        let specs: Vec<DrafterSpec> = match spec_type {
            SpecType::None => return Ok(Vec::new()),
            SpecType::Auto => {
                let available = Self::auto_kinds(false).filter(|kind| self.is_available(*kind, models > 0));
                available.map(DrafterSpec::new).collect()
            }
            SpecType::Drafters(specs) => specs.clone(),
        };
        let lacks_file =
            |kind: &DrafterKind| specs.iter().any(|spec| spec.has(*kind)) && !kind.has_its_file(&self.drafters);
        if let Some(name) = DrafterKind::all().find(lacks_file).map(DrafterKind::name) {
            let expected = Message::setting("spec_type").and(format!(" {name}: expected a file of them ("));
            return wrong(expected.and_setting(name).and("), found none"));
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

    /// Notes for users, unless all methods are plain decoding: that verification is lossy, and files that none of the
    /// methods uses.
    pub(crate) fn notes(&self, methods: &[Vec<DrafterSpec>]) -> Vec<Message> {
        let mut notes = Vec::new();
        if methods.iter().all(Vec::is_empty) {
            return notes;
        }
        if self.lossy_lenience < 1.0 {
            let lossy = format!(" {}: lossy: drafts change the law of the text", self.lossy_lenience);
            notes.push(Message::setting("lossy_lenience").and(lossy));
        }
        let mut note = |setting: &'static str, path: &Path, why: Message| {
            notes.push(Message::setting(setting).and(format!(" {}: ", path.display())).followed_by(why));
        };
        let unneeded = || Message::setting("spec_type").and(" has no use for it");
        let needed = methods.iter().map(|specs| specs.iter().map(DrafterSpec::models).sum()).max().unwrap_or(0);
        if let Some(unused) = self.model_draft.get(needed) {
            note("model_draft", unused, unneeded());
        }
        let any = |matches: &dyn Fn(DrafterKind) -> bool| methods.iter().flatten().any(|spec| spec.any(matches));
        for kind in DrafterKind::all().filter(|kind| !any(&|other| other == *kind)) {
            if let Some(path) = kind.file(&self.drafters) {
                note(kind.name(), path, unneeded());
            }
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

    /// The drafters of `auto`, in their first order. Lookup and tries are not among them: suffix matching finds the
    /// same continuations, and a drafter that adds little to the others only takes rows from them. With
    /// `has_prediction` the prediction's drafter comes first.
    pub(crate) fn auto_kinds(has_prediction: bool) -> impl Iterator<Item = DrafterKind> {
        let follows = move |kind: &DrafterKind| has_prediction && kind.row().drafts_from == DraftsFrom::Prediction;
        DrafterKind::all().filter(follows).chain(DrafterKind::all().filter(|kind| kind.row().auto.is_some()))
    }

    /// Whether a drafter of this kind has the model or the file that it needs. `has_model`: there is a draft model.
    fn is_available(&self, kind: DrafterKind, has_model: bool) -> bool {
        match kind.row().drafts_from {
            DraftsFrom::Model => has_model,
            DraftsFrom::FirstLayers => false,
            _ => kind.has_its_file(&self.drafters),
        }
    }

    /// The methods with a single drafter that requests may choose: the available drafters, except those for tests.
    /// `demo`: as in [`specs`](Self::specs).
    pub(crate) fn single_drafters(&self, demo: bool) -> Vec<SpecType> {
        let has_model = demo || !self.model_draft.is_empty();
        let kinds = DrafterKind::all().filter(|kind| kind.row().drafts_from != DraftsFrom::Nothing);
        let kinds = kinds.filter(|kind| self.is_available(*kind, has_model));
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
            (None, None) => Err(Error::setting("model_draft", ": expected a model, found none")),
        }
    }

    /// The most tokens that a drafter proposes in a pass if the drafter has no limit of its own.
    pub(crate) fn nodes_max(&self) -> usize {
        self.draft.n_max.unwrap_or(NODES_MAX)
    }

    /// The draft settings of requests.
    pub(crate) fn request_draft_settings(&self) -> DraftSettings {
        let DraftingSettings { n_min, p_min, p_split, temperature, top_k, top_p, min_p, .. } = self.draft;
        let gain_min = self.drafters.gain_min;
        DraftSettings { n_min: Some(n_min), p_min, gain_min, p_split, temperature, top_k, top_p, min_p }
    }
}
