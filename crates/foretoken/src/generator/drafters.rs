//! Creates drafters from their specifications, each once even if several methods name it.
//!
//! Draft models are numbered in the order of `model_draft`: the n-th `draft` of a method takes the n-th. Drafters of
//! one draft model share its weights, and each has its own KV cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_drafters::{HeadDrafter, ModelDrafter};
use foretoken_engine::{Engine, ExecutorScorer, TranslationSettings, translated_drafter};
use foretoken_model::{Backend, Capacity, Executor, Options, Packed, WeightType, backend};
use foretoken_speculation::{DraftSettings, Drafter};
use foretoken_text::Tokenizer;

use crate::Error;
use crate::drafters::{DrafterInputs, DrafterKind};
use crate::error::Message;
use crate::memory::MemoryNeed;
use crate::models::Opened;
use crate::prompter::drafter_keys;
use crate::settings::{ModelSettings, SpeculationSettings};
use crate::spec_type::DrafterSpec;

/// Creates the drafters of a generator.
pub struct DrafterMaker<'a> {
    settings: &'a SpeculationSettings,
    target: &'a Opened,
    tokenizer: Option<Arc<Tokenizer>>,
    /// Notes for users about the draft models.
    pub notes: Vec<Message>,
    /// The target's capacity and weights, once it is loaded.
    loaded: Option<(Capacity, Box<dyn Packed>)>,
    /// Whether layers of the target are read from a file for every pass.
    reads_layers: bool,
    /// The backend of draft models.
    backend: &'a dyn Backend,
    /// Options for loading draft models with the target's vocabulary.
    run_with: Options,
    /// The open draft models, by number.
    drafts: BTreeMap<usize, Draft>,
    /// Keys of the drafters by number: the specification with the number of its first draft model.
    pub drafter_keys: Vec<(DrafterSpec, usize)>,
}

/// The least gain of a branch of a draft for a target whose layers are read for every pass, whose rows cost nothing:
/// with 0.02 trees of 32 nodes were accepted furthest, with 0.05 and 0.01 by 3 to 5 % less far (docs/log.md).
const BRANCH_GAIN_MIN: f64 = 0.02;

/// An open draft model.
struct Draft {
    model: Opened,
    /// Its tokenizer, if its vocabulary is not the target's: its drafts are translated.
    assistant_tokenizer: Option<Arc<Tokenizer>>,
    /// Its weights once they are loaded, which its drafters share.
    weights: Option<Box<dyn Packed>>,
}

impl<'a> DrafterMaker<'a> {
    /// For a target. `backend`: that of draft models; `run_with`: the target's options, with the number of its tokens.
    pub fn new(
        settings: &'a SpeculationSettings,
        target: &'a Opened,
        tokenizer: Option<Arc<Tokenizer>>,
        (backend, run_with): (&'a dyn Backend, Options),
    ) -> Self {
        let run_with = Options {
            // All experts and layers are in memory: draft models are small, and their costs assume that all steps take
            // the same time.
            expert_bytes: None,
            layer_bytes: Some(usize::MAX),
            key_type: settings.cache_type_k_draft,
            value_type: settings.cache_type_v_draft,
            weight_type: settings.dtype_draft,
            // A draft model may roll its cache back to any length.
            sequences_max: None,
            ..run_with
        };
        let (drafts, drafter_keys, notes) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            settings,
            target,
            tokenizer,
            notes,
            loaded: None,
            reads_layers: false,
            backend,
            run_with,
            drafts,
            drafter_keys,
        }
    }

    /// Gives the loaded target to draft heads, which read its hidden states, and early exits, which run its layers.
    pub fn set_loaded(&mut self, target: Capacity, weights: Box<dyn Packed>, reads_layers: bool) {
        self.loaded = Some((target, weights));
        self.reads_layers = reads_layers;
    }

