//! The input of a template: messages, tools, documents and other variables.
//!
//! All of it is JSON whose objects keep the order of their keys, since templates write it out again. As in
//! transformers, a null field of a message counts as missing, and an assistant's reasoning is available under each of
//! the names that templates use for it. Parts with images and audio are passed through unchanged.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::{Deserialize, Serialize};

use crate::TextError;

/// A JSON value as templates see it. Objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(pub(super) Value);

impl<T: Into<Value>> From<T> for Json {
    /// From strings, numbers and booleans, or a list or a map of these.
    fn from(value: T) -> Self {
        Self(value.into())
    }
}

/// One message of a conversation: an object, usually with `role` and `content`, and with other fields that the template
/// uses (`tool_calls`, `tool_call_id`, `name`, `reasoning_content`). Content is a text or a list of parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub struct Message(pub(super) Value);

impl Message {
    /// A message with a role (`system`, `user`, `assistant`, or another that the template uses) and content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self(Value::from_pairs([("role", role.into()), ("content", content.into())]))
    }

    /// The same message with this field, which becomes the last one.
    #[must_use]
    pub fn with(self, field: &str, value: impl Into<Json>) -> Self {
        let others = pairs(&self.0).into_iter().filter(|(key, _)| key.as_str() != Some(field));
        Self(Value::from_pairs(others.chain([(Value::from(field), value.into().0)])))
    }

    /// The message's role, if it has one.
    pub fn role(&self) -> Option<String> {
        self.text("role")
    }

    /// The message's content, if it is a text.
    pub fn content(&self) -> Option<String> {
        self.text("content")
    }

    fn text(&self, field: &str) -> Option<String> {
        self.0.get_attr(field).ok()?.as_str().map(str::to_owned)
    }

    /// The message as transformers passes it to a template.
    fn prepared(&self) -> Self {
        const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
        let fields: Vec<(Value, Value)> = pairs(&self.0).into_iter().filter(|(_, value)| !value.is_none()).collect();
        let field =
            |name: &str| fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone());
        let Some(reasoning) = REASONING.into_iter().find_map(field) else { return Self(Value::from_pairs(fields)) };
        let thinking = (Value::from("thinking"), field("thinking").unwrap_or_else(|| reasoning.clone()));
        let others = fields.into_iter().filter(|(key, _)| key.as_str() != Some("thinking"));
        let message = Self(Value::from_pairs([thinking].into_iter().chain(others)));
        match message.0.get_attr("reasoning_content") {
            Ok(value) if !value.is_undefined() => message,
            _ => message.with("reasoning_content", reasoning),
        }
    }
}

impl TryFrom<Json> for Message {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        match json.0.kind() {
            ValueKind::Map => Ok(Self(json.0)),
            other => Err(format!("expected a message (an object with role and content), found {other}")),
        }
    }
}

impl From<Message> for Json {
    fn from(message: Message) -> Self {
        Self(message.0)
    }
}

/// The input of a template, with transformers' names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatInput {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools that the model may call, each as a JSON schema. Templates distinguish `None` from an empty list.
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval-augmented generation.
    pub documents: Option<Vec<Json>>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Whether the text ends inside the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Other variables of the template, such as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
}

