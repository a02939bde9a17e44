//! Conversations as JSON, in the format of OpenAI's messages: `{"messages": [{"role": ..., "content": ...}, ...]}`.
//!
//! Conversations of other programs can be read: the text parts of a content are joined, and a list of messages without
//! the object around it is accepted. Tool calls stay in messages unchanged.

use foretoken_text::{Json, Message as ChatMessage};
use foretoken_weights::line::one_line;
use serde::Serialize;

/// The JSON object of a conversation.
#[derive(Serialize)]
struct Saved<'a> {
    messages: &'a [ChatMessage],
}

/// A conversation as JSON, one field on each line, with a final line break.
pub(super) fn to_json(messages: &[ChatMessage]) -> String {
    serde_json::to_string_pretty(&Saved { messages }).expect("messages are plain values") + "\n"
}

/// Parses the messages of a conversation: an object with `messages`, or a list of messages.
///
/// # Errors
/// A field is invalid: its name, what was expected and what was found.
pub fn messages(value: &serde_json::Value) -> Result<Vec<ChatMessage>, String> {
    let value = value.get("messages").unwrap_or(value);
    let found = || one_line(&value.to_string(), 40);
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| format!("messages: expected a list of messages, found {}", found()))?;
    let message = |(at, value): (usize, &serde_json::Value)| {
        let wrong = |field: &str, why: &str| format!("messages[{at}]{field}: {why}");
        // From the value and not from its text: keys are then sorted, which no template depends on.
        let json: Json = serde_json::from_value(value.clone()).map_err(|error| wrong("", &error.to_string()))?;
        let message = ChatMessage::try_from(json).map_err(|why| wrong("", &why))?;
        message.role().ok_or_else(|| wrong(".role", "expected a string, found none"))?;
        message.as_templates_want().map_err(|(field, why)| wrong(&format!(".{field}"), &why))
    };
    list.iter().enumerate().map(message).collect()
}
