//! What all requests to one model share: its engine, prompter, limits and metrics. It dereferences to what all models
//! of the server share ([`Shared`]).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foretoken::settings::SamplingSettings;
use foretoken::{EngineThread, Error, Generator, Promise, Prompter, Settings, SpecType, Tenant, Token};

use crate::limits::TextLimit;
use crate::metrics::Metrics;
use crate::parse::RequestContext;
use crate::shared::Shared;

/// A loaded model with its engine.
pub(crate) struct App {
    shared: Arc<Shared>,
    /// Default sampling settings of requests.
    pub(crate) sampling: SamplingSettings,
    /// Default drafting method of requests.
    pub(crate) spec_type: SpecType,
    /// Default promise of requests.
    pub(crate) promise: &'static str,
    /// Default lenience of requests.
    pub(crate) lossy_lenience: f32,
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) engine: EngineThread<Generator>,
    /// Whether texts are kept for the drafters of the next run.
    pub(crate) keeps_texts: bool,
    pub(crate) metrics: Arc<Metrics>,
    /// The model's name.
    pub(crate) model: String,
    pub(crate) parallel: usize,
    /// Bytes that the model has allocated or may still allocate.
    pub(crate) memory_bytes: usize,
    pub(crate) limit: TextLimit,
}

impl App {
    /// A loaded model. `settings`: those that it was loaded with.
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
        let (prompter, keeps_texts) = (Arc::clone(&generator.prompter), generator.keeps());
        let cache = [generator.engine.pages().page_len(), generator.engine.workload().pages];
        let metrics = Metrics::new(&shared.settings.metrics_prefix, &model, &prompter.names, cache);
        Ok(Self {
            shared,
            sampling: settings.sampling.clone(),
            spec_type: settings.speculation.spec_type.clone(),
            promise: match settings.speculation.verify {
                Promise::Exact => "exact",
                Promise::Rejection => "rejection",
                Promise::Block => "block",
            },
            lossy_lenience: settings.speculation.lossy_lenience,
            metrics: Arc::new(metrics),
            limit: TextLimit::of(&prompter),
            prompter,
            memory_bytes: generator.memory_bytes(),
            engine: EngineThread::start(generator)?,
            keeps_texts,
            model,
            parallel: settings.parallel,
        })
    }

    /// What the parsing of a request with this key needs.
    pub(crate) fn request_context(&self, key: u64) -> RequestContext<'_> {
        let Self { prompter, sampling, limit, shared, .. } = self;
        RequestContext { prompter, sampling, settings: &shared.settings, limit, key }
    }

    /// Adds a text to those that are kept for the drafters of the next run.
    pub(crate) fn keep_text(&self, tenant: Tenant, prompt: Vec<Token>, text: Vec<Token>) {
        self.has_new_texts.store(true, Ordering::Relaxed);
        self.engine.tell(move |generator| generator.kept_texts.add(tenant, &prompt, &text));
    }

    /// Stops the engine, and saves the texts for the next run.
    ///
    /// # Errors
    /// The engine panicked, or texts cannot be saved.
    pub(crate) fn close(self) -> Result<Generator, Error> {
        let mut generator = self.engine.stop()?;
        if self.keeps_texts {
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
