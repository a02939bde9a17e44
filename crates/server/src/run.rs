//! The sequences of one HTTP request while they run: submission, events, cutting, cancellation.
//!
//! The engine's thread sends events through an unbounded channel, so it never waits for a client; the length of the
//! answer bounds the queue. Dropping a [`Run`] (the client has disconnected) cancels its unfinished sequences. A
//! sequence that takes too long, or runs when the server shuts down, is cut; the tokens generated so far are kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foretoken::{Event, FinishReason, Listener, Message, Request, RequestError, SequenceId, Submitted, Tenant, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;
use crate::shared::Stage;

/// Why sequences were cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutReason {
    /// The request took longer than the time limit.
    Timeout,
    /// The server shuts down.
    Shutdown,
}

impl CutReason {
    /// Its name in answers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What is remembered of a request to the engine while it runs.
pub(crate) struct RequestRecord {
    pub(crate) prompt_len: usize,
    pub(crate) seed: u64,
    pub(crate) end_tokens: Vec<Token>,
    /// Whether the request itself forbids tokens.
    pub(crate) forbids: bool,
    tenant: Tenant,
    /// Prompt and answer, if texts are kept for the next run.
    kept_text: Option<(Vec<Token>, Vec<Token>)>,
}

impl RequestRecord {
    /// `keeps`: whether its text is kept for the next run.
    pub(crate) fn of(request: &Request, keeps: bool) -> Self {
        let sampling = &request.sampling;
        Self {
            prompt_len: request.input().len(),
            seed: request.seed,
            end_tokens: sampling.end_tokens.clone(),
            forbids: !sampling.logit_bias.is_empty() || !sampling.banned_tokens.is_empty(),
            tenant: request.tenant,
            kept_text: keeps.then(|| (request.prompt.clone(), Vec::new())),
        }
    }
}

/// The running sequences of one HTTP request.
pub(crate) struct Run {
    app: Arc<App>,
    id: String,
    events: mpsc::UnboundedReceiver<Event>,
    /// Sequences that have not ended, with their indexes among the requests.
    open: HashMap<SequenceId, usize>,
    records: Vec<RequestRecord>,
    /// Events that were received before the answer began ([`Run::begin`]).
    early: VecDeque<RunEvent>,
    /// The task that cuts the sequences in time, even while no event is read.
    cutter: AbortHandle,
    cut: Arc<OnceLock<CutReason>>,
}

/// Why the answer to requests does not begin.
pub(crate) enum NotBegun {
    /// They were cut.
    Cut(CutReason),
    /// All of them failed: the index of the first, and its reason.
    Failed(usize, String),
}

/// What happened next.
pub(crate) enum RunEvent {
    /// An event of the request with this index.
    Event(usize, Event),
    /// No event for [`KEEP_ALIVE_INTERVAL`]; a streaming client expects a keep-alive message.
    Idle,
    /// All sequences have ended.
    End,
}

/// Time without events after which a streaming client is sent a keep-alive message.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Most time in which a streaming client is sent nothing, not even the status: below the minute after which proxies
/// usually give up.
const BEGIN_WAIT: Duration = Duration::from_secs(45);

impl Run {
    /// Submits the requests: all of them or none.
    pub(crate) async fn start(
        app: Arc<App>,
        id: String,
        deadline: Instant,
        requests: Vec<Request>,
    ) -> Result<Self, ApiError> {
        let (sender, events) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        let metrics = Arc::clone(&app.metrics);
        let listener: Listener = Arc::new(move |event| {
            metrics.record_event(&event);
            sender.send(event).is_ok()
        });
        let records = requests.iter().map(|request| RequestRecord::of(request, app.keeps_texts)).collect();
        let on_submitted = move |submitted: Vec<Result<Submitted, RequestError>>| drop(reply.send(submitted));
        app.engine.submit_then(requests, listener, on_submitted).map_err(|error| ApiError::of(&error))?;
        let submitted = replied.await.map_err(|_| ApiError::bug("engine: expected one that runs, found it stopped"))?;
        let (mut open, mut refused) = (HashMap::new(), None);
        for (index, submitted) in submitted.into_iter().enumerate() {
            match submitted {
                Ok(submitted) => drop(open.insert(submitted.sequence, index)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        let cut = Arc::new(OnceLock::new());
        let sequences = open.keys().copied().collect();
        let cutter = tokio::spawn(cut_at_deadline(Arc::clone(&app), deadline, sequences, Arc::clone(&cut)));
        // From here on dropping the run cancels the accepted requests.
        let (early, cutter) = (VecDeque::new(), cutter.abort_handle());
        let run = Self { app, id, events, open, records, early, cutter, cut };
        match refused {
            Some(error) => Err(ApiError::of(&error.into())),
            None => Ok(run),
        }
    }

    /// The submitted requests, in order.
    pub(crate) fn records(&self) -> &[RequestRecord] {
        &self.records
    }

    /// Why sequences were cut, if they were.
    pub(crate) fn cut(&self) -> Option<CutReason> {
        self.cut.get().copied()
    }

    /// Waits until the answer begins, but not forever: for the first event other than the progress of a prompt, which
    /// counts if the client wants it. Nothing is sent to the client before, so that a router may repeat a request
    /// elsewhere if this server ends while the request is queued, or cannot compute it.
    ///
    /// # Errors
    /// The requests were cut before they began, or all of them failed.
    pub(crate) async fn begin(&mut self, wants_progress: bool) -> Result<(), NotBegun> {
        let (until, mut failed) = (Instant::now() + BEGIN_WAIT, None);
        loop {
            let Ok(event) = tokio::time::timeout_at(until, self.receive()).await else { return Ok(()) };
            let has_begun = match (&event, self.cut()) {
                (RunEvent::Event(_, Event::Prompt { .. }), _) => wants_progress,
                (RunEvent::Event(_, Event::Finished { reason: FinishReason::Cancelled, .. }), Some(cut)) => {
                    return Err(NotBegun::Cut(cut));
                }
                (RunEvent::Event(index, Event::Finished { reason: FinishReason::Failed(why), .. }), _) => {
                    failed.get_or_insert((*index, why.clone()));
                    false
                }
                (RunEvent::End, _) => match failed.take() {
                    Some((index, why)) => return Err(NotBegun::Failed(index, why)),
                    None => true,
                },
                _ => true,
            };
            self.early.push_back(event);
            if has_begun {
                return Ok(());
            }
        }
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> RunEvent {
        if let Some(event) = self.early.pop_front() {
            return event;
        }
        tokio::time::timeout(KEEP_ALIVE_INTERVAL, self.receive()).await.unwrap_or(RunEvent::Idle)
    }

    /// Waits for the next event, or the end.
    async fn receive(&mut self) -> RunEvent {
        while !self.open.is_empty() {
            // The engine's thread ended without a `Finished` event, for instance by a panic in a listener.
            let Some(event) = self.events.recv().await else { break };
            if let Some((index, event)) = self.take(event) {
                return RunEvent::Event(index, event);
            }
        }
        RunEvent::End
    }

    fn take(&mut self, event: Event) -> Option<(usize, Event)> {
        let sequence = event.sequence();
        let index = *self.open.get(&sequence)?;
        let record = &mut self.records[index];
        match &event {
            Event::Tokens { emitted, .. } => {
                if let Some((_, text)) = &mut record.kept_text {
                    text.extend(emitted.iter().map(|emitted| emitted.token));
                }
            }
            Event::Beams { beams, .. } => {
                if let (Some((_, text)), Some(best)) = (&mut record.kept_text, beams.first()) {
                    text.extend_from_slice(&best.tokens);
                }
            }
            Event::DrafterFailed { drafter, message: why, .. } => {
                let drafter = self.app.prompter.names.get(usize::from(*drafter));
                tracing::warn!(id = self.id, drafter, why, "a drafter failed and is no longer used for the request");
            }
            Event::Finished { reason, .. } => {
                self.open.remove(&sequence);
                if let FinishReason::Failed(why) = reason {
                    match Message::of_failure(why).begins_with() {
                        // The client receives the error.
                        Some(setting) => tracing::debug!(id = self.id, setting, "a request cannot be continued"),
                        None => tracing::error!(id = self.id, why, "a request failed"),
                    }
                } else if let Some((prompt, text)) = record.kept_text.take().filter(|(_, text)| !text.is_empty()) {
                    self.app.keep_text(record.tenant, prompt, text);
                }
            }
            _ => {}
        }
        Some((index, event))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cutter.abort();
        if !self.open.is_empty() {
            tracing::info!(id = self.id, answers = self.open.len(), "cancelled");
            self.open.keys().for_each(|sequence| self.app.engine.cancel(*sequence));
        }
    }
}

/// Cancels the sequences at the deadline, or when the server shuts down. Their `Finished` events still follow.
async fn cut_at_deadline(app: Arc<App>, deadline: Instant, sequences: Vec<SequenceId>, cut: Arc<OnceLock<CutReason>>) {
    let why = tokio::select! {
        () = app.reached(Stage::Cutting) => CutReason::Shutdown,
        () = tokio::time::sleep_until(deadline) => CutReason::Timeout,
    };
    cut.set(why).ok();
    sequences.into_iter().for_each(|sequence| app.engine.cancel(sequence));
}
