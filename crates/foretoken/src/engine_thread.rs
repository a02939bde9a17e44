//! An engine on a thread of its own, spoken to by channels: submit, cancel, events.
//!
//! The idea: whoever submits brings the sending end of a channel, and hears of its requests there; several requests may
//! share one. Who has an event loop of its own, as a server does, brings a [`Listener`] instead and waits for nothing
//! ([`EngineThread::submit_then`]). Between two steps the thread does all that it was told meanwhile, in the order in
//! which it was told, and without anything to do it sleeps. Requests that are submitted together begin together, so
//! their texts are those of a loop that submits them all and then steps. A listener that is gone cancels its requests.
//! If the engine panics, every request that is alive ends as failed, and whoever submits later is told why; so too if a
//! closure panics that was given the engine ([`EngineThread::with`]), since nobody knows what it left half done, and a
//! wrong text is worse than none. Left out: limits to how much may wait, which the engine has
//! ([`Engine::set_waiting_max`]).

use std::borrow::BorrowMut;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use foretoken_engine::{
    Engine, Event, FinishReason, PassTotals, Race, Request, RequestError, SequenceId, Stats, Workload, panic_message,
};

use crate::Error;
use crate::answers::{Answer, Growing, Submitted, Watch};

/// Hears of the events of requests, on the engine's thread, which waits for it. False: nobody listens any more, and the
/// request is cancelled.
pub type Listener = Arc<dyn Fn(Event) -> bool + Send + Sync>;

/// Is told which of the requests that were submitted together are taken, on the engine's thread.
type Reply = Box<dyn FnOnce(Vec<Result<Submitted, RequestError>>) + Send>;

/// What the thread is told.
enum Command<T> {
    Submit { requests: Vec<Request>, listener: Listener, reply: Reply },
    Cancel(SequenceId),
    With(Box<dyn FnOnce(&mut T) + Send>),
    Stop,
}

/// An engine that runs on a thread of its own, with whatever owns it (an [`Engine`] or a
/// [`Generator`](crate::Generator)). Can be shared between threads. Dropping it cancels all requests and stops the
/// thread.
pub struct EngineThread<T> {
    commands: Sender<Command<T>>,
    /// Gives the owner back; `None` if the engine panicked.
    thread: Option<JoinHandle<Option<T>>>,
    /// Set when the thread ends: what the engine's panic said, if it panicked.
    panic: Arc<OnceLock<Option<String>>>,
    counts: Arc<SharedCounts>,
}

impl<T: BorrowMut<Engine> + Send + 'static> EngineThread<T> {
    /// Moves an engine to a new thread.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn start(owner: T) -> Result<Self, Error> {
        let (commands, told) = channel();
        let panic = Arc::new(OnceLock::new());
        let counts = Arc::new(SharedCounts::default());
        counts.set(owner.borrow());
        let worker = Worker { owner, told, listeners: HashMap::new(), counts: Arc::clone(&counts) };
        let said = Arc::clone(&panic);
        let thread = std::thread::Builder::new().name("foretoken-engine".to_string());
        let thread = thread.spawn(move || worker.run(&said)).map_err(|error| Error::Thread(error.to_string()))?;
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
    /// The request is refused, or the thread is gone.
    pub fn submit(&self, request: Request, events: &Sender<Event>) -> Result<Submitted, Error> {
        let submitted = self.submit_all(vec![request], events)?;
        Ok(submitted.into_iter().next().expect("one request, one reply")?)
    }

    /// Submits requests that begin together, in their order. Those that are refused do not keep the others from
    /// running.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn submit_all(
        &self,
        requests: Vec<Request>,
        events: &Sender<Event>,
    ) -> Result<Vec<Result<Submitted, RequestError>>, Error> {
        let (reply, replied) = channel();
        let events = events.clone();
        let listener: Listener = Arc::new(move |event| events.send(event).is_ok());
        // Who does not wait for the reply has gone, and so has the listener.
        self.submit_then(requests, listener, move |submitted| drop(reply.send(submitted)))?;
        replied.recv().map_err(|RecvError| self.stopped())
    }

    /// The same without waiting for the engine, which may be in the middle of a pass: `reply` is told what came of it,
    /// before `listener` hears of the first event. Both are called on the engine's thread and are not to take long. If
    /// that ends before, `reply` is dropped without being called.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn submit_then(
        &self,
        requests: Vec<Request>,
        listener: Listener,
        reply: impl FnOnce(Vec<Result<Submitted, RequestError>>) + Send + 'static,
    ) -> Result<(), Error> {
        let command = Command::Submit { requests, listener, reply: Box::new(reply) };
        self.commands.send(command).map_err(|_| self.stopped())
    }

    /// How much the engine had to do after its last step. Does not wait for it.
    pub fn workload(&self) -> Workload {
        self.counts.workload()
    }

    /// The passes of the engine up to its last step. Does not wait for it.
    pub fn pass_totals(&self) -> PassTotals {
        self.counts.totals()
    }

    /// Whether the thread has ended: the engine or a closure panicked.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends a sequence at the next step, with [`FinishReason::Cancelled`]. One that has ended already is ignored.
    pub fn cancel(&self, sequence: SequenceId) {
        // A thread that is gone has ended all its sequences.
        self.commands.send(Command::Cancel(sequence)).ok();
    }

    /// Runs a closure on the thread, between two steps, and gives back what it returned: to keep texts, to look at
    /// what all requests have learned. All requests wait for it. It may change the engine, but is not to step it: the
    /// events of such a step would reach nobody. It is not to speak to this thread either, which would wait for itself.
    ///
    /// # Errors
    /// The thread is gone. So it is if the closure panics, as if the engine had.
    pub fn with<R: Send + 'static>(&self, run: impl FnOnce(&mut T) -> R + Send + 'static) -> Result<R, Error> {
        let (reply, replied) = channel();
        let run = move |owner: &mut T| drop(reply.send(run(owner)));
        self.commands.send(Command::With(Box::new(run))).map_err(|_| self.stopped())?;
        replied.recv().map_err(|RecvError| self.stopped())
    }

    /// Runs a closure on the thread, between two steps, without waiting for it; otherwise as [`EngineThread::with`]. If
    /// the thread is gone it is dropped.
    pub fn tell(&self, run: impl FnOnce(&mut T) + Send + 'static) {
        self.commands.send(Command::With(Box::new(run))).ok();
    }

    /// Runs requests to their ends, as [`answers::run`](crate::answers::run) on this thread: with the same texts.
    ///
    /// # Errors
    /// What all requests have in common is refused, `watch` fails, or the thread is gone.
    pub fn run<E: From<Error>>(&self, requests: Vec<Request>, watch: &mut Watch<'_, E>) -> Result<Vec<Answer>, E> {
        self.run_in_order(requests, watch, &mut |_, _| Ok(()))
    }

    /// The same, and hands every answer over as soon as it and those before it are complete.
    ///
    /// # Errors
    /// As [`EngineThread::run`], or an answer is not taken: all other requests are cancelled then.
    pub fn run_in_order<E: From<Error>>(
        &self,
        requests: Vec<Request>,
        watch: &mut Watch<'_, E>,
        complete: &mut dyn FnMut(usize, &Answer) -> Result<(), E>,
    ) -> Result<Vec<Answer>, E> {
        let answers = requests.iter().map(Answer::to).collect();
        let (events, heard) = channel();
        let growing = Growing::new(answers, self.submit_all(requests, &events)?);
        let mut growing = growing.map_err(|(error, taken)| {
            taken.into_iter().for_each(|sequence| self.cancel(sequence));
            Error::from(error)
        })?;
        drop(events);
        let mut next = 0;
        growing.hand_over(&mut next, complete)?;
        while growing.open() > 0 {
            let event = heard.recv().map_err(|RecvError| self.stopped())?;
            let Some(number) = growing.take(&event, Instant::now()) else { continue };
            if !watch(number, &event)? {
                self.cancel(event.sequence());
            }
            if matches!(event, Event::Finished { .. }) {
                growing.hand_over(&mut next, complete)?;
            }
        }
        Ok(growing.done())
    }

    /// Why the thread is gone. Its channels close while it ends, so this is known at once or in a moment.
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

