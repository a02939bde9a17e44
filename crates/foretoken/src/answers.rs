//! Running an engine until all requests have ended, and their answers.
//!
//! The loop of every front end that waits for whole answers: `generate`, `check` and `chat` differ in what they do with
//! events as they arrive, and with complete answers. [`EngineThread`](crate::EngineThread) is for front ends that have
//! other work meanwhile; they build an [`Answer`] from the events that they receive.

use std::collections::HashMap;
use std::time::Instant;

use foretoken_engine::{
    Emitted, Engine, Event, FinishReason, Race, Request, RequestError, Scored, SequenceId, Stats, Token,
};
use foretoken_speculation::Tenant;

use crate::Error;

/// The result of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt: Vec<Token>,
    /// On whose behalf the request was made.
    pub tenant: Tenant,
    /// Seed of all its random numbers.
    pub seed: u64,
    /// The request's number, a part of the address of random numbers under rejection and block verification; `None` if
    /// the request was refused.
    pub request: Option<u64>,
    /// The model's log-probabilities of the prompt's tokens, where they were asked for.
    pub scored: Vec<Scored>,
    /// The new tokens, with the drafter that proposed them, if any, and the text that they complete.
    pub emitted: Vec<Emitted>,
    /// When tokens arrived, and how many: one entry for each pass that emitted some. Sequences in one pass have one
    /// time.
    pub arrivals: Vec<(Instant, usize)>,
    /// The new text.
    pub text: String,
    /// Why it ended; `None` while it goes on, or if it was refused.
    pub reason: Option<FinishReason>,
    /// Why it was refused or could not go on, if so.
    pub failure: Option<String>,
    /// Passes, drafts and times.
    pub stats: Stats,
}

/// Is called with every event and the number of its request among those that run, from 0. Returns whether that request
/// goes on: false cancels it.
pub type Watch<'a, E> = dyn FnMut(usize, &Event) -> Result<bool, E> + 'a;

/// A request that an engine took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its sequence, which events name.
    pub sequence: SequenceId,
    /// Its number ([`Engine::next_request`]).
    pub request: u64,
}

impl Submitted {
    /// Hands a request over to an engine.
    pub(crate) fn to(engine: &mut Engine, request: Request) -> Result<Self, RequestError> {
        let number = engine.next_request();
        Ok(Self { sequence: engine.submit(request)?, request: number })
    }
}

/// Answers of requests that are running.
pub(crate) struct RunningAnswers {
    answers: Vec<Answer>,
    numbers: HashMap<SequenceId, usize>,
}

impl RunningAnswers {
    /// Empty answers, with the results of submitting their requests. Where a prompt was refused, its answer has the
    /// reason.
    ///
    /// # Errors
    /// Something that all requests share was refused: the reason, and the sequences that were accepted, which have to
    /// be cancelled.
    pub(crate) fn new(
        answers: Vec<Answer>,
        submitted: Vec<Result<Submitted, RequestError>>,
    ) -> Result<Self, (RequestError, Vec<SequenceId>)> {
        let accepted: Vec<SequenceId> = submitted.iter().flatten().map(|submitted| submitted.sequence).collect();
        let mut running = Self { answers, numbers: HashMap::new() };
        for (number, (answer, submitted)) in running.answers.iter_mut().zip(submitted).enumerate() {
            match submitted {
                Ok(Submitted { sequence, request }) => {
                    answer.request = Some(request);
                    running.numbers.insert(sequence, number);
                }
                Err(
                    error @ (RequestError::EmptyPrompt
                    | RequestError::PromptTooLong { .. }
                    | RequestError::Token { .. }
                    | RequestError::Prediction { .. }),
                ) => answer.failure = Some(error.to_string()),
                Err(error) => return Err((error, accepted)),
            }
        }
        Ok(running)
    }

    /// How many of the answers are not complete.
    pub(crate) fn open(&self) -> usize {
        self.numbers.len()
    }

    /// Adds an event to its answer. Returns the number of the answer, if it is one of these.
    pub(crate) fn take(&mut self, event: &Event, now: Instant) -> Option<usize> {
        let sequence = event.sequence();
        let number = *self.numbers.get(&sequence)?;
        self.answers[number].take(event, now);
        if matches!(event, Event::Finished { .. }) {
            self.numbers.remove(&sequence);
        }
        Some(number)
    }

    /// Hands over the answers from the `next` one on that are complete, up to the first that is not.
    pub(crate) fn hand_over<E>(
        &self,
        next: &mut usize,
        complete: &mut dyn FnMut(usize, &Answer) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(answer) = self.answers.get(*next) {
            if self.numbers.values().any(|number| number == next) {
                break;
            }
            complete(*next, answer)?;
            *next += 1;
        }
        Ok(())
    }

    /// The answers.
    pub(crate) fn done(self) -> Vec<Answer> {
        self.answers
    }
}

/// Runs requests to their ends. Where a request is refused or fails, its answer has the reason, and the others
/// continue.
///
/// # Errors
/// Something that all requests share is refused, or `watch` fails.
pub fn run<E: From<Error>>(
    engine: &mut Engine,
    requests: Vec<Request>,
    watch: &mut Watch<'_, E>,
) -> Result<Vec<Answer>, E> {
    let answers = requests.iter().map(Answer::to).collect();
    let submitted = requests.into_iter().map(|request| Submitted::to(engine, request)).collect();
    let mut running = match RunningAnswers::new(answers, submitted) {
        Ok(running) => running,
        Err((error, accepted)) => {
            cancel_all(engine, &accepted);
            return Err(Error::from(error).into());
        }
    };
    while !engine.is_idle() {
        let (mut cancelled, mut failure) = (Vec::new(), None);
        let events = engine.step(&mut Race);
        let now = Instant::now();
        for event in events {
            let Some(number) = running.take(event, now) else { continue };
            match watch(number, event) {
                Ok(true) => {}
                Ok(false) => cancelled.push(event.sequence()),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        cancelled.into_iter().for_each(|sequence| engine.cancel(sequence));
        if let Some(error) = failure {
            cancel_all(engine, &running.numbers.into_keys().collect::<Vec<_>>());
            return Err(error);
        }
    }
    Ok(running.done())
}

/// Cancels sequences for which nobody waits, so that they do not run beside later ones.
fn cancel_all(engine: &mut Engine, sequences: &[SequenceId]) {
    sequences.iter().for_each(|sequence| engine.cancel(*sequence));
    engine.step(&mut Race);
}

impl Answer {
    /// The empty answer to a request. The request's number is known when it is submitted ([`Submitted`]).
    pub fn to(request: &Request) -> Self {
        Self { prompt: request.prompt.clone(), tenant: request.tenant, seed: request.seed, ..Self::default() }
    }

    /// The new tokens.
    pub fn ids(&self) -> Vec<Token> {
        self.emitted.iter().map(|emitted| emitted.token).collect()
    }

    /// Adds the next of its events, which arrived at `now`.
    pub fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Prompt { .. } | Event::Drafts { .. } | Event::DrafterFailed { .. } => {}
            Event::PromptScored { scored, .. } => self.scored.extend_from_slice(scored),
            Event::Tokens { emitted, .. } => {
                emitted.iter().for_each(|emitted| self.text.push_str(&emitted.text));
                self.emitted.extend_from_slice(emitted);
                self.arrivals.push((now, emitted.len()));
            }
            Event::Finished { reason, text, stats, .. } => {
                self.text.push_str(text);
                self.reason = Some(reason.clone());
                if let FinishReason::Failed(message) = reason {
                    self.failure = Some(message.clone());
                }
                self.stats = (**stats).clone();
            }
        }
    }
}
