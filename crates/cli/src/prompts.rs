//! Where a command finds its prompts: an argument, a file, standard input, or token ids; one or a list of them.
//!
//! A single line end at the end of a file or of standard input belongs to the file, not to the prompt, as in llama.cpp.
//! A list of prompts is a file of lines, or of objects that may say what kind of prompt each is. `-` is standard input
//! wherever a file is named. Left out: what prompts
//! are ([`foretoken::prompts`]).

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::{Prompt, Token};
use foretoken_weights::whole::{self, TEXT_BYTES_MAX};
use serde_json::Value;

use crate::failure::Failure;
use crate::records::{read_text, utf8};
use crate::values;

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

/// A prompt of a file, and what the file says about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The prompt.
    pub prompt: Prompt,
    /// Its kind: an object's `category`, else its `kind`.
    pub kind: Option<String>,
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
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let kind = if is_object { Some("jsonl") } else { path.extension().and_then(|extension| extension.to_str()) };
    let prompts: Vec<Listed> = match kind {
        Some("jsonl" | "ndjson") => {
            let of_line = |(i, line)| {
                let place = format!("{place}: line {}", i + 1);
                of_object(&place, &json(&place, line)?)
            };
            lines.map(of_line).collect::<Result<_, _>>()?
        }
        Some("json") => of_document(&place, &json(&place, &text)?)?,
        _ => lines.map(|(_, line)| Listed { prompt: Prompt::Text(line.to_string()), kind: None }).collect(),
    };
    match prompts.is_empty() {
        true => Err(Failure::Other(format!("{place}: expected prompts, found none"))),
        false => Ok(prompts),
    }
}

fn json(place: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Other(format!("{place}: expected JSON, found: {error}")))
}

/// The prompts of a whole document: an object, a list of objects, or a list of messages, which is one conversation.
fn of_document(place: &str, value: &Value) -> Result<Vec<Listed>, Failure> {
    let Value::Array(list) = value else { return Ok(vec![of_object(place, value)?]) };
    if list.first().is_some_and(|first| first.get("role").is_some()) {
        return Ok(vec![Listed { prompt: conversation(place, value)?, kind: None }]);
    }
    let object = |(i, object): (usize, &Value)| of_object(&format!("{place}: prompt {}", i + 1), object);
    list.iter().enumerate().map(object).collect()
}

/// A conversation up to what the user said last: an answer that is there is asked for again.
fn conversation(place: &str, value: &Value) -> Result<Prompt, Failure> {
    let messages = foretoken::chat::messages(value);
    let mut messages = messages.map_err(|why| Failure::Other(format!("{place}: {why}")))?;
    while messages.last().is_some_and(|last| last.role().as_deref() == Some("assistant")) {
        messages.pop();
    }
    match messages.is_empty() {
        true => Err(Failure::Other(format!("{place}: messages: expected something to answer, found answers alone"))),
        false => Ok(Prompt::Chat(messages)),
    }
}

/// The prompt of one object: its `prompt` (text or ids), else its `messages`, else its `text` or `question`, else the
/// first of its `turns`.
fn of_object(place: &str, object: &Value) -> Result<Listed, Failure> {
    if object.get("prompt").is_none() && object.get("messages").is_some() {
        return Ok(Listed { prompt: conversation(place, object)?, kind: kind(object) });
    }
    let fields = ["prompt", "text", "question"].map(|field| object.get(field));
    let found = fields.into_iter().chain([object.get("turns").and_then(|turns| turns.get(0))]);
    let listed = |prompt| Listed { prompt, kind: kind(object) };
    let id = |value: &Value| value.as_u64().and_then(|id| Token::try_from(id).ok());
    let found = found.flatten().next();
    match found {
        Some(Value::String(text)) => return Ok(listed(Prompt::Text(text.clone()))),
        Some(Value::Array(ids)) => {
            if let Some(ids) = ids.iter().map(id).collect() {
                return Ok(listed(Prompt::Ids(ids)));
            }
        }
        _ => {}
    }
    let found = found.map_or("none".to_string(), Value::to_string);
    Err(Failure::Other(format!("{place}: prompt: expected a text or token ids, found {found}")))
}

/// What kind of prompt an object says it is.
fn kind(object: &Value) -> Option<String> {
    ["category", "kind"].into_iter().find_map(|field| object.get(field)?.as_str()).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_give_their_prompt_text_or_first_turn() {
        let text = |text: &str| Prompt::Text(text.to_string());
        let listed = |line| json("x", line).and_then(|object| of_object("x", &object)).ok();
        let of = |line| listed(line).map(|listed| listed.prompt);
        assert_eq!(of(r#"{"prompt": "a", "text": "b"}"#), Some(text("a")));
        assert_eq!(of(r#"{"text": "b"}"#), Some(text("b")));
        assert_eq!(of(r#"{"question_id": 81, "turns": ["c", "d"]}"#), Some(text("c")));
        assert_eq!(of(r#"{"prompt": [1, 2]}"#), Some(Prompt::Ids(vec![1, 2])));
        assert_eq!(of(r#"{"prompt": [1, "2"]}"#), None);
        assert_eq!(of(r#"{"question": "e"}"#), Some(text("e")));
        assert_eq!(of(r#"{"title": "e"}"#), None);
        assert_eq!(of("e"), None);
        let kind = |line| listed(line).and_then(|listed| listed.kind);
        assert_eq!(kind(r#"{"prompt": "a", "category": "sum"}"#).as_deref(), Some("sum"));
        assert_eq!(kind(r#"{"prompt": "a", "kind": "story"}"#).as_deref(), Some("story"));
        assert_eq!(kind(r#"{"prompt": "a"}"#), None);
    }

    #[test]
    fn conversations_are_prompts_up_to_what_the_user_said_last() {
        let of = |text: &str| -> Result<Vec<usize>, String> {
            let listed = json("x", text).and_then(|value| of_document("x", &value));
            let len = |listed: Listed| match listed.prompt {
                Prompt::Chat(messages) => messages.len(),
                _ => 0,
            };
            let listed = listed.map_err(|failure| failure.message().unwrap_or_default())?;
            Ok(listed.into_iter().map(len).collect())
        };
        let turns = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
        assert_eq!(of(turns), Ok(vec![1]));
        assert_eq!(of(&format!(r#"{{"messages": {turns}}}"#)), Ok(vec![1]));
        assert_eq!(of(&format!(r#"[{{"messages": {turns}}}, {{"prompt": "a"}}]"#)), Ok(vec![1, 0]));
        let alone = r#"[{"role": "assistant", "content": "b"}]"#;
        assert_eq!(of(alone), Err("x: messages: expected something to answer, found answers alone".to_string()));
        let wrong = r#"{"messages": [{"role": "user", "content": 7}]}"#;
        let expected = "x: messages[0].content: expected a string or a list of parts, found number";
        assert_eq!(of(wrong), Err(expected.to_string()));
        assert_eq!(of(r#"{"messages": 7}"#), Err("x: messages: expected a list of messages, found 7".to_string()));
    }

    #[test]
    fn one_line_end_is_not_part_of_the_prompt() {
        assert_eq!(without_last_line_end("a\n\n"), "a\n");
        assert_eq!(without_last_line_end("a\r\n"), "a");
        assert_eq!(without_last_line_end("a"), "a");
    }
}
