//! What a network says after each token, as numbers: the logits of all rows.
//!
//! The tokens run through the network in one pass, or cut up; because rows do not know their neighbours, every way
//! gives the same bits. Left out: sampling.

use std::io::Write;
use std::path::Path;

use foretoken_model::{Batch, Cpu, Options, PageId, Span};
use foretoken_speculation::Token;
use foretoken_weights::safetensors::{Elements, write};

use crate::Error;
use crate::models::Opened;

/// The logits of a text's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// One row a token, one behind the other: [tokens, vocabulary].
    pub values: Vec<f32>,
    /// Numbers of a row.
    pub vocabulary: usize,
}

impl Logits {
    /// Loads the model and runs it over `tokens`, at most so many `rows` a pass (all, as far as one pass goes);
    /// `progress` hears how many layers are loaded, of how many.
    ///
    /// # Errors
    /// The model cannot be loaded or run.
    pub fn of(
        model: &Opened,
        options: Options,
        tokens: &[Token],
        rows: Option<usize>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, Error> {
        let mut model = model.load(&Cpu, options, progress)?.executor;
        let rows_max = model.capacity().rows_max;
        let rows = rows.unwrap_or(rows_max).min(rows_max);
        let pages = model.capacity().groups.iter().map(|group| (0..group.pages as u32).map(PageId).collect());
        let tables: Vec<Vec<PageId>> = pages.collect();
        let vocabulary = model.capacity().vocabulary;
        let mut values = Vec::with_capacity(tokens.len() * vocabulary);
        for (i, tokens) in tokens.chunks(rows).enumerate() {
            let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
            let span = Span {
                sequence: 0,
                tables: &tables,
                start: i * rows,
                tokens,
                certain: tokens.len(),
                wanted: &wanted,
                ..Span::default()
            };
            model.forward(&Batch { spans: &[span], hidden_layers: &[] })?;
            (0..tokens.len()).for_each(|row| values.extend_from_slice(model.outputs().row(row)));
        }
        Ok(Self { values, vocabulary })
    }

    /// Writes them as a file of safetensors: `logits`, f32, [tokens, vocabulary]. `name` is the file's in messages.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, output: &mut impl Write, name: &Path) -> Result<(), Error> {
        let shape = [self.values.len() / self.vocabulary, self.vocabulary];
        let tensor = ("logits", shape.as_slice(), Elements::F32(&self.values));
        Ok(write(output, &name.display().to_string(), &[tensor])?)
    }
}
