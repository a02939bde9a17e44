//! A generator from settings: target, drafters, engine, and what every request has in common.
//!
//! Which drafters an engine has is decided here and nowhere else. Plain decoding needs no second engine: its requests
//! ask for no drafter; and whoever compares several ways of drafting has them all in one. Left out: what becomes of the
//! answers.

mod drafters;
mod model_free;

use std::borrow::{Borrow, BorrowMut};
use std::sync::Arc;

use foretoken_engine::{BudgetKind, Engine, Order, Request};
use foretoken_model::Options;
use foretoken_speculation::{Tenant, Token};
use foretoken_text::Tokenizer;
use serde_json::Value;

use crate::Error;
use crate::answers::{self, Answer, Watch};
use crate::costs::KeptCosts;
use crate::error::Message;
pub use crate::memory::Memory;
use crate::models::Opened;
use crate::prompts::Prompt;
use crate::record::Record;
use crate::settings::{DecidedSampling, Settings, SpeculationSettings};
use crate::spec_type::SpecType;
use drafters::Workshop;
pub use model_free::without_model;

/// Writes text: an engine with its target, drafters and tokenizer.
///
/// What its passes cost is kept for the next one when it is dropped ([`SpeculationSettings::costs`] says where and when
/// not).
pub struct Generator {
    /// The engine, with its drafters.
    pub engine: Engine,
    /// The target's files.
    pub target: Opened,
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// A request without a prompt, by the first method; every request is a copy of it.
    pub request: Request,
    /// Names of the drafters, by number: each is another.
    pub names: Vec<String>,
    /// The drafters of each method.
    pub methods: Vec<Team>,
    /// What drafters know from before, and what is kept for later.
    pub memory: Memory,
    /// The law, and who decided it.
    pub decided: DecidedSampling,
    /// What a user should know, a line each.
    pub notes: Vec<Message>,
    settings: Settings,
    /// The number of the first request.
    first_request: u64,
    costs: KeptCosts,
}

/// What a generator is made from, where it is more than settings.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// Ways of drafting, at least one, instead of the settings'.
    pub methods: Vec<SpecType>,
    /// How much to draft.
    pub budget: BudgetKind,
    /// What passes and drafts cost, instead of what is measured ([`Record::costs`]).
    pub costs: Option<&'a Value>,
}

