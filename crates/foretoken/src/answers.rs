//! Runs an engine until all requests have ended, and collects their answers.
//!
//! `generate`, `batch`, `chat`, `check` and `bench generate` all use this loop, with their own handling of events and
//! of complete answers. It runs on the caller's thread, so the engine waits while a front end prints. Front ends that
//! have other work meanwhile use an [`EngineThread`](crate::EngineThread) and build an [`Answer`] from the events that
//! they receive.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foretoken_engine::{
    Beam, Drafted, Emitted, Engine, Event, FinishReason, Race, Request, RequestError, Scored, SequenceId, Stats, Token,
};
use foretoken_speculation::Tenant;

use crate::Error;

/// The result of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt: Vec<Token>,
    /// What the encoder read, if the model has one.
    pub source: Option<Arc<[Token]>>,
    /// The tenant of the request.
    pub tenant: Tenant,
    /// Seed of all its random numbers.
    pub seed: u64,
    /// The request's number, a part of the address of random numbers under rejection and block verification; `None` if
    /// the request was refused.
    pub request: Option<u64>,
    /// The model's log-probabilities of the prompt's tokens, if they were requested.
    pub scored: Vec<Scored>,
    /// The new tokens, with the drafter that proposed them, if any, and the text that they complete.
    pub emitted: Vec<Emitted>,
    /// The hypotheses of a beam search, the best first; its text is the text of this answer, and no tokens are emitted.
    pub beams: Vec<Beam>,
    /// The tokens of draft trees that were verified, if they were requested.
    pub drafted: Vec<Drafted>,
    /// When tokens arrived, and how many: one entry for each pass that emitted some. Sequences in one pass have the
    /// same time.
    pub arrivals: Vec<(Instant, usize)>,
    /// The new text.
    pub text: String,
    /// Why it ended; `None` while it runs, or if it was refused.
    pub reason: Option<FinishReason>,
    /// The error if the request was refused or failed.
    pub failure: Option<String>,
    /// Passes, drafts and times.
    pub stats: Stats,
}

/// A function that gets every event with the number of its request among those that run, from 0. It returns whether to
/// continue: false cancels all requests, including those that have not begun.
pub type Watch<'a, E> = dyn FnMut(usize, &Event) -> Result<bool, E> + 'a;

/// A function that gets every answer with the number of its request, in the order of the requests, as soon as it and
/// those before it are complete. An answer is also complete if its request was refused or cancelled.
pub type Complete<'a, E> = dyn FnMut(usize, &Answer) -> Result<(), E> + 'a;

/// A request that an engine accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its sequence, which events name.
    pub sequence: SequenceId,
    /// Its number ([`Engine::next_request`]).
    pub request: u64,
}

impl Submitted {
    /// Submits a request to an engine.
    pub(crate) fn to(engine: &mut Engine, request: Request) -> Result<Self, RequestError> {
        let number = engine.next_request();
        Ok(Self { sequence: engine.submit(request)?, request: number })
    }
}

/// A function that returns the next request, called while there is room for one; `None`: there are no more. The engine
/// can check a request ([`Engine::check`]).
pub type Next<'a, E> = dyn FnMut(&Engine) -> Result<Option<Request>, E> + 'a;

/// A function that gets every answer with the number of its request as soon as it is complete, in any order.
pub type Done<'a, E> = dyn FnMut(usize, Answer) -> Result<(), E> + 'a;

/// Answers of requests that are running.
#[derive(Default)]
struct RunningAnswers {
    /// The answers, each with the number of its request.
    answers: HashMap<SequenceId, (usize, Answer)>,
    /// Answers of requests that were refused, until they are handed over.
    refused: Vec<(usize, Answer)>,
    /// The number of submitted requests.
    submitted: usize,
}

impl RunningAnswers {
    /// Submits a request. If its prompt or prediction is refused, its answer has the error.
    ///
    /// # Errors
    /// It is refused for another reason, which other requests are likely to share.
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

