//! The answers to one request while they are written: submitted, heard, cut, cancelled.
//!
//! The idea: the engine's thread tells what happens through an unbounded channel, so that it never waits for a client;
//! what waits there is bounded by the text itself. Whoever stops listening (a client that has gone drops its answer)
//! cancels what it does not hear to the end. A text that takes too long, or is under way when the server ends, is cut:
//! what was written of it stands. Left out: what answers look like.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foretoken::{Event, FinishReason, Listener, Request, RequestError, SequenceId, Submitted, Token};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::app::App;
use crate::error::ApiError;

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

/// See the head of this file.
pub(crate) struct Run {
    app: Arc<App>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Those that have not ended, with their numbers among the requests.
    open: HashMap<SequenceId, usize>,
    /// Prompts and texts, where these are kept.
    kept: Vec<Vec<Token>>,
    requests: Vec<Request>,
    deadline: Instant,
    cutting: watch::Receiver<bool>,
    pub(crate) cut: Option<Cut>,
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

/// What a run waits for.
enum Waited {
    Event(Box<Event>),
    Cut(Cut),
    Gone,
}

/// So long nothing may happen before a client that streams is told that its request lives.
const QUIET: Duration = Duration::from_secs(15);

impl Run {
    /// Submits requests that belong together: all of them or none.
    pub(crate) async fn start(app: Arc<App>, requests: Vec<Request>) -> Result<Self, ApiError> {
        let deadline = Instant::now() + app.settings.timeout();
        let (sender, events) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        let metrics = Arc::clone(&app.metrics);
        let listener: Listener = Arc::new(move |event| {
            metrics.hear(&event);
            sender.send(event).is_ok()
        });
        let gone = |error: &foretoken::Error| ApiError::of(error);
        let told = move |submitted: Vec<Result<Submitted, RequestError>>| drop(reply.send(submitted));
        app.engine.submit_then(requests.clone(), listener, told).map_err(|error| gone(&error))?;
        let submitted = replied.await.map_err(|_| ApiError::bug("engine: expected one that runs, found it stopped"))?;
        let (mut open, mut refused) = (HashMap::new(), None);
        for (number, submitted) in submitted.into_iter().enumerate() {
            match submitted {
                Ok(submitted) => drop(open.insert(submitted.sequence, number)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        let cutting = app.cutting.subscribe();
        let kept = requests.iter().filter(|_| app.keeps).map(|_| Vec::new()).collect();
        // From here on dropping it cancels what was taken.
        let run = Self { app, events, open, kept, requests, deadline, cutting, cut: None };
        match refused {
            Some(error) => Err(ApiError::of(&error.into())),
            None => Ok(run),
        }
    }

    /// The requests, in their order.
    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Waits for what comes next.
    pub(crate) async fn next(&mut self) -> Next {
        while !self.open.is_empty() {
            match self.wait().await {
                Some(Waited::Event(event)) => {
                    if let Some((number, event)) = self.take(*event) {
                        return Next::Event(number, event);
                    }
                }
                // The engine's thread ended without a word, which a panic in a listener could do.
                Some(Waited::Gone) => return Next::End,
                Some(Waited::Cut(cut)) => self.cut(cut),
                None => return Next::Nothing,
            }
        }
        Next::End
    }

    /// Waits until something happens; `None` if nothing does for a while.
    async fn wait(&mut self) -> Option<Waited> {
        let Self { events, cutting, .. } = self;
        let (is_cut, deadline) = (self.cut.is_some(), self.deadline);
        tokio::select! {
            biased;
            event = events.recv() => Some(event.map_or(Waited::Gone, |event| Waited::Event(Box::new(event)))),
            _ = cutting.wait_for(|cutting| *cutting), if !is_cut => Some(Waited::Cut(Cut::Shutdown)),
            () = tokio::time::sleep_until(deadline), if !is_cut => Some(Waited::Cut(Cut::Timeout)),
            () = tokio::time::sleep(QUIET), if !is_cut => None,
        }
    }

    /// Ends all texts; their ends are still to be heard.
    fn cut(&mut self, cut: Cut) {
        self.cut = Some(cut);
        self.open.keys().for_each(|sequence| self.app.engine.cancel(*sequence));
    }

    fn take(&mut self, event: Event) -> Option<(usize, Event)> {
        let sequence = event.sequence();
        let number = *self.open.get(&sequence)?;
        if let (Event::Tokens { emitted, .. }, Some(text)) = (&event, self.kept.get_mut(number)) {
            text.extend(emitted.iter().map(|emitted| emitted.token));
        }
        if let Event::DrafterFailed { drafter, message, .. } = &event {
            let drafter = self.app.prompter.names.get(usize::from(*drafter));
            tracing::warn!(drafter, message, "a drafter failed, the text goes on without it");
        }
        if let Event::Finished { reason, .. } = &event {
            self.open.remove(&sequence);
            let failed = matches!(reason, FinishReason::Failed(_));
            if let Some(text) = self.kept.get_mut(number).map(std::mem::take).filter(|text| !failed && !text.is_empty())
            {
                let request = &self.requests[number];
                let (tenant, prompt) = (request.tenant, request.prompt.clone());
                self.app.engine.tell(move |generator| generator.kept_texts.add(tenant, &prompt, &text));
            }
        }
        Some((number, event))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.open.keys().for_each(|sequence| self.app.engine.cancel(*sequence));
    }
}
