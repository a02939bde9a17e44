//! Drafters from their specifications, each made once however many methods name it.
//!
//! Draft models are numbered in the order of `--model-draft`: the n-th draft of a method takes the n-th. Left out: what
//! methods are made of, which `--spec-type` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_engine::{Engine, ExecutorScorer};
use foretoken_model::Options;
use foretoken_speculation::{Drafter, ModelDrafter};
use foretoken_text::Tokenizer;

use super::model_free::without_model;
use crate::failure::Failure;
use crate::models::Opened;
use crate::options::{DrafterSpec, DraftingOptions, Kind};

/// Makes drafters.
pub struct Workshop<'a> {
    options: &'a DraftingOptions,
    target: &'a Opened,
    tokenizer: Option<Arc<Tokenizer>>,
    /// How draft models are run.
    run_with: Options,
    /// Draft models that are open, by number.
    drafts: BTreeMap<usize, Opened>,
    /// What was made: a specification with the number of its first draft model. The place is the drafter's number.
    made: Vec<(DrafterSpec, usize)>,
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
                let draft = self.options.open_draft(number)?;
                self.match_vocabulary(&draft)?;
                self.drafts.insert(number, draft);
            }
        }
        Ok(())
    }

    /// Makes sure that a draft model speaks the target's tokens.
    fn match_vocabulary(&self, draft: &Opened) -> Result<(), Failure> {
        let target = self.target;
        let (ours, theirs) = (target.spec.vocabulary, draft.spec.vocabulary);
        if ours != theirs {
            let expected = format!("the vocabulary of {}, {ours} tokens", target.name);
            return Err(Failure::Other(format!("draft model {}: expected {expected}, found {theirs}", draft.name)));
        }
        if let (Some(ours), Some(theirs)) = (&self.tokenizer, draft.tokenizer()?)
            && let Err(difference) = ours.same_vocabulary(&theirs)
        {
            let expected = format!("the vocabulary of {}", target.name);
            return Err(Failure::Other(format!(
                "draft model {}: expected {expected}, found: {difference}",
                draft.name
            )));
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
                let scorer = ExecutorScorer::new(Box::new(self.drafts[&first].load(self.run_with)?));
                let mut drafter = ModelDrafter::new(scorer);
                drafter.n_max = self.options.spec_draft_n_max;
                match &spec.inner {
                    Some(inner) => Box::new(drafter.with_inner(self.make(inner, first + 1)?)),
                    None => Box::new(drafter),
                }
            }
            kind => {
                let most = self.options.spec_draft_n_max;
                let vocabulary = self.target.spec.vocabulary;
                without_model(kind, &self.options.own, most, vocabulary, self.tokenizer.as_deref())?
            }
        })
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
