//! What all requests share: the engine, the prompter, limits, counts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use foretoken::settings::SamplingSettings;
use foretoken::{EngineThread, Generator, Promise, Prompter, SpecType, Tenant, Token};
use tokio::sync::{Semaphore, watch};

use crate::answer::Reading;
use crate::error::shown;
use crate::limits::TextLimit;
use crate::metrics::Metrics;
use crate::settings::ServerSettings;

/// Most unknown fields whose names are remembered.
const UNKNOWN_MAX: usize = 256;

/// So many large bodies are in memory at a time; further ones wait before they are read.
const LARGE_BODIES_MAX: usize = 16;

/// See the head of this file.
pub(crate) struct App {
    pub(crate) settings: ServerSettings,
    /// What holds where a request says nothing of its law.
    pub(crate) sampling: SamplingSettings,
    /// Where the server listens.
    pub(crate) address: SocketAddr,
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
    /// Seconds since 1970 when the server began.
    pub(crate) created: u64,
    pub(crate) limit: TextLimit,
    /// How far the server's end has come.
    pub(crate) stage: watch::Sender<Stage>,
    /// When the end was asked for.
    pub(crate) asked_to_end: OnceLock<Instant>,
    /// Whether texts were added since they were written last.
    pub(crate) has_new_texts: AtomicBool,
    /// Places for large bodies, of which only so many are in memory at a time.
    pub(crate) large_bodies: Semaphore,
    unknown: Mutex<BTreeSet<String>>,
}

/// How far a server's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Nobody asked for it.
    Serving,
    /// Nobody new is let in; what was asked for may finish.
    Ending,
    /// Texts are cut.
    Cutting,
}

/// What an [`App`] is made of.
pub(crate) struct Parts {
    pub(crate) settings: ServerSettings,
    pub(crate) sampling: SamplingSettings,
    pub(crate) address: SocketAddr,
    pub(crate) spec_type: SpecType,
    pub(crate) promise: Promise,
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) engine: EngineThread<Generator>,
    pub(crate) keeps: bool,
    pub(crate) parallel: usize,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { settings, sampling, address, spec_type, promise, prompter, engine, keeps, parallel } = parts;
        let model = settings.alias.clone().unwrap_or_else(|| name_of(&prompter.target.name));
        Self {
            metrics: Arc::new(Metrics::new(&prompter.names)),
            limit: TextLimit::of(&prompter),
            model,
            created: seconds_since_1970(),
            stage: watch::Sender::new(Stage::Serving),
            asked_to_end: OnceLock::new(),
            has_new_texts: AtomicBool::new(false),
            large_bodies: Semaphore::new(LARGE_BODIES_MAX),
            unknown: Mutex::default(),
            settings,
            sampling,
            address,
            spec_type,
            promise: match promise {
                Promise::Exact => "exact",
                Promise::Rejection => "rejection",
                Promise::Block => "block",
            },
            prompter,
            engine,
            keeps,
            parallel,
        }
    }

    /// Waits until the end has come so far.
    pub(crate) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        // The sender is this object's own, so it is there.
        stages.wait_for(|now| *now >= stage).await.ok();
    }

    /// What requests of this key are understood by.
    pub(crate) fn reading(&self, key: u64) -> Reading<'_> {
        let Self { prompter, sampling, settings, limit, .. } = self;
        Reading { prompter, sampling, settings, limit, key }
    }

    /// The name of a request, by its number.
    pub(crate) fn name_of_request(&self, number: u64) -> String {
        format!("{:x}-{number:x}", self.created)
    }

    /// Adds a text to those that drafters of the next run will know.
    pub(crate) fn keep(&self, tenant: Tenant, prompt: Vec<Token>, text: Vec<Token>) {
        self.has_new_texts.store(true, Ordering::Relaxed);
        self.engine.tell(move |generator| generator.kept_texts.add(tenant, &prompt, &text));
    }

    /// Logs the names of fields that nobody knows, each once.
    pub(crate) fn log_unknown(&self, fields: Vec<String>) {
        let mut known = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        for field in fields {
            let field = shown(&field);
            if known.len() < UNKNOWN_MAX && known.insert(field.clone()) {
                tracing::warn!(field, "a field that is not known is ignored");
            }
        }
    }
}

/// Now, as OpenAI's objects say when they were made.
pub(crate) fn seconds_since_1970() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The name of a model by its path: that of the folder or file, without `.gguf`.
fn name_of(path: &str) -> String {
    let name = std::path::Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| path.to_string());
    name.strip_suffix(".gguf").map_or(name.clone(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_by_file_or_folder() {
        let found = ["demo-target", "/models/qwen/", "a/b.Q8_0.gguf", ".."].map(name_of);
        assert_eq!(found, ["demo-target", "qwen", "b.Q8_0", ".."]);
    }
}
