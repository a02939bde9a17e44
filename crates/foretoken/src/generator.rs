//! Opens a generator from its settings: target, drafters, engine, and the files that are kept between runs.
//!
//! Only this module decides which drafters an engine has. One engine serves several methods of drafting, from which
//! requests choose, and plain decoding, which is a request without drafters. The [`Prompter`] has what requests need
//! and what needs no engine.

mod drafters;

use std::borrow::{Borrow, BorrowMut};
use std::sync::{Arc, OnceLock};

use foretoken_engine::{BudgetKind, Engine, Request};
use foretoken_model::{Backend, Cpu, Loaded, Options};
use serde_json::Value;

use crate::answers::{self, Answer, Complete, Watch};
use crate::backend::chosen_backend;
use crate::costs::KeptCosts;
use crate::error::Message;
pub use crate::kept_texts::KeptTexts;
use crate::memory::{MemoryNeed, MemoryReservation};
use crate::prompt_cache::{Key, PromptCache};
use crate::prompter::Drafting;
use crate::prompts::Prompt;
use crate::record::Record;
use crate::settings::{Settings, SpeculationSettings, check_lenience};
use crate::spec_type::SpecType;
use crate::{Error, Method, Prompter};
use drafters::DrafterMaker;

/// Generates text: an engine with its target and drafters, and the [`Prompter`] that creates its requests.
///
/// Dropping it writes the measured costs to a file, for the next one ([`SpeculationSettings::costs`]).
pub struct Generator {
    /// The engine, with its drafters.
    pub engine: Engine,
    /// Creates the requests. Front ends that move the generator to a thread ([`EngineThread`](crate::EngineThread))
    /// take a clone of it first.
    pub prompter: Arc<Prompter>,
    /// The texts that are kept between runs for drafters.
    pub kept_texts: KeptTexts,
    /// The KV-cache rows of prompts that are kept between runs.
    prompt_cache: PromptCache,
    /// Threads that compute the target's passes: as many as the settings have, or fewer if the system refuses them.
    pub threads: usize,
    /// Notes for the user, one line each.
    pub notes: Vec<Message>,
    settings: Settings,
    /// The number of the first request.
    first_request: u64,
    costs: KeptCosts,
    memory: MemoryReservation,
}

/// An event while a generator is opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Opening<'a> {
    /// Layers of a model are loaded; models are loaded one after the other.
    Loading {
        /// Layers that are loaded.
        done: usize,
        /// All layers.
        of: usize,
    },
    /// Before anything is loaded: memory seems too small, and no limit refuses the models.
    Warning(&'a Message),
}

/// Everything that a generator is opened with: settings, and values that a caller may replace.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// Methods of drafting, at least one; by default the settings' one.
    pub methods: Vec<SpecType>,
    /// How much to draft.
    pub budget: BudgetKind,
    /// Fixed costs of passes and drafts ([`Record::costs`]), instead of measured ones.
    pub costs: Option<&'a Value>,
    /// The backend that runs the target; by default the [chosen one](chosen_backend).
    pub backend: &'a dyn Backend,
    /// The backend that runs draft models and heads; by default the CPU of this process, since they are small.
    pub draft_backend: &'a dyn Backend,
}

impl<'a> Choices<'a> {
    /// The settings' own choices.
    pub fn new(settings: &'a Settings) -> Self {
        let SpeculationSettings { spec_type, budget, draft, .. } = &settings.speculation;
        Self {
            settings,
            methods: vec![spec_type.clone()],
            budget: budget.up_to(draft.n_max),
            costs: None,
            backend: chosen_backend(),
            draft_backend: &Cpu,
        }
    }

    /// For a front end whose requests choose their drafters themselves ([`Prompter::method`]): first the settings'
    /// method, then each available drafter alone. A drafter sees only the requests that name it.
    pub fn for_requests(settings: &'a Settings) -> Self {
        let mut choices = Self::new(settings);
        choices.methods.extend(settings.speculation.single_drafters(settings.model.path.is_none()));
        choices
    }
}

