//! Running an engine until all requests have ended, and their answers.
//!
//! This is the only loop of front ends that wait for whole answers: `generate`, `batch`, `chat`, `check` and `bench
//! generate` differ in what they do with events as they arrive, and with complete answers. It runs on the caller's
//! thread, so the engine waits while a front end prints. [`EngineThread`](crate::EngineThread) is for front ends that
//! have other work meanwhile; they build an [`Answer`] from the events that they receive.

use std::collections::HashMap;
use std::time::Instant;

use foretoken_engine::{
    Drafted, Emitted, Engine, Event, FinishReason, Race, Request, RequestError, Scored, SequenceId, Stats, Token,
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
    /// The tokens of draft trees that were verified, where they were asked for.
    pub drafted: Vec<Drafted>,
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

/// Is called with every event and the number of its request among those that run, from 0. Returns whether to go on:
/// false cancels all requests, those too that have not begun.
pub type Watch<'a, E> = dyn FnMut(usize, &Event) -> Result<bool, E> + 'a;

/// Is called with every answer and the number of its request, in the order of the requests: as soon as it and those
/// before it are complete. An answer is also complete if its request was refused or cancelled.
pub type Complete<'a, E> = dyn FnMut(usize, &Answer) -> Result<(), E> + 'a;

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

/// Is asked for the next request while there is room for one; `None`: there are no more. It sees the engine, which can
/// check a request ([`Engine::check`]).
pub type Next<'a, E> = dyn FnMut(&Engine) -> Result<Option<Request>, E> + 'a;

/// Is called with every answer and the number of its request as soon as it is complete, in any order.
pub type Done<'a, E> = dyn FnMut(usize, Answer) -> Result<(), E> + 'a;

/// Answers of requests that are running.
#[derive(Default)]
struct RunningAnswers {
    /// The answers, each with the number of its request.
    answers: HashMap<SequenceId, (usize, Answer)>,
    /// Those of requests that were refused, until they are handed over.
    refused: Vec<(usize, Answer)>,
    /// How many requests were submitted.
    submitted: usize,
}

impl RunningAnswers {
    /// Submits a request. If its prompt is refused, its answer has the reason.
    ///
    /// # Errors
    /// Something that all requests share is refused.
    fn submit(&mut self, engine: &mut Engine, request: Request) -> Result<(), RequestError> {
        let (number, mut answer) = (self.submitted, Answer::to(&request));
        match Submitted::to(engine, request) {
            Ok(Submitted { sequence, request }) => {
                answer.request = Some(request);
                self.answers.insert(sequence, (number, answer));
            }
            Err(
                error @ (RequestError::EmptyPrompt
                | RequestError::PromptTooLong { .. }
                | RequestError::Token { .. }
                | RequestError::SourceLength { .. }
                | RequestError::SourceToken { .. }
                | RequestError::Prediction { .. }),
            ) => {
                answer.failure = Some(error.to_string());
                self.refused.push((number, answer));
            }
            Err(error) => return Err(error),
        }
        self.submitted += 1;
        Ok(())
    }

    /// Adds an event to its answer. Returns the number of its request, if it is one of these.
    fn take(&mut self, event: &Event, now: Instant) -> Option<usize> {
        let (number, answer) = self.answers.get_mut(&event.sequence())?;
        answer.take(event, now);
        Some(*number)
    }
}

/// Runs requests to their ends. Where a request is refused or fails, its answer has the reason, and the others
/// continue.
///
/// # Errors
/// Something that all requests share is refused, or `watch` or `complete` fails: all requests are cancelled then.
pub fn run<E: From<Error>>(
    engine: &mut Engine,
    requests: Vec<Request>,
    watch: &mut Watch<'_, E>,
    complete: &mut Complete<'_, E>,
) -> Result<Vec<Answer>, E> {
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    let mut handed_over = 0;
    let mut done = |number: usize, answer: Answer| -> Result<(), E> {
        answers[number] = Some(answer);
        while let Some(Some(answer)) = answers.get(handed_over) {
            complete(handed_over, answer)?;
            handed_over += 1;
        }
        Ok(())
    };
    let mut requests = requests.into_iter();
    run_each(engine, usize::MAX, &mut |_| Ok(requests.next()), watch, &mut done)?;
    let is_complete = "the engine is idle, so each request has ended";
    Ok(answers.into_iter().map(|answer| answer.expect(is_complete)).collect())
}

/// The same for any number of requests: each is asked for when fewer than `waiting_max` others wait, and its answer is
/// handed over when it is complete, so that neither all requests nor all answers are in memory.
///
/// # Errors
/// Something that all requests share is refused, or a function fails: all requests are cancelled then.
pub fn run_each<E: From<Error>>(
    engine: &mut Engine,
    waiting_max: usize,
    next: &mut Next<'_, E>,
    watch: &mut Watch<'_, E>,
    done: &mut Done<'_, E>,
) -> Result<(), E> {
    let ended = run_to_the_ends(engine, waiting_max, next, watch, done);
    if ended.is_err() {
        // Nobody waits for those that still run, and they must not run beside later requests.
        engine.cancel_all();
        engine.step(&mut Race);
    }
    ended
}

fn run_to_the_ends<E: From<Error>>(
    engine: &mut Engine,
    waiting_max: usize,
    next: &mut Next<'_, E>,
    watch: &mut Watch<'_, E>,
    done: &mut Done<'_, E>,
) -> Result<(), E> {
    let mut running = RunningAnswers::default();
    let mut has_more = true;
    loop {
        while has_more && engine.workload().waiting < waiting_max.max(1) {
            match next(engine)? {
                Some(request) => running.submit(engine, request).map_err(Error::from)?,
                None => has_more = false,
            }
        }
        for (number, answer) in running.refused.drain(..) {
            done(number, answer)?;
        }
        if engine.is_idle() {
            return Ok(());
        }
        let mut goes_on = true;
        let events = engine.step(&mut Race);
        let now = Instant::now();
        for event in events {
            let Some(number) = running.take(event, now) else { continue };
            goes_on &= watch(number, event)?;
            if matches!(event, Event::Finished { .. })
                && let Some((number, answer)) = running.answers.remove(&event.sequence())
            {
                done(number, answer)?;
            }
        }
        if !goes_on {
            engine.cancel_all();
            has_more = false;
        }
    }
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
            Event::Prompt { .. } | Event::DrafterFailed { .. } => {}
            Event::Drafts { drafted, .. } => self.drafted.extend_from_slice(drafted),
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
