//! What all requests to one model share: its engine, its prompter, its limits and counts. What the server has once
//! ([`Shared`]) can be asked of it, too.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foretoken::settings::SamplingSettings;
use foretoken::{EngineThread, Error, Generator, Promise, Prompter, Settings, SpecType, Tenant, Token};

use crate::answer::Reading;
use crate::limits::TextLimit;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// See the head of this file.
pub(crate) struct App {
    shared: Arc<Shared>,
    /// What holds where a request says nothing of its law.
    pub(crate) sampling: SamplingSettings,
    /// Who drafts where a request does not say it.
    pub(crate) spec_type: SpecType,
    /// What is promised where a request does not say it.
    pub(crate) promise: &'static str,
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) engine: EngineThread<Generator>,
    /// Whether texts are kept for drafters of the next run.
    pub(crate) keeps: bool,
    pub(crate) metrics: Arc<Metrics>,
    /// The model's name.
    pub(crate) model: String,
    pub(crate) parallel: usize,
    /// Bytes that the model has or may still take.
    pub(crate) memory_bytes: usize,
    pub(crate) limit: TextLimit,
}

impl App {
    /// A model that is open, under its name. `settings`: those that it was opened with.
    ///
    /// # Errors
    /// The system refuses the engine a thread.
    pub(crate) fn new(
        shared: Arc<Shared>,
        model: String,
        settings: &Settings,
        mut generator: Generator,
    ) -> Result<Self, Error> {
        generator.engine.set_waiting_max(shared.settings.queue_max);
        let (prompter, keeps) = (Arc::clone(&generator.prompter), generator.keeps());
        Ok(Self {
            shared,
            sampling: settings.sampling.clone(),
            spec_type: settings.speculation.spec_type.clone(),
            promise: match settings.speculation.verify {
                Promise::Exact => "exact",
                Promise::Rejection => "rejection",
                Promise::Block => "block",
            },
            metrics: Arc::new(Metrics::new(&prompter.names)),
            limit: TextLimit::of(&prompter),
            prompter,
            memory_bytes: generator.memory_bytes(),
            engine: EngineThread::start(generator)?,
            keeps,
            model,
            parallel: settings.parallel,
        })
    }

    /// What requests of this key are understood by.
    pub(crate) fn reading(&self, key: u64) -> Reading<'_> {
        let Self { prompter, sampling, limit, shared, .. } = self;
        Reading { prompter, sampling, settings: &shared.settings, limit, key }
    }

    /// Adds a text to those that drafters of the next run will know.
    pub(crate) fn keep(&self, tenant: Tenant, prompt: Vec<Token>, text: Vec<Token>) {
        self.has_new_texts.store(true, Ordering::Relaxed);
        self.engine.tell(move |generator| generator.kept_texts.add(tenant, &prompt, &text));
    }

    /// Ends the engine, and writes what is kept for the next run.
    ///
    /// # Errors
    /// The engine panicked, or what is kept cannot be written.
    pub(crate) fn close(self) -> Result<Generator, Error> {
        let mut generator = self.engine.stop()?;
        if self.keeps {
            generator.keep(&[])?;
        }
        Ok(generator)
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}
