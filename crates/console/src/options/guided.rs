//! Options of guided decoding: the grammar that a text has to match.
//!
//! Schemas and grammars are given on the command line or in files, which are read here; the library parses them.

use std::path::PathBuf;

use clap::Args;
use foretoken::settings::{GrammarForcing, GuidedSettings};

use crate::failure::Failure;
use crate::prompts::text_of;
use crate::values;

/// The grammar that a text has to match; at most one of these.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct GuidedOptions {
    /// The text is JSON of this schema: a file, - for standard input, or the schema itself
    ///
    /// Properties come in the schema's order, without whitespace between them. What cannot be enforced (not, if, an
    /// unknown format) is refused, with its path in the schema. {} is any JSON.
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub json_schema: Option<String>,
    /// Allow whitespace between the parts of JSON
    #[arg(long, hide_short_help = true)]
    pub json_whitespace: bool,
    /// The whole text matches this regular expression
    #[arg(long, hide_short_help = true, value_name = "RE", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// The text matches this grammar, in the notation of llama.cpp (GBNF) or Lark
    #[arg(long, hide_short_help = true, value_name = "TEXT", conflicts_with = "grammar_file")]
    pub grammar: Option<String>,
    /// The same from a file; - is standard input
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub grammar_file: Option<PathBuf>,
    /// The text is one of these; repeatable
    #[arg(long, hide_short_help = true, value_name = "TEXT", allow_hyphen_values = true)]
    pub choice: Vec<String>,
    /// How strings are generated about which the grammar leaves no choice, as names of properties: off, the model
    /// generates them, and they are drafted; canonical, they are written as encoding the text would, without the model
    ///
    /// With canonical, texts are drawn from another law than the model's own under the grammar, since the model might
    /// have generated a string in other tokens and continued differently.
    #[arg(long, hide_short_help = true, value_name = "HOW", default_value = "off",
        value_parser = values::one_of::<GrammarForcing>())]
    pub grammar_forcing: GrammarForcing,
}

impl GuidedOptions {
    /// The library's settings.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settings(&self) -> Result<GuidedSettings, Failure> {
        let read = |path: &PathBuf| text_of(path).map(|(_, text)| text);
        let schema = |word: &String| {
            let is_schema = word.trim_start().starts_with('{') || ["true", "false"].contains(&word.as_str());
            if is_schema { Ok(word.clone()) } else { read(&PathBuf::from(word)) }
        };
        let of_file = self.grammar_file.as_ref().map(read).transpose()?;
        Ok(GuidedSettings {
            json_schema: self.json_schema.as_ref().map(schema).transpose()?,
            json_whitespace: self.json_whitespace,
            regex: self.regex.clone(),
            grammar: self.grammar.clone().or(of_file),
            choices: self.choice.clone(),
            grammar_forcing: self.grammar_forcing,
        })
    }
}
