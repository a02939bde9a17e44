//! A tool call, and how it is made from the model's text.
//!
//! Arguments that are JSON are kept as the model wrote them: numbers keep their digits, keys their order. If a format
//! has no types, as between `<parameter=...>` tags, they come from the tool's schema if there is one.
//!
//! It is not checked whether the tool exists and whether the arguments match its schema: the client has to do that
//! anyway, and other servers also pass such calls on.

use std::collections::HashMap;

use minijinja::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::is_value;
use crate::chat::Json;

/// A tool call, as a model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name. It may differ from those in the request.
    pub name: String,
    /// The arguments: the text of a JSON object.
    pub arguments: String,
    /// The call's id, if the model writes one. Templates of such models may require exactly this format (Mistral's
    /// expect nine letters and digits).
    pub id: Option<String>,
}

/// The type of an argument that is written without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    /// A string, whatever it looks like.
    Text,
    /// Something other than a string.
    Other,
    /// The schema does not say.
    Unknown,
}

/// The types of arguments, by tool and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Types(HashMap<String, HashMap<String, Type>>);

impl Types {
    /// From tools as templates get them: `{"function": {"name", "parameters"}}`, or the inner object alone.
    pub(super) fn new(tools: &[Json]) -> Self {
        let field = |value: &Value, name: &str| value.get_attr(name).ok().filter(|found| !found.is_undefined());
        let of_tool = |tool: &Json| {
            let function = field(&tool.0, "function").unwrap_or_else(|| tool.0.clone());
            let name = field(&function, "name")?.as_str()?.to_owned();
            let properties = field(&field(&function, "parameters")?, "properties")?;
            let types = properties.try_iter().ok()?.filter_map(|key| {
                let kind = field(&properties.get_item(&key).ok()?, "type");
                Some((key.as_str()?.to_owned(), kind.map_or(Type::Unknown, |kind| Type::new(&kind))))
            });
            Some((name, types.collect()))
        };
        Self(tools.iter().filter_map(of_tool).collect())
    }

    /// Converts an argument to JSON. It becomes a string if its type is a string. Otherwise text that is JSON stays as
    /// it is, Python's `True`, `False` and `None` are translated if the type is known to be another, and everything
    /// else becomes a string.
    pub(super) fn json_of(&self, tool: &str, argument: &str, text: &str) -> String {
        let kind = self.0.get(tool).and_then(|tool| tool.get(argument)).copied().unwrap_or(Type::Unknown);
        match (kind, text.trim()) {
            (Type::Text, _) => quoted(text),
            (_, value) if is_value(value) => value.to_owned(),
            (Type::Other, "True") => "true".to_owned(),
            (Type::Other, "False") => "false".to_owned(),
            (Type::Other, "None") => "null".to_owned(),
            _ => quoted(text),
        }
    }
}

