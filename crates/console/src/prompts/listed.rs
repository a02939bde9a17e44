//! Parses files of several prompts: lines, or objects that may have a prompt's kind.
//!
//! Objects of many data sets are accepted, and conversations as `/save` of chat writes them.

use foretoken::line::{OneLine, one_line};
use foretoken::{Prompt, Prompter, Request, RequestError, Token};
use serde_json::Value;

use crate::failure::Failure;

/// A prompt of a file, with where it is in the file, and its kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPrompt {
    /// The file and the line or number, for messages; empty if the prompt is not from a file.
    pub place: String,
    /// The prompt.
    pub prompt: Prompt,
    /// Its kind: an object's `category`, else its `kind`.
    pub kind: Option<String>,
}

impl ListedPrompt {
    /// The request that continues it.
    ///
    /// # Errors
    /// As [`Prompter::request`]; the error begins with the prompt's file and line.
    pub fn request(&self, source: Option<&Prompt>, prompter: &Prompter) -> Result<Request, Failure> {
        let request = match source {
            Some(source) => prompter.request_with_source(source, Some(&self.prompt), &prompter.decided),
            None if self.place.is_empty() => prompter.request(&self.prompt),
            // The prompts of a file are the sources of an encoder-decoder.
            None => prompter.request_of_input(&self.prompt, &prompter.decided),
        };
        request.map_err(|error| self.named(error.into()))
    }

    /// The tokens that the model reads of this prompt: the prompt's, or for an encoder-decoder those of the source.
    ///
    /// # Errors
    /// As [`ListedPrompt::request`] and [`ListedPrompt::usable`].
    pub fn usable_tokens(&self, prompter: &Prompter) -> Result<Vec<Token>, Failure> {
        let request = self.usable(self.request(None, prompter)?, prompter)?;
        Ok(request.input().to_vec())
    }

    /// The request of this prompt, unless the engine would refuse it.
    ///
    /// # Errors
    /// It has no token or one that is not in the vocabulary, or it fills the context.
    pub fn usable(&self, request: Request, prompter: &Prompter) -> Result<Request, Failure> {
        let (prompt, context, vocabulary) = (&request.prompt, prompter.context, prompter.target.spec.vocabulary);
        let unknown = prompt.iter().position(|token| *token as usize >= vocabulary);
        let error = match (prompt.len(), unknown) {
            (0, _) => RequestError::EmptyPrompt,
            (found, _) if found >= context => RequestError::PromptTooLong { found, context },
            (_, Some(index)) => RequestError::Token { index, found: prompt[index], vocabulary },
            _ => return Ok(request),
        };
        Err(self.named(Failure::Other(error.to_string())))
    }

    fn named(&self, failure: Failure) -> Failure {
        match failure.message().filter(|_| !self.place.is_empty()) {
            Some(message) => Failure::Other(format!("{}: {message}", self.place)),
            None => failure,
        }
    }
}

/// The prompts of a text. `kind`: the extension of its file's name; `place`: the file, for messages.
///
/// # Errors
/// An object has no prompt, or the text has no prompts.
pub fn of_text(place: &str, text: &str, kind: Option<&str>) -> Result<Vec<ListedPrompt>, Failure> {
    let prompts: Vec<ListedPrompt> = each_of_text(place, text, kind)?.into_iter().collect::<Result<_, _>>()?;
    match prompts.is_empty() {
        true => Err(Failure::Other(format!("{place}: expected prompts, found none"))),
        false => Ok(prompts),
    }
}

/// The prompts of a text, each with its own error. Arguments as in [`of_text`].
///
/// # Errors
/// The text of a `.json` file is not JSON.
pub fn each_of_text(
    place: &str,
    text: &str,
    kind: Option<&str>,
) -> Result<Vec<Result<ListedPrompt, Failure>>, Failure> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let at_line = |i: usize| format!("{place}: line {}", i + 1);
    Ok(match kind {
        Some("jsonl" | "ndjson") => {
            let of_line = |(i, line)| {
                let place = at_line(i);
                of_object(&place, &json(&place, line)?)
            };
            lines.map(of_line).collect()
        }
        Some("json") => of_document(place, &json(place, text)?),
        _ => {
            let of_line = |(i, line): (usize, &str)| ListedPrompt {
                place: at_line(i),
                prompt: Prompt::Text(line.to_string()),
                kind: None,
            };
            lines.map(of_line).map(Ok).collect()
        }
    })
}

fn json(place: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Other(format!("{place}: expected JSON, found: {error}")))
}

/// The prompts of a `.json` file: an object, a list of objects, or a list of messages, which is one conversation.
fn of_document(place: &str, value: &Value) -> Vec<Result<ListedPrompt, Failure>> {
    let Value::Array(list) = value else { return vec![of_object(place, value)] };
    if list.first().is_some_and(|first| first.get("role").is_some()) {
        let listed = |prompt| ListedPrompt { place: place.to_string(), prompt, kind: None };
        return vec![conversation(place, value).map(listed)];
    }
    let object = |(i, object): (usize, &Value)| of_object(&format!("{place}: prompt {}", i + 1), object);
    list.iter().enumerate().map(object).collect()
}

/// A conversation up to the user's last message: answers after it are dropped and generated again.
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
///
/// # Errors
/// The object has none of these fields; the error begins with `place`.
pub fn of_object(place: &str, object: &Value) -> Result<ListedPrompt, Failure> {
    let listed = |prompt| ListedPrompt { place: place.to_string(), prompt, kind: kind(object) };
    if object.get("prompt").is_none() && object.get("messages").is_some() {
        return conversation(place, object).map(listed);
    }
    let fields = ["prompt", "text", "question"].map(|field| object.get(field));
    let found = fields.into_iter().chain([object.get("turns").and_then(|turns| turns.get(0))]);
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

/// The kind of an object's prompt, on one line, since tables and charts show it.
fn kind(object: &Value) -> Option<String> {
    ["category", "kind"]
        .into_iter()
        .find_map(|field| object.get(field)?.as_str())
        .map(|kind| one_line(kind, OneLine::CHARS_MAX))
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
        assert_eq!(kind(r#"{"prompt": "a", "kind": "a\u001b[31m\nb"}"#).as_deref(), Some("a\\u{1b}[31m\\nb"));
        assert_eq!(kind(r#"{"prompt": "a"}"#), None);
    }

    #[test]
    fn conversations_are_prompts_up_to_the_users_last_message() {
        let of = |text: &str| -> Result<Vec<usize>, String> {
            let listed = json("x", text).and_then(|value| of_document("x", &value).into_iter().collect());
            let len = |listed: ListedPrompt| match listed.prompt {
                Prompt::Chat(messages) => messages.len(),
                _ => 0,
            };
            let listed: Vec<ListedPrompt> = listed.map_err(|failure: Failure| failure.message().unwrap_or_default())?;
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
}
