//! Prints what a model thinks before it answers, apart from the answer.
//!
//! With colours, thoughts are dim, and an empty line separates them from the answer. Without colours, standard output
//! has the answer alone, so that a pipe gets answers, and thoughts go to standard error, unless `--quiet` silences it.
//! (llama.cpp's program writes both to standard output, with `[Start thinking]` before and `[End thinking]` after the
//! thoughts.) Under `--show-drafts` each token is shown as it is instead.

use std::io::Write;

use foretoken::{ThinkingPieces, ThinkingReader};
use foretoken_console::failure::Failure;
use foretoken_console::terminal::standard_error;
use foretoken_console::verbosity::{coloured_output, quiet};

use crate::printing::Stream;

/// Writes an answer with its thoughts separated.
pub(super) struct Thoughts {
    reader: ThinkingReader,
    is_coloured: bool,
    /// Whether thoughts were written without a separator after them.
    needs_separator: bool,
}

impl Thoughts {
    pub(super) fn new(reader: ThinkingReader) -> Self {
        Self { reader, is_coloured: coloured_output(), needs_separator: false }
    }

    /// Writes a piece of the model's text.
    ///
    /// # Errors
    /// Standard output is closed or cannot be written.
    pub(super) fn text(&mut self, text: &str, stream: &mut Stream) -> Result<(), Failure> {
        let pieces = self.reader.push(text);
        self.write(&pieces, stream)
    }

    /// Writes the text that was held back, when the model's text has ended.
    ///
    /// # Errors
    /// As [`Thoughts::text`].
    pub(super) fn finish(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let pieces = self.reader.finish();
        self.write(&pieces, stream)?;
        self.separate(stream, if self.is_coloured { "" } else { "\n" })
    }

    fn write(
        &mut self,
        ThinkingPieces { thoughts, answer }: &ThinkingPieces,
        stream: &mut Stream,
    ) -> Result<(), Failure> {
        if !thoughts.is_empty() {
            self.needs_separator = true;
            match self.is_coloured {
                true => stream.dim(thoughts)?,
                false if quiet() => {}
                // A closed standard error is no reason to end.
                false => drop(standard_error().write_all(thoughts.as_bytes())),
            }
        }
        if !answer.is_empty() {
            self.separate(stream, "\n\n")?;
            stream.text(answer)?;
        }
        Ok(())
    }

    /// Writes the separator after the thoughts, if there were some.
    fn separate(&mut self, stream: &mut Stream, space: &str) -> Result<(), Failure> {
        match (std::mem::take(&mut self.needs_separator), self.is_coloured) {
            (true, true) => stream.text(space),
            (true, false) if !quiet() => {
                drop(standard_error().write_all(space.as_bytes()));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