/// The load after the last step and the passes up to it, for other threads.
#[derive(Default)]
struct SharedCounts([AtomicUsize; 9]);

impl SharedCounts {
    fn set(&self, engine: &Engine) {
        let Workload { running, waiting, pages, pages_held } = engine.workload();
        let PassTotals { passes, rows, experts, packed, bytes } = engine.pass_totals();
        let values = [running, waiting, pages, pages_held, passes, rows, experts, packed, bytes];
        self.0.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
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
        self.0.each_ref().map(|shared| shared.load(Ordering::Relaxed))
    }
}

/// What runs on the thread.
struct Worker<T> {
    owner: T,
    told: Receiver<Command<T>>,
    /// Who hears of the sequences that are alive.
    listeners: HashMap<SequenceId, Listener>,
    counts: Arc<SharedCounts>,
}

impl<T: BorrowMut<Engine>> Worker<T> {
    /// Works until it is told to stop. Gives the owner back, unless the engine panics.
    fn run(mut self, panic: &OnceLock<Option<String>>) -> Option<T> {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            while self.obey() {
                self.step();
            }
        }));
        let why = ended.err().map(|said| panic_message(&*said));
        panic.set(why.clone()).expect("a thread ends once");
        let Some(why) = why else { return Some(self.owner) };
        for (sequence, listener) in self.listeners.drain() {
            let reason = FinishReason::Failed(format!("the engine stopped: {why}"));
            let stats = Box::new(Stats::default());
            listener(Event::Finished { sequence, reason, text: String::new(), stats });
        }
        None
    }

    /// Does all that it was told, and waits for more while there is nothing to run. Whether to go on.
    fn obey(&mut self) -> bool {
        loop {
            let command = match self.owner.borrow_mut().is_idle() {
                true => self.told.recv().map_err(|RecvError| TryRecvError::Disconnected),
                false => self.told.try_recv(),
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

    /// One step, whose events go to those who listen.
    fn step(&mut self) {
        let engine = self.owner.borrow_mut();
        let mut deaf = Vec::new();
        for event in engine.step(&mut Race) {
            let sequence = event.sequence();
            let is_last = matches!(event, Event::Finished { .. });
            let Some(listener) = self.listeners.get(&sequence) else { continue };
            if !listener(event.clone()) && !is_last {
                deaf.push(sequence);
            }
            if is_last {
                self.listeners.remove(&sequence);
            }
        }
        deaf.into_iter().for_each(|sequence| engine.cancel(sequence));
        self.counts.set(engine);
    }
}
