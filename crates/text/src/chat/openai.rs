//! Converts messages of OpenAI's API to the form that templates expect.
//!
//! Templates are written for transformers, where content is one text and the arguments of a call are an object. Clients
//! of OpenAI's API send lists of parts, and arguments as a JSON string. Parts with images and audio are refused.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::input::{Message, pairs, with_field};

/// An invalid field of a message: its name, and what was expected and found.
type Problem = (String, String);

impl Message {
    /// The same message with its content as one text and the arguments of its calls as objects. Arguments that are not
    /// an object are unchanged.
    ///
    /// # Errors
    /// If the content is neither a text nor a list of texts, or is missing without calls, or a call is malformed; the
    /// error has the field, and what was expected and found.
    pub fn as_templates_want(self) -> Result<Self, (String, String)> {
        let calls = self.0.get_attr("tool_calls").ok().filter(|calls| !calls.is_undefined() && !calls.is_none());
        if let Some(calls) = &calls {
            check_calls(calls)?;
        }
        let has_calls = calls.as_ref().is_some_and(|calls| calls.len().is_some_and(|len| len > 0));
        let message = match self.0.get_attr("content").ok().filter(|content| !content.is_undefined()) {
            Some(content) if content.kind() == ValueKind::Seq => {
                let text = joined(&content)?;
                Self(with_field(&self.0, "content", Value::from(text)))
            }
            Some(content) if content.as_str().is_some() => self,
            Some(content) if !content.is_none() => {
                return problem("content", "expected a string or a list of parts", content.kind());
            }
            // Null is an empty text: clients send it for answers that were calls, refused or empty.
            Some(_) => self.with("content", ""),
            None if has_calls || self.role().as_deref() == Some("assistant") => self.with("content", ""),
            None => return problem("content", "expected a string or a list of parts", "none"),
        };
        Ok(match calls {
            Some(calls) => {
                let calls: Value = calls.try_iter().into_iter().flatten().map(|call| with_object(&call)).collect();
                Self(with_field(&message.0, "tool_calls", calls))
            }
            None => message,
        })
    }
}

fn problem<T>(field: impl Into<String>, expected: &str, found: impl std::fmt::Display) -> Result<T, Problem> {
    Err((field.into(), format!("{expected}, found {found}")))
}

/// Joins the texts of all parts, each on its own line.
fn joined(parts: &Value) -> Result<String, Problem> {
    let mut texts = Vec::new();
    for (at, part) in parts.try_iter().into_iter().flatten().enumerate() {
        if let Some(text) = part.as_str() {
            texts.push(text.to_owned());
            continue;
        }
        let field = |name: &str| part.get_attr(name).ok().and_then(|value| value.as_str().map(str::to_owned));
        match field("type").as_deref() {
            Some("text" | "input_text" | "output_text") => {}
            Some(other) => return problem(format!("content[{at}].type"), "expected text", other),
            None => return problem(format!("content[{at}].type"), "expected text", "none"),
        }
        match field("text") {
            Some(text) => texts.push(text),
            None => return problem(format!("content[{at}].text"), "expected a string", "none"),
        }
    }
    Ok(texts.join("\n"))
}

/// Refuses malformed calls: not a list, without a name, arguments that are neither a text nor an object.
fn check_calls(calls: &Value) -> Result<(), Problem> {
    if calls.kind() != ValueKind::Seq {
        return problem("tool_calls", "expected a list of calls", calls.kind());
    }
    for (at, call) in calls.try_iter().into_iter().flatten().enumerate() {
        let place = format!("tool_calls[{at}]");
        if call.kind() != ValueKind::Map {
            return problem(place, "expected an object", call.kind());
        }
        // Templates also accept a call that is the function object itself.
        let field = |name: &str| call.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none());
        let (function, place) = match field("function") {
            Some(function) => (function, format!("{place}.function")),
            None => (call.clone(), place),
        };
        let field = |name: &str| function.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none());
        if field("name").is_none_or(|name| name.as_str().is_none()) {
            return problem(format!("{place}.name"), "expected a string", field("name").unwrap_or_default().kind());
        }
        if let Some(other) = field("arguments").filter(|all| all.as_str().is_none() && all.kind() != ValueKind::Map) {
            return problem(format!("{place}.arguments"), "expected the text of an object", other.kind());
        }
    }
    Ok(())
}

/// Parses a call's arguments if they are the text of an object.
fn with_object(call: &Value) -> Value {
    let Ok(function) = call.get_attr("function") else { return call.clone() };
    let Ok(arguments) = function.get_attr("arguments") else { return call.clone() };
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    match parsed.filter(|parsed| parsed.kind() == ValueKind::Map) {
        Some(object) if !pairs(call).is_empty() => {
            with_field(call, "function", with_field(&function, "arguments", object))
        }
        _ => call.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;

    fn message(json: &str) -> Result<Message, (String, String)> {
        let json: Json = serde_json::from_str(json).expect("JSON");
        Message::try_from(json).expect("an object").as_templates_want()
    }

    #[test]
    fn parts_become_one_text_and_arguments_objects() {
        let parts =
            message(r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#);
        assert_eq!(parts.expect("texts").content().as_deref(), Some("a\nb"));
        let calls = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}}]}"#;
        let found = serde_json::to_string(&message(calls).expect("calls")).expect("JSON");
        assert!(found.contains(r#""arguments":{"b":1,"a":[2]}"#), "{found}");
        let odd =
            r#"{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}"#;
        let found = serde_json::to_string(&message(odd).expect("calls")).expect("JSON");
        assert!(found.contains(r#""arguments":"[1""#), "{found}");
    }

    #[test]
    fn other_parts_are_refused_by_name() {
        for (json, field, why) in [
            (r#"{"role": "user"}"#, "content", "expected a string or a list of parts, found none"),
            (r#"{"role": "user", "content": 7}"#, "content", "expected a string or a list of parts, found number"),
            (
                r#"{"role": "user", "content": [{"type": "image_url"}]}"#,
                "content[0].type",
                "expected text, found image_url",
            ),
            (r#"{"role": "user", "content": [{"type": "text"}]}"#, "content[0].text", "expected a string, found none"),
            (r#"{"role": "assistant", "tool_calls": {}}"#, "tool_calls", "expected a list of calls, found map"),
            (r#"{"role": "assistant", "tool_calls": [7]}"#, "tool_calls[0]", "expected an object, found number"),
            (
                r#"{"role": "assistant", "tool_calls": [{"function": {}}]}"#,
                "tool_calls[0].function.name",
                "expected a string, found undefined",
            ),
            (
                r#"{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 7}]}"#,
                "tool_calls[0].arguments",
                "expected the text of an object, found number",
            ),
        ] {
            assert_eq!(message(json), Err((field.to_string(), why.to_string())), "{json}");
        }
    }
}
