//! The HTTP server: OpenAI's API and Ollama's over one generator, with drafts for every request, metrics, and a page.
//!
//! ```no_run
//! use foretoken::Settings;
//! use foretoken_server::{Server, ServerSettings};
//!
//! let settings = Settings { parallel: 4, ..Settings::default() };
//! let generator = Server::open(&settings, &mut |_| {})?;
//! let server = Server::bind(&ServerSettings::default(), &settings, generator)?;
//! println!("http://{}", server.address());
//! server.run(std::future::pending())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request's fields are parsed one by one, and errors name the field (`fields`, `parse`). The engine runs it together
//! with other requests (`run`). The answer has OpenAI's format (`answer`) or that of another API (`apis`). The engine's
//! promise holds here: a seeded answer under *exact* depends neither on other requests nor on drafts. The engine has a
//! thread of its own; a small runtime serves the connections. The bodies of batch files go through the same code
//! without a connection ([`batch`]). Encryption and HTTP/2 are left to a proxy.

#![forbid(unsafe_code)]

mod answer;
mod apis;
mod app;
pub mod batch;
mod connections;
mod error;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod law;
mod limits;
mod metrics;
mod models;
mod page;
mod parse;
mod requests;
mod routes;
mod run;
mod settings;
mod shared;
mod signals;
mod threads;
mod tokens;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foretoken::generator::{Choices, Opening};
use foretoken::{Error, Generator, Settings};
use tokio::runtime::Runtime;

use app::App;
use models::Models;
pub use settings::{ReasoningFormat, ServerSettings};
use shared::Shared;
pub use signals::shutdown_signal;

