//! The answers to one request while they are written: submitted, heard, cut, cancelled.
//!
//! The idea: the engine's thread tells what happens through an unbounded channel, so that it never waits for a client;
//! what waits there is bounded by the text itself. Whoever stops listening (a client that has gone drops its answer)
//! cancels what it does not hear to the end. A text that takes too long, or is under way when the server ends, is cut:
//! what was written of it stands. Left out: what answers look like.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foretoken::{Event, FinishReason, Listener, Message, Request, RequestError, SequenceId, Submitted, Tenant, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;
use crate::shared::Stage;

/// Why a text was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It took longer than requests may.
    Timeout,
    /// The server ends.
    Shutdown,
}

impl Cut {
    /// Its name in answers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What is remembered of a request while its answer is written.
pub(crate) struct Asked {
    pub(crate) prompt_len: usize,
    pub(crate) seed: u64,
    pub(crate) end_tokens: Vec<Token>,
    /// Whether the request itself forbids tokens.
    pub(crate) forbids: bool,
    tenant: Tenant,
    /// Prompt and text, where texts are kept.
    kept: Option<(Vec<Token>, Vec<Token>)>,
}

impl Asked {
    fn of(request: &Request, keeps: bool) -> Self {
        let sampling = &request.sampling;
        Self {
            prompt_len: request.prompt.len(),
            seed: request.seed,
            end_tokens: sampling.end_tokens.clone(),
            forbids: !sampling.logit_bias.is_empty() || !sampling.banned_tokens.is_empty(),
            tenant: request.tenant,
            kept: keeps.then(|| (request.prompt.clone(), Vec::new())),
        }
    }
}

/// See the head of this file.
pub(crate) struct Run {
    app: Arc<App>,
    id: String,
    events: mpsc::UnboundedReceiver<Event>,
    /// Those that have not ended, with their numbers among the requests.
    open: HashMap<SequenceId, usize>,
    asked: Vec<Asked>,
    /// Cuts the texts when it is time, whether or not anybody takes them.
    cutter: AbortHandle,
    cut: Arc<OnceLock<Cut>>,
}

/// What comes next.
pub(crate) enum Next {
    /// Something happened to the request of this number.
    Event(usize, Event),
    /// Nothing for so long; the client may want a sign of life.
    Nothing,
    /// All have ended.
    End,
}

/// So long nothing may happen before a client that streams is told that its request lives.
const QUIET: Duration = Duration::from_secs(15);

impl Run {
    /// Submits requests that belong together: all of them or none.
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
            metrics.hear(&event);
            sender.send(event).is_ok()
        });
        let asked = requests.iter().map(|request| Asked::of(request, app.keeps)).collect();
        let told = move |submitted: Vec<Result<Submitted, RequestError>>| drop(reply.send(submitted));
        app.engine.submit_then(requests, listener, told).map_err(|error| ApiError::of(&error))?;
        let submitted = replied.await.map_err(|_| ApiError::bug("engine: expected one that runs, found it stopped"))?;
        let (mut open, mut refused) = (HashMap::new(), None);
        for (number, submitted) in submitted.into_iter().enumerate() {
            match submitted {
                Ok(submitted) => drop(open.insert(submitted.sequence, number)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        let cut = Arc::new(OnceLock::new());
        let sequences = open.keys().copied().collect();
        let cutter = tokio::spawn(cut_in_time(Arc::clone(&app), deadline, sequences, Arc::clone(&cut)));
        // From here on dropping it cancels what was taken.
        let run = Self { app, id, events, open, asked, cutter: cutter.abort_handle(), cut };
        match refused {
            Some(error) => Err(ApiError::of(&error.into())),
            None => Ok(run),
        }
    }

    /// What was asked for, in order.
    pub(crate) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// Why texts were cut, if they were.
    pub(crate) fn cut(&self) -> Option<Cut> {
        self.cut.get().copied()
    }

    /// Waits for what comes next.
    pub(crate) async fn next(&mut self) -> Next {
        while !self.open.is_empty() {
            match tokio::time::timeout(QUIET, self.events.recv()).await {
                Ok(Some(event)) => {
                    if let Some((number, event)) = self.take(event) {
                        return Next::Event(number, event);
                    }
                }
                // The engine's thread ended without a word, which a panic in a listener could do.
                Ok(None) => return Next::End,
                Err(_) => return Next::Nothing,
            }
        }
        Next::End
    }

    fn take(&mut self, event: Event) -> Option<(usize, Event)> {
        let sequence = event.sequence();
        let number = *self.open.get(&sequence)?;
        let asked = &mut self.asked[number];
        match &event {
            Event::Tokens { emitted, .. } => {
                if let Some((_, text)) = &mut asked.kept {
                    text.extend(emitted.iter().map(|emitted| emitted.token));
                }
            }
            Event::DrafterFailed { drafter, message: why, .. } => {
                let drafter = self.app.prompter.names.get(usize::from(*drafter));
                tracing::warn!(id = self.id, drafter, why, "a drafter failed, the text goes on without it");
            }
            Event::Finished { reason, .. } => {
                self.open.remove(&sequence);
                if let FinishReason::Failed(why) = reason {
                    match Message::of_failure(why).begins_with() {
                        // Whoever asked for it is told.
                        Some(setting) => tracing::debug!(id = self.id, setting, "a text could not go on"),
                        None => tracing::error!(id = self.id, why, "a text failed"),
                    }
                } else if let Some((prompt, text)) = asked.kept.take().filter(|(_, text)| !text.is_empty()) {
                    self.app.keep(asked.tenant, prompt, text);
                }
            }
            _ => {}
        }
        Some((number, event))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cutter.abort();
        if !self.open.is_empty() {
            tracing::info!(id = self.id, texts = self.open.len(), "cancelled");
            self.open.keys().for_each(|sequence| self.app.engine.cancel(*sequence));
        }
    }
}

/// Ends texts when time is over, or when the server ends. Their ends are still to be heard.
async fn cut_in_time(app: Arc<App>, deadline: Instant, sequences: Vec<SequenceId>, cut: Arc<OnceLock<Cut>>) {
    let why = tokio::select! {
        () = app.reached(Stage::Cutting) => Cut::Shutdown,
        () = tokio::time::sleep_until(deadline) => Cut::Timeout,
    };
    cut.set(why).ok();
    sequences.into_iter().for_each(|sequence| app.engine.cancel(sequence));
}