    /// Opens the draft models of a method, if they are not open yet. Call it before anything is loaded, so that errors
    /// come early.
    ///
    /// # Errors
    /// A model cannot be opened, or its vocabulary cannot be translated; or the method cannot be used with these
    /// models.
    pub fn open_drafts(&mut self, specs: &[DrafterSpec]) -> Result<(), Error> {
        for number in 0..specs.iter().map(DrafterSpec::models).sum() {
            if !self.drafts.contains_key(&number) {
                let model = self.settings.open_draft(number)?;
                let assistant_tokenizer = self.assistant_tokenizer(&model)?;
                self.check_encoder(&model, assistant_tokenizer.is_some())?;
                self.drafts.insert(number, Draft { model, assistant_tokenizer, weights: None });
            }
        }
        self.check_exits(specs)?;
        self.check_nesting(specs)
    }

    /// Checks that a draft model with an encoder can read the target's source.
    fn check_encoder(&self, draft: &Opened, is_translated: bool) -> Result<(), Error> {
        let (name, target) = (&draft.name, &self.target.name);
        let (expected, found) = match (draft.spec.encoder, self.target.spec.encoder) {
            (Some(_), None) => (format!("no encoder, as {target} has no source for it"), "an encoder-decoder"),
            (Some(_), Some(_)) if is_translated => {
                (format!("the vocabulary of {target}, whose source its encoder reads"), "another vocabulary")
            }
            _ => return Ok(()),
        };
        Err(Error::input(format!("draft model {name}: expected {expected}, found {found}")))
    }

    /// Checks that an early exit has fewer layers than the target.
    fn check_exits(&self, specs: &[DrafterSpec]) -> Result<(), Error> {
        let layers = self.target.spec.layers;
        let Some(spec) = specs.iter().find(|spec| spec.layers >= layers) else { return Ok(()) };
        Err(Error::setting("spec_type", format!(" {spec}: expected fewer layers than the model has, {layers}")))
    }

    /// The tokenizer of a draft model whose vocabulary is not the target's.
    fn assistant_tokenizer(&self, draft: &Opened) -> Result<Option<Arc<Tokenizer>>, Error> {
        if draft.spec.draft_head.is_some() {
            // It reads the target's hidden states and has its vocabulary; loading reports a mismatch.
            return Ok(None);
        }
        let (ours, theirs) = (self.target.spec.vocabulary, draft.spec.vocabulary);
        // Padding does not matter: rows without a token are not computed.
        let has_rows = theirs >= self.tokens();
        if has_rows && draft.has_same_tokenizer_files(self.target) {
            return Ok(None);
        }
        let tokenizers = self.tokenizer.as_ref().zip(draft.tokenizer()?);
        let same = match &tokenizers {
            Some((ours, theirs)) => has_rows && ours.same_vocabulary(theirs).is_ok(),
            None => ours == theirs,
        };
        match tokenizers {
            _ if same => Ok(None),
            Some((_, theirs)) => Ok(Some(theirs)),
            None => {
                let expected = format!("the vocabulary of {}, {ours} tokens", self.target.name);
                let found = format!("found {theirs}, and no tokenizers to translate by");
                Err(Error::input(format!("draft model {}: expected {expected}, {found}", draft.name)))
            }
        }
    }

    /// The number of the target's tokens.
    fn tokens(&self) -> usize {
        self.run_with.tokens.unwrap_or(self.target.spec.vocabulary)
    }

    /// Checks that no inner drafter drafts for a translated draft model or a draft head.
    fn check_nesting(&self, specs: &[DrafterSpec]) -> Result<(), Error> {
        let mut number = 0;
        for spec in specs {
            let mut next = Some(spec);
            while let Some(spec) = next.filter(|spec| spec.kind.has_model()) {
                let Draft { model, assistant_tokenizer, .. } = &self.drafts[&number];
                let is_head = model.spec.draft_head.is_some();
                if spec.inner.is_some() && (assistant_tokenizer.is_some() || is_head) {
                    let expected = match is_head {
                        true => "expected a draft model outside (no drafter drafts for a draft head)",
                        false => "expected a draft model with the target's vocabulary outside",
                    };
                    return Err(Error::setting("spec_type", format!(" {spec}: {expected}, found {}", model.name)));
                }
                number += 1;
                next = spec.inner.as_deref();
            }
        }
        Ok(())
    }

