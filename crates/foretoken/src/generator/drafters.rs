//! Drafters from their specifications, each made once however many methods name it.
//!
//! Draft models are numbered in the order of `model_draft`: the n-th draft of a method takes the n-th. Drafters of one
//! draft model share its weights, each with a cache of its own. Left out: what methods are made of, which `spec_type`
//! says.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_drafters::ModelDrafter;
use foretoken_engine::{Engine, ExecutorScorer, TranslationSettings, translated_drafter};
use foretoken_model::{Backend, Executor, Options, Packed, WeightType, backend};
use foretoken_speculation::{DraftSettings, Drafter};
use foretoken_text::Tokenizer;

use super::model_free::without_model;
use crate::Error;
use crate::error::Message;
use crate::memory::Need;
use crate::models::Opened;
use crate::prompter::made_keys;
use crate::settings::{ModelSettings, SpeculationSettings};
use crate::spec_type::{DrafterKind, DrafterSpec};

/// Makes the drafters of a generator.
pub struct DrafterMaker<'a> {
    settings: &'a SpeculationSettings,
    target: &'a Opened,
    tokenizer: Option<Arc<Tokenizer>>,
    /// What a user should know of the draft models.
    pub notes: Vec<Message>,
    /// What runs draft models.
    backend: &'a dyn Backend,
    /// How draft models are run that speak the target's tokens.
    run_with: Options,
    /// Draft models that are open, by number.
    drafts: BTreeMap<usize, Draft>,
    /// What was made: a specification with the number of its first draft model. The place is the drafter's number.
    made: Vec<(DrafterSpec, usize)>,
}

/// A draft model that is open.
struct Draft {
    model: Opened,
    /// Its tokenizer, if it speaks other tokens than the target: its drafts are translated.
    foreign: Option<Arc<Tokenizer>>,
    /// Its weights once they are loaded: drafters share them, and have caches of their own.
    weights: Option<Box<dyn Packed>>,
}

