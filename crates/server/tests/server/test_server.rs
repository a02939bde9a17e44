//! A server of the demo pair on a free port, with checks of its state after shutdown.
//!
//! Most tests share one ([`shared`]); those that shut a server down or set its limits have their own. Shutting one down
//! checks that no sequence and no page is left.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foretoken::settings::Budget;
use foretoken::{Generator, Settings};
use foretoken_server::{ModelOffer, Server, ServerError, ServerSettings};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::{Client, Events, Response};

/// A running server.
pub struct TestServer {
    pub address: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<Vec<Generator>, ServerError>>>,
    /// The file of measured pass costs is written there.
    _folder: tempfile::TempDir,
}

/// Settings of the demo pair for tests: a short context, and nothing is stored in the user's folders.
pub fn settings(folder: &tempfile::TempDir) -> Settings {
    let mut settings = Settings { parallel: 8, ..Settings::default() };
    settings.model.ctx_size = Some(512);
    settings.model.threads = Some(1);
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    settings
}

impl TestServer {
    /// Starts a server whose settings were changed by `change`.
    pub fn open(change: impl FnOnce(&mut Settings, &mut ServerSettings)) -> Self {
        Self::open_several(change, Vec::new())
    }

    /// As [`TestServer::open`], with further models.
    pub fn open_several(change: impl FnOnce(&mut Settings, &mut ServerSettings), others: Vec<ModelOffer>) -> Self {
        Self::try_open_several(change, others).expect("a port is free")
    }

    /// As [`TestServer::open_several`], but returns the error.
    pub fn try_open_several(
        change: impl FnOnce(&mut Settings, &mut ServerSettings),
        others: Vec<ModelOffer>,
    ) -> Result<Self, ServerError> {
        crate::log::install();
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(&folder);
        let mut server = ServerSettings { port: 0, ..ServerSettings::default() };
        change(&mut settings, &mut server);
        let generator = Server::open(&settings, &mut |_| {}).expect("the demo pair opens");
        let server = Server::bind_several(&server, (&settings, generator), others)?;
        let (shutdown, requested) = oneshot::channel();
        let address = server.address();
        let thread = std::thread::spawn(move || {
            server.run(async {
                requested.await.ok();
            })
        });
        Ok(Self { address, shutdown: Some(shutdown), thread: Some(thread), _folder: folder })
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.client().get(path)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.client().post(path, body)
    }

    /// A streamed response.
    #[track_caller]
    pub fn events(&self, path: &str, body: &Value) -> Events {
        self.client().events(path, body).unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// How many sequences are running, and how many wait.
    pub fn load(&self) -> (u64, u64) {
        let health = self.get("/health").success();
        (health["running"].as_u64().expect("a number"), health["waiting"].as_u64().expect("a number"))
    }

    /// Waits until exactly this many sequences run and wait.
    #[track_caller]
    pub fn wait_for(&self, running: u64, waiting: u64) {
        wait_until(|| self.load() == (running, waiting));
    }

    /// Asks the server to shut down, without waiting for it.
    pub fn begin_shutdown(&mut self) {
        self.shutdown.take().expect("shutdown is requested once").send(()).ok();
    }

    /// Waits until the server has shut down, and checks that nothing is left in the engines. Returns the generator of
    /// the first model that was open.
    #[track_caller]
    pub fn shut_down(mut self) -> Generator {
        if self.shutdown.is_some() {
            self.begin_shutdown();
        }
        let ended = self.thread.take().expect("it is joined once").join().expect("no panic");
        let mut generators = ended.unwrap_or_else(|error| panic!("{error}"));
        for generator in &generators {
            assert!(generator.engine.is_idle(), "sequences are left: {:?}", generator.engine.workload());
            generator.engine.check_pages().expect("the page tables are consistent");
            assert_eq!(generator.engine.workload().pages_held, 0, "pages are held by no sequence");
        }
        generators.remove(0)
    }
}

/// Waits until a condition holds. A test fails after 30 seconds.
#[track_caller]
pub fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "the condition does not hold after 30 seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The server that most tests share. It is never shut down.
pub fn shared() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| TestServer::open(|_, _| {}));
    &SERVER
}

/// A server with a fixed budget, so that counts of drafts do not depend on measured times. It is never shut down.
pub fn drafting() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::open(|settings, _| {
            settings.speculation.budget = Budget::Fixed;
            settings.speculation.draft.n_max = Some(6);
        })
    });
    &SERVER
}