impl<'a> Choices<'a> {
    /// What the settings say.
    pub fn new(settings: &'a Settings) -> Self {
        let SpeculationSettings { spec_type, budget, draft, .. } = &settings.speculation;
        Self { settings, methods: vec![spec_type.clone()], budget: budget.up_to(draft.n_max), costs: None }
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

impl Generator {
    /// Opens, checks and loads what the settings name.
    ///
    /// # Errors
    /// Settings that contradict one another, and models that cannot be used, alone or together.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        Self::with(&Choices::new(settings), &mut |_, _| {})
    }

    /// The same, for a door that shows how far loading is. `progress` hears of each layer of each model: how many are
    /// loaded, of how many.
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn with(choices: &Choices<'_>, progress: &mut dyn FnMut(usize, usize)) -> Result<Self, Error> {
        let Choices { settings, .. } = *choices;
        let Settings { model, sampling, speculation, parallel } = settings;
        settings.check()?;
        let specs = |method: &SpecType| speculation.specs(method, model.path.is_none());
        let specs: Vec<_> = choices.methods.iter().map(specs).collect::<Result<_, _>>()?;
        if specs.iter().any(|specs| !specs.is_empty()) {
            check_least(speculation.draft.n_min, choices.budget.nodes_max())?;
        }
        let target = model.open()?;
        let tokenizer = target.tokenizer()?;
        let decided = sampling.decided(&target, tokenizer.as_deref())?;
        let context = model.context(&target);
        let mut notes = Vec::from_iter(model.note(&target));
        // A page belongs to one text, so each text's share is a whole number of pages.
        let positions = context.next_multiple_of(Options::for_positions(1, 1).page_len) * parallel;
        let options = Options { context: Some(context), ..model.run_with(positions) };
        let mut workshop = Workshop::new(speculation, &target, tokenizer.clone(), options);
        for specs in &specs {
            workshop.open_drafts(specs)?;
        }
        let mut engine = Engine::new(Box::new(target.load(options, progress)?), *parallel, context);
        let mut methods: Vec<Team> = Vec::with_capacity(specs.len());
        for (method, specs) in choices.methods.iter().zip(&specs) {
            let order = SpeculationSettings::order(method);
            methods.push(Team { drafters: workshop.team(specs, &mut engine, progress)?, order });
        }
        let names = workshop.names();
        let memory = Memory::load(&speculation.memory, tokenizer.as_deref(), &mut engine, Tenant::default())?;
        let costs = match (specs.iter().all(Vec::is_empty), choices.costs) {
            (true, _) => KeptCosts::default(),
            (false, Some(costs)) => KeptCosts::hold(&mut engine, &names, costs)?,
            (false, None) => {
                let held = speculation.costs.as_deref();
                KeptCosts::prepare(&mut engine, &names, held, &workshop.key(model), &mut notes)?
            }
        };
        let request = request(choices, &decided, methods.first(), tokenizer.clone())?;
        notes.extend(speculation.unused(&specs));
        let first_request = engine.next_request();
        let settings = settings.clone();
        Ok(Self {
            engine,
            target,
            tokenizer,
            request,
            names,
            methods,
            memory,
            decided,
            notes,
            settings,
            first_request,
            costs,
        })
    }

    /// A generator that writes the texts of a record again, if it is given the same prompts in the same order. Files
    /// that it names (models, texts that drafters learned) must be what they were.
    ///
    /// # Errors
    /// As [`Generator::open`], or the record's costs cannot be used.
    pub fn repeat(record: &Record) -> Result<Self, Error> {
        let choices = Choices { costs: record.costs.as_ref(), ..Choices::new(&record.settings) };
        let mut generator = Self::with(&choices, &mut |_, _| {})?;
        generator.engine.set_next_request(record.first_request);
        generator.first_request = record.first_request;
        Ok(generator)
    }

    /// All that decides the texts of this generator, and who decided it.
    pub fn record(&self) -> Record {
        let mut settings = Settings { sampling: self.decided.settings.clone(), ..self.settings.clone() };
        settings.model.threads = Some(settings.model.threads());
        settings.model.ctx_size = Some(self.engine.context());
        let costs = self.costs.held().cloned();
        let drafters = self.request.drafters.iter().map(|number| self.names[usize::from(*number)].clone()).collect();
        Record::new(&self.settings, settings, &self.decided, drafters, self.first_request, costs)
    }

    /// A request that goes on with a prompt.
    ///
    /// # Errors
    /// A text for a model without a tokenizer, or an empty one for a model without a beginning-of-text token.
    pub fn request(&self, prompt: impl Into<Prompt>) -> Result<Request, Error> {
        let prompt: Vec<Token> = prompt.into().tokens(&self.target, self.tokenizer.as_deref())?;
        Ok(Request { prompt, ..self.request.clone() })
    }

    /// Runs requests to their ends, as [`answers::run`].
    ///
    /// # Errors
    /// What all requests have in common is refused, or `watch` fails.
    pub fn run<E: From<Error>>(&mut self, requests: Vec<Request>, watch: &mut Watch<'_, E>) -> Result<Vec<Answer>, E> {
        answers::run(&mut self.engine, requests, watch)
    }

    /// Adds answers to the texts that drafters will know in the next run, if these are kept. What could not be answered
    /// is not kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&mut self, answers: &[Answer]) -> Result<(), Error> {
        for answer in answers.iter().filter(|answer| !answer.emitted.is_empty()) {
            self.memory.add(&answer.prompt, &answer.ids());
        }
        self.memory.save(self.engine.next_request())
    }
}

/// No budget may allow fewer tokens than are to be drafted at least.
fn check_least(found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let expected = Message::setting("draft.n_min").and(format!(": expected at most {most}, which is what "));
    let expected = expected.and_setting("budget").and(" allows without ").and_setting("draft.n_max");
    Err(Error::Setting(expected.and(format!(", found {found}"))))
}

/// The request that all requests are copies of.
fn request(
    choices: &Choices<'_>,
    decided: &DecidedSampling,
    team: Option<&Team>,
    tokenizer: Option<Arc<Tokenizer>>,
) -> Result<Request, Error> {
    let Team { drafters, order } = team.cloned().unwrap_or_default();
    let (settings, speculation) = (&decided.settings, &choices.settings.speculation);
    if tokenizer.is_none() && !settings.stop.is_empty() {
        let expected = ": expected a model with a tokenizer, found one without";
        return Err(Error::Setting(Message::setting("stop").and(expected)));
    }
    Ok(Request {
        tokens_max: settings.tokens_max.0,
        sampling: decided.sampling.clone(),
        seed: settings.seed.unwrap_or_default(),
        promise: speculation.verify,
        budget: choices.budget.clone(),
        drafters,
        order,
        draft: speculation.of_requests(),
        tokenizer,
        stop: settings.stop.clone(),
        special: settings.special,
        ..Request::new(Vec::new())
    })
}

impl Borrow<Engine> for Generator {
    fn borrow(&self) -> &Engine {
        &self.engine
    }
}

impl BorrowMut<Engine> for Generator {
    fn borrow_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.costs.keep(&self.engine, &self.names);
    }
}
