//! How the arguments of a function may be written: as JSON of its schema, between marks, or as a literal.
//!
//! Where arguments are JSON, their schema is handed on as it is. Where each has a name and a value of its own, the
//! schema has to be an object of named properties, which are written in its order; a value is JSON of its property's
//! schema, except that strings stand as they are between marks, so that of a string nothing can be asked but that it is
//! one of some. Gemma writes lists and objects in its own way, so they are followed into.

use serde_json::{Map, Value, json};

use super::literal::{Syntax, is_name};
use super::writing::{ToolFunction, Writer, quoted};
use crate::grammar::check_schema;

/// A place in the list of tools, and what was expected and found there.
pub(super) type Problem = (String, String);

/// The same in the schema of a function.
#[derive(Debug)]
pub(super) struct Found {
    place: String,
    found: String,
}

/// Keywords of schemas that ask for nothing that is not kept to otherwise.
const ASIDE: [&str; 11] = [
    "type",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "$comment",
    "strict",
];
/// Keywords whose values are values of the user's, not schemas.
const IS_VALUE: [&str; 4] = ["enum", "const", "default", "examples"];
/// Keywords whose values are schemas by names of the user's.
const HAS_NAMES: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];
/// Most arguments that are held to their order and names one by one: each has rules of its own for what may follow it.
const MEMBERS_MAX: usize = 256;
/// Where the schemas of functions lie in a document that refers to them.
const WHOLE: &str = "x-tool";

impl Found {
    fn new(place: &str, found: String) -> Self {
        Self { place: place.to_string(), found }
    }

    /// The problem, of the function of this number.
    pub(super) fn of(self, number: usize) -> Problem {
        (format!("[{number}].function.parameters"), format!("{}: {}", self.place, self.found))
    }
}

/// The arguments of one function.
#[derive(Clone)]
pub(super) struct Arguments {
    schema: Map<String, Value>,
    /// The name of the schema where others refer to it.
    name: String,
    has_references: bool,
}

impl Arguments {
    /// Those of the function of this number.
    pub(super) fn new(function: &ToolFunction, number: usize, is_held: bool) -> Result<Self, Found> {
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let mut schema = match &function.parameters {
            None => none.as_object().cloned().unwrap_or_default(),
            Some(Value::Object(schema)) if schema.is_empty() => none.as_object().cloned().unwrap_or_default(),
            Some(Value::Object(schema)) => schema.clone(),
            Some(other) => return Err(Found::new("#", format!("expected an object, found {other}"))),
        };
        check_schema(&Value::Object(schema.clone()), "#", true).map_err(|found| match found.split_once(": ") {
            Some((place, found)) => Found::new(place, found.to_string()),
            None => Found::new("#", found),
        })?;
        match schema.get("type") {
            Some(kind) if kind != "object" => {
                return Err(Found::new("#/type", format!("expected \"object\", found {kind}")));
            }
            Some(_) => {}
            None => drop(schema.insert("type".to_string(), json!("object"))),
        }
        let has_references = Value::Object(schema.clone()).to_string().contains("\"$ref\"");
        if !is_held && schema.get("properties").is_none_or(|all| all.as_object().is_none_or(|all| !all.is_empty())) {
            schema = json!({ "type": "object" }).as_object().cloned().unwrap_or_default();
        }
        Ok(Self { schema, name: format!("{WHOLE}-{number}"), has_references })
    }

    /// The schema, in a document that has its [`Arguments::definitions`].
    pub(super) fn schema(&self) -> Value {
        self.within(&Value::Object(self.schema.clone()))
    }

    /// What a document needs in which one of its schemas stands.
    pub(super) fn definitions(&self) -> Option<(String, Value)> {
        self.has_references.then(|| (self.name.clone(), self.schema()))
    }

    /// A document of all arguments.
    pub(super) fn document(&self) -> Value {
        self.alone(&Value::Object(self.schema.clone()))
    }

    /// A document of a part of the schema.
    fn alone(&self, schema: &Value) -> Value {
        match self.within(schema) {
            Value::Object(mut fields) => {
                fields.extend(self.definitions());
                Value::Object(fields)
            }
            other => other,
        }
    }