/// Written after the content that is to be continued, to find the place in the rendered text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatInput {
    /// An input of messages without tools.
    pub fn new(messages: &[Message], add_generation_prompt: bool) -> Self {
        Self { messages: messages.to_vec(), add_generation_prompt, ..Self::default() }
    }

    /// The variables of a template.
    pub(super) fn variables(&self, place: &str) -> Result<Vec<(String, Value)>, TextError> {
        let mut messages: Vec<Message> = self.messages.iter().map(Message::prepared).collect();
        if self.continue_final_message {
            let continued = messages.last().and_then(continued);
            let continued = continued.ok_or_else(|| {
                TextError::template(place, "expected a last message with a text to continue, found none")
            })?;
            messages.pop();
            messages.push(continued);
        }
        let list = |values: &Option<Vec<Json>>| match values {
            Some(values) => values.iter().map(|value| value.0.clone()).collect(),
            None => Value::from(()),
        };
        let own = [
            ("messages", messages.into_iter().map(|message| message.0).collect()),
            ("tools", list(&self.tools)),
            ("documents", list(&self.documents)),
            ("add_generation_prompt", Value::from(self.add_generation_prompt)),
        ];
        let others = self.variables.iter().map(|(name, value)| (name.clone(), value.0.clone()));
        Ok(others.chain(own.into_iter().map(|(name, value)| (name.to_owned(), value))).collect())
    }

    /// The text up to the place where its last message is to be continued, or all of it.
    pub(super) fn end(&self, place: &str, mut text: String) -> Result<String, TextError> {
        if !self.continue_final_message {
            return Ok(text);
        }
        let at = text.rfind(CONTINUE_TAG.trim_end()).ok_or_else(|| {
            TextError::template(place, "expected the last message in the text, to continue it, found it left out")
        })?;
        // If the space after the tag is missing, the template has trimmed the message.
        let is_whole = text[at..].starts_with(CONTINUE_TAG);
        text.truncate(if is_whole { at } else { text[..at].trim_end().len() });
        Ok(text)
    }

    /// The same input with all strings changed, including keys of objects.
    pub(super) fn map_strings(&self, change: &impl Fn(&str) -> String) -> Self {
        let list = |values: &Option<Vec<Json>>| {
            values.as_ref().map(|values| values.iter().map(|value| Json(mapped(&value.0, change))).collect())
        };
        Self {
            messages: self.messages.iter().map(|message| Message(mapped(&message.0, change))).collect(),
            tools: list(&self.tools),
            documents: list(&self.documents),
            variables: self.variables.iter().map(|(name, it)| (name.clone(), Json(mapped(&it.0, change)))).collect(),
            ..*self
        }
    }

    /// Bytes of the messages' content, without the names of fields.
    pub fn text_bytes(&self) -> usize {
        let bytes_of = |value: Value| match value.try_iter() {
            Ok(parts) if value.as_str().is_none() => {
                parts.filter_map(|part| part.get_attr("text").ok()?.as_str().map(str::len)).sum()
            }
            _ => value.as_str().map_or(0, str::len),
        };
        self.messages.iter().filter_map(|message| message.0.get_attr("content").ok()).map(bytes_of).sum()
    }

    /// All strings of the input, including keys of objects.
    pub(super) fn strings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let lists = [&self.tools, &self.documents].into_iter().flatten().flatten().map(|value| &value.0);
        let others = self.variables.iter().map(|(_, value)| &value.0);
        let messages = self.messages.iter().map(|message| &message.0);
        messages.chain(lists).chain(others).for_each(|value| collect_strings(value, &mut found));
        found
    }
}

/// The last message with the tag after its text, or after the last part with a text.
fn continued(message: &Message) -> Option<Message> {
    let content = message.0.get_attr("content").ok()?;
    if let Some(text) = content.as_str() {
        return Some(with_content(message, Value::from(format!("{text}{CONTINUE_TAG}"))));
    }
    let mut parts: Vec<Value> = content.try_iter().ok()?.collect();
    let text_of = |part: &Value| part.get_attr("text").ok()?.as_str().map(str::to_owned);
    let (last, text) = parts.iter().enumerate().rev().find_map(|(at, part)| Some((at, text_of(part)?)))?;
    parts[last] = with_field(&parts[last], "text", Value::from(format!("{text}{CONTINUE_TAG}")));
    Some(with_content(message, Value::from(parts)))
}

fn with_content(message: &Message, content: Value) -> Message {
    Message(with_field(&message.0, "content", content))
}

/// A map with another value of one field; the order is kept.
pub(super) fn with_field(map: &Value, field: &str, value: Value) -> Value {
    let change = |(key, old): (Value, Value)| {
        let new = if key.as_str() == Some(field) { value.clone() } else { old };
        (key, new)
    };
    Value::from_pairs(pairs(map).into_iter().map(change))
}

/// The entries of a map, in order; nothing for other values.
pub(super) fn pairs(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| (key.clone(), map.get_item(&key).unwrap_or_default())).collect()
}

fn mapped(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value.kind() {
        ValueKind::String => value.as_str().map_or_else(|| value.clone(), |text| Value::from(change(text))),
        ValueKind::Seq => value.try_iter().into_iter().flatten().map(|item| mapped(&item, change)).collect(),
        ValueKind::Map => {
            let entries = pairs(value).into_iter();
            Value::from_pairs(entries.map(|(key, item)| (mapped(&key, change), mapped(&item, change))))
        }
        _ => value.clone(),
    }
}

fn collect_strings(value: &Value, found: &mut Vec<String>) {
    match value.kind() {
        ValueKind::String => found.extend(value.as_str().map(str::to_owned)),
        ValueKind::Seq => value.try_iter().into_iter().flatten().for_each(|item| collect_strings(&item, found)),
        ValueKind::Map => {
            for (key, item) in pairs(value) {
                collect_strings(&key, found);
                collect_strings(&item, found);
            }
        }
        _ => {}
    }
}
