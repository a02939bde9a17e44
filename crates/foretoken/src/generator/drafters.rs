//! Drafters from their specifications, each made once however many methods name it.
//!
//! Draft models are numbered in the order of `--model-draft`: the n-th draft of a method takes the n-th. Left out: what
//! methods are made of, which `--spec-type` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_engine::{Engine, ExecutorScorer, TranslationSettings, translated_drafter};
use foretoken_model::{Options, WeightType};
use foretoken_speculation::{DraftSettings, Drafter, ModelDrafter};
use foretoken_text::Tokenizer;

use super::model_free::without_model;
use crate::failure::Failure;
use crate::models::Opened;
use crate::options::{DrafterSpec, DraftingOptions, Kind, ModelOptions};

/// Makes drafters.
pub struct Workshop<'a> {
    options: &'a DraftingOptions,
    target: &'a Opened,
    tokenizer: Option<Arc<Tokenizer>>,
    /// How draft models are run.
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
}

impl<'a> Workshop<'a> {
    /// A workshop for a target. `run_with`: how the target is run.
    pub fn new(
        options: &'a DraftingOptions,
        target: &'a Opened,
        tokenizer: Option<Arc<Tokenizer>>,
        run_with: Options,
    ) -> Self {
        let run_with = Options {
            key_type: options.cache_type_k_draft,
            value_type: options.cache_type_v_draft,
            weight_type: options.dtype_draft,
            ..run_with
        };
        Self { options, target, tokenizer, run_with, drafts: BTreeMap::new(), made: Vec::new() }
    }

    /// Opens the draft models of a method, if they are not open yet. Done before anything is loaded, so that what cannot
    /// be used is told early.
    ///
    /// # Errors
    /// A model cannot be opened, or does not speak the target's tokens.
    pub fn open_drafts(&mut self, specs: &[DrafterSpec]) -> Result<(), Failure> {
        for number in 0..specs.iter().map(DrafterSpec::models).sum() {
            if !self.drafts.contains_key(&number) {
                let model = self.options.open_draft(number)?;
                let foreign = self.foreign(&model)?;
                self.drafts.insert(number, Draft { model, foreign });
            }
        }
        self.check_nesting(specs)
    }

    /// The tokenizer of a draft model that does not speak the target's tokens.
    fn foreign(&self, draft: &Opened) -> Result<Option<Arc<Tokenizer>>, Failure> {
        let (ours, theirs) = (self.target.spec.vocabulary, draft.spec.vocabulary);
        let tokenizers = self.tokenizer.as_ref().zip(draft.tokenizer()?);
        let same =
            ours == theirs && tokenizers.as_ref().is_none_or(|(ours, theirs)| ours.same_vocabulary(theirs).is_ok());
        match tokenizers {
            _ if same => Ok(None),
            Some((_, theirs)) => Ok(Some(theirs)),
            None => {
                let expected = format!("the vocabulary of {}, {ours} tokens", self.target.name);
                let found = format!("found {theirs}, and no tokenizers to translate by");
                Err(Failure::Other(format!("draft model {}: expected {expected}, {found}", draft.name)))
            }
        }
    }

    /// A draft that is translated cannot be drafted for.
    fn check_nesting(&self, specs: &[DrafterSpec]) -> Result<(), Failure> {
        let mut number = 0;
        for spec in specs {
            let mut at = Some(spec);
            while let Some(spec) = at.filter(|spec| spec.kind.has_model()) {
                if let (Some(_), Draft { model, foreign: Some(_) }) = (&spec.inner, &self.drafts[&number]) {
                    let expected = "expected a draft model with the target's vocabulary outside";
                    return Err(Failure::Usage(format!("--spec-type {spec}: {expected}, found {}", model.name)));
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
    pub fn team(&mut self, specs: &[DrafterSpec], engine: &mut Engine) -> Result<Vec<u8>, Failure> {
        let mut first = 0;
        let mut team = Vec::with_capacity(specs.len());
        for spec in specs {
            // A drafter without a model is the same at any place.
            let key = (spec.clone(), if spec.models() > 0 { first } else { 0 });
            first += spec.models();
            let known = self.made.iter().position(|made| *made == key);
            team.push(match known {
                Some(number) => number as u8,
                None => {
                    let number = engine.add_drafter(self.make(spec, key.1)?);
                    self.made.push(key);
                    number
                }
            });
        }
        Ok(team)
    }

    /// One drafter, whose draft models have the numbers from `first` on.
    fn make(&self, spec: &DrafterSpec, first: usize) -> Result<Box<dyn Drafter>, Failure> {
        Ok(match spec.kind {
            Kind::Draft => {
                let Draft { model, foreign } = &self.drafts[&first];
                let executor = Box::new(model.load(self.run_with)?);
                if let (Some(target), Some(assistant)) = (&self.tokenizer, foreign) {
                    return Ok(translated_drafter(executor, target, assistant, &self.translation())?);
                }
                let mut drafter = ModelDrafter::new(ExecutorScorer::new(executor));
                drafter.n_max = self.options.branch_max();
                match &spec.inner {
                    Some(inner) => Box::new(drafter.with_inner(self.make(inner, first + 1)?)),
                    None => Box::new(drafter),
                }
            }
            kind => {
                let most = self.options.branch_max();
                let vocabulary = self.target.spec.vocabulary;
                without_model(kind, &self.options.own, most, vocabulary, self.tokenizer.as_deref())?
            }
        })
    }

    /// All that the costs of a pass depend on besides the machine, for a reader.
    pub fn key(&self, model: &ModelOptions) -> String {
        let Options { threads, key_type, value_type, .. } = self.run_with;
        let named = |model: &Opened, weights: Option<WeightType>| {
            let types = weights.map_or("its own types".to_string(), |weights| format!("{weights:?}"));
            format!("{} ({} bytes, {types})", model.place(), model.weights_bytes())
        };
        let cache = format!("{:?}/{:?}", model.cache.cache_type_k, model.cache.cache_type_v);
        let drafts = self.drafts.values().map(|draft| named(&draft.model, self.run_with.weight_type));
        let drafts: Vec<String> = drafts.collect();
        let target = named(self.target, model.dtype);
        format!(
            "{target}, cache {cache}; drafts [{}], cache {key_type:?}/{value_type:?}; {threads} threads",
            drafts.join(", ")
        )
    }

    /// How drafts are translated.
    fn translation(&self) -> TranslationSettings {
        TranslationSettings {
            way: self.options.spec_draft_translate.way(),
            target_lookbehind: self.options.target_lookbehind,
            assistant_lookbehind: self.options.assistant_lookbehind,
            n_max: self.options.branch_max(),
            draft: DraftSettings::default(),
        }
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