    /// A part of the schema, whose references lead to where the whole lies.
    fn within(&self, schema: &Value) -> Value {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Array(items) => return items.iter().map(|item| self.within(item)).collect(),
            other => return other.clone(),
        };
        let moved = fields.iter().map(|(keyword, value)| {
            let value = match value {
                Value::String(text) if keyword == "$ref" && text.starts_with('#') => {
                    json!(format!("#/{}{}", self.name, text[1..].trim_end_matches('/')))
                }
                value if IS_VALUE.contains(&keyword.as_str()) => value.clone(),
                Value::Object(named) if HAS_NAMES.contains(&keyword.as_str()) => {
                    named.iter().map(|(name, schema)| (name.clone(), self.within(schema))).collect()
                }
                value => self.within(value),
            };
            (keyword.clone(), value)
        });
        Value::Object(moved.collect())
    }

    /// Whether no argument behind so many has to be written.
    pub(super) fn may_end(&self, passed: usize) -> bool {
        members(&self.schema, "#").is_ok_and(|members| !members.iter().skip(passed).any(|member| member.is_required))
    }

    /// The arguments that may come next behind so many: their numbers and names.
    pub(super) fn next(&self, passed: usize) -> Result<Vec<(usize, String)>, Found> {
        let members = members(&self.schema, "#")?;
        let wanted = members.iter().skip(passed).position(|member| member.is_required);
        let last = wanted.map_or(members.len(), |wanted| passed + wanted + 1);
        let all = members.into_iter().enumerate().take(last).skip(passed);
        Ok(all.map(|(number, member)| (number, member.name)).collect())
    }

    /// The value of an argument between marks, and the mark behind it. With `has_lines`, on lines of its own.
    pub(super) fn between(
        &self,
        number: usize,
        has_lines: bool,
        end: &str,
        writer: &mut Writer<'_>,
    ) -> Result<String, Found> {
        let member = members(&self.schema, "#")?.swap_remove(number);
        let line = if has_lines { "\"\\n\" " } else { "" };
        let behind = if has_lines { " \"\\n\"" } else { "" };
        if let Some(fields) = member.schema.as_object().filter(|fields| is_text(fields)) {
            return Ok(match texts_of(fields, &member.place)? {
                None => format!("{line}{}", writer.up_to(end)),
                Some(all) => format!("{line}({}){behind} {}", all.join(" | "), writer.mark(end)),
            });
        }
        const KINDS: [&str; 7] = ["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"];
        if !KINDS.iter().any(|kind| member.schema.get(kind).is_some()) {
            let found = "expected a type, without which a value between marks may end anywhere, found none";
            return Err(Found::new(&member.place, found.to_string()));
        }
        let value = without_marks(&self.alone(&object_of(&member.schema)));
        Ok(format!("{line}{}{behind} {}", writer.json_rule(&value), writer.mark(end)))
    }

    /// All arguments as a literal, and the bracket that closes them.
    pub(super) fn literal(&self, syntax: &Syntax, writer: &mut Writer<'_>) -> Result<String, Found> {
        let pair = char::from(syntax.pair).to_string();
        self.members_in(&self.schema, "#", syntax, &pair, char::from(syntax.close), writer)
    }

    /// Names and values, and the bracket behind them. `rest[n]` are the members from the n-th on, behind others or not.
    fn members_in(
        &self,
        schema: &Map<String, Value>,
        place: &str,
        syntax: &Syntax,
        pair: &str,
        close: char,
        writer: &mut Writer<'_>,
    ) -> Result<String, Found> {
        let members = members(schema, place)?;
        let end = format!("WS? {}", quoted(&close.to_string()));
        let (mut first, mut behind) = (end.clone(), end);
        for member in members.iter().rev() {
            let name = &member.name;
            if !is_name(syntax, name) {
                let found = format!("expected a name that the model's calls can have, found {name:?}");
                return Err(Found::new(&member.place, found));
            }
            let value = self.value(&member.schema, &member.place, syntax, writer)?;
            let own = format!("{} {} WS? {value} {behind}", quoted(name), quoted(pair));
            let (then, after) = match member.is_required {
                true => (own.clone(), format!("\",\" WS? {own}")),
                false => (format!("{own} | {first}"), format!("\",\" WS? {own} | {behind}")),
            };
            first = writer.rule("members", &then);
            behind = writer.rule("members", &after);
        }
        Ok(first)
    }

    /// One value of a literal.
    fn value(&self, schema: &Value, place: &str, syntax: &Syntax, writer: &mut Writer<'_>) -> Result<String, Found> {
        let Some(mark) = syntax.quote.and_then(|mark| std::str::from_utf8(mark).ok()) else {
            // Python has JSON's strings, lists and objects, and other words.
            return Ok(match schema.get("type") {
                Some(kind) if kind == "boolean" && schema.get("enum").is_none() && schema.get("const").is_none() => {
                    "(\"True\" | \"False\")".to_string()
                }
                _ => writer.json_rule(&self.alone(&object_of(schema))),
            });
        };
        let kind = schema.get("type").and_then(Value::as_str);
        let fields = schema.as_object().cloned().unwrap_or_default();
        match kind {
            Some("string") => {
                let all = texts_of(&fields, place)?;
                let quote = writer.mark(mark);
                Ok(match all {
                    None => format!("{quote} {}", writer.up_to(mark)),
                    Some(all) => format!("{quote} ({}) {quote}", all.join(" | ")),
                })
            }
            Some("object") => {
                let inner = self.members_in(&fields, place, syntax, ":", '}', writer)?;
                Ok(format!("\"{{\" {inner}"))
            }
            Some("array") => {
                only(&fields, &["items"], place)?;
                let items = fields
                    .get("items")
                    .ok_or_else(|| Found::new(place, "expected items beside the type array, found none".to_string()))?;
                let item = self.value(items, &format!("{place}/items"), syntax, writer)?;
                let item = writer.rule("item", &item);
                Ok(format!("\"[\" ({item} (\",\" WS? {item})*)? \"]\""))
            }
            Some("integer" | "number" | "boolean" | "null") => Ok(writer.json_rule(&self.alone(schema))),
            _ => {
                let found = schema.get("type").unwrap_or(schema);
                Err(Found::new(
                    place,
                    format!("expected a type alone, which this model's calls can have, found {found}"),
                ))
            }
        }
    }
}

