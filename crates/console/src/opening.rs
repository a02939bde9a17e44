//! Opens a generator, and prints notices for its user: progress of loading, notes, the seed, failed drafters.
//!
//! Each command prints its results itself.

use std::time::Instant;

use foretoken::generator::Choices;
use foretoken::{Answer, Event, Generator, Isa, Message, Settings};

use crate::clock;
use crate::failure::{Failure, on_one_line};
use crate::names::option;
use crate::progress::{Loading, detail, say, warn};

/// Notices for the user of a running generator.
pub struct Notices {
    names: Vec<String>,
    /// The seed, if it was drawn and has not been printed yet.
    unprinted_seed: Option<u64>,
}

/// Opens a generator and prints its notes.
///
/// # Errors
/// As [`Generator::open`].
pub fn open_generator(settings: &Settings) -> Result<(Generator, Notices), Failure> {
    let (generator, notices) = open_generator_with(&Choices::new(settings))?;
    tell_sampling_note(&generator);
    Ok((generator, notices))
}

/// As [`open_generator`], with the caller's choices and without the note about the sampling parameters of the model's
/// file: for commands that set these themselves.
///
/// # Errors
/// As [`Generator::open`].
pub fn open_generator_with(choices: &Choices<'_>) -> Result<(Generator, Notices), Failure> {
    let since = Instant::now();
    let mut loading = Loading::default();
    let generator = Generator::with(choices, &mut |opening| loading.on_event(opening))?;
    drop(loading);
    clock::loaded(since);
    tell_generator_notes(&generator);
    let (isa, threads) = (Isa::chosen().name(), generator.threads);
    let (target, drafters) = (on_one_line(&generator.prompter.target.name), generator.prompter.names.join(", "));
    detail(format_args!("{target} with {threads} threads of {isa}; drafters: {drafters}"));
    let drawn_seed = generator.prompter.decided.settings.seed;
    let unprinted_seed = drawn_seed.filter(|_| choices.settings.sampling.seed.is_none());
    let notices = Notices { names: generator.prompter.names.clone(), unprinted_seed };
    Ok((generator, notices))
}

/// Prints the notes of a generator.
pub fn tell_notes(generator: &Generator) {
    tell_generator_notes(generator);
    tell_sampling_note(generator);
}

/// Prints the note about the sampling parameters that the model's file decided, if there are any.
pub fn tell_sampling_note(generator: &Generator) {
    if let Some(note) = generator.prompter.decided.note() {
        say(format_args!("note: {}", note.with_names(option)));
    }
}

fn tell_generator_notes(generator: &Generator) {
    // Names of folders may have line breaks, and a note is one line.
    let shown = |note: &Message| on_one_line(&note.with_names(option));
    generator.notes.iter().for_each(|note| say(format_args!("note: {}", shown(note))));
}

impl Notices {
    /// Does not print the seed, since each request has its own.
    pub fn without_seed(self) -> Self {
        Self { unprinted_seed: None, ..self }
    }

    /// Prints the seed, if it was not printed yet.
    pub fn print_seed(&mut self) {
        if let Some(seed) = self.unprinted_seed.take() {
            say(format_args!("seed: {seed}"));
        }
    }

    /// Prints the notices of an event. Before the first event it prints the seed, and not earlier, so that an error is
    /// the only output.
    pub fn on_event(&mut self, event: &Event) {
        self.print_seed();
        if let Event::DrafterFailed { drafter, message, .. } = event {
            let name = self.names.get(usize::from(*drafter)).map_or("unknown", String::as_str);
            warn(warning(name, message));
        }
    }
}

/// Prints the failures of prompts without a complete answer. Prompts of a list are numbered from 1; `before` is the
/// number of answers before these. If several of a prompt's `n_best` answers fail in the same way, it is printed once.
///
/// # Errors
/// The last failure, which the caller prints.
pub fn tell_failures(answers: &[Answer], before: usize, n_best: usize) -> Result<(), Failure> {
    let is_single_prompt = before + answers.len() == n_best;
    let line = |(i, answer): (usize, &Answer)| {
        let message = named_failure(answer.failure.as_ref()?);
        Some(if is_single_prompt { message } else { format!("prompt {}: {message}", (before + i) / n_best + 1) })
    };
    let mut lines: Vec<String> = answers.iter().enumerate().filter_map(line).collect();
    lines.dedup();
    let Some(last) = lines.pop() else { return Ok(()) };
    lines.iter().for_each(|line| warn(format_args!("error: {line}")));
    Err(Failure::Other(last))
}

/// The message of a failed request, with the names of options.
pub fn named_failure(why: &str) -> String {
    Message::of_failure(why).with_names(option)
}

/// The warning about a failed drafter, in one line.
fn warning(name: &str, message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("warning: drafter {name} failed, the text goes on without it: {message}")
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
