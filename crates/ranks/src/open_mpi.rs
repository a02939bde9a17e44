//! Ranks as processes that Open MPI starts (`mpirun`) and connects, by the crate `mpi`.
//!
//! MPI's blocking calls poll without end and cannot be given up, so only immediate ones are used, and waiting is our
//! own ([`Patience`]). A rank that does not answer cannot be left alone either: its messages still have buffers of
//! ours. So the job is aborted, after one line that says which rank it was.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope, scope};
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::{Destination, Equivalence, Source};

use crate::communicator::{Communicator, Silent, parts};
use crate::patience::Patience;

/// Tags of the two kinds of messages.
const MESSAGE: i32 = 1;
const PART: i32 = 2;

/// How long a message may take to arrive after its beginning, on a rank that waits for the next one without a limit.
const BEGUN_LIMIT: Duration = Duration::from_secs(600);

/// This process as a rank of the job that `mpirun` started.
pub struct OpenMpi {
    /// MPI, until it is finished.
    universe: Mutex<Option<Universe>>,
    rank: usize,
    size: usize,
    /// Is given the one line before the job is aborted.
    report: fn(&str),
}

impl fmt::Debug for OpenMpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open MPI: rank {} of {}", self.rank, self.size)
    }
}

/// A request with the rank that it waits for; `None` once it is complete.
type OpenRequest<'a, S> = Option<(usize, Request<'a, [u8], S>)>;

impl OpenMpi {
    /// Starts MPI, once in a process. `report` prints an error before the job is aborted.
    ///
    /// # Errors
    /// MPI was started before, or cannot be called from one thread after another.
    pub fn start(report: fn(&str)) -> Result<Self, String> {
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, provided) = started.ok_or("MPI: expected to start it once, found it started")?;
        if provided < Threading::Serialized {
            return Err(format!("MPI: expected calls from one thread after another (serialized), found {provided:?}"));
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        Ok(Self { universe: Mutex::new(Some(universe)), rank, size, report })
    }

    /// Ends MPI on this rank, which all ranks must do. Nothing may be sent or received after it.
    pub fn finish(&self) {
        drop(self.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Ends the job on all ranks, after one line on standard error.
    pub fn abort(&self, message: &str) -> ! {
        (self.report)(message);
        SimpleCommunicator::world().abort(1)
    }

    fn abort_without(&self, ranks: Vec<usize>, limit: Duration) -> ! {
        self.abort(&Silent { ranks, size: self.size, limit }.to_string())
    }

    /// Waits until all of these requests, each with its rank, are complete. Aborts the job after the limit.
    fn complete<'a, S: Scope<'a>>(&self, mut open: Vec<OpenRequest<'a, S>>, limit: Duration) {
        let mut patience = Patience::new();
        loop {
            let mut is_complete = true;
            for slot in &mut open {
                *slot = slot.take().and_then(|(rank, request)| request.test().err().map(|request| (rank, request)));
                is_complete &= slot.is_none();
            }
            if is_complete {
                return;
            }
            if patience.is_over(Some(limit)) {
                let mut ranks: Vec<usize> = open.iter().flatten().map(|(rank, _)| *rank).collect();
                ranks.sort_unstable();
                ranks.dedup();
                self.abort_without(ranks, limit);
            }
        }
    }
}

impl Communicator for OpenMpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, message: &[u8], limit: Duration) -> Result<(), Silent> {
        let world = SimpleCommunicator::world();
        scope(|scope| {
            let request = world.process_at_rank(to as i32).immediate_send_with_tag(scope, message, MESSAGE);
            self.complete(vec![Some((to, request))], limit);
        });
        Ok(())
    }

    fn receive(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>, Silent> {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(from as i32);
        let mut patience = Patience::new();
        loop {
            if let Some(status) = process.immediate_probe_with_tag(MESSAGE) {
                let mut message = vec![0; status.count(u8::equivalent_datatype()) as usize];
                scope(|scope| {
                    let request = process.immediate_receive_into_with_tag(scope, &mut message[..], MESSAGE);
                    // What has begun to arrive has a limit, also where the next message has none.
                    self.complete(vec![Some((from, request))], limit.unwrap_or(BEGUN_LIMIT));
                });
                return Ok(message);
            }
            if patience.is_over(limit) {
                self.abort_without(vec![from], limit.unwrap_or_default());
            }
        }
    }

    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8], limit: Duration) -> Result<(), Silent> {
        let world = SimpleCommunicator::world();
        scope(|scope| {
            let mut open = Vec::with_capacity(2 * self.size);
            for (rank, own) in parts(lens, all) {
                if rank == self.rank {
                    own.copy_from_slice(part);
                } else if !own.is_empty() {
                    let process = world.process_at_rank(rank as i32);
                    open.push(Some((rank, process.immediate_receive_into_with_tag(scope, own, PART))));
                }
            }
            for rank in (0..self.size).filter(|rank| *rank != self.rank && !part.is_empty()) {
                let process = world.process_at_rank(rank as i32);
                open.push(Some((rank, process.immediate_send_with_tag(scope, part, PART))));
            }
            self.complete(open, limit);
        });
        Ok(())
    }
}
