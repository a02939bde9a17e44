//! The ranks of a job as one of them sees them: who is told what, who has answered, and what was sent.
//!
//! One call at a time goes through a group ([`Group::turn`]), from whichever thread: models of a server share it, and
//! so MPI is never called by two threads at once. A rank that has not answered is reported once; from then on, and
//! after the end of the job, every call fails.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foretoken_model::{Exchange, ExecutorError, Rank, Sent};

use crate::command::{Answer, Command};
use crate::communicator::{Communicator, Silent};

/// A rank's connection with all others.
pub struct Group {
    communicator: Box<dyn Communicator>,
    limit: Duration,
    turn: Mutex<()>,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// Why nothing can be called any more.
    failure: Mutex<Option<String>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.communicator.rank(), self.size())
    }
}

impl Group {
    /// A group whose ranks must answer within `limit`.
    pub(crate) fn new(communicator: Box<dyn Communicator>, limit: Duration) -> Arc<Self> {
        let (messages, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { communicator, limit, turn: Mutex::default(), messages, bytes, failure: Mutex::default() })
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// The number of this rank.
    pub fn number(&self) -> usize {
        self.communicator.rank()
    }

    /// This rank as a backend, which exchanges outputs through this group.
    pub(crate) fn rank(self: &Arc<Self>) -> Rank {
        Rank { number: self.number(), count: self.size(), exchange: Arc::clone(self) as Arc<dyn Exchange> }
    }

    /// What this rank has sent to the others so far.
    pub fn sent(&self) -> Sent {
        Sent { messages: self.messages.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// The right to make calls, until it is dropped.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit of this rank: rank 0 gives up first, and of the others one after another, so that one reports.
    fn limit(&self) -> Duration {
        self.limit + Duration::from_secs(self.number() as u64)
    }

    fn count(&self, messages: usize, bytes: usize) {
        self.messages.fetch_add(messages as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Runs a call unless an earlier one has failed.
    fn call<T>(&self, call: impl FnOnce() -> Result<T, Silent>) -> Result<T, ExecutorError> {
        let failed = |message: &String| ExecutorError::Failed { message: message.clone() };
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &*failure {
            return Err(failed(message));
        }
        call().map_err(|silent| failed(failure.insert(silent.to_string())))
    }

    /// Lets all further calls fail: the other ranks have ended.
    pub(crate) fn end(&self) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| "ranks: expected to be used before the end of the job".to_string());
    }

    /// Sends bytes to one rank.
    fn send(&self, to: usize, bytes: &[u8]) -> Result<(), ExecutorError> {
        self.call(|| self.communicator.send(to, bytes, self.limit()))?;
        self.count(1, bytes.len());
        Ok(())
    }

    /// Sends the same bytes to all other ranks.
    pub(crate) fn send_to_all(&self, bytes: &[u8]) -> Result<(), ExecutorError> {
        (0..self.size()).filter(|to| *to != self.number()).try_for_each(|to| self.send(to, bytes))
    }

    /// Tells all other ranks what to do.
    pub(crate) fn tell(&self, command: &Command) -> Result<(), ExecutorError> {
        self.send_to_all(&serde_json::to_vec(command).expect("commands are JSON"))
    }

    /// Waits until all other ranks have done what they were told.
    ///
    /// # Errors
    /// A rank could not do it, or does not answer.
    pub(crate) fn answers(&self) -> Result<(), ExecutorError> {
        let mut failure = None;
        for from in (0..self.size()).filter(|from| *from != self.number()) {
            loop {
                let bytes = self.call(|| self.communicator.receive(from, Some(self.limit())))?;
                let answer = serde_json::from_slice(&bytes);
                match answer.unwrap_or_else(|_| Answer::Failed("an answer that cannot be read".to_string())) {
                    Answer::Working => {}
                    Answer::Done => break,
                    Answer::Failed(message) => {
                        let message = format!("rank {from}: {message}");
                        failure.get_or_insert(ExecutorError::Failed { message });
                        break;
                    }
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Answers rank 0.
    pub(crate) fn answer(&self, answer: &Answer) -> Result<(), ExecutorError> {
        self.send(0, &serde_json::to_vec(answer).expect("answers are JSON"))
    }

    /// The next message of rank 0, however long it takes.
    pub(crate) fn next(&self) -> Result<Vec<u8>, ExecutorError> {
        self.call(|| self.communicator.receive(0, None))
    }
}

impl Exchange for Group {
    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), ExecutorError> {
        self.call(|| self.communicator.gather(part, lens, all, self.limit()))?;
        let others = if part.is_empty() { 0 } else { self.size() - 1 };
        self.count(others, others * part.len());
        Ok(())
    }
}
