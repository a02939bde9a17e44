//! Where a command finds its prompts: an argument, a file, standard input, or token ids; one or a list of them.
//!
//! A single line end at the end of a file or of standard input belongs to the file, not to the prompt, as in llama.cpp.
//! A list of prompts is a file of lines, or of objects that may say what kind of prompt each is. `-` is standard input
//! wherever a file is named. Left out: what prompts
//! are ([`foretoken::prompts`]).

mod listed;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod probe;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::{Prompt, Token};
use foretoken_weights::whole::{self, TEXT_BYTES_MAX};

use crate::failure::Failure;
use crate::records::{read_text, utf8};
use crate::values;
pub use listed::Listed;

/// Where the prompt comes from.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Prompt")]
pub struct PromptOptions {
    /// The text to go on with; - is standard input, as is none behind a pipe
    #[arg(value_name = "PROMPT")]
    pub words: Option<String>,
    /// The same, also if it looks like an option
    #[arg(short, long, hide_short_help = true, value_name = "PROMPT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, nothing added
    #[arg(long, value_name = "ID,..", value_delimiter = ',', hide_short_help = true,
        value_parser = values::token, allow_negative_numbers = true)]
    pub prompt_ids: Option<Vec<Token>>,
    /// Several prompts: objects of a .jsonl or .json file, or one a line
    ///
    /// The file - is standard input, which is taken for objects if it begins with a brace. Objects have "prompt", a
    /// text or token ids (or "text", "question" or "turns"), or the "messages" of a conversation; a .json file has one
    /// or a list of them, as /save of chat writes it.
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
            return read_list(path);
        }
        if let Some(ids) = &self.prompt_ids {
            return Ok(vec![Prompt::Ids(ids.clone())]);
        }
        if let Some(text) = self.words.as_ref().or(self.prompt.as_ref()).filter(|text| *text != "-") {
            return Ok(vec![Prompt::Text(text.clone())]);
        }
        let nothing = self.words.is_none() && self.prompt.is_none() && self.file.is_none();
        if nothing && std::io::stdin().is_terminal() {
            let expected = "a text in quotes, -f FILE or a pipe";
            let hint = "foretoken chat talks with a model, foretoken generate -h shows more";
            return Err(Failure::Usage(format!("prompt: expected {expected}, found none; {hint}")));
        }
        let text = text_of(self.file.as_deref().unwrap_or(Path::new(STANDARD_INPUT)))?.1;
        Ok(vec![Prompt::Text(without_last_line_end(&text).to_string())])
    }
}

/// Stands for standard input where a file is expected.
const STANDARD_INPUT: &str = "-";

/// What a file is called in messages, and its text; `-` is standard input.
fn text_of(path: &Path) -> Result<(String, String), Failure> {
    if path != Path::new(STANDARD_INPUT) {
        return Ok((path.display().to_string(), read_text(path)?));
    }
    let name = "standard input".to_string();
    let read = whole::read_all(std::io::stdin(), TEXT_BYTES_MAX);
    let bytes = read.map_err(|error| Failure::Other(format!("{name}: cannot be read: {error}")))?;
    let text = utf8(&name, bytes)?;
    Ok((name, text))
}

/// The text without the line end that belongs to its file.
fn without_last_line_end(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

/// Prompts of a file: objects in a `.jsonl` or `.json` file or of standard input that begins like one, lines of any
/// other.
///
/// # Errors
/// The file cannot be read, an object has no prompt, or there is none at all.
pub fn read_list(path: &Path) -> Result<Vec<Prompt>, Failure> {
    Ok(read_listed(path)?.into_iter().map(|listed| listed.prompt).collect())
}

/// Prompts of a file with their kinds.
///
/// # Errors
/// As [`read_list`].
pub fn read_listed(path: &Path) -> Result<Vec<Listed>, Failure> {
    let (place, text) = text_of(path)?;
    let is_object = path == Path::new(STANDARD_INPUT) && text.trim_start().starts_with('{');
    let kind = if is_object { Some("jsonl") } else { path.extension().and_then(|extension| extension.to_str()) };
    listed::of_text(&place, &text, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_not_part_of_the_prompt() {
        assert_eq!(without_last_line_end("a\n\n"), "a\n");
        assert_eq!(without_last_line_end("a\r\n"), "a");
        assert_eq!(without_last_line_end("a"), "a");
    }
}
