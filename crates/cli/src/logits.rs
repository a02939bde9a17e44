//! `foretoken logits`: what the network says after each token, as numbers in a file.
//!
//! The tokens run through the network in one pass, or cut up; because rows do not know their neighbours, every way
//! gives the same bits, and two files can be compared byte for byte. Needs no tokenizer. Left out: sampling.

use std::path::PathBuf;

use clap::Args;
use foretoken_model::{Batch, Cpu, Options, PageId, Span};
use foretoken_speculation::Token;
use foretoken_weights::safetensors::{Elements, write};

use crate::failure::Failure;
use crate::options::ModelOptions;
use crate::output::OutputOptions;
use crate::progress::Loading;
use crate::values;

/// Options of `foretoken logits`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Logits")]
pub struct Logits {
    /// The tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', required = true, value_parser = values::token,
        allow_negative_numbers = true)]
    tokens: Vec<Token>,
    /// The safetensors file to write: `logits`, f32, [tokens, vocabulary]
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// One pass a token
    #[arg(long, conflicts_with = "rows")]
    one_by_one: bool,
    /// Passes of so many tokens [default: all, as far as one pass goes]
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    rows: Option<usize>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    writing: OutputOptions,
}

impl Logits {
    /// Runs the command.
    ///
    /// # Errors
    /// The model cannot be used, the tokens do not fit it, or the file cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let mut output = self.writing.begin(&self.output, &Vec::from_iter(self.model.path()?))?;
        let model = self.model.open()?;
        let own = model.spec.context_max;
        let (count, context) = (self.tokens.len(), self.model.context(own));
        if count > context {
            return Err(Failure::Other(format!("--tokens: expected at most {context} (the context), found {count}")));
        }
        let mut loading = Loading::default();
        // Some rotations are chosen by the longest text.
        let options = Options { context: self.model.ctx_size.map(|_| context), ..self.model.run_with(count) };
        let mut model = model.load(&Cpu, options, &mut |done, of| loading.show(done, of))?.executor;
        drop(loading);
        let rows_max = model.capacity().rows_max;
        let rows = if self.one_by_one { 1 } else { self.rows.unwrap_or(rows_max).min(rows_max) };
        let pages = model.capacity().groups.iter().map(|group| (0..group.pages as u32).map(PageId).collect());
        let tables: Vec<Vec<PageId>> = pages.collect();
        let vocabulary = model.capacity().vocabulary;
        let mut logits = Vec::with_capacity(count * vocabulary);
        for (i, tokens) in self.tokens.chunks(rows).enumerate() {
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
            (0..tokens.len()).for_each(|row| logits.extend_from_slice(model.outputs().row(row)));
        }
        let name = self.output.display().to_string();
        write(&mut output, &name, &[("logits", &[count, vocabulary], Elements::F32(&logits))])?;
        Ok(output.finish()?)
    }
}
