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
//! Left out: encryption, HTTP/2 and more than one model, which a proxy in front does well.

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
mod routes;
mod run;
mod settings;
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
use foretoken::{EngineThread, Error, Generator, Settings};
use tokio::runtime::Runtime;

use app::{App, Parts};
pub use settings::{ReasoningFormat, ServerSettings};
pub use signals::asked_to_end;
#[cfg(unix)]
pub use signals::ignored;

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

/// A server that listens, and serves once it is [run](Server::run).
pub struct Server {
    app: Arc<App>,
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
    pub fn bind(server: &ServerSettings, settings: &Settings, mut generator: Generator) -> Result<Self, ServerError> {
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
        generator.engine.set_waiting_max(server.queue_max);
        let (prompter, keeps) = (Arc::clone(&generator.prompter), generator.keeps());
        let app = App::new(Parts {
            settings: server.clone(),
            sampling: settings.sampling.clone(),
            address,
            spec_type: settings.speculation.spec_type.clone(),
            promise: settings.speculation.verify,
            prompter,
            engine: EngineThread::start(generator)?,
            keeps,
            parallel: settings.parallel,
        });
        Ok(Self { app: Arc::new(app), runtime, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.app.address
    }

    /// The model's name in requests.
    pub fn model(&self) -> &str {
        &self.app.model
    }

    /// Whether requests need a key.
    pub fn needs_key(&self) -> bool {
        !self.app.settings.api_keys.is_empty()
    }

    /// Serves until `shutdown` is ready; then lets texts finish for a while, cuts what is left, and keeps what is kept
    /// for the next run. Gives the generator back.
    ///
    /// # Errors
    /// The engine panicked, or what is kept cannot be written.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<Generator, ServerError> {
        let Self { app, runtime, listener } = self;
        runtime.block_on(async {
            let router = routes::router(Arc::clone(&app));
            let keeping = tokio::spawn(keep_at_times(Arc::clone(&app)));
            connections::serve(Arc::clone(&app), listener, router, shutdown).await;
            keeping.abort();
        });
        // What still runs on the runtime holds the engine; it ends here.
        runtime.shutdown_timeout(Duration::from_secs(5));
        let app = alone(app).ok_or_else(|| {
            ServerError::System("connections: expected all to end with the server, found one that lives".to_string())
        })?;
        let mut generator = app.engine.stop()?;
        if app.keeps {
            generator.keep(&[])?;
        }
        Ok(generator)
    }
}

/// Waits until nobody else has it: a request that is just being understood cannot be interrupted.
fn alone(mut app: Arc<App>) -> Option<App> {
    for _ in 0..1000 {
        match Arc::try_unwrap(app) {
            Ok(app) => return Some(app),
            Err(shared) => app = shared,
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
async fn keep_at_times(app: Arc<App>) {
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        if app.keeps && app.has_new_texts.swap(false, Ordering::Relaxed) {
            app.engine.tell(|generator| {
                if let Err(error) = generator.keep(&[]) {
                    tracing::warn!(%error, "texts could not be kept");
                }
            });
        }
    }
}
