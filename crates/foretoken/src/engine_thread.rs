//! An engine on a thread of its own, controlled through channels: submit, cancel, events.
//!
//! A caller submits requests with the sending end of a channel, which receives their events; several requests may share
//! one. A caller with an event loop of its own, such as a server, gives a [`Listener`] instead and does not block
//! ([`EngineThread::submit_then`]). Between two steps the thread processes all commands that have arrived, in their
//! order; while there is nothing to run it sleeps. Requests that are submitted together begin together, so their texts
//! equal those of a loop that submits them all and then steps. When a listener has disconnected, its requests are
//! cancelled. If the engine panics, or a closure that was given the engine ([`EngineThread::with`]), the engine may be
//! in an inconsistent state: every running request ends as failed, and later submissions return the panic's message.
//! The engine limits the length of the queue ([`Engine::set_waiting_max`]).

use std::borrow::BorrowMut;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foretoken_engine::{
    Engine, Event, FinishReason, PassTotals, Race, Request, RequestError, SequenceId, Stats, Workload, panic_message,
};

use crate::Error;
use crate::answers::Submitted;

/// Receives the events of requests, on the engine's thread, which waits for it. It returns false if the receiver is
/// gone; the request is then cancelled.
pub type Listener = Arc<dyn Fn(Event) -> bool + Send + Sync>;

/// Receives the results of submitting several requests together, on the engine's thread.
type Reply = Box<dyn FnOnce(Vec<Result<Submitted, RequestError>>) + Send>;

/// A command to the thread.
enum Command<T> {
    Submit { requests: Vec<Request>, listener: Listener, reply: Reply },
    Cancel(SequenceId),
    With(Box<dyn FnOnce(&mut T) + Send>),
    Stop,
}

/// An engine that runs on a thread of its own. `T` owns the engine: an [`Engine`] or a [`Generator`](crate::Generator).
/// Can be shared between threads. Dropping it cancels all requests and stops the thread.
pub struct EngineThread<T> {
    commands: Sender<Command<T>>,
    /// Gives the owner back; `None` if the engine panicked.
    thread: Option<JoinHandle<Option<T>>>,
    /// Set when the thread ends: the message of the engine's panic, if it panicked.
    panic: Arc<OnceLock<Option<String>>>,
    counts: Arc<SharedCounts>,
}

impl<T: BorrowMut<Engine> + Send + 'static> EngineThread<T> {
    /// Moves an engine to a new thread.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn start(owner: T) -> Result<Self, Error> {
        let (commands, received) = channel();
        let panic = Arc::new(OnceLock::new());
        let counts = Arc::new(SharedCounts::default());
        counts.set(owner.borrow());
        let worker = Worker { owner, commands: received, listeners: HashMap::new(), counts: Arc::clone(&counts) };
        let panic_of_worker = Arc::clone(&panic);
        let thread = std::thread::Builder::new().name("foretoken-engine".to_string());
        let thread =
            thread.spawn(move || worker.run(&panic_of_worker)).map_err(|error| Error::Thread(error.to_string()))?;
        Ok(Self { commands, thread: Some(thread), panic, counts })
    }

    /// Cancels all requests, stops the thread and gives the engine's owner back.
    ///
    /// # Errors
    /// The engine panicked.
    pub fn stop(mut self) -> Result<T, Error> {
        self.commands.send(Command::Stop).ok();
        let thread = self.thread.take().expect("only stopping and dropping take it");
        thread.join().ok().flatten().ok_or_else(|| self.stopped())
    }
}

impl<T> EngineThread<T> {
    /// Submits a request, whose events go to `events`; the last of them is [`Event::Finished`].
    ///
    /// # Errors
    /// The request is refused, or the thread has ended.
    pub fn submit(&self, request: Request, events: &Sender<Event>) -> Result<Submitted, Error> {
        let submitted = self.submit_all(vec![request], events)?;
        Ok(submitted.into_iter().next().expect("one request, one reply")?)
    }

    /// Submits requests that begin together, in their order. If some are refused, the others still run.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn submit_all(
        &self,
        requests: Vec<Request>,
        events: &Sender<Event>,
    ) -> Result<Vec<Result<Submitted, RequestError>>, Error> {
        let (reply, replied) = channel();
        let events = events.clone();
        let listener: Listener = Arc::new(move |event| events.send(event).is_ok());
        // If nobody waits for the reply, the listener has disconnected as well.
        self.submit_then(requests, listener, move |submitted| drop(reply.send(submitted)))?;
        replied.recv().map_err(|RecvError| self.stopped())
    }

    /// As [`EngineThread::submit_all`], without waiting for the engine, which may be in the middle of a pass: `reply`
    /// receives the results before `listener` receives the first event. Both are called on the engine's thread and must
    /// not take long. If the thread ends first, `reply` is dropped without being called.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn submit_then(
        &self,
        requests: Vec<Request>,
        listener: Listener,
        reply: impl FnOnce(Vec<Result<Submitted, RequestError>>) + Send + 'static,
    ) -> Result<(), Error> {
        let command = Command::Submit { requests, listener, reply: Box::new(reply) };
        self.commands.send(command).map_err(|_| self.stopped())
    }

    /// The engine's load after its last step. Does not wait for the engine.
    pub fn workload(&self) -> Workload {
        self.counts.workload()
    }

    /// The engine's passes up to its last step. Does not wait for the engine.
    pub fn pass_totals(&self) -> PassTotals {
        self.counts.totals()
    }

    /// How long ago the executor failed a pass, if none has succeeded since. Does not wait for the engine.
    pub fn failing_for(&self) -> Option<Duration> {
        self.counts.failed_at().map(|failed_at| failed_at.elapsed())
    }

    /// Whether the thread has ended: the engine or a closure panicked.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends a sequence at the next step, with [`FinishReason::Cancelled`]. One that has ended already is ignored.
    pub fn cancel(&self, sequence: SequenceId) {
        // If the thread has ended, so have all its sequences.
        self.commands.send(Command::Cancel(sequence)).ok();
    }

    /// Runs a closure on the thread, between two steps, and returns its result. All requests wait for it. It may change
    /// the engine, but must not step it, since the events of such a step would be lost. It must not send commands to
    /// this thread and wait for them either: that is a deadlock.
    ///
    /// # Errors
    /// The thread has ended, or ends because the closure panics.
    pub fn with<R: Send + 'static>(&self, run: impl FnOnce(&mut T) -> R + Send + 'static) -> Result<R, Error> {
        let (reply, replied) = channel();
        let run = move |owner: &mut T| drop(reply.send(run(owner)));
        self.commands.send(Command::With(Box::new(run))).map_err(|_| self.stopped())?;
        replied.recv().map_err(|RecvError| self.stopped())
    }

    /// Runs a closure on the thread, between two steps, without waiting for it; otherwise as [`EngineThread::with`]. If
    /// the thread has ended, the closure is dropped.
    pub fn tell(&self, run: impl FnOnce(&mut T) + Send + 'static) {
        self.commands.send(Command::With(Box::new(run))).ok();
    }

    /// The error of the thread that has ended. Its channels close while it ends, so this waits a moment at most.
    fn stopped(&self) -> Error {
        Error::Stopped(self.panic.wait().as_deref().unwrap_or("its thread has ended").to_string())
    }
}

