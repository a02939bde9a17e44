//! Prompts: as text, as token ids, and in files; one or a list of them.
//!
//! A text gets what the model expects around a text, usually the beginning-of-text token; an empty one *is* that
//! token. A single line end at the end of a file or of standard input belongs to the file, not to the prompt, as in
//! llama.cpp. Left out: conversations.

use std::path::Path;

use foretoken_speculation::Token;
use foretoken_text::Tokenizer;
use serde_json::Value;

use crate::Error;
use crate::error::Message;
use crate::models::Opened;

/// A prompt, before it is tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids as they are.
    Ids(Vec<Token>),
}

/// The text of bytes from a place, which is named in messages.
///
/// # Errors
/// They are no UTF-8.
pub fn utf8(place: &str, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::input(format!("{place}: expected UTF-8, found another byte at {at}"))
    })
}

/// The text without the line end that belongs to its file.
pub fn without_last_line_end(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

/// The error of whoever wants text of a model without a tokenizer.
pub fn without_tokenizer(model: &Opened) -> Error {
    let words = Message::words(format!("{}; without one, give ", model.missing_tokenizer()));
    Error::Input(words.and_setting("prompt_ids").and(" and ").and_setting("output_ids"))
}

/// A prompt of a file, and what the file says about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The prompt.
    pub prompt: Prompt,
    /// Its kind: an object's `category`, else its `kind`.
    pub kind: Option<String>,
}

/// Prompts of a file: objects in a `.jsonl` file, lines of any other.
///
/// # Errors
/// The file cannot be read, an object has no prompt, or there is none at all.
pub fn read_list(path: &Path) -> Result<Vec<Prompt>, Error> {
    Ok(read_listed(path)?.into_iter().map(|listed| listed.prompt).collect())
}

/// The lines of a text file that are not blank.
///
/// # Errors
/// The file cannot be read or is no text.
pub fn lines(path: &Path) -> Result<Vec<String>, Error> {
    let place = path.display().to_string();
    let text = utf8(&place, std::fs::read(path).map_err(|error| Error::unreadable(path, &error))?)?;
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_string).collect())
}

/// Prompts of a file with their kinds.
///
/// # Errors
/// As [`read_list`].
pub fn read_listed(path: &Path) -> Result<Vec<Listed>, Error> {
    let place = path.display().to_string();
    let text = utf8(&place, std::fs::read(path).map_err(|error| Error::unreadable(path, &error))?)?;
    let objects = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "ndjson");
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<Listed> = lines
        .map(|(i, line)| match objects {
            true => of_object(&format!("{place}: line {}", i + 1), line),
            false => Ok(Listed { prompt: Prompt::Text(line.to_string()), kind: None }),
        })
        .collect::<Result<_, _>>()?;
    match prompts.is_empty() {
        true => Err(Error::input(format!("{place}: expected prompts, found none"))),
        false => Ok(prompts),
    }
}

/// The prompt of one object: its `prompt` (text or ids), else its `text` or `question`, else the first of its `turns`.
fn of_object(place: &str, line: &str) -> Result<Listed, Error> {
    let object: Value =
        serde_json::from_str(line).map_err(|error| Error::input(format!("{place}: expected JSON, found: {error}")))?;
    let fields = ["prompt", "text", "question"].map(|field| object.get(field));
    let found = fields.into_iter().chain([object.get("turns").and_then(|turns| turns.get(0))]);
    let kind = ["category", "kind"].into_iter().find_map(|field| object.get(field)?.as_str());
    let listed = |prompt| Listed { prompt, kind: kind.map(str::to_string) };
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
    Err(Error::input(format!("{place}: prompt: expected a text or token ids, found {found}")))
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self::Ids(tokens)
    }
}

impl From<&Prompt> for Prompt {
    fn from(prompt: &Prompt) -> Self {
        prompt.clone()
    }
}

impl Prompt {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Ids(_) => None,
        }
    }

    /// The prompt as tokens.
    ///
    /// # Errors
    /// A text for a model without a tokenizer, or an empty one for a model without a beginning-of-text token.
    pub fn tokens(&self, model: &Opened, tokenizer: Option<&Tokenizer>) -> Result<Vec<Token>, Error> {
        let text = match (self, tokenizer) {
            (Self::Ids(ids), _) => return Ok(ids.clone()),
            (Self::Text(_), None) => return Err(without_tokenizer(model)),
            (Self::Text(text), Some(tokenizer)) if !text.is_empty() => return Ok(tokenizer.encode(text, true)?),
            (Self::Text(text), Some(_)) => text,
        };
        debug_assert!(text.is_empty());
        let missing = || format!("{}: prompt: expected a text (the model has no beginning-of-text token)", model.name);
        let beginning = model.beginning(tokenizer).ok_or_else(|| Error::input(missing() + ", found an empty one"))?;
        Ok(vec![beginning])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_give_their_prompt_text_or_first_turn() {
        let text = |text: &str| Prompt::Text(text.to_string());
        let of = |line| of_object("x", line).ok().map(|listed| listed.prompt);
        assert_eq!(of(r#"{"prompt": "a", "text": "b"}"#), Some(text("a")));
        assert_eq!(of(r#"{"text": "b"}"#), Some(text("b")));
        assert_eq!(of(r#"{"question_id": 81, "turns": ["c", "d"]}"#), Some(text("c")));
        assert_eq!(of(r#"{"prompt": [1, 2]}"#), Some(Prompt::Ids(vec![1, 2])));
        assert_eq!(of(r#"{"prompt": [1, "2"]}"#), None);
        assert_eq!(of(r#"{"question": "e"}"#), Some(text("e")));
        assert_eq!(of(r#"{"title": "e"}"#), None);
        assert_eq!(of("e"), None);
        let kind = |line| of_object("x", line).ok().and_then(|listed| listed.kind);
        assert_eq!(kind(r#"{"prompt": "a", "category": "sum"}"#).as_deref(), Some("sum"));
        assert_eq!(kind(r#"{"prompt": "a", "kind": "story"}"#).as_deref(), Some("story"));
        assert_eq!(kind(r#"{"prompt": "a"}"#), None);
    }

    #[test]
    fn one_line_end_is_not_part_of_the_prompt() {
        assert_eq!(without_last_line_end("a\n\n"), "a\n");
        assert_eq!(without_last_line_end("a\r\n"), "a");
        assert_eq!(without_last_line_end("a"), "a");
    }
}