    /// The numbers of a method's drafters; those that do not exist yet are created and added to the engine.
    ///
    /// # Errors
    /// A draft model cannot be loaded.
    pub fn drafters(
        &mut self,
        specs: &[DrafterSpec],
        engine: &mut Engine,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<u8>, Error> {
        let mut drafters = Vec::with_capacity(specs.len());
        for key in drafter_keys(specs) {
            let known = self.drafter_keys.iter().position(|other| *other == key);
            drafters.push(match known {
                Some(number) => number as u8,
                None => {
                    let number = engine.add_drafter(self.make(&key.0, key.1, progress)?);
                    self.drafter_keys.push(key);
                    number
                }
            });
        }
        Ok(drafters)
    }

    /// Creates a drafter, whose draft models have the numbers from `first` on.
    fn make(
        &mut self,
        spec: &DrafterSpec,
        first: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Box<dyn Drafter>, Error> {
        Ok(match spec.kind {
            DrafterKind::Draft => {
                let executor = self.executor(first, progress)?;
                if let (Some(target), Some(assistant)) = (&self.tokenizer, &self.drafts[&first].assistant_tokenizer) {
                    return Ok(translated_drafter(executor, target, assistant, &self.translation())?);
                }
                let depth_max = self.settings.nodes_max();
                if let (Some(head), Some((target, _))) = (&self.drafts[&first].model.spec.draft_head, &self.loaded) {
                    let scorer = ExecutorScorer::for_head(executor, target).map_err(|problem| {
                        Error::input(format!("draft head {}: {problem}", self.drafts[&first].model.name))
                    })?;
                    let mut drafter = HeadDrafter::new(scorer);
                    // Each head of Medusa predicts one position.
                    drafter.depth_max = depth_max.min(head.depth_max());
                    return Ok(Box::new(drafter));
                }
                let mut drafter = ModelDrafter::new(ExecutorScorer::new(executor));
                drafter.depth_max = depth_max;
                drafter.branch_gain_min = self.reads_layers.then_some(BRANCH_GAIN_MIN);
                match &spec.inner {
                    Some(inner) => Box::new(drafter.with_inner(self.make(inner, first + 1, progress)?)),
                    None => Box::new(drafter),
                }
            }
            DrafterKind::Exit => {
                let (_, weights) = self.loaded.as_ref().expect("the target is loaded first");
                let executor = weights.executor(Options { layers: Some(spec.layers), ..self.run_with })?;
                backend::check(self.backend, &self.target.name, &*executor)?;
                let mut drafter = ModelDrafter::new(ExecutorScorer::new(executor));
                drafter.depth_max = self.settings.nodes_max();
                Box::new(drafter)
            }
            kind => kind.make(&DrafterInputs {
                settings: &self.settings.drafters,
                nodes_max: self.settings.nodes_max(),
                vocabulary: self.tokens(),
                tokenizer: self.tokenizer.as_deref(),
            })?,
        })
    }

    /// Loads the draft model of this number with its own KV cache; its weights are loaded once.
    fn executor(&mut self, number: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<Box<dyn Executor>, Error> {
        let Draft { model, assistant_tokenizer, weights } =
            self.drafts.get_mut(&number).expect("draft models are opened first");
        if let Some(weights) = weights {
            let executor = weights.executor(self.run_with)?;
            backend::check(self.backend, &model.name, &*executor)?;
            return Ok(executor);
        }
        let own = assistant_tokenizer.as_deref().map(|tokenizer| model.tokens(Some(tokenizer)));
        self.notes.extend(own.and_then(|own| model.note_tokens(own)));
        let options = Options { tokens: own.or(self.run_with.tokens), ..self.run_with };
        let loaded = match (&model.spec.draft_head, &self.loaded) {
            (None, _) => model.load_within(self.backend, options, progress, &mut self.notes)?,
            (Some(_), target) => {
                let (capacity, weights) = target.as_ref().expect("the target is loaded first");
                let shared = weights.shared_embeddings().ok_or_else(|| {
                    let expected = "expected a target whose embedding is in this process";
                    Error::input(format!("draft head {}: {expected}", model.name))
                })?;
                model.load_head((capacity, &shared), self.backend, options, progress)?
            }
        };
        self.notes.extend(model.note_unused_tensors(&loaded.left_out));
        *weights = Some(loaded.weights);
        Ok(loaded.executor)
    }

    /// Bytes that the open draft models and the early exits of these methods need.
    ///
    /// # Errors
    /// As [`MemoryNeed::of_target`].
    pub fn memory_need(&self, specs: &[Vec<DrafterSpec>]) -> Result<usize, Error> {
        let exits = specs.iter().flatten().filter(|spec| spec.kind == DrafterKind::Exit);
        let exits = exits.map(|spec| MemoryNeed::of_exit(self.target, &self.run_with, spec.layers));
        let drafts = self.drafts.values().map(|draft| MemoryNeed::of_target(&draft.model, &self.run_with));
        let mut drafts = drafts.map(|need| need.map(|need| need.total()));
        drafts.try_fold(exits.fold(0, usize::saturating_add), |all, need| Ok::<_, Error>(all.saturating_add(need?)))
    }

    /// Everything that the costs of a pass depend on besides the machine, as text. `run_with`: the target's options;
    /// `threads`: how many the system started; `ranks`: how many processes share the target.
    pub fn costs_key(&self, model: &ModelSettings, run_with: &Options, (threads, ranks): (usize, usize)) -> String {
        let Options { key_type, value_type, .. } = self.run_with;
        let named = |model: &Opened, weights: Option<WeightType>| {
            let types = weights.map_or("its own types".to_string(), |weights| format!("{weights:?}"));
            format!("{} ({} bytes, {types})", model.place(), model.weights_bytes())
        };
        let cache = format!("{:?}/{:?}", model.cache_type_k, model.cache_type_v);
        let drafts = self.drafts.values().map(|draft| named(&draft.model, self.run_with.weight_type));
        let drafts: Vec<String> = drafts.collect();
        let target = named(self.target, model.dtype);
        // Rounded to a power of two: free memory differs at each start, and hardly changes the time of a pass.
        let in_memory = |of: &str, bytes: Option<usize>| {
            let rounded = bytes.filter(|bytes| *bytes < usize::MAX).map(|bytes| 1usize << bytes.max(1).ilog2());
            rounded.map_or(String::new(), |bytes| format!(", {of} in {bytes} bytes or more"))
        };
        let experts = in_memory("experts", run_with.expert_bytes);
        let layers = in_memory("layers", run_with.layer_bytes);
        let ranks = if ranks > 1 { format!(" on each of {ranks} ranks") } else { String::new() };
        let drafts = format!("drafts [{}], cache {key_type:?}/{value_type:?}", drafts.join(", "));
        format!("{target}{experts}{layers}, cache {cache}; {drafts}; {threads} threads{ranks}")
    }

    /// Settings of the translation of drafts.
    fn translation(&self) -> TranslationSettings {
        TranslationSettings {
            way: self.settings.translate,
            target_lookbehind: self.settings.target_lookbehind,
            assistant_lookbehind: self.settings.assistant_lookbehind,
            depth_max: self.settings.nodes_max(),
            draft: DraftSettings::default(),
        }
    }

    /// Names of the drafters by number: the specification, with a suffix `-2`, `-3`, ... if several are alike.
    pub fn names(&self) -> Vec<String> {
        let name = |(i, (spec, _)): (usize, &(DrafterSpec, usize))| {
            let alike = self.drafter_keys[..i].iter().filter(|(other, _)| other == spec).count();
            if alike == 0 { spec.to_string() } else { format!("{spec}-{}", alike + 1) }
        };
        self.drafter_keys.iter().enumerate().map(name).collect()
    }
}
