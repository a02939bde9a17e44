//! The models of a server: which there are, by what names, and which of them are open.
//!
//! The idea: the first is open from the start, every other one is opened when a request first names it. Where there is
//! no memory for it, those that were asked longest ago are closed first, each as soon as nothing of it runs, until
//! there is. A model that is closed costs nothing; its name is still served. Whether there is memory is asked of the
//! library, which reckons before it loads. Left out: what answers say of models (`models/told.rs`).

pub(crate) mod told;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foretoken::generator::Opening;
use foretoken::{Error, Generator, Settings};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;
use crate::shared::{Shared, Stage};
use crate::{ModelOffer, Server};

/// The name that stands for every name that is not known.
const ANY: &str = "*";

/// So often is looked whether a model that is to be closed is still used.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// See the head of this file.
pub(crate) struct Models {
    pub(crate) shared: Arc<Shared>,
    /// In order; the first serves where no name is given.
    entries: Vec<Entry>,
    /// Counts requests.
    now: AtomicU64,
    /// Models are opened one after another.
    turn: tokio::sync::Mutex<()>,
}

/// A model, open or not.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    settings: Settings,
    app: Mutex<Option<Arc<App>>>,
    /// When it was asked last.
    used: AtomicU64,
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<App>>> {
        self.app.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<App>> {
        self.lock().clone()
    }

    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

impl Models {
    /// Models of which the first is open.
    ///
    /// # Errors
    /// Two have one name, or the system refuses the engine a thread.
    pub(crate) fn new(
        shared: Arc<Shared>,
        first: (&Settings, Generator),
        others: Vec<ModelOffer>,
    ) -> Result<Self, crate::ServerError> {
        let (settings, generator) = first;
        let mut names = shared.settings.aliases.clone();
        if names.iter().all(|name| name == ANY) {
            names.insert(0, name_of(&generator.prompter.target.name));
        }
        let name = names.remove(names.iter().position(|name| name != ANY).unwrap_or(0));
        let app = App::new(Arc::clone(&shared), name.clone(), settings, generator)?;
        let entry = |name: String, aliases: Vec<String>, settings: Settings, app: Option<App>| Entry {
            name,
            aliases,
            settings,
            app: Mutex::new(app.map(Arc::new)),
            used: AtomicU64::new(0),
        };
        let mut entries = vec![entry(name, names, settings.clone(), Some(app))];
        for ModelOffer { name, settings } in others {
            if entries.iter().any(|entry| entry.is_named(&name)) {
                let expected = format!("models: expected names of which each is another, found {name} twice");
                return Err(crate::ServerError::Setting(expected));
            }
            entries.push(entry(name, Vec::new(), settings, None));
        }
        Ok(Self { shared, entries, now: AtomicU64::new(0), turn: tokio::sync::Mutex::new(()) })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The model that serves where no name is given.
    pub(crate) fn first(&self) -> &Entry {
        &self.entries[0]
    }

    /// All that are open.
    pub(crate) fn opened(&self) -> impl Iterator<Item = Arc<App>> + '_ {
        self.entries.iter().filter_map(Entry::opened)
    }

    /// The model of a name: `None` is the first one, and so is any name if one of its names is `*`. As Ollama's clients
    /// say it, a name may end with `:latest`.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Entry, ApiError> {
        let Some(name) = name else { return Ok(self.first()) };
        let named = |name: &str| self.entries.iter().find(|entry| entry.is_named(name));
        let found = named(name).or_else(|| named(name.strip_suffix(":latest")?));
        found.or_else(|| named(ANY)).ok_or_else(|| {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
            ApiError::model(&names.join(", "), name)
        })
    }

    /// The same, if it is open; it counts as asked.
    pub(crate) fn ready(&self, entry: &Entry) -> Option<Arc<App>> {
        entry.used.store(1 + self.now.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        entry.opened()
    }

    /// The same, opened if it is not. Whoever stops waiting keeps nothing from being finished that has begun: a model
    /// that is half open or half closed would be nobody's.
    ///
    /// # Errors
    /// It cannot be opened, there is no memory for it whatever is closed, the server ends, or `deadline` has come.
    pub(crate) async fn open(self: &Arc<Self>, entry: &Entry, deadline: Instant) -> Result<Arc<App>, ApiError> {
        if let Some(app) = self.ready(entry) {
            return Ok(app);
        }
        let number = self.entries.iter().position(|other| std::ptr::eq(other, entry)).expect("it is one of these");
        let (reply, replied) = oneshot::channel();
        let models = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = models.turn.lock().await;
            if !reply.is_closed() {
                reply.send(models.open_in_turn(&models.entries[number]).await).ok();
            }
        });
        let bug = |_| Err(ApiError::bug("model: expected it to open, found a bug"));
        tokio::select! {
            replied = replied => replied.unwrap_or_else(bug),
            () = self.shared.reached(Stage::Ending) => Err(ending()),
            () = tokio::time::sleep_until(deadline) => {
                let seconds = self.shared.settings.timeout_s;
                let expected = format!("expected it to open in time ({seconds} s), found others before it");
                Err(ApiError::unavailable(&format!("model: {expected}")))
            }
        }
    }

    async fn open_in_turn(&self, entry: &Entry) -> Result<Arc<App>, ApiError> {
        if let Some(app) = self.ready(entry) {
            return Ok(app);
        }
        loop {
            if *self.shared.stage.borrow() >= Stage::Ending {
                return Err(ending());
            }
            tracing::info!(model = entry.name, "opens");
            let (shared, name, settings) = (Arc::clone(&self.shared), entry.name.clone(), entry.settings.clone());
            let open = move || {
                let warn = |opening: Opening<'_>| {
                    if let Opening::Warning(message) = opening {
                        tracing::warn!("{message}");
                    }
                };
                let generator = Server::open(&settings, &mut { warn })?;
                App::new(shared, name, &settings, generator)
            };
            let opened = tokio::task::spawn_blocking(open).await;
            let opened = opened.map_err(|error| ApiError::bug(format!("model: expected it to open, found {error}")))?;
            match opened {
                Ok(app) => return Ok(Arc::clone(entry.lock().insert(Arc::new(app)))),
                Err(Error::Memory(shortage, missing)) => {
                    // Closing models that would not make room enough helps nobody.
                    let others = self.opened().map(|app| app.memory_bytes).sum::<usize>();
                    if missing > others || !self.close_one(entry).await? {
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

    /// Closes the model that was asked longest ago, once nothing of it runs. Whether there was one besides `wanted`.
    async fn close_one(&self, wanted: &Entry) -> Result<bool, ApiError> {
        let open = self.entries.iter().filter(|entry| !std::ptr::eq(*entry, wanted) && entry.opened().is_some());
        let Some(entry) = open.min_by_key(|entry| entry.used.load(Ordering::Relaxed)) else { return Ok(false) };
        let Some(app) = entry.lock().take() else { return Ok(true) };
        tracing::info!(model = entry.name, "is closed to make room");
        // New requests open it again, behind this one; what runs may finish.
        let app = alone(app, None).await.expect("it is waited for");
        let closed = tokio::task::spawn_blocking(move || app.close().map(drop)).await;
        match closed {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => {
                tracing::error!(model = entry.name, %error, "did not close well");
                Ok(true)
            }
            Err(error) => Err(ApiError::bug(format!("model: expected it to be closed, found {error}"))),
        }
    }

    /// All that are open, none of which anybody uses any more; `None` if one is still used after so long.
    pub(crate) async fn into_opened(self, longest: Duration) -> Option<Vec<App>> {
        let mut all = Vec::new();
        for entry in self.entries {
            if let Some(app) = entry.app.into_inner().unwrap_or_else(PoisonError::into_inner) {
                all.push(alone(app, Some(longest)).await?);
            }
        }
        Some(all)
    }
}

fn ending() -> ApiError {
    ApiError::unavailable("server: expected one that runs on, found it about to end")
}

/// Waits until nobody else has it: for a request that is being understood, or texts that are written.
async fn alone(mut app: Arc<App>, longest: Option<Duration>) -> Option<App> {
    let begun = Instant::now();
    loop {
        match Arc::try_unwrap(app) {
            Ok(app) => return Some(app),
            Err(shared) => app = shared,
        }
        if longest.is_some_and(|longest| begun.elapsed() >= longest) {
            return None;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The name of a model by its path: that of the folder or file, without `.gguf`.
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