/// A schema that is an object: what a truth value means, where something can stand beside it.
fn object_of(schema: &Value) -> Value {
    if schema.is_object() { schema.clone() } else { json!({ "anyOf": [schema] }) }
}

/// A schema whose strings have no mark in them, where a mark ends the value wherever it stands: of strings that may be
/// anything those without the sign that all marks begin with, and of objects the names without it.
fn without_marks(schema: &Value) -> Value {
    const PATTERN: &str = "^[^<]*$";
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter().map(without_marks).collect(),
        other => return other.clone(),
    };
    let mut fields: Map<String, Value> = fields
        .iter()
        .map(|(keyword, value)| {
            let value = match value {
                value if IS_VALUE.contains(&keyword.as_str()) => value.clone(),
                Value::Object(named) if HAS_NAMES.contains(&keyword.as_str()) => {
                    named.iter().map(|(name, schema)| (name.clone(), without_marks(schema))).collect()
                }
                value => without_marks(value),
            };
            (keyword.clone(), value)
        })
        .collect();
    let has = |fields: &Map<String, Value>, names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    let kinds = match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.clone(),
        kind => kind.into_iter().cloned().collect(),
    };
    if kinds.iter().any(|kind| kind == "string") && !has(&fields, &["pattern", "enum", "const", "format"]) {
        fields.insert("pattern".to_string(), json!(PATTERN));
    }
    if kinds.iter().any(|kind| kind == "object")
        && !has(&fields, &["patternProperties"])
        && let Some(Value::Object(others)) = fields.insert("additionalProperties".to_string(), json!(false))
    {
        fields.insert("patternProperties".to_string(), json!({ PATTERN: others }));
    }
    Value::Object(fields)
}

/// One named argument.
struct Member {
    name: String,
    place: String,
    schema: Value,
    is_required: bool,
}

/// The properties of an object that asks for nothing else.
fn members(schema: &Map<String, Value>, place: &str) -> Result<Vec<Member>, Found> {
    only(schema, &["properties", "required", "additionalProperties"], place)?;
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    if properties.len() > MEMBERS_MAX {
        let found = format!("expected at most {MEMBERS_MAX} for calls of this model, found {}", properties.len());
        return Err(Found::new(&format!("{place}/properties"), found));
    }
    if let Some(missing) = required.iter().find(|name| name.as_str().is_none_or(|name| !properties.contains_key(name)))
    {
        return Err(Found::new(&format!("{place}/required"), format!("expected names of properties, found {missing}")));
    }
    let member = |(name, schema): (String, Value)| Member {
        place: format!("{place}/properties/{name}"),
        is_required: required.iter().any(|other| other == &name),
        name,
        schema,
    };
    Ok(properties.into_iter().map(member).collect())
}

/// Refuses other keywords than these.
fn only(schema: &Map<String, Value>, keywords: &[&str], place: &str) -> Result<(), Found> {
    let is_known = |keyword: &str| ASIDE.contains(&keyword) || keywords.contains(&keyword);
    match schema.keys().find(|keyword| !is_known(keyword)) {
        Some(keyword) => {
            let found = "expected no such keyword, which this model's calls cannot be held to, found one";
            Err(Found::new(&format!("{place}/{keyword}"), found.to_string()))
        }
        None => Ok(()),
    }
}

fn is_text(schema: &Map<String, Value>) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("string")
}

/// The texts that a string may be, as grammars write them, or `None` for all.
fn texts_of(schema: &Map<String, Value>, place: &str) -> Result<Option<Vec<String>>, Found> {
    only(schema, &["enum", "const"], place)?;
    let all = match (schema.get("const"), schema.get("enum")) {
        (Some(one), _) => vec![one.clone()],
        (None, Some(Value::Array(all))) => all.clone(),
        (None, _) => return Ok(None),
    };
    let texts: Option<Vec<String>> = all.iter().map(|one| one.as_str().map(quoted)).collect();
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(Some(texts)),
        None => Err(Found::new(&format!("{place}/enum"), "expected strings, found others".to_string())),
    }
}
