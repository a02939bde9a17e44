//! Running an engine until all prompts are answered, and what was answered.
//!
//! The one loop of every door that waits for whole answers: generating, checking and chatting differ in what they do
//! with events while they come, and with answers when they are complete. [`EngineThread`](crate::EngineThread) is for
//! doors that have something else to do meanwhile; who hears events from it makes an [`Answer`] of them. Left out:
//! printing.

use std::collections::HashMap;
use std::time::Instant;

use foretoken_engine::{
    Emitted, Engine, Event, FinishReason, Race, Request, RequestError, Scored, SequenceId, Stats, Token,
};
use foretoken_speculation::Tenant;

use crate::Error;

/// All that came of one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt: Vec<Token>,
    /// On whose behalf it was asked.
    pub tenant: Tenant,
    /// Seed of all its chance.
    pub seed: u64,
    /// The request's number, by which the engine draws under rejection and block verification; `None` if it was
    /// refused.
    pub request: Option<u64>,
    /// What the model says of the prompt's tokens, where that was asked for.
    pub scored: Vec<Scored>,
    /// The new tokens, with who produced them and the text that they complete.
    pub emitted: Vec<Emitted>,
    /// When tokens arrived, and how many: one entry an emitting pass. Texts that shared a pass have the same time.
    pub arrivals: Vec<(Instant, usize)>,
    /// The new text.
    pub text: String,
    /// Why it ended; `None` while it goes on, or if it was refused.
    pub reason: Option<FinishReason>,
    /// Why it was refused or could not go on, if so.
    pub failure: Option<String>,
    /// What it took.
    pub stats: Stats,
}

/// Sees every event with the number of its request among those that run, from 0. Whether to go on is what it returns:
/// false cancels that request.
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

/// Answers as they grow.
pub(crate) struct Growing {
    answers: Vec<Answer>,
    numbers: HashMap<SequenceId, usize>,
}

impl Growing {
    /// Answers that are empty yet, with what came of submitting their requests. A prompt that is refused says so in its
    /// answer.
    ///
    /// # Errors
    /// What all requests have in common is refused: why, and the sequences that were taken, for which nobody waits.
    pub(crate) fn new(
        answers: Vec<Answer>,
        submitted: Vec<Result<Submitted, RequestError>>,
    ) -> Result<Self, (RequestError, Vec<SequenceId>)> {
        let taken: Vec<SequenceId> = submitted.iter().flatten().map(|submitted| submitted.sequence).collect();
        let mut growing = Self { answers, numbers: HashMap::new() };
        for (number, (answer, submitted)) in growing.answers.iter_mut().zip(submitted).enumerate() {
            match submitted {
                Ok(Submitted { sequence, request }) => {
                    answer.request = Some(request);
                    growing.numbers.insert(sequence, number);
                }
                Err(
                    error @ (RequestError::EmptyPrompt
                    | RequestError::PromptTooLong { .. }
                    | RequestError::Token { .. }
                    | RequestError::Prediction { .. }),
                ) => answer.failure = Some(error.to_string()),
                Err(error) => return Err((error, taken)),
            }
        }
        Ok(growing)
    }

    /// How many of the answers are not complete.
    pub(crate) fn open(&self) -> usize {
        self.numbers.len()
    }

    /// Takes an event to its answer. Returns the number of the answer, if it is one of these.
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

/// Runs requests to their ends. A prompt that is refused or cannot go on says so in its answer, and the others get
/// theirs.
///
/// # Errors
/// What all requests have in common is refused, or `watch` fails.
pub fn run<E: From<Error>>(
    engine: &mut Engine,
    requests: Vec<Request>,
    watch: &mut Watch<'_, E>,
) -> Result<Vec<Answer>, E> {
    let answers = requests.iter().map(Answer::to).collect();
    let submitted = requests.into_iter().map(|request| Submitted::to(engine, request)).collect();
    let mut growing = match Growing::new(answers, submitted) {
        Ok(growing) => growing,
        Err((error, taken)) => {
            abandon(engine, &taken);
            return Err(Error::from(error).into());
        }
    };
    while !engine.is_idle() {
        let (mut cancelled, mut failure) = (Vec::new(), None);
        let events = engine.step(&mut Race);
        let now = Instant::now();
        for event in events {
            let Some(number) = growing.take(event, now) else { continue };
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
            abandon(engine, &growing.numbers.into_keys().collect::<Vec<_>>());
            return Err(error);
        }
    }
    Ok(growing.done())
}

/// Ends sequences for which nobody waits: they shall not run in the company of later ones.
fn abandon(engine: &mut Engine, sequences: &[SequenceId]) {
    sequences.iter().for_each(|sequence| engine.cancel(*sequence));
    engine.step(&mut Race);
}

impl Answer {
    /// The answer to a request of which nothing has come yet. Its number is known when it is submitted ([`Submitted`]).
    pub fn to(request: &Request) -> Self {
        Self { prompt: request.prompt.clone(), tenant: request.tenant, seed: request.seed, ..Self::default() }
    }

    /// The new tokens.
    pub fn ids(&self) -> Vec<Token> {
        self.emitted.iter().map(|emitted| emitted.token).collect()
    }

    /// Takes the next of its events, which was heard at `now`.
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
