//! `foretoken logits`: writes the logits after each token to a file.
//!
//! The library computes them ([`foretoken::logits`]). Files of the same tokens can be compared byte for byte. No
//! tokenizer is needed.

use std::path::PathBuf;

use clap::Args;
use foretoken::Token;
use foretoken::chosen_backend;
use foretoken::logits::Logits;
use foretoken::models::Options;
use foretoken_console::failure::Failure;
use foretoken_console::options::ModelOptions;
use foretoken_console::output::OutputOptions;
use foretoken_console::progress::Loading;
use foretoken_console::values;

/// Options of `foretoken logits`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Logits")]
pub struct LogitsCommand {
    /// The tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', required = true, value_parser = values::token,
        allow_negative_numbers = true)]
    tokens: Vec<Token>,
    /// The tokens that the encoder of an encoder-decoder reads
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = values::token,
        allow_negative_numbers = true)]
    source_ids: Option<Vec<Token>>,
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

impl LogitsCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// The model cannot be used, the tokens do not fit it, or the file cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let mut output = self.writing.begin(&self.output, &Vec::from_iter(self.model.path()?))?;
        let model = self.model.open()?;
        let source = self.source_ids.as_deref();
        Logits::check_source(&model, source)?;
        let context_max = model.spec.context_max;
        let (count, context) = (self.tokens.len(), self.model.context(context_max));
        if count > context {
            return Err(Failure::Other(format!("--tokens: expected at most {context} (the context), found {count}")));
        }
        let mut loading = Loading::default();
        let of_source = source.map_or(0, <[Token]>::len);
        if of_source > context {
            let found = format!("expected at most {context} (the context), found {of_source}");
            return Err(Failure::Other(format!("--source-ids: {found}")));
        }
        // Some rotary embeddings depend on the longest sequence.
        let options =
            Options { context: self.model.ctx_size.map(|_| context), ..self.model.run_with(count.max(of_source)) };
        let mut model = model.load(chosen_backend(), options, &mut |done, of| loading.show(done, of))?.executor;
        drop(loading);
        let rows = if self.one_by_one { Some(1) } else { self.rows };
        let logits = Logits::of(&mut *model, (source, &self.tokens), rows)?;
        logits.write(&mut output, &self.output)?;
        Ok(output.finish()?)
    }
}
