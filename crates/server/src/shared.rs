//! What all models of a server share: settings, limits, the stage of its shutdown, counts of responses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, Semaphore, watch};

use crate::error::shown;
use crate::metrics::HttpMetrics;
use crate::settings::ServerSettings;

/// Maximum number of unknown fields whose names are remembered.
const UNKNOWN_MAX: usize = 256;

/// Maximum number of large bodies that are in memory at a time; further ones wait before they are read.
const LARGE_BODIES_MAX: usize = 16;

/// State that all models of a server share.
pub(crate) struct Shared {
    pub(crate) settings: Arc<ServerSettings>,
    /// The address that the server listens on.
    pub(crate) address: SocketAddr,
    /// When the server started, in seconds since 1970.
    pub(crate) created: u64,
    /// The stage of the server's shutdown.
    pub(crate) stage: watch::Sender<Stage>,
    /// When new connections began to be refused.
    pub(crate) ending_since: OnceLock<Instant>,
    /// Wakes the server when a request asks for its shutdown.
    pub(crate) drain_requested: Notify,
    /// Whether texts were added since the last save.
    pub(crate) has_new_texts: AtomicBool,
    /// Limits the number of large bodies in memory.
    pub(crate) large_bodies: Semaphore,
    pub(crate) http: HttpMetrics,
    unknown: Mutex<BTreeSet<String>>,
}

/// A stage of a server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Shutdown was not requested.
    Serving,
    /// Shutdown was requested; requests are still accepted, until routers have noticed that the server is not ready.
    Draining,
    /// New connections are refused; running requests may finish.
    Ending,
    /// Running requests are cut.
    Cutting,
}

impl Shared {
    pub(crate) fn new(settings: ServerSettings, address: SocketAddr) -> Self {
        Self {
            settings: Arc::new(settings),
            address,
            created: seconds_since_1970(),
            stage: watch::Sender::new(Stage::Serving),
            ending_since: OnceLock::new(),
            drain_requested: Notify::new(),
            has_new_texts: AtomicBool::new(false),
            large_bodies: Semaphore::new(LARGE_BODIES_MAX),
            http: HttpMetrics::default(),
            unknown: Mutex::default(),
        }
    }

    /// Waits until the shutdown has reached this stage.
    pub(crate) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        // This object holds the sender, so the channel is open.
        stages.wait_for(|now| *now >= stage).await.ok();
    }

    /// The id of a request, made of its number.
    pub(crate) fn request_id(&self, number: u64) -> String {
        format!("{:x}-{number:x}", self.created)
    }

    /// Logs the names of unknown fields, each once.
    pub(crate) fn log_unknown(&self, fields: Vec<String>) {
        let mut known = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        for field in fields {
            let field = shown(&field);
            if known.len() < UNKNOWN_MAX && known.insert(field.clone()) {
                tracing::warn!(field, "an unknown field is ignored");
            }
        }
    }
}

/// The current time, as in the field `created` of OpenAI's objects.
pub(crate) fn seconds_since_1970() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
