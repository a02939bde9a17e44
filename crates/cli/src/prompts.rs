//! Where a command finds its prompts: an argument, a file, standard input, or token ids; one or a list of them.
//!
//! A single line end at the end of a file or of standard input belongs to the file, not to the prompt, as in llama.cpp.
//! Left out: what prompts are ([`foretoken::prompts`]).

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use foretoken::{Prompt, prompts};
use foretoken_speculation::Token;

use crate::failure::Failure;
use crate::values;

/// Where the prompt comes from.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct PromptOptions {
    /// The text to go on with [default: standard input]
    #[arg(value_name = "PROMPT")]
    pub words: Option<String>,
    /// The same
    #[arg(short, long, value_name = "PROMPT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with the text
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, nothing added
    #[arg(long, value_name = "ID,..", value_delimiter = ',',
        value_parser = values::token, allow_negative_numbers = true)]
    pub prompt_ids: Option<Vec<Token>>,
    /// Several prompts: a .jsonl file of objects with "prompt", or one a line
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl PromptOptions {
    /// Reads the prompt or prompts.
    ///
    /// # Errors
    /// A file cannot be read or understood; or nothing is given and standard input is a terminal.
    pub fn read(&self) -> Result<Vec<Prompt>, Failure> {
        if let Some(path) = &self.prompts {
            return Ok(prompts::read_list(path)?);
        }
        if let Some(ids) = &self.prompt_ids {
            return Ok(vec![Prompt::Ids(ids.clone())]);
        }
        if let Some(text) = self.words.as_ref().or(self.prompt.as_ref()) {
            return Ok(vec![Prompt::Text(text.clone())]);
        }
        let text = match &self.file {
            Some(path) => std::fs::read(path).map_err(|error| Failure::file(path, &error))?,
            None if std::io::stdin().is_terminal() => {
                return Err(Failure::Usage(
                    "prompt: expected an argument, -p, -f or standard input, found none".into(),
                ));
            }
            None => {
                let mut text = Vec::new();
                std::io::stdin()
                    .read_to_end(&mut text)
                    .map_err(|error| Failure::Other(format!("standard input: cannot be read: {error}")))?;
                text
            }
        };
        let place = self.file.as_ref().map_or("standard input".to_string(), |path| path.display().to_string());
        let text = prompts::utf8(&place, text)?;
        Ok(vec![Prompt::Text(prompts::without_last_line_end(&text).to_string())])
    }
}
