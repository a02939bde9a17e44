//! The models of a server: their names, and which of them are loaded.
//!
//! The first model is loaded from the start, any other one when a request first names it. While memory is short, the
//! least recently used model is unloaded, as soon as none of its requests runs. An unloaded model takes no memory; its
//! name is still served. The library estimates the memory before it loads a model. The JSON objects that describe
//! models are in `models/objects.rs`.

pub(crate) mod objects;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foretoken::generator::Opening;
use foretoken::{Error, Generator, Offload, Prompter, Settings};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;
use crate::settings::ServerSettings;
use crate::shared::{Shared, Stage};
use crate::{ModelOffer, Server};

/// The name that matches every unknown name.
pub(crate) const ANY: &str = "*";

/// How often the server checks whether a model that is to be unloaded is still in use.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The models of a server, loaded or not.
pub(crate) struct Models {
    pub(crate) shared: Arc<Shared>,
    /// In order; the first serves requests that name no model.
    entries: Vec<Entry>,
    /// Counts requests, as a clock of their order.
    requests_counted: AtomicU64,
    /// Held while a model is loaded, so that they are loaded one after another.
    load_lock: tokio::sync::Mutex<()>,
}

/// A model, loaded or not.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    settings: Settings,
    app: Mutex<Option<Arc<App>>>,
    /// When a request last named it.
    last_used: AtomicU64,
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<App>>> {
        self.app.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, if it is loaded.
    pub(crate) fn loaded(&self) -> Option<Arc<App>> {
        self.lock().clone()
    }

    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

impl Models {
    /// Models of which the first is loaded.
    ///
    /// # Errors
    /// Two models have the same name, or the operating system refuses the engine a thread.
    pub(crate) fn new(
        shared: Arc<Shared>,
        first: (&Settings, Generator),
        others: Vec<ModelOffer>,
    ) -> Result<Self, crate::ServerError> {
        let (settings, generator) = first;
        let (name, names) = names_of_first(&shared.settings, &generator.prompter);
        let app = App::new(Arc::clone(&shared), name.clone(), settings, generator)?;
        let entry = |name: String, aliases: Vec<String>, settings: Settings, app: Option<App>| Entry {
            name,
            aliases,
            settings,
            app: Mutex::new(app.map(Arc::new)),
            last_used: AtomicU64::new(0),
        };
        let mut entries = vec![entry(name, names, settings.clone(), Some(app))];
        for ModelOffer { name, settings } in others {
            if entries.iter().any(|entry| entry.is_named(&name)) {
                let expected = format!("models: expected names of which each is another, found {name} twice");
                return Err(crate::ServerError::Setting(expected));
            }
            entries.push(entry(name, Vec::new(), settings, None));
        }
        Ok(Self { shared, entries, requests_counted: AtomicU64::new(0), load_lock: tokio::sync::Mutex::new(()) })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The model that serves requests that name no model.
    pub(crate) fn first(&self) -> &Entry {
        &self.entries[0]
    }

    /// All loaded models.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = Arc<App>> + '_ {
        self.entries.iter().filter_map(Entry::loaded)
    }

    /// The model of a name: the first one for `None`, and for unknown names if one of its names is `*`. As with Ollama,
    /// a name may end with `:latest`.
    ///
    /// # Errors
    /// No model has this name.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Entry, ApiError> {
        let Some(name) = name else { return Ok(self.first()) };
        let named = |name: &str| self.entries.iter().find(|entry| entry.is_named(name));
        let found = named(name).or_else(|| named(name.strip_suffix(":latest")?));
        found.or_else(|| named(ANY)).ok_or_else(|| {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
            ApiError::model(&names.join(", "), name)
        })
    }

    /// The model, if it is loaded. Marks it as used.
    pub(crate) fn touch(&self, entry: &Entry) -> Option<Arc<App>> {
        entry.last_used.store(1 + self.requests_counted.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        entry.loaded()
    }

    /// The model, loaded if necessary. A task of its own loads it, so loading completes even if this future is dropped:
    /// no model stays half loaded or half unloaded.
    ///
    /// # Errors
    /// The model cannot be loaded, does not fit into memory even alone, the server shuts down, or `deadline` has
    /// passed.
    pub(crate) async fn load(self: &Arc<Self>, entry: &Entry, deadline: Instant) -> Result<Arc<App>, ApiError> {
        if let Some(app) = self.touch(entry) {
            return Ok(app);
        }
        let number = self.entries.iter().position(|other| std::ptr::eq(other, entry)).expect("it is one of these");
        let (reply, replied) = oneshot::channel();
        let models = Arc::clone(self);
        tokio::spawn(async move {
            let _lock = models.load_lock.lock().await;
            if !reply.is_closed() {
                reply.send(models.load_in_turn(&models.entries[number]).await).ok();
            }
        });
        let bug = |_| Err(ApiError::bug("model: expected it to open, found a bug"));
        tokio::select! {
            replied = replied => replied.unwrap_or_else(bug),
            () = self.shared.reached(Stage::Ending) => Err(ApiError::shutting_down()),
            () = tokio::time::sleep_until(deadline) => {
                let seconds = self.shared.settings.timeout_s;
                let expected = format!("expected it to open in time ({seconds} s), found other requests ahead of it");
                Err(ApiError::unavailable(&format!("model: {expected}")))
            }
        }
    }

    async fn load_in_turn(&self, entry: &Entry) -> Result<Arc<App>, ApiError> {
        if let Some(app) = self.touch(entry) {
            return Ok(app);
        }
        // Unloading another model comes before reading the layers of this one for every pass.
        let mut may_offload = self.loaded().next().is_none();
        loop {
            if *self.shared.stage.borrow() >= Stage::Ending {
                return Err(ApiError::shutting_down());
            }
            tracing::info!(model = entry.name, "loading");
            let (shared, name, mut settings) = (Arc::clone(&self.shared), entry.name.clone(), entry.settings.clone());
            if settings.model.offload == Offload::Auto && !may_offload {
                settings.model.offload = Offload::Never;
            }
            let load = move || {
                let warn = |opening: Opening<'_>| {
                    if let Opening::Warning(message) = opening {
                        tracing::warn!("{message}");
                    }
                };
                let generator = Server::open(&settings, &mut { warn })?;
                App::new(shared, name, &settings, generator)
            };
            let loaded = tokio::task::spawn_blocking(load).await;
            let loaded = loaded.map_err(|error| ApiError::bug(format!("model: expected it to open, found {error}")))?;
            match loaded {
                Ok(app) => return Ok(Arc::clone(entry.lock().insert(Arc::new(app)))),
                Err(Error::Memory(shortage, missing)) => {
                    // No model is unloaded if unloading all others would not free enough memory.
                    let others = self.loaded().map(|app| app.memory_bytes).sum::<usize>();
                    if missing <= others && self.unload_one(entry).await? {
                        continue;
                    }
                    if std::mem::replace(&mut may_offload, true) {
                        return Err(ApiError::unavailable(&format!("model {}: {shortage}", entry.name)));
                    }
                }
                Err(error) => {
                    let error = ApiError::of(&error).message;
                    return Err(ApiError::bug(format!("model {}: cannot be opened: {error}", entry.name)));
                }
            }
        }
    }

    /// Unloads the least recently used model, once none of its requests runs. Returns whether there was one besides
    /// `needed`.
    async fn unload_one(&self, needed: &Entry) -> Result<bool, ApiError> {
        let loaded = self.entries.iter().filter(|entry| !std::ptr::eq(*entry, needed) && entry.loaded().is_some());
        let Some(entry) = loaded.min_by_key(|entry| entry.last_used.load(Ordering::Relaxed)) else { return Ok(false) };
        let Some(app) = entry.lock().take() else { return Ok(true) };
        tracing::info!(model = entry.name, "unloading to free memory");
        // New requests load it again, after this one; running requests may finish.
        let app = wait_until_unshared(app, None).await.expect("there is no timeout");
        let unloaded = tokio::task::spawn_blocking(move || app.close().map(drop)).await;
        match unloaded {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => {
                tracing::error!(model = entry.name, %error, "the model was unloaded with an error");
                Ok(true)
            }
            Err(error) => Err(ApiError::bug(format!("model: expected it to be closed, found {error}"))),
        }
    }

    /// All loaded models, once none is in use; `None` if one is still in use after `timeout`.
    pub(crate) async fn into_loaded(self, timeout: Duration) -> Option<Vec<App>> {
        let mut all = Vec::new();
        for entry in self.entries {
            if let Some(app) = entry.app.into_inner().unwrap_or_else(PoisonError::into_inner) {
                all.push(wait_until_unshared(app, Some(timeout)).await?);
            }
        }
        Some(all)
    }
}

/// Waits until no other reference to the model exists, that is, until none of its requests is parsed or runs.
async fn wait_until_unshared(mut app: Arc<App>, timeout: Option<Duration>) -> Option<App> {
    let started = Instant::now();
    loop {
        match Arc::try_unwrap(app) {
            Ok(app) => return Some(app),
            Err(shared) => app = shared,
        }
        if timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The first model's name in answers, and its further names.
pub(crate) fn names_of_first(settings: &ServerSettings, prompter: &Prompter) -> (String, Vec<String>) {
    let mut names = settings.aliases.clone();
    if names.iter().all(|name| name == ANY) {
        names.insert(0, name_of(&prompter.target.name));
    }
    let name = names.remove(names.iter().position(|name| name != ANY).unwrap_or(0));
    (name, names)
}

/// A model's name by its path: that of the folder or file, without `.gguf`.
pub(crate) fn name_of(path: &str) -> String {
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
