//! Conversations as JSON, in the form of OpenAI's messages: `{"messages": [{"role": ..., "content": ...}, ...]}`.
//!
//! What is read may come from other programs: content in parts is put together, and a bare list of messages is a
//! conversation too. Left out: tools, which are kept in messages and not looked at.

use foretoken_text::{Json, Message as ChatMessage};
use foretoken_weights::line::line;
use serde::Serialize;

/// A conversation as it is written.
#[derive(Serialize)]
struct Saved<'a> {
    messages: &'a [ChatMessage],
}

/// A conversation as JSON, a field a line, with a line end.
pub(super) fn to_json(messages: &[ChatMessage]) -> String {
    serde_json::to_string_pretty(&Saved { messages }).expect("messages are plain values") + "\n"
}

/// The messages of a value that is a conversation: an object with `messages`, or a list of messages.
///
/// # Errors
/// It is none: the field, what was expected and what was found.
pub fn messages(value: &serde_json::Value) -> Result<Vec<ChatMessage>, String> {
    let list = value.get("messages").unwrap_or(value).as_array();
    let list = list.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| format!("messages: expected a list of messages, found {}", shown(value)))?;
    let message = |(at, value): (usize, &serde_json::Value)| {
        let wrong = |field: &str, why: &str| format!("messages[{at}]{field}: {why}");
        // From the value and not its text: its keys are in order of their names then, which no template minds.
        let json: Json = serde_json::from_value(value.clone()).map_err(|error| wrong("", &error.to_string()))?;
        let message = ChatMessage::try_from(json).map_err(|why| wrong("", &why))?;
        message.role().ok_or_else(|| wrong(".role", "expected a string, found none"))?;
        message.as_templates_want().map_err(|(field, why)| wrong(&format!(".{field}"), &why))
    };
    list.iter().enumerate().map(message).collect()
}

fn shown(value: &serde_json::Value) -> String {
    let text = value.get("messages").unwrap_or(value).to_string();
    line(&text, 40)
}
