//! Ranks as threads of one process: the communicator of tests and of measurements of slow links.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::communicator::{Communicator, Silent, parts};

/// One end of a connection of `size` threads.
#[derive(Debug)]
pub struct InProcess {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    size: usize,
    /// Messages on their way, `[to, from, kind]`.
    mail: Vec<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    messages: Mutex<VecDeque<Vec<u8>>>,
    arrived: Condvar,
}

impl Mailbox {
    fn messages(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Message,
    Part,
}

/// Connects ranks: one end for each, in order.
pub fn connect(size: usize) -> Vec<InProcess> {
    let shared = Arc::new(Shared { size, mail: (0..size * size * 2).map(|_| Mailbox::default()).collect() });
    (0..size).map(|rank| InProcess { rank, shared: Arc::clone(&shared) }).collect()
}

impl InProcess {
    fn mailbox(&self, to: usize, from: usize, kind: Kind) -> &Mailbox {
        &self.shared.mail[(to * self.shared.size + from) * 2 + kind as usize]
    }

    fn put(&self, to: usize, kind: Kind, message: &[u8]) {
        let mailbox = self.mailbox(to, self.rank, kind);
        mailbox.messages().push_back(message.to_vec());
        mailbox.arrived.notify_one();
    }

    fn take(&self, from: usize, kind: Kind, limit: Option<Duration>) -> Result<Vec<u8>, Silent> {
        let mailbox = self.mailbox(self.rank, from, kind);
        let mut messages = mailbox.messages();
        while messages.is_empty() {
            messages = match limit {
                None => mailbox.arrived.wait(messages).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let waited = mailbox.arrived.wait_timeout(messages, limit).unwrap_or_else(PoisonError::into_inner);
                    if waited.1.timed_out() && waited.0.is_empty() {
                        return Err(Silent { ranks: vec![from], size: self.shared.size, limit });
                    }
                    waited.0
                }
            };
        }
        Ok(messages.pop_front().expect("it is not empty"))
    }
}

impl Communicator for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn send(&self, to: usize, message: &[u8], _: Duration) -> Result<(), Silent> {
        self.put(to, Kind::Message, message);
        Ok(())
    }

    fn receive(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>, Silent> {
        self.take(from, Kind::Message, limit)
    }

    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8], limit: Duration) -> Result<(), Silent> {
        let others = (0..self.size()).filter(|other| *other != self.rank);
        others.filter(|_| !part.is_empty()).for_each(|other| self.put(other, Kind::Part, part));
        for (from, own) in parts(lens, all) {
            if from == self.rank {
                own.copy_from_slice(part);
            } else if !own.is_empty() {
                own.copy_from_slice(&self.take(from, Kind::Part, Some(limit))?);
            }
        }
        Ok(())
    }
}
