//! A server of the demo pair on a free port, and what must hold when it has ended.
//!
//! Most tests share one ([`shared`]); those that end a server or set its limits have their own. Ending one checks that
//! nothing was left: no text, no page.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foretoken::settings::Budget;
use foretoken::{Generator, Settings};
use foretoken_server::{ModelOffer, Server, ServerError, ServerSettings};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::{Answer, Client, Events};

/// A server that runs.
pub struct House {
    pub address: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<Vec<Generator>, ServerError>>>,
    /// What passes cost is written there, and nowhere else.
    _folder: tempfile::TempDir,
}

/// Settings of the demo pair for tests: a short context, and nothing that is kept.
pub fn settings(folder: &tempfile::TempDir) -> Settings {
    let mut settings = Settings { parallel: 8, ..Settings::default() };
    settings.model.ctx_size = Some(512);
    settings.model.threads = Some(1);
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    settings
}

impl House {
    /// Opens a server; `change` its settings before.
    pub fn open(change: impl FnOnce(&mut Settings, &mut ServerSettings)) -> Self {
        Self::open_several(change, Vec::new())
    }

    /// The same with further models.
    pub fn open_several(change: impl FnOnce(&mut Settings, &mut ServerSettings), others: Vec<ModelOffer>) -> Self {
        Self::try_open_several(change, others).expect("a port is free")
    }

    /// The same, if it can be.
    pub fn try_open_several(
        change: impl FnOnce(&mut Settings, &mut ServerSettings),
        others: Vec<ModelOffer>,
    ) -> Result<Self, ServerError> {
        crate::log::begin();
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(&folder);
        let mut server = ServerSettings { port: 0, ..ServerSettings::default() };
        change(&mut settings, &mut server);
        let generator = Server::open(&settings, &mut |_| {}).expect("the demo pair opens");
        let server = Server::bind_several(&server, (&settings, generator), others)?;
        let (shutdown, asked) = oneshot::channel();
        let address = server.address();
        let thread = std::thread::spawn(move || {
            server.run(async {
                asked.await.ok();
            })
        });
        Ok(Self { address, shutdown: Some(shutdown), thread: Some(thread), _folder: folder })
    }

    pub fn client(&self) -> Client {
        Client::to(self.address)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.client().get(path)
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.client().post(path, body)
    }

    /// A streamed answer.
    #[track_caller]
    pub fn events(&self, path: &str, body: &Value) -> Events {
        self.client().events(path, body).unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// Texts that are written and that wait.
    pub fn load(&self) -> (u64, u64) {
        let health = self.get("/health").good();
        (health["running"].as_u64().expect("a number"), health["waiting"].as_u64().expect("a number"))
    }

    /// Waits until so many texts are written and wait.
    #[track_caller]
    pub fn wait_for(&self, running: u64, waiting: u64) {
        wait_until(|| self.load() == (running, waiting));
    }

    /// Asks the server to end, without waiting for it.
    pub fn ask_to_end(&mut self) {
        self.shutdown.take().expect("it is asked once").send(()).ok();
    }

    /// Waits for the server's end, and checks that nothing is left in the engines. The generator of the first model
    /// that was open.
    #[track_caller]
    pub fn end(mut self) -> Generator {
        if self.shutdown.is_some() {
            self.ask_to_end();
        }
        let ended = self.thread.take().expect("it is joined once").join().expect("no panic");
        let mut generators = ended.unwrap_or_else(|error| panic!("{error}"));
        for generator in &generators {
            assert!(generator.engine.is_idle(), "texts are left: {:?}", generator.engine.workload());
            generator.engine.check_pages().expect("pages are in order");
            assert_eq!(generator.engine.workload().pages_held, 0, "pages are held by nobody");
        }
        generators.remove(0)
    }
}

/// Waits until something holds; a test that would wait forever fails.
#[track_caller]
pub fn wait_until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not come true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The server that most tests share. It is never ended.
pub fn shared() -> &'static House {
    static HOUSE: LazyLock<House> = LazyLock::new(|| House::open(|_, _| {}));
    &HOUSE
}

/// One that drafts whether it pays or not, so that counts of drafts do not depend on the clock. It is never ended.
pub fn drafting() -> &'static House {
    static HOUSE: LazyLock<House> = LazyLock::new(|| {
        House::open(|settings, _| {
            settings.speculation.budget = Budget::Fixed;
            settings.speculation.draft.n_max = Some(6);
        })
    });
    &HOUSE
}
