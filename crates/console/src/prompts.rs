//! The sources of prompts: an argument, a file, standard input, or token ids; one prompt or a list.
//!
//! A line break at the end of a file or of standard input belongs to the file, not to the prompt, as in llama.cpp. A
//! list of prompts is a file of lines, or of objects that may have a prompt's kind. `-` is standard input wherever a
//! file is named.

pub mod listed;
mod source;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::whole::TEXT_BYTES_MAX;
use foretoken::{ChatMessage, Prompt, Prompter, Request, Token, whole};

use crate::failure::Failure;
use crate::progress::warn;
use crate::records::{read_text, utf8};
use crate::values;
pub use listed::ListedPrompt;
pub use source::SourceOptions;

/// The source of the prompt.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Prompt")]
pub struct PromptOptions {
    /// The text to continue; - or none is standard input, if that is a pipe
    ///
    /// If no option names a model, a model's path or name may precede it: generate MODEL PROMPT.
    #[arg(value_name = "PROMPT")]
    pub words: Option<String>,
    /// The same, even if it looks like an option
    #[arg(short, long, hide_short_help = true, value_name = "PROMPT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, without added tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', hide_short_help = true,
        value_parser = values::token, allow_negative_numbers = true)]
    pub prompt_ids: Option<Vec<Token>>,
    /// Several prompts: objects of a .jsonl or .json file, or one on each line
    ///
    /// The file - is standard input, which is read as objects if it begins with a brace. Objects have "prompt", a text
    /// or token ids (or "text", "question" or "turns"), or the "messages" of a conversation; a .json file has one or a
    /// list of them, as /save of chat writes it.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl PromptOptions {
    /// Reads the prompt or prompts. With a source they may be left out: then there is one empty prompt.
    ///
    /// # Errors
    /// A file cannot be read or parsed; or there is no prompt and standard input is a terminal.
    pub fn read(&self, list: ListOptions, has_source: bool) -> Result<Vec<ListedPrompt>, Failure> {
        if let Some(path) = &self.prompts {
            return list.read(path);
        }
        let alone = |prompt| Ok(vec![ListedPrompt { place: String::new(), prompt, kind: None }]);
        if let Some((option, _)) = [("--skip-bad", list.skip_bad), ("--chat", list.chat)].iter().find(|(_, on)| *on) {
            return Err(Failure::Usage(format!("{option}: expected --prompts, which it belongs to, found none")));
        }
        if let Some(ids) = &self.prompt_ids {
            return alone(Prompt::Ids(ids.clone()));
        }
        if let Some(text) = self.words.as_ref().or(self.prompt.as_ref()).filter(|text| *text != "-") {
            return alone(Prompt::Text(text.clone()));
        }
        let is_empty = self.words.is_none() && self.prompt.is_none() && self.file.is_none();
        if is_empty && has_source {
            return alone(Prompt::Text(String::new()));
        }
        if is_empty && std::io::stdin().is_terminal() {
            let expected = "a text in quotes, -f FILE or a pipe";
            let hint = "foretoken chat talks with a model, foretoken generate -h shows more";
            return Err(Failure::Usage(format!("prompt: expected {expected}, found none; {hint}")));
        }
        let text = text_of(self.file.as_deref().unwrap_or(Path::new(STANDARD_INPUT)))?.1;
        alone(Prompt::Text(without_final_line_break(&text).to_string()))
    }
}

/// The file name that means standard input.
const STANDARD_INPUT: &str = "-";

/// A file's name in messages, and its text; `-` is standard input.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn text_of(path: &Path) -> Result<(String, String), Failure> {
    if path != Path::new(STANDARD_INPUT) {
        return Ok((path.display().to_string(), read_text(path)?));
    }
    let name = "standard input".to_string();
    let read = whole::read_all(std::io::stdin(), TEXT_BYTES_MAX);
    let bytes = read.map_err(|error| Failure::Other(format!("{name}: cannot be read: {error}")))?;
    let text = utf8(&name, bytes)?;
    Ok((name, text))
}

/// The extension of a file's name, before `.gz`.
pub fn ending(path: &Path) -> Option<&str> {
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let name = if is_compressed { Path::new(path.file_stem()?) } else { path };
    name.extension()?.to_str()
}

/// Turns a text into a user's message, which the model's chat template renders.
pub fn as_user_message(prompt: &mut Prompt) {
    if let Prompt::Text(text) = prompt {
        *prompt = Prompt::Chat(vec![ChatMessage::new("user", text.as_str())]);
    }
}

