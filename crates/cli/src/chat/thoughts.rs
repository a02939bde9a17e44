//! What a model thinks before it answers, apart from the answer.
//!
//! Where output has colours, thoughts are dim, and an empty line stands between them and the answer. Elsewhere the
//! answer alone stands on standard output, so that a pipe gets answers; thoughts go to standard error, unless `--quiet`
//! silences it. (llama.cpp's program writes both to standard output, with `[Start thinking]` before and
//! `[End thinking]` behind the thoughts.) Left out: thoughts beside `--show-drafts`, which shows each token as it is.

use std::io::Write;

use foretoken::{ThinkingPieces, ThinkingReader};
use foretoken_console::failure::Failure;
use foretoken_console::loudness::{coloured_output, quiet};

use crate::printing::Stream;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Writes an answer whose thoughts are told apart.
pub(super) struct Thoughts {
    reader: ThinkingReader,
    is_coloured: bool,
    /// Whether thoughts were written that nothing stands behind yet.
    is_open: bool,
}

impl Thoughts {
    pub(super) fn new(reader: ThinkingReader) -> Self {
        Self { reader, is_coloured: coloured_output(), is_open: false }
    }

    /// Writes a piece of what the model writes.
    ///
    /// # Errors
    /// Standard output is closed or cannot be written.
    pub(super) fn text(&mut self, text: &str, stream: &mut Stream) -> Result<(), Failure> {
        let pieces = self.reader.push(text);
        self.write(&pieces, stream)
    }

    /// Writes what was held back, now that the text has ended.
    ///
    /// # Errors
    /// As [`Thoughts::text`].
    pub(super) fn finish(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let pieces = self.reader.finish();
        self.write(&pieces, stream)?;
        self.part(stream, if self.is_coloured { "" } else { "\n" })
    }

    fn write(
        &mut self,
        ThinkingPieces { thoughts, answer }: &ThinkingPieces,
        stream: &mut Stream,
    ) -> Result<(), Failure> {
        if !thoughts.is_empty() {
            self.is_open = true;
            match self.is_coloured {
                true => stream.text(&format!("{DIM}{thoughts}{PLAIN}"))?,
                false if quiet() => {}
                // Nobody minds if nobody listens.
                false => drop(std::io::stderr().write_all(thoughts.as_bytes())),
            }
        }
        if !answer.is_empty() {
            self.part(stream, "\n\n")?;
            stream.text(answer)?;
        }
        Ok(())
    }

    /// Writes what stands behind the thoughts, where there were some.
    fn part(&mut self, stream: &mut Stream, space: &str) -> Result<(), Failure> {
        match (std::mem::take(&mut self.is_open), self.is_coloured) {
            (true, true) => stream.text(space),
            (true, false) if !quiet() => {
                drop(std::io::stderr().write_all(space.as_bytes()));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
