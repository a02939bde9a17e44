//! Running an engine until all prompts are answered, and what was answered.
//!
//! The one loop of the command line: generating, checking and chatting differ in what they do with events while they
//! come, and with answers when they are complete. Left out: printing.

use std::collections::HashMap;
use std::time::Instant;

use foretoken_engine::{Emitted, Event, FinishReason, Race, Request, RequestError, SequenceId, Stats, Token};

use crate::assembly::Assembly;
use crate::failure::Failure;
use crate::progress::say;

/// All that came of one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt: Vec<Token>,
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

impl Answer {
    /// The new tokens.
    pub fn ids(&self) -> Vec<Token> {
        self.emitted.iter().map(|emitted| emitted.token).collect()
    }
}

/// Runs requests to their ends. `watch` sees every event with the number of its request, and whether to go on is what
/// it returns: false cancels that request.
///
/// A prompt that is refused or cannot go on says so in its answer, and the others get theirs: see [`told`].
///
/// # Errors
/// What all requests have in common is refused, or `watch` fails.
pub fn run(
    assembly: &mut Assembly,
    requests: Vec<Request>,
    watch: &mut dyn FnMut(usize, &Event) -> Result<bool, Failure>,
) -> Result<Vec<Answer>, Failure> {
    let mut answers: Vec<Answer> = Vec::new();
    let mut numbers: HashMap<SequenceId, usize> = HashMap::new();
    for (number, request) in requests.into_iter().enumerate() {
        answers.push(Answer { prompt: request.prompt.clone(), ..Answer::default() });
        match assembly.engine.submit(request) {
            Ok(sequence) => drop(numbers.insert(sequence, number)),
            Err(
                error @ (RequestError::EmptyPrompt | RequestError::PromptTooLong { .. } | RequestError::Token { .. }),
            ) => answers[number].failure = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    // Told as late as this, so that an error stands alone.
    if !numbers.is_empty() && std::mem::take(&mut assembly.untold_seed) {
        say(format_args!("seed: {}", assembly.request.seed));
    }
    while !assembly.engine.is_idle() {
        let mut cancelled = Vec::new();
        let events = assembly.engine.step(&mut Race);
        let now = Instant::now();
        for event in events {
            let (Event::Prompt { sequence, .. }
            | Event::Tokens { sequence, .. }
            | Event::DrafterFailed { sequence, .. }
            | Event::Finished { sequence, .. }) = event;
            let Some(&number) = numbers.get(sequence) else { continue };
            answers[number].take(event, now);
            if let Event::DrafterFailed { drafter, message, .. } = event {
                let name = assembly.names.get(usize::from(*drafter)).map_or("unknown", String::as_str);
                say(warning(name, message));
            }
            if !watch(number, event)? {
                cancelled.push(*sequence);
            }
        }
        cancelled.into_iter().for_each(|sequence| assembly.engine.cancel(sequence));
    }
    Ok(answers)
}

/// What is said of a drafter that failed, in one line.
fn warning(name: &str, message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("warning: drafter {name} failed, the text goes on without it: {message}")
}

/// Tells which prompts got no answer, or not all of it. A list's prompts are numbered from 1.
///
/// # Errors
/// The last of them, for the caller to tell; there is none if all is well.
pub fn told(answers: &[Answer]) -> Result<(), Failure> {
    let line = |(i, answer): (usize, &Answer)| {
        let message = answer.failure.as_ref()?;
        Some(if answers.len() == 1 { message.clone() } else { format!("prompt {}: {message}", i + 1) })
    };
    let mut lines: Vec<String> = answers.iter().enumerate().filter_map(line).collect();
    let Some(last) = lines.pop() else { return Ok(()) };
    lines.iter().for_each(|line| say(format_args!("error: {line}")));
    Err(Failure::Other(last))
}

impl Answer {
    fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Prompt { .. } | Event::DrafterFailed { .. } => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_drafter_is_named_in_one_line() {
        let expected = "warning: drafter lookup failed, the text goes on without it: 3 of 2 nodes";
        assert_eq!(warning("lookup", "3 of\n  2 nodes\n"), expected);
    }
}