impl Type {
    fn new(schema: &Value) -> Self {
        match schema.as_str() {
            Some("string") => Self::Text,
            Some(_) => Self::Other,
            // A list of types, or none.
            None => {
                let mut kinds = schema.try_iter().into_iter().flatten();
                if kinds.any(|kind| kind.as_str() == Some("string")) { Self::Unknown } else { Self::Other }
            }
        }
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The fields of a call in JSON, with the names that the usual formats have for them.
#[derive(Deserialize)]
struct JsonCallFields<'a> {
    #[serde(alias = "tool_name")]
    name: Option<String>,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
    /// The function object as in OpenAI's API, or a name.
    #[serde(borrow)]
    function: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// The calls of a JSON value, an object or a list of one or more; `None` if it is neither. With `is_bare` there are no
/// delimiters around it, so it needs all fields to count as a call.
pub(super) fn calls_of(json: &str, is_bare: bool) -> Option<Vec<ToolCall>> {
    let list: Vec<JsonCallFields> = match json.as_bytes().first()? {
        b'[' => serde_json::from_str(json).ok()?,
        _ => vec![serde_json::from_str(json).ok()?],
    };
    let calls: Option<Vec<ToolCall>> = list.into_iter().map(|call| call.into_call(is_bare)).collect();
    calls.filter(|calls| !calls.is_empty())
}

impl JsonCallFields<'_> {
    fn into_call(self, is_bare: bool) -> Option<ToolCall> {
        let text = |json: &RawValue| serde_json::from_str::<String>(json.get()).ok();
        let id = self.id.and_then(text);
        let (name, arguments) = match (self.name, self.function) {
            (Some(name), _) => (name, self.arguments),
            (None, Some(function)) => match serde_json::from_str::<JsonCallFields>(function.get()) {
                Ok(inner) => (inner.name?, inner.arguments),
                Err(_) => (text(function)?, self.arguments),
            },
            (None, None) => return None,
        };
        let arguments = match arguments {
            Some(json) => arguments_of(json.get())?,
            None if is_bare => return None,
            None => "{}".to_owned(),
        };
        (!name.is_empty()).then_some(ToolCall { name, arguments, id })
    }
}

/// The JSON text of the arguments: `json` if it is an object, or the object inside it if it is a JSON string.
fn arguments_of(json: &str) -> Option<String> {
    if json.starts_with('{') {
        return Some(json.to_owned());
    }
    let text: String = serde_json::from_str(json).ok()?;
    let object = text.trim();
    (object.starts_with('{') && is_value(object)).then(|| object.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(json: &str) -> Option<(String, String, Option<String>)> {
        let calls = calls_of(json, false)?;
        calls.into_iter().next().map(|call| (call.name, call.arguments, call.id))
    }

    #[test]
    fn calls_are_found_under_the_usual_names() {
        let expected = |id: Option<&str>| Some(("f".to_owned(), "{\"a\": 1.50}".to_owned(), id.map(str::to_owned)));
        assert_eq!(call(r#"{"name": "f", "arguments": {"a": 1.50}}"#), expected(None));
        assert_eq!(call(r#"{"parameters": {"a": 1.50}, "name": "\u0066"}"#), expected(None));
        assert_eq!(call(r#"[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1.50}}]"#), expected(None));
        assert_eq!(call(r#"{"name": "f", "arguments": "{\"a\": 1.50}", "id": "x"}"#), expected(Some("x")));
        let api = r#"{"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1.50}}}"#;
        assert_eq!(call(api), expected(Some("x")));
        let odd = r#"{"type": "function", "function": "f", "parameters": {"a": 1.50}, "id": 7}"#;
        assert_eq!(call(odd), expected(None));
    }

    #[test]
    fn other_json_is_no_call() {
        let others = [
            "{}",
            "[]",
            r#"{"name": ""}"#,
            r#"{"name": 1, "arguments": {}}"#,
            r#"{"arguments": {}}"#,
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "arguments": "text"}"#,
            r#"{"name": "f", "arguments": "{\"a\""}"#,
            r#"{"name": "f", "name": "g", "arguments": {}}"#,
            r#"{"name": "\ud800", "arguments": {}}"#,
            r#"[{"name": "f", "arguments": {}}, 1]"#,
            r#"{"function": 1}"#,
        ];
        for json in others {
            assert_eq!(calls_of(json, false), None, "{json}");
        }
        assert_eq!(call(r#"{"name": "f"}"#).unwrap().1, "{}");
        assert_eq!(call(r#"{"name": "f", "arguments": null}"#).unwrap().1, "{}");
        assert_eq!(calls_of(r#"{"name": "f"}"#, true), None);
    }

    #[test]
    fn types_come_from_the_schema() {
        let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
            {"text": {"type": "string"}, "count": {"type": "integer"}, "either": {"type": ["string", "null"]},
             "other": {"description": "no type"}, "flags": {"type": ["boolean", "null"]}}}}},
            {"name": "g", "parameters": {"properties": {"text": {"type": "string"}}}}, {"odd": 1}, 7]"#;
        let types = Types::new(&serde_json::from_str::<Vec<Json>>(tools).unwrap());
        let cases = [
            ("f", "text", "5", "\"5\""),
            ("g", "text", "{}", "\"{}\""),
            ("f", "count", " 5 ", "5"),
            ("f", "count", "five", "\"five\""),
            ("f", "flags", "True", "true"),
            ("f", "flags", "None", "null"),
            ("f", "other", "True", "\"True\""),
            ("f", "either", "null", "null"),
            ("f", "either", " a\n", "\" a\\n\""),
            ("f", "unknown", "[1]", "[1]"),
            ("unknown", "text", "1.50", "1.50"),
        ];
        for (tool, argument, text, expected) in cases {
            assert_eq!(types.json_of(tool, argument, text), expected, "{tool}.{argument} = {text}");
        }
    }
}
