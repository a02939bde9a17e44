//! Room for connections: how many there may be at a time, and which one ends where a new one finds no room.
//!
//! A server waits for most of its connections: for a first request, for the rest of one, or for the next one. Such
//! connections must not keep others out, so the one that was waited for longest is closed for a new one, but none that
//! was waited for only a moment. If all are being answered, the new one waits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::Client;

/// How long a client may take to send a request, even if others wait for its place.
const GRACE: Duration = Duration::from_secs(1);
/// How often a connection without room looks for some.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The places of a server's connections.
pub(super) struct Room {
    free: Arc<Semaphore>,
    places: usize,
    /// The clients that have places, and some that had.
    clients: Vec<Weak<Client>>,
}

impl Room {
    /// Room for this number of connections.
    pub(super) fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), places, clients: Vec::new() }
    }

    /// A place for this client, which is free again when it is dropped. Waits until there is one.
    pub(super) async fn place(&mut self, client: &Arc<Client>) -> OwnedSemaphorePermit {
        let place = loop {
            if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
                break place;
            }
            // So that what has arrived meanwhile is read first.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            self.dismiss_longest_waiting();
            let place = tokio::time::timeout(POLL_INTERVAL, Arc::clone(&self.free).acquire_owned()).await;
            if let Ok(place) = place {
                break place.expect("the semaphore is never closed");
            }
        };
        if self.clients.len() == self.clients.capacity() {
            self.clients.retain(|client| client.strong_count() > 0);
        }
        self.clients.push(Arc::downgrade(client));
        client.begin_waiting();
        place
    }

    /// Ends the connection that was waited for longest, if there is one that was waited for long enough.
    fn dismiss_longest_waiting(&self) {
        let waiting = self.clients.iter().filter_map(|client| {
            let client = client.upgrade()?;
            Some((client.awaited_since()?, client))
        });
        let longest = waiting.min_by_key(|(since, _)| *since);
        if let Some((_, client)) = longest.filter(|(since, _)| since.elapsed() >= GRACE) {
            client.dismiss();
        }
    }

    /// Waits until all places are free.
    pub(super) async fn emptied(&self) {
        let all = u32::try_from(self.places).unwrap_or(u32::MAX);
        drop(self.free.acquire_many(all).await);
    }
}
