//! One run: requests that are submitted together, and when each of their tokens came.
//!
//! Steps in which all sequences were generated and no prompt was computed are counted separately: they give the time of
//! a step and the speed of a running batch.

use std::collections::BTreeMap;
use std::time::Instant;

use foretoken_console::failure::Failure;
use foretoken_engine::{Engine, Event, FinishReason, Race, Request, SequenceId};

use crate::generate::interval::median;

/// The times of a run, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// From submitting the requests to the last token.
    pub seconds: f64,
    /// For each request from then to its first token.
    pub first_tokens: Vec<f64>,
    /// The longest time between two tokens of the same request.
    pub longest_wait: Option<f64>,
    /// For each step in which all sequences were generated and no prompt was computed: its time, its time outside
    /// passes and drafters, and its tokens.
    steps: Vec<(f64, f64, usize)>,
}

impl Run {
    /// Tokens per second over steps in which all sequences were generated; `None` if there were none.
    pub fn writing(&self) -> Option<f64> {
        let (seconds, tokens) = self.steps.iter().fold((0.0, 0), |(s, t), step| (s + step.0, t + step.2));
        (tokens > 0).then(|| tokens as f64 / seconds)
    }

    /// The median time of such a step.
    pub fn step(&self) -> Option<f64> {
        (!self.steps.is_empty()).then(|| median(self.steps.iter().map(|step| step.0).collect()))
    }

    /// A percentile of the time of such steps outside passes and drafters.
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
        let (mut written, mut tokens, mut is_read) = (0, 0, false);
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
                Event::Prompt { .. } => is_read = true,
                Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(Failure::Other(why)),
                Event::Finished { reason: FinishReason::EndToken(_), stats, .. } => {
                    let expected = "expected a form that a text of --n-predict tokens fits into, found one that ended";
                    return Err(Failure::Other(format!("{expected} after {}", stats.emitted)));
                }
                Event::Drafts { .. } | Event::PromptScored { .. } | Event::Beams { .. } => {}
                Event::Finished { .. } | Event::DrafterFailed { .. } => {}
            }
        }
        if written == texts && !is_read {
            let times = engine.last_step();
            run.steps.push((times.all.as_secs_f64(), times.bookkeeping().as_secs_f64(), tokens));
        }
    }
    run.seconds = started.elapsed().as_secs_f64();
    Ok(run)
}

/// The least number that at least a part of `part` of these numbers does not exceed.
pub fn percentile(numbers: &[f64], part: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.max(1) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_the_least_number_that_so_many_do_not_exceed() {
        let numbers: Vec<f64> = (1..=16).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.95, 1.0, 0.0].map(|part| percentile(&numbers, part)), [8.0, 16.0, 16.0, 1.0]);
        assert_eq!(percentile(&[3.0], 0.95), 3.0);
    }
}