/// Why a server cannot serve.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerError {
    /// A setting is out of its range: its name, the expected range, and the value.
    Setting(String),
    /// The operating system refuses an address or a thread.
    System(String),
    /// An error of the library.
    Library(Error),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(message) | Self::System(message) => f.write_str(message),
            Self::Library(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<Error> for ServerError {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

/// A model that is loaded when a request first names it.
#[derive(Clone, Debug)]
pub struct ModelOffer {
    /// The model's name in requests and answers.
    pub name: String,
    /// The settings that it is loaded with.
    pub settings: Settings,
}

impl ModelOffer {
    /// A model that is named after its file or folder.
    pub fn new(settings: Settings) -> Self {
        let path = settings.model.path.as_deref().map_or(String::new(), |path| path.display().to_string());
        Self { name: models::name_of(&path), settings }
    }
}

/// A server that listens, and serves once [`Server::run`] is called.
pub struct Server {
    models: Arc<Models>,
    runtime: Runtime,
    listener: tokio::net::TcpListener,
}

/// File descriptors that a listening server still needs to answer requests.
const SPARE_FILES: usize = 6;

/// How often new texts that are kept for the next run are written to disk.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

impl Server {
    /// Opens a generator whose drafters requests can choose among. `tell`: as in [`Generator::with`].
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn open(settings: &Settings, tell: &mut dyn FnMut(Opening<'_>)) -> Result<Generator, Error> {
        Generator::with(&Choices::for_requests(settings), tell)
    }

    /// Starts to listen, so that the address is known. `settings` are those that the generator was opened with; their
    /// sampling and speculation settings are the defaults of requests.
    ///
    /// # Errors
    /// A setting is out of its range, or the operating system refuses the address or a thread.
    pub fn bind(server: &ServerSettings, settings: &Settings, generator: Generator) -> Result<Self, ServerError> {
        Self::bind_several(server, (settings, generator), Vec::new())
    }

    /// Like [`Server::bind`], with further models. Each is loaded when a request first names it; if memory is short,
    /// the least recently used models are unloaded.
    ///
    /// # Errors
    /// As [`Server::bind`]; or two models have the same name.
    pub fn bind_several(
        server: &ServerSettings,
        first: (&Settings, Generator),
        others: Vec<ModelOffer>,
    ) -> Result<Self, ServerError> {
        if let Some(problem) = server.problem() {
            return Err(ServerError::Setting(problem));
        }
        let system = |what: String| move |error: std::io::Error| ServerError::System(format!("{what}: {error}"));
        let runtime = threads::runtime().map_err(ServerError::System)?;
        let address_wanted = SocketAddr::new(server.host, server.port);
        let cannot_listen = || system(format!("host and port {address_wanted}: cannot be listened on"));
        let listener = runtime.block_on(async { connections::listen(address_wanted) }).map_err(cannot_listen())?;
        let address = listener.local_addr().map_err(cannot_listen())?;
        let spare: Result<Vec<_>, _> = (0..SPARE_FILES).map(|_| std::net::UdpSocket::bind((server.host, 0))).collect();
        spare.map_err(system(format!("open files: expected {SPARE_FILES} more for connections and signals")))?;
        let shared = Arc::new(Shared::new(server.clone(), address));
        let models = Models::new(shared, first, others)?;
        Ok(Self { models: Arc::new(models), runtime, listener })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.models.shared.address
    }

    /// The name of the first model in requests.
    pub fn model(&self) -> &str {
        &self.models.first().name
    }

    /// Whether requests need an API key.
    pub fn needs_key(&self) -> bool {
        !self.models.shared.settings.api_keys.is_empty()
    }

    /// Serves until `shutdown` is ready. Then running requests may finish for a while, the rest are cut, and texts for
    /// the next run are saved. Returns the generators of the models that are loaded then.
    ///
    /// # Errors
    /// An engine panicked, or texts cannot be saved.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<Vec<Generator>, ServerError> {
        let Self { models, runtime, listener } = self;
        runtime.block_on(async {
            let router = routes::router(Arc::clone(&models));
            let saving = tokio::spawn(save_periodically(Arc::clone(&models)));
            connections::serve(Arc::clone(&models.shared), listener, router, shutdown).await;
            saving.abort();
        });
        let still_in_use = || {
            ServerError::System("connections: expected all to end with the server, found one still open".to_string())
        };
        // Tasks that still run hold references to engines; they end here.
        runtime.shutdown_timeout(Duration::from_secs(5));
        let models = wait_until_unshared(models).ok_or_else(still_in_use)?;
        let timeout = Duration::from_secs(10);
        let ending = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let ending = ending.map_err(|error| ServerError::System(format!("threads: {error}")))?;
        let apps = ending.block_on(models.into_loaded(timeout)).ok_or_else(still_in_use)?;
        Ok(apps.into_iter().map(App::close).collect::<Result<_, _>>()?)
    }
}

/// Waits until no other reference exists: the parsing of a request cannot be interrupted.
fn wait_until_unshared(mut models: Arc<Models>) -> Option<Models> {
    for _ in 0..1000 {
        match Arc::try_unwrap(models) {
            Ok(models) => return Some(models),
            Err(shared) => models = shared,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// A function that ends [`Server::run`] when it is called or dropped, and the future to pass to that.
pub fn stopper() -> (impl FnOnce(), impl Future<Output = ()>) {
    let (end, ended) = tokio::sync::oneshot::channel();
    let ended = async move { drop(ended.await) };
    let end = move || {
        // An error means that the server has already ended.
        end.send(()).ok();
    };
    (end, ended)
}

/// Saves texts for the next run periodically, so that a crash loses little.
async fn save_periodically(models: Arc<Models>) {
    loop {
        tokio::time::sleep(SAVE_INTERVAL).await;
        if !models.shared.has_new_texts.swap(false, Ordering::Relaxed) {
            continue;
        }
        for app in models.loaded().filter(|app| app.keeps_texts) {
            app.engine.tell(|generator| {
                if let Err(error) = generator.keep(&[]) {
                    tracing::warn!(%error, "texts could not be saved");
                }
            });
        }
    }
}
