//! One run: requests that are submitted together, and the arrival times of their tokens.
//!
//! A decode-only step emits tokens of every sequence and computes no prompt. These steps are counted separately: they
//! give the time of a step and the speed of a running batch.

use std::collections::BTreeMap;
use std::time::Instant;

use foretoken_console::failure::Failure;
use foretoken_engine::{Engine, Event, FinishReason, Race, Request, SequenceId};

use crate::generate::interval::{median, percentile};

/// The times of a run, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// From submitting the requests to the last token.
    pub seconds: f64,
    /// For each request from submitting it to its first token.
    pub first_tokens: Vec<f64>,
    /// The longest time between two tokens of the same request.
    pub longest_wait: Option<f64>,
    /// For each decode-only step its time, its time outside passes and drafters, and its tokens.
    steps: Vec<(f64, f64, usize)>,
}

impl Run {
    /// Tokens per second over decode-only steps; `None` if there were none.
    pub fn writing(&self) -> Option<f64> {
        let (seconds, tokens) = self.steps.iter().fold((0.0, 0), |(s, t), step| (s + step.0, t + step.2));
        (tokens > 0).then(|| tokens as f64 / seconds)
    }

    /// The median time of a decode-only step.
    pub fn step(&self) -> Option<f64> {
        (!self.steps.is_empty()).then(|| median(self.steps.iter().map(|step| step.0).collect()))
    }

    /// A percentile of the time of decode-only steps outside passes and drafters.
    pub fn beside(&self, part: f64) -> Option<f64> {
        let beside: Vec<f64> = self.steps.iter().map(|step| step.1).collect();
        (!beside.is_empty()).then(|| percentile(&beside, part))
    }
}

/// Runs these requests to their ends.
///
/// # Errors
/// A request is refused or fails.
pub fn run(engine: &mut Engine, requests: Vec<Request>) -> Result<Run, Failure> {
    let started = Instant::now();
    let texts = requests.len();
    for request in requests {
        engine.submit(request).map_err(|error| Failure::Other(error.to_string()))?;
    }
    let mut run = Run::default();
    let mut written_at: BTreeMap<SequenceId, f64> = BTreeMap::new();
    while !engine.is_idle() {
        let (mut written, mut tokens, mut has_prompt) = (0, 0, false);
        let events = engine.step(&mut Race).to_vec();
        let now = started.elapsed().as_secs_f64();
        for event in events {
            match event {
                Event::Tokens { sequence, emitted } => {
                    (written, tokens) = (written + 1, tokens + emitted.len());
                    match written_at.insert(sequence, now) {
                        Some(before) => {
                            run.longest_wait = Some(run.longest_wait.unwrap_or_default().max(now - before));
                        }
                        None => run.first_tokens.push(now),
                    }
                }
                Event::Prompt { .. } => has_prompt = true,
                Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(Failure::Other(why)),
                Event::Finished { reason: FinishReason::EndToken(_), stats, .. } => {
                    let expected = "expected a form that a text of --n-predict tokens fits into, found one that ended";
                    return Err(Failure::Other(format!("{expected} after {}", stats.emitted)));
                }
                Event::Drafts { .. } | Event::PromptScored { .. } | Event::Beams { .. } => {}
                Event::Finished { .. } | Event::DrafterFailed { .. } => {}
            }
        }
        if written == texts && !has_prompt {
            let times = engine.last_step();
            run.steps.push((times.all.as_secs_f64(), times.bookkeeping().as_secs_f64(), tokens));
        }
    }
    run.seconds = started.elapsed().as_secs_f64();
    Ok(run)
}
