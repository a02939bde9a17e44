//! The source of an encoder-decoder: a text, a file or token ids.

use std::path::PathBuf;

use clap::Args;
use foretoken::{Prompt, Token};

use super::{text_of, without_final_line_break};
use crate::failure::Failure;
use crate::values;

/// What the encoder reads.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Prompt")]
pub struct SourceOptions {
    /// The text that the encoder of an encoder-decoder reads, such as T5
    ///
    /// The prompt, which may be left out then, begins the output. Several prompts (--prompts) begin outputs for the
    /// same source; without this option each of them is a source.
    #[arg(long, hide_short_help = true, value_name = "TEXT", allow_hyphen_values = true)]
    pub source: Option<String>,
    /// A file with that text; - is standard input
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub source_file: Option<PathBuf>,
    /// What the encoder reads as token ids, without added tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', hide_short_help = true,
        value_parser = values::token, allow_negative_numbers = true)]
    pub source_ids: Option<Vec<Token>>,
}

impl SourceOptions {
    /// Reads the source, if one is given.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self) -> Result<Option<Prompt>, Failure> {
        let Self { source, source_file, source_ids } = self;
        if let Some(path) = source_file {
            let text = text_of(path)?.1;
            return Ok(Some(Prompt::Text(without_final_line_break(&text).to_string())));
        }
        Ok(source.clone().map(Prompt::Text).or(source_ids.clone().map(Prompt::Ids)))
    }
}