/// The text without the line break that belongs to its file.
fn without_final_line_break(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

/// Options for reading a list of prompts.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = true)]
#[command(next_help_heading = "Prompt")]
pub struct ListOptions {
    /// Skip prompts of the file that cannot be used, and print which
    #[arg(long, hide_short_help = true)]
    pub skip_bad: bool,
    /// Use the file's texts as a user's messages, in the model's chat template
    #[arg(long, hide_short_help = true)]
    pub chat: bool,
}

impl ListOptions {
    /// Reads the prompts of a file with their kinds: the objects of a `.jsonl` or `.json` file, or of standard input if
    /// it begins with a brace, else lines. The file may be compressed by gzip (`.jsonl.gz`).
    ///
    /// # Errors
    /// The file cannot be read, an object has no prompt and must not be skipped, or there are no prompts.
    pub fn read(&self, path: &Path) -> Result<Vec<ListedPrompt>, Failure> {
        let (place, text) = text_of(path)?;
        let is_object = path == Path::new(STANDARD_INPUT) && text.trim_start().starts_with('{');
        let kind = if is_object { Some("jsonl") } else { ending(path) };
        let mut listed = match self.skip_bad {
            true => self.usable(&place, listed::each_of_text(&place, &text, kind)?)?,
            false => listed::of_text(&place, &text, kind)?,
        };
        if self.chat {
            listed.iter_mut().for_each(|listed| as_user_message(&mut listed.prompt));
        }
        Ok(listed)
    }

    /// The prompts of a list with their requests, for a source if there is one. With `skip_bad` prompts that the engine
    /// would refuse are skipped; otherwise their answers have the error.
    ///
    /// # Errors
    /// As [`ListOptions::usable`].
    pub fn requests(
        &self,
        place: &str,
        listed: Vec<ListedPrompt>,
        source: Option<&Prompt>,
        prompter: &Prompter,
    ) -> Result<Vec<(Prompt, Request)>, Failure> {
        let request = |listed: ListedPrompt| {
            let request = listed.request(source, prompter);
            let request = if self.skip_bad { request.and_then(|it| listed.usable(it, prompter)) } else { request };
            Ok((listed.prompt, request?))
        };
        self.usable(place, listed.into_iter().map(request).collect())
    }

    /// The usable items of a list. With `skip_bad` the errors of the others are printed.
    ///
    /// # Errors
    /// An item cannot be used and must not be skipped, or none is left.
    pub fn usable<T>(&self, place: &str, all: Vec<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
        if !self.skip_bad {
            return all.into_iter().collect();
        }
        let (mut usable, mut skipped) = (Vec::new(), 0);
        for one in all {
            match one {
                Ok(one) => usable.push(one),
                Err(failure) => {
                    skipped += 1;
                    if skipped <= SKIPPED_PRINTED_MAX {
                        warn(format!("skipped: {}", failure.message().unwrap_or_default()));
                    }
                }
            }
        }
        if skipped > SKIPPED_PRINTED_MAX {
            warn(format!("{place}: {skipped} prompts were skipped, of which {SKIPPED_PRINTED_MAX} are told above"));
        }
        match usable.is_empty() {
            true => {
                let found = format!("expected prompts, found {skipped} that cannot be used");
                Err(Failure::Other(format!("{place}: {found}")))
            }
            false => Ok(usable),
        }
    }
}

/// The most skipped prompts that are printed one by one; the others are counted.
const SKIPPED_PRINTED_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_is_not_part_of_the_prompt() {
        assert_eq!(without_final_line_break("a\n\n"), "a\n");
        assert_eq!(without_final_line_break("a\r\n"), "a");
        assert_eq!(without_final_line_break("a"), "a");
    }

    #[test]
    fn questions_of_three_data_sets_are_read_as_they_are() {
        let Some(folder) = std::env::var_os("FORETOKEN_TEST_DATA") else {
            println!("skipped: no FORETOKEN_TEST_DATA");
            return;
        };
        let sets =
            [("spec-bench/question.jsonl", 480), ("human-eval/HumanEval.jsonl.gz", 164), ("gsm8k/test.jsonl", 400)];
        for (name, expected) in sets {
            let path = Path::new(&folder).join("data").join(name);
            let listed = ListOptions { skip_bad: false, chat: false }.read(&path);
            let listed = listed.unwrap_or_else(|failure| panic!("{:?}", failure.message()));
            assert_eq!(listed.len(), expected, "{name}");
            assert_eq!(listed.iter().all(|listed| listed.kind.is_some()), name.starts_with("spec"), "{name}");
        }
    }
}