impl<'a> DrafterMaker<'a> {
    /// Makes drafters for a target. `run_with`: by whom and how the target is run, with as many tokens as it has.
    pub fn new(
        settings: &'a SpeculationSettings,
        target: &'a Opened,
        tokenizer: Option<Arc<Tokenizer>>,
        (backend, run_with): (&'a dyn Backend, Options),
    ) -> Self {
        let run_with = Options {
            // Draft models are small, and what a step takes is learned from all their steps: all experts are packed.
            expert_bytes: None,
            key_type: settings.cache_type_k_draft,
            value_type: settings.cache_type_v_draft,
            weight_type: settings.dtype_draft,
            // A draft model may go back behind what it has run.
            texts: None,
            ..run_with
        };
        let (drafts, made, notes) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { settings, target, tokenizer, notes, backend, run_with, drafts, made }
    }

    /// Opens the draft models of a method, if they are not open yet. Done before anything is loaded, so that what
    /// cannot be used is told early.
    ///
    /// # Errors
    /// A model cannot be opened, or does not speak the target's tokens.
    pub fn open_drafts(&mut self, specs: &[DrafterSpec]) -> Result<(), Error> {
        for number in 0..specs.iter().map(DrafterSpec::models).sum() {
            if !self.drafts.contains_key(&number) {
                let model = self.settings.open_draft(number)?;
                let foreign = self.foreign(&model)?;
                self.drafts.insert(number, Draft { model, foreign, weights: None });
            }
        }
        self.check_nesting(specs)
    }

    /// The tokenizer of a draft model that does not speak the target's tokens.
    fn foreign(&self, draft: &Opened) -> Result<Option<Arc<Tokenizer>>, Error> {
        let (ours, theirs) = (self.target.spec.vocabulary, draft.spec.vocabulary);
        // However much either is padded: rows without a token are not run.
        let has_rows = theirs >= self.tokens();
        if has_rows && draft.has_tokenizer_of(self.target) {
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

    /// Tokens of the target.
    fn tokens(&self) -> usize {
        self.run_with.tokens.unwrap_or(self.target.spec.vocabulary)
    }

    /// A draft that is translated cannot be drafted for.
    fn check_nesting(&self, specs: &[DrafterSpec]) -> Result<(), Error> {
        let mut number = 0;
        for spec in specs {
            let mut at = Some(spec);
            while let Some(spec) = at.filter(|spec| spec.kind.has_model()) {
                if let (Some(_), Draft { model, foreign: Some(_), .. }) = (&spec.inner, &self.drafts[&number]) {
                    let expected = "expected a draft model with the target's vocabulary outside";
                    return Err(Error::Setting(
                        Message::setting("spec_type").and(format!(" {spec}: {expected}, found {}", model.name)),
                    ));
                }
                number += 1;
                at = spec.inner.as_deref();
            }
        }
        Ok(())
    }

    /// The numbers of a method's drafters; those that are not there yet are made and added.
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
        for key in made_keys(specs) {
            let known = self.made.iter().position(|made| *made == key);
            drafters.push(match known {
                Some(number) => number as u8,
                None => {
                    let number = engine.add_drafter(self.make(&key.0, key.1, progress)?);
                    self.made.push(key);
                    number
                }
            });
        }
        Ok(drafters)
    }

    /// One drafter, whose draft models have the numbers from `first` on.
    fn make(
        &mut self,
        spec: &DrafterSpec,
        first: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Box<dyn Drafter>, Error> {
        Ok(match spec.kind {
            DrafterKind::Draft => {
                let executor = self.executor(first, progress)?;
                if let (Some(target), Some(assistant)) = (&self.tokenizer, &self.drafts[&first].foreign) {
                    return Ok(translated_drafter(executor, target, assistant, &self.translation())?);
                }
                let mut drafter = ModelDrafter::new(ExecutorScorer::new(executor));
                drafter.depth_max = self.settings.branch_max();
                match &spec.inner {
                    Some(inner) => Box::new(drafter.with_inner(self.make(inner, first + 1, progress)?)),
                    None => Box::new(drafter),
                }
            }
            kind => {
                let most = self.settings.branch_max();
                let vocabulary = self.tokens();
                without_model(kind, &self.settings.drafters, most, vocabulary, self.tokenizer.as_deref())?
            }
        })
    }

    /// The draft model of this number with a cache of its own.
    fn executor(&mut self, number: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<Box<dyn Executor>, Error> {
        let Draft { model, foreign, weights } = self.drafts.get_mut(&number).expect("draft models are opened first");
        if let Some(weights) = weights {
            let executor = weights.executor(self.run_with)?;
            backend::check(self.backend, &model.name, &*executor)?;
            return Ok(executor);
        }
        let own = foreign.as_deref().map(|tokenizer| model.tokens(Some(tokenizer)));
        self.notes.extend(own.and_then(|own| model.note_tokens(own)));
        let options = Options { tokens: own.or(self.run_with.tokens), ..self.run_with };
        let loaded = model.load_within(self.backend, options, progress)?;
        self.notes.extend(model.note_left_out(&loaded.left_out));
        *weights = Some(loaded.weights);
        Ok(loaded.executor)
    }

    /// Bytes that the draft models need that are open.
    ///
    /// # Errors
    /// As [`Need::of_target`].
    pub fn need(&self) -> Result<usize, Error> {
        let mut each = self.drafts.values().map(|draft| Need::of_draft(&draft.model, &self.run_with));
        each.try_fold(0usize, |all, draft| Ok(all.saturating_add(draft?)))
    }

    /// All that the costs of a pass depend on besides the machine, for a reader. `run_with`: how the target is run;
    /// `threads`: those that were had.
    pub fn key(&self, model: &ModelSettings, run_with: &Options, threads: usize) -> String {
        let Options { key_type, value_type, .. } = self.run_with;
        let named = |model: &Opened, weights: Option<WeightType>| {
            let types = weights.map_or("its own types".to_string(), |weights| format!("{weights:?}"));
            format!("{} ({} bytes, {types})", model.place(), model.weights_bytes())
        };
        let cache = format!("{:?}/{:?}", model.cache_type_k, model.cache_type_v);
        let drafts = self.drafts.values().map(|draft| named(&draft.model, self.run_with.weight_type));
        let drafts: Vec<String> = drafts.collect();
        let target = named(self.target, model.dtype);
        // To a power of two: what is free is not the same at each start, and hardly tells in what passes take.
        let about = |bytes: usize| 1usize << bytes.max(1).ilog2();
        let experts = run_with.expert_bytes.map(|bytes| format!(", experts in {} bytes or more", about(bytes)));
        let experts = experts.unwrap_or_default();
        format!(
            "{target}{experts}, cache {cache}; drafts [{}], cache {key_type:?}/{value_type:?}; {threads} threads",
            drafts.join(", ")
        )
    }

    /// How drafts are translated.
    fn translation(&self) -> TranslationSettings {
        TranslationSettings {
            way: self.settings.translate,
            target_lookbehind: self.settings.target_lookbehind,
            assistant_lookbehind: self.settings.assistant_lookbehind,
            depth_max: self.settings.branch_max(),
            draft: DraftSettings::default(),
        }
    }

    /// What was made, by number: a specification with the number of its first draft model.
    pub fn made(&self) -> Vec<(DrafterSpec, usize)> {
        self.made.clone()
    }

    /// Names of what was made, by number: the specification, and a number behind it where two are alike.
    pub fn names(&self) -> Vec<String> {
        let name = |(i, (spec, _)): (usize, &(DrafterSpec, usize))| {
            let alike = self.made[..i].iter().filter(|(other, _)| other == spec).count();
            if alike == 0 { spec.to_string() } else { format!("{spec}-{}", alike + 1) }
        };
        self.made.iter().enumerate().map(name).collect()
    }
}
