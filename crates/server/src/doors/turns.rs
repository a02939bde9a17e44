//! Conversations and tools of other APIs, as those of a chat.
//!
//! The idea: other APIs say one turn of a model in several items (thoughts, texts, calls), where a chat has one
//! message; so what follows in the same turn is added to the last message. Objects that a template may write out
//! (arguments of calls, schemas) stay as they were sent, so that the text of earlier turns stays the same. Left out:
//! which items there are, which each API checks by itself.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::Fields;

/// Messages that were gathered so far.
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
    pub(super) fn go_on(&mut self, role: &'static str) -> &mut Turn {
        match self.0.last() {
            Some(last) if last.role == role => self.0.last_mut().expect("it is there"),
            _ => self.begin(role),
        }
    }

    /// What a call has come to.
    pub(super) fn result(&mut self, call: String, texts: Vec<String>, is_error: bool) {
        let turn = self.begin("tool");
        turn.tool_call_id = Some(call);
        turn.is_error = is_error.then_some(true);
        texts.into_iter().for_each(|text| turn.say(text));
    }

    /// Whether anybody but systems has spoken.
    pub(super) fn have_begun(&self) -> bool {
        self.0.iter().any(|turn| turn.role != "system")
    }

    /// Whether the last message is the beginning of an answer.
    pub(super) fn begin_an_answer(&self) -> bool {
        self.0
            .last()
            .is_some_and(|last| last.role == "assistant" && last.content.is_some() && last.tool_calls.is_empty())
    }

    /// Makes them the messages of a chat. `made_of`: the field that they came from.
    pub(super) fn put(mut self, fields: &mut Fields, made_of: &str) -> Result<(), ApiError> {
        for turn in self.0.iter_mut().filter(|turn| turn.tool_calls.is_empty()) {
            turn.content.get_or_insert_default();
        }
        fields.put("messages", made_of, &self.0)
    }
}

impl Turn {
    /// Adds a text.
    pub(super) fn say(&mut self, text: String) {
        self.content.get_or_insert_default().push(Part { r#type: "text", text });
    }

    /// Adds what the model thought.
    pub(super) fn think(&mut self, thoughts: &str) {
        match &mut self.reasoning_content {
            Some(all) => all.push_str(&format!("\n{thoughts}")),
            None => self.reasoning_content = Some(thoughts.to_string()),
        }
    }

    /// Adds a call. `arguments`: an object, or the text of one.
    pub(super) fn call(&mut self, id: String, name: String, arguments: Box<RawValue>) {
        self.tool_calls.push(Call { id, r#type: "function", function: CalledFunction { name, arguments } });
    }
}

/// A tool of a chat.
#[derive(Serialize)]
pub(super) struct Tool {
    r#type: &'static str,
    function: Function,
}

/// What may be called.
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

/// What stands in a field as one text, or as a list of objects that `text_of` reads.
pub(super) fn texts(
    fields: &mut Fields,
    name: &str,
    text_of: impl Fn(Fields) -> Result<String, ApiError>,
) -> Result<Vec<String>, ApiError> {
    if fields.has_text(name) {
        return Ok(vec![fields.text_of(name)?]);
    }
    fields.objects(name)?.unwrap_or_default().into_iter().map(text_of).collect()
}