    /// Adds an event to its answer. Returns the number of the request, or `None` if it does not run here.
    fn take(&mut self, event: &Event, now: Instant) -> Option<usize> {
        let (number, answer) = self.answers.get_mut(&event.sequence())?;
        answer.take(event, now);
        Some(*number)
    }
}

/// Runs requests to their ends. If a prompt is refused or a request fails, its answer has the error, and the others
/// continue.
///
/// # Errors
/// A request is refused for a reason that is not its prompt, or `watch` or `complete` fails; all requests are then
/// cancelled.
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
    let has_ended = "the engine is idle, so each request has ended";
    Ok(answers.into_iter().map(|answer| answer.expect(has_ended)).collect())
}

/// As [`run`] for any number of requests: `next` is called when fewer than `waiting_max` requests wait, and each answer
/// goes to `done` when it is complete, so neither all requests nor all answers are in memory.
///
/// # Errors
/// A request is refused for a reason that is not its prompt, or a function fails; all requests are then cancelled.
pub fn run_each<E: From<Error>>(
    engine: &mut Engine,
    waiting_max: usize,
    next: &mut Next<'_, E>,
    watch: &mut Watch<'_, E>,
    done: &mut Done<'_, E>,
) -> Result<(), E> {
    let ended = run_until_idle(engine, waiting_max, next, watch, done);
    if ended.is_err() {
        // Nobody waits for the requests that still run, and they must not run beside later ones.
        engine.cancel_all();
        engine.step(&mut Race);
    }
    ended
}

fn run_until_idle<E: From<Error>>(
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
        let mut keep_going = true;
        let events = engine.step(&mut Race);
        let now = Instant::now();
        for event in events {
            let Some(number) = running.take(event, now) else { continue };
            keep_going &= watch(number, event)?;
            if matches!(event, Event::Finished { .. })
                && let Some((number, answer)) = running.answers.remove(&event.sequence())
            {
                done(number, answer)?;
            }
        }
        if !keep_going {
            engine.cancel_all();
            has_more = false;
        }
    }
}

impl Answer {
    /// The empty answer to a request, without the request's number, which submitting gives ([`Submitted`]).
    pub fn to(request: &Request) -> Self {
        let Request { prompt, source, tenant, seed, .. } = request;
        Self { prompt: prompt.clone(), source: source.clone(), tenant: *tenant, seed: *seed, ..Self::default() }
    }

    /// The new tokens; of a beam search those of the best hypothesis.
    pub fn ids(&self) -> Vec<Token> {
        match self.beams.first() {
            Some(best) => best.tokens.clone(),
            None => self.emitted.iter().map(|emitted| emitted.token).collect(),
        }
    }

    /// Whether there are new tokens.
    pub fn has_tokens(&self) -> bool {
        !self.emitted.is_empty() || self.beams.first().is_some_and(|best| !best.tokens.is_empty())
    }

    /// The answers in it, as users count them: one for each hypothesis of a beam search, the best first, each with this
    /// hypothesis alone and with the statistics of the whole search; else itself.
    pub fn each(&self) -> Vec<Cow<'_, Self>> {
        if self.beams.len() < 2 {
            return vec![Cow::Borrowed(self)];
        }
        let Self { prompt, source, tenant, seed, request, scored, stats, .. } = self.clone();
        let shared = Self { prompt, source, tenant, seed, request, scored, stats, ..Self::default() };
        let alone = |beam: &Beam| {
            let mut answer = shared.clone();
            answer.take_beams(std::slice::from_ref(beam));
            Cow::Owned(answer)
        };
        self.beams.iter().map(alone).collect()
    }

    fn take_beams(&mut self, beams: &[Beam]) {
        self.beams = beams.to_vec();
        if let Some(best) = beams.first() {
            (self.text, self.reason) = (best.text.clone(), Some(best.reason.clone()));
        }
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
            Event::Beams { beams, .. } => self.take_beams(beams),
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
