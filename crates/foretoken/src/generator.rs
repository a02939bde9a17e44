//! An engine from options: target, drafters, and what every request of a command has in common.
//!
//! Which drafters an engine has is decided here and nowhere else. Plain decoding needs no second engine: its requests
//! ask for no drafter; and a command that compares several ways of drafting has them all in one. Left out: prompts, and
//! what becomes of the answers.

mod drafters;
pub mod model_free;

use std::sync::Arc;

use foretoken_engine::{BudgetKind, Engine, Order, Request};
use foretoken_model::Options;
use foretoken_speculation::{Promise, Tenant};
use foretoken_text::Tokenizer;

use crate::costs::KeptCosts;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::models::Opened;
use crate::options::{DraftingOptions, LawOptions, ModelOptions, SamplingOptions, SpecType, SpeculationOptions};
use drafters::Workshop;

/// Everything that a command needs to generate.
pub struct Assembly {
    /// The engine, with its drafters.
    pub engine: Engine,
    /// The target's files.
    pub target: Opened,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// A request without a prompt, by the first method; every request of the command is a copy of it.
    pub request: Request,
    /// Names of the drafters, by number: each is another.
    pub names: Vec<String>,
    /// The drafters of each method.
    pub methods: Vec<Team>,
    /// What drafters know from before, and what is kept for later.
    pub memory: Memory,
    /// The seed is random and has not been told yet.
    pub untold_seed: bool,
    costs: KeptCosts,
}

/// The options that an engine is made from.
pub struct Choices<'a> {
    /// Model, context, threads.
    pub model: &'a ModelOptions,
    /// Drafters.
    pub drafting: &'a DraftingOptions,
    /// Ways of drafting, at least one; `None` is what is best without being told.
    pub methods: Vec<Option<SpecType>>,
    /// What speculation promises.
    pub promise: Promise,
    /// How much to draft.
    pub budget: BudgetKind,
    /// The law.
    pub law: &'a LawOptions,
    /// Its temperature, if given.
    pub temperature: Option<f32>,
    /// Texts at a time.
    pub parallel: usize,
    /// Whether what was kept of earlier runs is for requests of any tenant.
    pub shared_memory: bool,
}

impl<'a> Choices<'a> {
    /// Of a command that speculates in one way.
    pub fn new(
        model: &'a ModelOptions,
        speculation: &'a SpeculationOptions,
        sampling: &'a SamplingOptions,
        parallel: usize,
    ) -> Self {
        Self {
            model,
            drafting: &speculation.drafting,
            methods: vec![speculation.spec_type.clone()],
            promise: speculation.verify.into(),
            budget: speculation.budget.up_to(speculation.drafting.spec_draft_n_max),
            law: &sampling.law,
            temperature: sampling.temp,
            parallel,
            shared_memory: false,
        }
    }
}

/// The drafters of a method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Team {
    /// Their numbers.
    pub drafters: Vec<u8>,
    /// The order in which they are asked.
    pub order: Order,
}

impl Assembly {
    /// Opens, checks and loads what the options name.
    ///
    /// # Errors
    /// Options that contradict one another, and models that cannot be used, alone or together.
    pub fn new(choices: &Choices<'_>) -> Result<Self, Failure> {
        let Choices { model, drafting, law, parallel, .. } = *choices;
        let specs = |method: &Option<SpecType>| drafting.drafters(method.as_ref(), model.model.is_none());
        let specs: Vec<_> = choices.methods.iter().map(specs).collect::<Result<_, _>>()?;
        let (found, most) = (drafting.spec_draft_n_min, choices.budget.nodes_max());
        if found > most && specs.iter().any(|specs| !specs.is_empty()) {
            let expected = format!("at most {most}, which is what --budget allows without --spec-draft-n-max");
            return Err(Failure::Usage(format!("--spec-draft-n-min: expected {expected}, found {found}")));
        }
        let target = model.open()?;
        let tokenizer = target.tokenizer()?;
        let sampling = law.sampling(choices.temperature, &target, tokenizer.as_deref())?;
        let context = model.context(&target);
        // A page belongs to one text, so each text's share is a whole number of pages.
        let positions = context.next_multiple_of(Options::for_positions(1, 1).page_len) * parallel;
        let options = model.run_with(positions);
        let mut workshop = Workshop::new(drafting, &target, tokenizer.clone(), options);
        for specs in &specs {
            workshop.open_drafts(specs)?;
        }
        let mut engine = Engine::new(Box::new(target.load(options)?), parallel, context);
        let mut methods: Vec<Team> = Vec::with_capacity(specs.len());
        for (method, specs) in choices.methods.iter().zip(&specs) {
            let order = DraftingOptions::order(method.as_ref());
            methods.push(Team { drafters: workshop.team(specs, &mut engine)?, order });
        }
        let Team { drafters, order } = methods.first().cloned().unwrap_or_default();
        let names = workshop.names();
        let (kept, tokens) = (&drafting.memory, tokenizer.as_deref());
        let memory = Memory::load(kept, tokens, &mut engine, Tenant::default(), choices.shared_memory)?;
        let held = drafting.costs.as_deref();
        let costs = match specs.iter().all(Vec::is_empty) {
            true => KeptCosts::default(),
            false => KeptCosts::prepare(&mut engine, &names, held, &workshop.key(model))?,
        };
        let request = Request {
            tokens_max: law.n_predict.0,
            sampling,
            seed: law.seed(),
            promise: choices.promise,
            budget: choices.budget.clone(),
            drafters,
            order,
            draft: drafting.settings(),
            tokenizer: tokenizer.clone(),
            stop: law.stop.clone(),
            special: law.special,
            ..Request::new(Vec::new())
        };
        if tokenizer.is_none() && !request.stop.is_empty() {
            return Err(Failure::Usage("--stop: expected a model with a tokenizer, found one without".into()));
        }
        // Told last, so that an error stands alone.
        drafting.tell_unused(&specs);
        Ok(Self {
            engine,
            target,
            tokenizer,
            request,
            names,
            methods,
            memory,
            untold_seed: law.seed_is_random(),
            costs,
        })
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.costs.keep(&self.engine, &self.names);
    }
}
