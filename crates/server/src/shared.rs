//! What a server has once, however many models it serves: settings, limits, its end, counts of answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};

use crate::error::shown;
use crate::metrics::HttpMetrics;
use crate::settings::ServerSettings;

/// Most unknown fields whose names are remembered.
const UNKNOWN_MAX: usize = 256;

/// So many large bodies are in memory at a time; further ones wait before they are read.
const LARGE_BODIES_MAX: usize = 16;

/// See the head of this file.
pub(crate) struct Shared {
    pub(crate) settings: ServerSettings,
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// Seconds since 1970 when the server began.
    pub(crate) created: u64,
    /// How far the server's end has come.
    pub(crate) stage: watch::Sender<Stage>,
    /// When the end was asked for.
    pub(crate) asked_to_end: OnceLock<Instant>,
    /// Whether texts were added since they were written last.
    pub(crate) has_new_texts: AtomicBool,
    /// Places for large bodies, of which only so many are in memory at a time.
    pub(crate) large_bodies: Semaphore,
    pub(crate) http: HttpMetrics,
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

impl Shared {
    pub(crate) fn new(settings: ServerSettings, address: SocketAddr) -> Self {
        Self {
            settings,
            address,
            created: seconds_since_1970(),
            stage: watch::Sender::new(Stage::Serving),
            asked_to_end: OnceLock::new(),
            has_new_texts: AtomicBool::new(false),
            large_bodies: Semaphore::new(LARGE_BODIES_MAX),
            http: HttpMetrics::default(),
            unknown: Mutex::default(),
        }
    }

    /// Waits until the end has come so far.
    pub(crate) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        // The sender is this object's own, so it is there.
        stages.wait_for(|now| *now >= stage).await.ok();
    }

    /// The name of a request, by its number.
    pub(crate) fn name_of_request(&self, number: u64) -> String {
        format!("{:x}-{number:x}", self.created)
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