impl Generator {
    /// Loads the models that the settings name and prepares everything for requests.
    ///
    /// # Errors
    /// Settings contradict each other; or models cannot be used, alone or together, or need more memory than may be
    /// taken ([`MemoryLimit`](crate::MemoryLimit)).
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        Self::with(&Choices::new(settings), &mut |_| {})
    }

    /// As [`Generator::open`], with the caller's choices and progress: `on_event` is called with each event.
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn with(choices: &Choices<'_>, on_event: &mut dyn FnMut(Opening<'_>)) -> Result<Self, Error> {
        let Choices { settings, backend, draft_backend, .. } = *choices;
        let Settings { model, sampling, speculation, parallel } = settings;
        settings.check()?;
        let specs = |method: &SpecType| speculation.specs(method, model.path.is_none());
        let specs: Vec<_> = choices.methods.iter().map(specs).collect::<Result<_, _>>()?;
        let has_drafters = specs.iter().any(|specs| !specs.is_empty());
        if has_drafters {
            check_n_min(speculation.draft.n_min, choices.budget.nodes_max())?;
        }
        let target = model.open()?;
        let tokenizer = target.tokenizer()?;
        let decided = sampling.decided(&target, tokenizer.as_deref())?;
        check_lenience(speculation.lossy_lenience, speculation.verify, decided.sampling.temperature)?;
        let context = model.context(&target);
        let tokens = target.tokens(tokenizer.as_deref());
        let mut notes = Vec::from_iter(model.note_context(&target).into_iter().chain(target.note_tokens(tokens)));
        let run_with =
            |positions| Options { context: Some(context), tokens: Some(tokens), ..model.run_with(positions) };
        let mut options = sampling.with_room(run_with, context, *parallel);
        // Draft models are small, and one without room for a sequence drafts nothing for it, so each has room for all.
        let draft_options = run_with(context.next_multiple_of(options.page_len) * parallel);
        let mut maker = DrafterMaker::new(speculation, &target, tokenizer.clone(), (draft_backend, draft_options));
        for specs in &specs {
            maker.open_drafts(specs)?;
        }
        let own = MemoryNeed::of_target(&target, &options)?.of_backend(&target, &options, backend)?;
        let need = MemoryNeed { drafts: maker.memory_need(&specs)?, ..own };
        need.check(&mut options)?.iter().for_each(|shortage| on_event(Opening::Warning(shortage)));
        let memory = need.reserve(&options);
        notes.extend(model.notes_of_need(&target, &need, &options));
        let progress = &mut |done, of| on_event(Opening::Loading { done, of });
        let loaded = target.load_within(backend, options, progress, &mut notes)?;
        let Loaded { executor, spec, left_out, threads, weights } = loaded;
        maker.set_loaded(executor.capacity().clone(), weights, need.reads_layers(&options));
        notes.extend(model.note_threads(threads).into_iter().chain(target.note_unused_tensors(&left_out)));
        let key = model.prompt_cache.as_ref().map(|_| Key::of(&target.checkpoint, &spec, model));
        let mut engine = Engine::new(executor, *parallel, context);
        notes.extend(model.note_checkpoints(&target, engine.pages().has_states()));
        let mut methods: Vec<Method> = Vec::with_capacity(specs.len());
        for (method, specs) in choices.methods.iter().zip(&specs) {
            let order = SpeculationSettings::order(method);
            methods.push(Method { drafters: maker.drafters(specs, &mut engine, progress)?, order });
        }
        let (names, drafter_keys) = (maker.names(), maker.drafter_keys.clone());
        notes.append(&mut maker.notes);
        let kept_texts = KeptTexts::load(&speculation.memory, tokenizer.as_deref(), &mut engine)?;
        let costs_key = has_drafters.then(|| maker.costs_key(model, &options, (threads, backend.ranks())));
        let costs = costs_of(choices, costs_key.as_deref(), &mut engine, &names, &mut notes)?;
        notes.extend(speculation.notes(&specs));
        let prompt_cache = PromptCache::open(model, key, &mut engine, &mut notes)?;
        let drafting = Drafting::new(speculation, choices.budget.clone());
        let (context, template, has_states) = (engine.context(), OnceLock::new(), engine.pages().has_states());
        let prompter = Prompter {
            target,
            tokenizer,
            decided,
            names,
            methods,
            context,
            has_states,
            drafter_keys,
            drafting,
            template_setting: model.chat_template.clone(),
            template,
            spelling: OnceLock::new(),
            thinking: OnceLock::new(),
        };
        let (prompter, settings, first_request) = (Arc::new(prompter), settings.clone(), engine.next_request());
        Ok(Self { engine, prompter, kept_texts, prompt_cache, threads, notes, settings, first_request, costs, memory })
    }

    /// Bytes of memory that it takes or may still take as sequences grow.
    pub fn memory_bytes(&self) -> usize {
        self.memory.0
    }

    /// A generator that generates the texts of a record again if it gets the same prompts in the same order. Files that
    /// the record names (models, texts that drafters learned) must be unchanged.
    ///
    /// # Errors
    /// As [`Generator::open`], or the record's costs cannot be used.
    pub fn repeat(record: &Record) -> Result<Self, Error> {
        let choices = Choices { costs: record.costs.as_ref(), ..Choices::new(&record.settings) };
        let mut generator = Self::with(&choices, &mut |_| {})?;
        generator.engine.set_next_request(record.first_request);
        generator.first_request = record.first_request;
        Ok(generator)
    }

    /// Every setting that decides the texts of this generator, and who decided it. Changes to single requests are not
    /// in the record.
    pub fn record(&self) -> Record {
        let Prompter { names, context, decided, .. } = &*self.prompter;
        let given = Settings { sampling: decided.asked.clone(), ..self.settings.clone() };
        let mut settings = Settings { sampling: decided.settings.clone(), ..self.settings.clone() };
        settings.model.threads = Some(settings.model.threads());
        settings.model.ctx_size = Some(*context);
        let drafters = self.prompter.methods.first().map_or(&[][..], |method| &method.drafters);
        let drafters = drafters.iter().map(|number| names[usize::from(*number)].clone()).collect();
        Record::new(&given, settings, decided, drafters, self.first_request, self.costs.fixed.clone())
    }

    /// A request that continues a prompt, as [`Prompter::request`].
    ///
    /// # Errors
    /// As [`Prompter::request`].
    pub fn request(&self, prompt: impl Into<Prompt>) -> Result<Request, Error> {
        self.prompter.request(prompt)
    }

    /// Runs requests to their ends, as [`answers::run`].
    ///
    /// # Errors
    /// A request is refused for a reason that is not its prompt, or `watch` fails.
    pub fn run<E: From<Error>>(&mut self, requests: Vec<Request>, watch: &mut Watch<'_, E>) -> Result<Vec<Answer>, E> {
        self.run_in_order(requests, watch, &mut |_, _| Ok(()))
    }

    /// As [`Generator::run`], and passes each answer to `complete` as soon as it and those before it are complete.
    ///
    /// # Errors
    /// As [`Generator::run`], or `complete` fails.
    pub fn run_in_order<E: From<Error>>(
        &mut self,
        requests: Vec<Request>,
        watch: &mut Watch<'_, E>,
        complete: &mut Complete<'_, E>,
    ) -> Result<Vec<Answer>, E> {
        self.expect(&requests);
        answers::run(&mut self.engine, requests, watch, complete)
    }

    /// Registers the prompts of requests that are about to run: their common prefix goes into the prompt cache, if
    /// there is one. [`Generator::run`] calls this itself; callers that submit requests in another way call it first.
    pub fn expect(&mut self, requests: &[Request]) {
        self.prompt_cache.register(&mut self.engine, requests);
    }

    /// Whether [`Generator::keep`] writes anything.
    pub fn keeps(&self) -> bool {
        self.kept_texts.keeps() || self.prompt_cache.keeps()
    }

    /// Adds answers to the texts that drafters learn in the next run, each for its tenant, if texts are kept; answers
    /// without tokens are not. KV-cache rows of prompts go into the prompt cache, if there is one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn keep(&mut self, answers: &[Answer]) -> Result<(), Error> {
        for answer in answers.iter().filter(|answer| answer.has_tokens()) {
            self.kept_texts.add(answer.tenant, &answer.prompt, &answer.ids());
        }
        self.prompt_cache.save(&mut self.engine)?;
        self.kept_texts.save(self.engine.next_request())
    }
}

/// The costs that decide how much is drafted: fixed ones, or those of earlier runs with this key. A generator without
/// drafters has no key and needs no costs.
fn costs_of(
    choices: &Choices<'_>,
    key: Option<&str>,
    engine: &mut Engine,
    names: &[String],
    notes: &mut Vec<Message>,
) -> Result<KeptCosts, Error> {
    let file = choices.settings.speculation.costs.as_deref();
    match (key, choices.costs) {
        (None, _) => Ok(KeptCosts::default()),
        (Some(_), Some(costs)) => KeptCosts::of_record(engine, names, costs),
        (Some(key), None) => KeptCosts::prepare(engine, names, file, key, notes),
    }
}

/// Checks that the budget allows at least `draft.n_min` tokens.
fn check_n_min(found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let expected = Message::setting("draft.n_min").and(format!(": expected at most {most}, which is what "));
    let expected = expected.and_setting("budget").and(" allows without ").and_setting("draft.n_max");
    Err(Error::Setting(expected.and(format!(", found {found}"))))
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
        self.costs.write_learned(&self.engine, &self.prompter.names);
    }
}