impl<T> Drop for EngineThread<T> {
    fn drop(&mut self) {
        self.commands.send(Command::Stop).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The engine's load and pass counts after its last step, for other threads.
#[derive(Default)]
struct SharedCounts {
    counts: [AtomicUsize; 9],
    /// When the executor failed the latest pass, if it did.
    failed_at: Mutex<Option<Instant>>,
}

impl SharedCounts {
    fn set(&self, engine: &Engine) {
        let Workload { running, waiting, pages, pages_held } = engine.workload();
        let PassTotals { passes, rows, experts, packed, bytes } = engine.pass_totals();
        let values = [running, waiting, pages, pages_held, passes, rows, experts, packed, bytes];
        self.counts.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
    }

    fn failed_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.failed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workload(&self) -> Workload {
        let [running, waiting, pages, pages_held, ..] = self.values();
        Workload { running, waiting, pages, pages_held }
    }

    fn totals(&self) -> PassTotals {
        let [.., passes, rows, experts, packed, bytes] = self.values();
        PassTotals { passes, rows, experts, packed, bytes }
    }

    fn values(&self) -> [usize; 9] {
        self.counts.each_ref().map(|shared| shared.load(Ordering::Relaxed))
    }
}

/// The state of the engine's thread.
struct Worker<T> {
    owner: T,
    commands: Receiver<Command<T>>,
    /// Listeners of the running sequences.
    listeners: HashMap<SequenceId, Listener>,
    counts: Arc<SharedCounts>,
}

impl<T: BorrowMut<Engine>> Worker<T> {
    /// Runs until it receives the command to stop. Returns the owner, unless the engine panics.
    fn run(mut self, panic: &OnceLock<Option<String>>) -> Option<T> {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            while self.process_commands() {
                self.step();
            }
        }));
        let why = ended.err().map(|payload| panic_message(&*payload));
        panic.set(why.clone()).expect("a thread ends once");
        let Some(why) = why else { return Some(self.owner) };
        for (sequence, listener) in self.listeners.drain() {
            let reason = FinishReason::Failed(format!("the engine stopped: {why}"));
            let stats = Box::new(Stats::default());
            listener(Event::Finished { sequence, reason, text: String::new(), stats });
        }
        None
    }

    /// Processes the commands that have arrived, and waits for more while nothing runs. Returns false if it must stop.
    fn process_commands(&mut self) -> bool {
        loop {
            let command = match self.owner.borrow_mut().is_idle() {
                true => self.commands.recv().map_err(|RecvError| TryRecvError::Disconnected),
                false => self.commands.try_recv(),
            };
            match command {
                Ok(Command::Submit { requests, listener, reply }) => {
                    reply(requests.into_iter().map(|request| self.submit(request, &listener)).collect());
                    self.counts.set(self.owner.borrow());
                }
                Ok(Command::Cancel(sequence)) => self.owner.borrow_mut().cancel(sequence),
                Ok(Command::With(run)) => run(&mut self.owner),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    for sequence in self.listeners.keys().copied().collect::<Vec<_>>() {
                        self.owner.borrow_mut().cancel(sequence);
                    }
                    self.step();
                    return false;
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn submit(&mut self, request: Request, listener: &Listener) -> Result<Submitted, RequestError> {
        let submitted = Submitted::to(self.owner.borrow_mut(), request)?;
        self.listeners.insert(submitted.sequence, Arc::clone(listener));
        Ok(submitted)
    }

    /// Runs one step and sends its events to their listeners.
    fn step(&mut self) {
        let engine = self.owner.borrow_mut();
        let mut disconnected = Vec::new();
        let events = engine.step(&mut Race).to_vec();
        // Before the events, so that whoever has an answer finds what it left behind.
        self.counts.set(engine);
        *self.counts.failed_at() = engine.is_failing().then(Instant::now);
        for event in events {
            let sequence = event.sequence();
            let is_last = matches!(event, Event::Finished { .. });
            let Some(listener) = self.listeners.get(&sequence) else { continue };
            if !listener(event) && !is_last {
                disconnected.push(sequence);
            }
            if is_last {
                self.listeners.remove(&sequence);
            }
        }
        disconnected.into_iter().for_each(|sequence| engine.cancel(sequence));
    }
}
