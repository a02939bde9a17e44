//! Translates the conversations and tools of other APIs to those of a chat.
//!
//! Other APIs split a turn of the model into several items (reasoning, texts, calls), while a chat has one message; so
//! items of the same turn are added to the last message. Objects that a template may render (arguments of calls,
//! schemas) keep their JSON text, so that the tokens of earlier turns stay the same.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::Fields;

/// The messages so far.
#[derive(Default)]
pub(super) struct Turns(Vec<Turn>);

/// One message of a chat.
#[derive(Default, Serialize)]
pub(super) struct Turn {
    role: &'static str,
    content: Option<Vec<Part>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
}

#[derive(Serialize)]
struct Part {
    r#type: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: CalledFunction,
}

#[derive(Serialize)]
struct CalledFunction {
    name: String,
    arguments: Box<RawValue>,
}

impl Turns {
    /// Begins a message.
    pub(super) fn begin(&mut self, role: &'static str) -> &mut Turn {
        self.0.push(Turn { role, ..Turn::default() });
        self.0.last_mut().expect("it was added")
    }

    /// The last message if it is one of this role, or a new one.
    pub(super) fn continue_or_begin(&mut self, role: &'static str) -> &mut Turn {
        match self.0.last() {
            Some(last) if last.role == role => self.0.last_mut().expect("it is there"),
            _ => self.begin(role),
        }
    }

    /// Adds the result of a call.
    pub(super) fn add_result(&mut self, call_id: String, texts: Vec<String>, is_error: bool) {
        let turn = self.begin("tool");
        turn.tool_call_id = Some(call_id);
        turn.is_error = is_error.then_some(true);
        texts.into_iter().for_each(|text| turn.add_text(text));
    }

    /// Whether there is a message other than the system's.
    pub(super) fn has_conversation_begun(&self) -> bool {
        self.0.iter().any(|turn| turn.role != "system")
    }

    /// Whether the last message is the beginning of an answer, which the model is to continue.
    pub(super) fn ends_with_partial_answer(&self) -> bool {
        self.0
            .last()
            .is_some_and(|last| last.role == "assistant" && last.content.is_some() && last.tool_calls.is_empty())
    }

    /// Inserts them as the field `messages`. `source`: the field that they come from.
    pub(super) fn write_to(mut self, fields: &mut Fields, source: &str) -> Result<(), ApiError> {
        for turn in self.0.iter_mut().filter(|turn| turn.tool_calls.is_empty()) {
            turn.content.get_or_insert_default();
        }
        fields.insert("messages", source, &self.0)
    }
}

impl Turn {
    /// Adds a text.
    pub(super) fn add_text(&mut self, text: String) {
        self.content.get_or_insert_default().push(Part { r#type: "text", text });
    }

    /// Adds the model's reasoning.
    pub(super) fn add_reasoning(&mut self, reasoning: &str) {
        match &mut self.reasoning_content {
            Some(all) => all.push_str(&format!("\n{reasoning}")),
            None => self.reasoning_content = Some(reasoning.to_string()),
        }
    }

    /// Adds a call. `arguments`: an object, as JSON text.
    pub(super) fn add_call(&mut self, id: String, name: String, arguments: Box<RawValue>) {
        self.tool_calls.push(Call { id, r#type: "function", function: CalledFunction { name, arguments } });
    }
}

/// A tool of a chat.
#[derive(Serialize)]
pub(super) struct Tool {
    r#type: &'static str,
    function: Function,
}

/// A function that may be called.
#[derive(Serialize)]
pub(super) struct Function {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parameters: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strict: Option<bool>,
}

impl From<Function> for Tool {
    fn from(function: Function) -> Self {
        Self { r#type: "function", function }
    }
}

/// The texts of a field: one string, or a list of objects that `parse_text` parses.
pub(super) fn texts(
    fields: &mut Fields,
    name: &str,
    parse_text: impl Fn(Fields) -> Result<String, ApiError>,
) -> Result<Vec<String>, ApiError> {
    if fields.has_string(name) {
        return Ok(vec![fields.required_string(name)?]);
    }
    fields.objects(name)?.unwrap_or_default().into_iter().map(parse_text).collect()
}
