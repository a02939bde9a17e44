//! The logits of a network after each token of a sequence.
//!
//! The tokens run through the network in one pass or in chunks; since a row does not depend on the other rows of its
//! batch, the bits are the same.

use std::io::Write;
use std::path::Path;

use foretoken_model::{Batch, Executor, PageId, Source, Span};
use foretoken_speculation::Token;
use foretoken_weights::safetensors::{Elements, write};

use crate::Error;
use crate::models::Opened;
use crate::prompter::source;

/// The logits of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// One row for each token, in order: [tokens, vocabulary].
    pub values: Vec<f32>,
    /// The length of a row.
    pub vocabulary: usize,
}

impl Logits {
    /// Runs a loaded model over `tokens`, at most `rows` in a pass (by default as many as a pass can have).
    /// `source`: what the encoder of an encoder-decoder reads.
    ///
    /// # Errors
    /// The model cannot run them.
    ///
    /// # Panics
    /// If there is a source and no encoder, or an encoder and no source ([`Logits::check_source`] tells), or the source
    /// is empty.
    pub fn of(
        model: &mut dyn Executor,
        (source, tokens): (Option<&[Token]>, &[Token]),
        rows: Option<usize>,
    ) -> Result<Self, Error> {
        let pages = model.capacity().sources.as_ref().map_or(0, |sources| sources.pages as u32);
        let table = (0..pages).map(PageId).collect();
        model.open(0, source.map(|tokens| Source { tokens, table: &table, is_computed: false }))?;
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

    /// Checks that a model is given a source if and only if it has an encoder.
    ///
    /// # Errors
    /// It is not.
    pub fn check_source(model: &Opened, source: Option<&[Token]>) -> Result<(), Error> {
        match source {
            Some([]) => Err(Error::setting("source", ": expected tokens, found none")),
            _ => source::check(model, source.is_some()),
        }
    }

    /// Writes a safetensors file: `logits`, f32, [tokens, vocabulary]. `name`: the file, for messages.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, output: &mut impl Write, name: &Path) -> Result<(), Error> {
        let shape = [self.values.len() / self.vocabulary, self.vocabulary];
        let tensor = ("logits", shape.as_slice(), Elements::F32(&self.values));
        Ok(write(output, &name.display().to_string(), &[tensor])?)
    }
}
