//! An engine from options: target, drafters, and what every request of a command has in common.
//!
//! Which drafters an engine has is decided here and nowhere else. Plain decoding needs no second engine: its requests
//! ask for no drafter. Left out: prompts, and what becomes of the answers.

use std::sync::Arc;

use foretoken_engine::{Engine, ExecutorScorer, Request};
use foretoken_model::Options;
use foretoken_speculation::{DraftSettings, LookupDrafter, ModelDrafter};
use foretoken_text::Tokenizer;

use crate::failure::Failure;
use crate::models::Opened;
use crate::options::{ModelOptions, SamplingOptions, SpecType, SpeculationOptions};

/// Everything that a command needs to generate.
pub struct Assembly {
    /// The engine, with its drafters.
    pub engine: Engine,
    /// The target's files.
    pub target: Opened,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// A request without a prompt; every request of the command is a copy of it.
    pub request: Request,
    /// Names of the drafters, by number.
    pub names: Vec<String>,
    /// The seed is random and has not been told yet.
    pub untold_seed: bool,
}

/// The groups of options that an engine is made from.
pub struct Choices<'a> {
    /// Model, context, threads.
    pub model: &'a ModelOptions,
    /// Drafters.
    pub speculation: &'a SpeculationOptions,
    /// The law.
    pub sampling: &'a SamplingOptions,
    /// Texts at a time.
    pub parallel: usize,
}

impl Assembly {
    /// Opens, checks and loads what the options name.
    ///
    /// # Errors
    /// Options that contradict one another, and models that cannot be used, alone or together.
    pub fn new(choices: &Choices<'_>) -> Result<Self, Failure> {
        let Choices { model, speculation, sampling, parallel } = *choices;
        let kinds = speculation.drafters(model.model.is_none())?;
        let target = model.open()?;
        let tokenizer = target.tokenizer()?;
        let law = sampling.sampling(&target, tokenizer.as_deref())?;
        let context = model.context(&target);
        // A page belongs to one text, so each text's share is a whole number of pages.
        let positions = context.next_multiple_of(Options::for_positions(1, 1).page_len) * parallel;
        let options = model.run_with(positions);
        let draft_options = Options {
            key_type: speculation.cache_type_k_draft,
            value_type: speculation.cache_type_v_draft,
            weight_type: speculation.dtype_draft,
            ..options
        };
        let draft = match kinds.contains(&SpecType::Draft) {
            true => Some(open_matching_draft(speculation, &target, tokenizer.as_deref())?),
            false => None,
        };
        let mut engine = Engine::new(Box::new(target.load(options)?), parallel, context);
        for kind in kinds {
            match (kind, &draft) {
                (SpecType::Draft, Some(draft)) => {
                    let mut drafter = ModelDrafter::new(ExecutorScorer::new(Box::new(draft.load(draft_options)?)));
                    drafter.n_max = speculation.spec_draft_n_max;
                    drafter.settings = DraftSettings {
                        n_min: Some(speculation.spec_draft_n_min),
                        p_min: Some(speculation.spec_draft_p_min),
                        temperature: speculation.spec_draft_temp,
                        ..DraftSettings::default()
                    };
                    engine.add_drafter(Box::new(drafter));
                }
                (SpecType::Lookup, _) => {
                    let (longest, most) = (speculation.max_matching_ngram_size, speculation.prompt_lookup_num_tokens);
                    engine.add_drafter(Box::new(LookupDrafter::new(1, longest, most)));
                }
                (SpecType::None | SpecType::Draft, _) => unreachable!("{kind:?} is no drafter without a model"),
            };
        }
        let names: Vec<String> = engine.drafter_names().into_iter().map(str::to_string).collect();
        let request = Request {
            tokens_max: sampling.n_predict.0,
            sampling: law,
            seed: sampling.seed(),
            promise: speculation.verify.into(),
            budget: speculation.budget(),
            drafters: (0..names.len() as u8).collect(),
            tokenizer: tokenizer.clone(),
            stop: sampling.stop.clone(),
            special: sampling.special,
            ..Request::new(Vec::new())
        };
        if tokenizer.is_none() && !request.stop.is_empty() {
            return Err(Failure::Usage("--stop: expected a model with a tokenizer, found one without".into()));
        }
        Ok(Self { engine, target, tokenizer, request, names, untold_seed: sampling.seed_is_random() })
    }
}

/// Opens the draft model and makes sure that it speaks the target's tokens.
fn open_matching_draft(
    speculation: &SpeculationOptions,
    target: &Opened,
    tokenizer: Option<&Tokenizer>,
) -> Result<Opened, Failure> {
    let draft = speculation.open_draft()?;
    let (ours, theirs) = (target.spec.vocabulary, draft.spec.vocabulary);
    if ours != theirs {
        let expected = format!("the vocabulary of {}, {ours} tokens", target.name);
        return Err(Failure::Other(format!("draft model {}: expected {expected}, found {theirs}", draft.name)));
    }
    if let (Some(ours), Some(theirs)) = (tokenizer, draft.tokenizer()?)
        && let Err(difference) = ours.same_vocabulary(&theirs)
    {
        let expected = format!("the vocabulary of {}", target.name);
        return Err(Failure::Other(format!("draft model {}: expected {expected}, found: {difference}", draft.name)));
    }
    Ok(draft)
}
