//! Opening a generator, and the notices that its user gets of it: how far loading is, notes, the seed, failed drafters.
//!
//! Left out: what came of it, which each command shows in its own way.

use std::time::Instant;

use foretoken::generator::Choices;
use foretoken::{Answer, Event, Generator, Isa, Message, Settings};

use crate::clock;
use crate::failure::{Failure, on_one_line};
use crate::names::option;
use crate::progress::{Loading, detail, say, warn};

/// The notices that the user of a generator gets while it runs.
pub struct Notices {
    names: Vec<String>,
    /// The seed, if the user cannot know it and has not been told.
    untold_seed: Option<u64>,
}

/// Opens a generator and says what its user should know.
///
/// # Errors
/// As [`Generator::open`].
pub fn open_generator(settings: &Settings) -> Result<(Generator, Notices), Failure> {
    let (generator, notices) = open_generator_with(&Choices::new(settings))?;
    tell_sampling_note(&generator);
    Ok((generator, notices))
}

/// The same, of a command that chooses itself what the model's own file chooses elsewhere.
///
/// # Errors
/// As [`Generator::open`].
pub fn open_generator_with(choices: &Choices<'_>) -> Result<(Generator, Notices), Failure> {
    let since = Instant::now();
    let mut loading = Loading::default();
    let generator = Generator::with(choices, &mut |opening| loading.hear(opening))?;
    drop(loading);
    clock::loaded(since);
    tell_generator_notes(&generator);
    let (isa, threads) = (Isa::chosen().name(), generator.threads);
    let (target, drafters) = (on_one_line(&generator.prompter.target.name), generator.prompter.names.join(", "));
    detail(format_args!("{target} with {threads} threads of {isa}; drafters: {drafters}"));
    let drawn_seed = generator.prompter.decided.settings.seed;
    let untold_seed = drawn_seed.filter(|_| choices.settings.sampling.seed.is_none());
    let notices = Notices { names: generator.prompter.names.clone(), untold_seed };
    Ok((generator, notices))
}

/// Says what a user should know of a generator.
pub fn tell_notes(generator: &Generator) {
    tell_generator_notes(generator);
    tell_sampling_note(generator);
}

fn tell_sampling_note(generator: &Generator) {
    if let Some(note) = generator.prompter.decided.note() {
        say(format_args!("note: {}", note.with_names(option)));
    }
}

fn tell_generator_notes(generator: &Generator) {
    // Folders may be named anything, and a note is one line.
    let shown = |note: &Message| on_one_line(&note.with_names(option));
    generator.notes.iter().for_each(|note| say(format_args!("note: {}", shown(note))));
}

impl Notices {
    /// Tells the seed, if it was not told yet.
    pub fn seed(&mut self) {
        if let Some(seed) = self.untold_seed.take() {
            say(format_args!("seed: {seed}"));
        }
    }

    /// Tells what there is to tell of an event; of the first of them the seed, as late as this so that an error stands
    /// alone.
    pub fn hear(&mut self, event: &Event) {
        self.seed();
        if let Event::DrafterFailed { drafter, message, .. } = event {
            let name = self.names.get(usize::from(*drafter)).map_or("unknown", String::as_str);
            warn(warning(name, message));
        }
    }
}

/// Tells which prompts got no answer, or not all of it. A list's prompts are numbered from 1; so many answers came
/// `before` and are not among these. Of the `n_best` answers to a prompt those that failed in the same way are told
/// once.
///
/// # Errors
/// The last of them, for the caller to tell; there is none if all is well.
pub fn tell_failures(answers: &[Answer], before: usize, n_best: usize) -> Result<(), Failure> {
    let is_alone = before + answers.len() == n_best;
    let line = |(i, answer): (usize, &Answer)| {
        let message = named_failure(answer.failure.as_ref()?);
        Some(if is_alone { message } else { format!("prompt {}: {message}", (before + i) / n_best + 1) })
    };
    let mut lines: Vec<String> = answers.iter().enumerate().filter_map(line).collect();
    lines.dedup();
    let Some(last) = lines.pop() else { return Ok(()) };
    lines.iter().for_each(|line| warn(format_args!("error: {line}")));
    Err(Failure::Other(last))
}

/// Why a text could not go on, in the names of options.
pub fn named_failure(why: &str) -> String {
    Message::of_failure(why).with_names(option)
}

/// What is said of a drafter that failed, in one line.
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
