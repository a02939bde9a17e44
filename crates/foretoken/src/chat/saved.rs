//! Conversations as JSON, in the form of OpenAI's messages: `{"messages": [{"role": ..., "content": ...}, ...]}`.
//!
//! Conversations of other programs can be read: the parts of a content are joined, and a bare list of messages is
//! accepted. Tool calls are kept in messages unchanged.

use foretoken_text::{Json, Message as ChatMessage};
use foretoken_weights::line::one_line;
use serde::Serialize;

/// The JSON object of a conversation.
#[derive(Serialize)]
struct Saved<'a> {
    messages: &'a [ChatMessage],
}

/// A conversation as JSON, one field on each line, with a line end.
pub(super) fn to_json(messages: &[ChatMessage]) -> String {
    serde_json::to_string_pretty(&Saved { messages }).expect("messages are plain values") + "\n"
}

/// The messages of a conversation: an object with `messages`, or a list of messages.
///
/// # Errors
/// It is no conversation: the field, what was expected and what was found.
pub fn messages(value: &serde_json::Value) -> Result<Vec<ChatMessage>, String> {
    let list = value.get("messages").unwrap_or(value).as_array();
    let list = list.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| format!("messages: expected a list of messages, found {}", excerpt(value)))?;
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

fn excerpt(value: &serde_json::Value) -> String {
    let text = value.get("messages").unwrap_or(value).to_string();
    one_line(&text, 40)
}
