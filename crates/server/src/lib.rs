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
//! The idea: a request is read field by field and refused by name (`fields`, `ask`), becomes requests of the engine
//! beside those of others (`run`), and is answered in OpenAI's form (`answer`) or another API's (`doors`). What the
//! engine promises holds here: whoever else is served, and whatever is drafted, a seeded text under *exact* is the
//! same. The engine has a thread of its own; connections are served by a small runtime beside it.
//!
//! Left out: encryption and HTTP/2, which a proxy in front does well.

#![forbid(unsafe_code)]

mod answer;
mod app;
mod ask;
mod connections;
mod doors;
mod error;
mod fields;
mod guard;
mod limits;
mod metrics;
mod models;
mod page;
#[doc(hidden)]
pub mod probe;
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
pub use signals::asked_to_end;

/// Why a server cannot serve.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerError {
    /// A setting is out of its range: its name, what was expected and found.
    Setting(String),
    /// The system refuses an address or a thread.
    System(String),
    /// The library refuses something.
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

/// A model that is opened when a request first names it.
#[derive(Clone, Debug)]
pub struct ModelOffer {
    /// Its name in requests and answers.
    pub name: String,
    /// What it is opened with.
    pub settings: Settings,
}

impl ModelOffer {
    /// One that has the name of its file or folder.
    pub fn new(settings: Settings) -> Self {
        let path = settings.model.path.as_deref().map_or(String::new(), |path| path.display().to_string());
        Self { name: models::name_of(&path), settings }
    }
}

/// A server that listens, and serves once it is [run](Server::run).
pub struct Server {
    models: Arc<Models>,
    runtime: Runtime,
    listener: tokio::net::TcpListener,
}

/// Open files that a server needs beyond those it has when it listens, to answer at all.
const FILES_SPARE: usize = 6;

/// So often texts that are kept for the next run are written, if there are new ones.
const KEEP_EVERY: Duration = Duration::from_secs(60);

impl Server {
    /// Opens a generator whose drafters requests can choose among. `tell`: as [`Generator::with`].
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn open(settings: &Settings, tell: &mut dyn FnMut(Opening<'_>)) -> Result<Generator, Error> {
        Generator::with(&Choices::for_requests(settings), tell)
    }

    /// Listens, so that the address is known. `settings`: those that the generator was opened with; those of sampling
    /// and speculation hold where a request says nothing.
    ///
    /// # Errors
    /// A setting out of its range, an address that cannot be had, or the system refuses a thread.
    pub fn bind(server: &ServerSettings, settings: &Settings, generator: Generator) -> Result<Self, ServerError> {
        Self::bind_several(server, (settings, generator), Vec::new())
    }

    /// The same with further models, which are opened when a request first names them, where there is memory for them;
    /// for want of it those that were asked longest ago are closed.
    ///
    /// # Errors
    /// As [`Server::bind`]; or two models have one name.
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
        let wanted = SocketAddr::new(server.host, server.port);
        let cannot = || system(format!("host and port {wanted}: cannot be listened on"));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(wanted)).map_err(cannot())?;
        let address = listener.local_addr().map_err(cannot())?;
        let spare: Result<Vec<_>, _> = (0..FILES_SPARE).map(|_| std::net::UdpSocket::bind((server.host, 0))).collect();
        spare.map_err(system(format!("open files: expected {FILES_SPARE} more for connections and signals")))?;
        let shared = Arc::new(Shared::new(server.clone(), address));
        let models = Models::new(shared, first, others)?;
        Ok(Self { models: Arc::new(models), runtime, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.models.shared.address
    }

    /// The first model's name in requests.
    pub fn model(&self) -> &str {
        &self.models.first().name
    }

    /// Whether requests need a key.
    pub fn needs_key(&self) -> bool {
        !self.models.shared.settings.api_keys.is_empty()
    }

    /// Serves until `shutdown` is ready; then lets texts finish for a while, cuts what is left, and keeps what is kept
    /// for the next run. Gives back the generators of the models that are open then.
    ///
    /// # Errors
    /// An engine panicked, or what is kept cannot be written.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<Vec<Generator>, ServerError> {
        let Self { models, runtime, listener } = self;
        runtime.block_on(async {
            let router = routes::router(Arc::clone(&models));
            let keeping = tokio::spawn(keep_at_times(Arc::clone(&models)));
            connections::serve(Arc::clone(&models.shared), listener, router, shutdown).await;
            keeping.abort();
        });
        let still = || {
            ServerError::System("connections: expected all to end with the server, found one that lives".to_string())
        };
        // What still runs on the runtime holds engines; it ends here.
        runtime.shutdown_timeout(Duration::from_secs(5));
        let models = alone(models).ok_or_else(still)?;
        let longest = Duration::from_secs(10);
        let ending = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let ending = ending.map_err(|error| ServerError::System(format!("threads: {error}")))?;
        let apps = ending.block_on(models.into_opened(longest)).ok_or_else(still)?;
        Ok(apps.into_iter().map(App::close).collect::<Result<_, _>>()?)
    }
}

/// Waits until nobody else has it: a request that is just being understood cannot be interrupted.
fn alone(mut models: Arc<Models>) -> Option<Models> {
    for _ in 0..1000 {
        match Arc::try_unwrap(models) {
            Ok(models) => return Some(models),
            Err(shared) => models = shared,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// An end for [`Server::run`] that comes when the function is called, or dropped.
pub fn stopper() -> (impl FnOnce(), impl Future<Output = ()>) {
    let (end, ended) = tokio::sync::oneshot::channel();
    let ended = async move { drop(ended.await) };
    let end = move || {
        // Who has ended already needs no word.
        end.send(()).ok();
    };
    (end, ended)
}

/// Writes texts for the next run now and then, so that a crash loses little.
async fn keep_at_times(models: Arc<Models>) {
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        if !models.shared.has_new_texts.swap(false, Ordering::Relaxed) {
            continue;
        }
        for app in models.opened().filter(|app| app.keeps) {
            app.engine.tell(|generator| {
                if let Err(error) = generator.keep(&[]) {
                    tracing::warn!(%error, "texts could not be kept");
                }
            });
        }
    }
}
