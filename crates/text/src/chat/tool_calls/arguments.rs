//! Grammars of a function's arguments: as JSON of its schema, between delimiters, or as a literal.
//!
//! For JSON arguments the schema is used as it is. If each argument is written separately, the schema has to be an
//! object of named properties, which are written in its order; a value is JSON of its property's schema, except that
//! strings are written unquoted between delimiters, so only `enum` and `const` can constrain them. Gemma writes lists
//! and objects in its own notation, so their schemas are translated recursively.

use serde_json::{Map, Value, json};

use super::literal::{Syntax, is_name};
use super::writing::{ToolFunction, Writer, quoted};
use crate::grammar::check_schema;

/// A location in the list of tools, and what was expected and found there.
pub(super) type Problem = (String, String);

/// A problem in the schema of a function.
#[derive(Debug)]
pub(super) struct SchemaProblem {
    place: String,
    found: String,
}

/// Keywords of schemas that need no rule of their own.
const NEUTRAL_KEYWORDS: [&str; 11] = [
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
/// Keywords whose values are data, not schemas.
const DATA_KEYWORDS: [&str; 4] = ["enum", "const", "default", "examples"];
/// Keywords whose value has a schema for each name.
const NAMED_SCHEMA_KEYWORDS: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];
/// Maximum number of arguments that are written separately, since each needs rules for what may follow it.
const MEMBERS_MAX: usize = 256;
/// The key prefix of functions' schemas in a document that refers to them.
const SCHEMA_KEY: &str = "x-tool";

impl SchemaProblem {
    fn new(place: &str, found: String) -> Self {
        Self { place: place.to_string(), found }
    }

    /// The problem of function `number`.
    pub(super) fn in_function(self, number: usize) -> Problem {
        (format!("[{number}].function.parameters"), format!("{}: {}", self.place, self.found))
    }
}

/// The arguments of one function.
#[derive(Clone)]
pub(super) struct Arguments {
    schema: Map<String, Value>,
    /// The key of the schema in a document.
    name: String,
    has_references: bool,
}

impl Arguments {
    /// The arguments of function `number`. Unless `is_enforced` they may be any object.
    pub(super) fn new(function: &ToolFunction, number: usize, is_enforced: bool) -> Result<Self, SchemaProblem> {
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let mut schema = match &function.parameters {
            None => none.as_object().cloned().unwrap_or_default(),
            Some(Value::Object(schema)) if schema.is_empty() => none.as_object().cloned().unwrap_or_default(),
            Some(Value::Object(schema)) => schema.clone(),
            Some(other) => return Err(SchemaProblem::new("#", format!("expected an object, found {other}"))),
        };
        check_schema(&Value::Object(schema.clone()), "#", true).map_err(|found| match found.split_once(": ") {
            Some((place, found)) => SchemaProblem::new(place, found.to_string()),
            None => SchemaProblem::new("#", found),
        })?;
        match schema.get("type") {
            Some(kind) if kind != "object" => {
                return Err(SchemaProblem::new("#/type", format!("expected \"object\", found {kind}")));
            }
            Some(_) => {}
            None => drop(schema.insert("type".to_string(), json!("object"))),
        }
        let has_references = Value::Object(schema.clone()).to_string().contains("\"$ref\"");
        if !is_enforced && schema.get("properties").is_none_or(|all| all.as_object().is_none_or(|all| !all.is_empty()))
        {
            schema = json!({ "type": "object" }).as_object().cloned().unwrap_or_default();
        }
        Ok(Self { schema, name: format!("{SCHEMA_KEY}-{number}"), has_references })
    }

    /// The schema, in a document that has its [`Arguments::definitions`].
    pub(super) fn schema(&self) -> Value {
        self.within(&Value::Object(self.schema.clone()))
    }

    /// The definition that a document with a part of the schema needs, if the schema has references.
    pub(super) fn definitions(&self) -> Option<(String, Value)> {
        self.has_references.then(|| (self.name.clone(), self.schema()))
    }

    /// A document of all arguments.
    pub(super) fn document(&self) -> Value {
        self.as_document(&Value::Object(self.schema.clone()))
    }

    /// A document of a part of the schema.
    fn as_document(&self, schema: &Value) -> Value {
        match self.within(schema) {
            Value::Object(mut fields) => {
                fields.extend(self.definitions());
                Value::Object(fields)
            }
            other => other,
        }
    }

    /// A part of the schema with its references redirected to the whole schema in the document.
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
                value if DATA_KEYWORDS.contains(&keyword.as_str()) => value.clone(),
                Value::Object(named) if NAMED_SCHEMA_KEYWORDS.contains(&keyword.as_str()) => {
                    named.iter().map(|(name, schema)| (name.clone(), self.within(schema))).collect()
                }
                value => self.within(value),
            };
            (keyword.clone(), value)
        });
        Value::Object(moved.collect())
    }

    /// Whether no required argument follows the first `passed` ones.
    pub(super) fn may_end(&self, passed: usize) -> bool {
        members(&self.schema, "#").is_ok_and(|members| !members.iter().skip(passed).any(|member| member.is_required))
    }

    /// The indices and names of the arguments that may follow the first `passed` ones.
    pub(super) fn next(&self, passed: usize) -> Result<Vec<(usize, String)>, SchemaProblem> {
        let members = members(&self.schema, "#")?;
        let wanted = members.iter().skip(passed).position(|member| member.is_required);
        let last = wanted.map_or(members.len(), |wanted| passed + wanted + 1);
        let all = members.into_iter().enumerate().take(last).skip(passed);
        Ok(all.map(|(number, member)| (number, member.name)).collect())
    }

    /// The value of an argument between delimiters, and the closing delimiter. With `has_lines` the value is on its own
    /// lines.
    pub(super) fn between(
        &self,
        number: usize,
        has_lines: bool,
        end: &str,
        writer: &mut Writer<'_>,
    ) -> Result<String, SchemaProblem> {
        let member = members(&self.schema, "#")?.swap_remove(number);
        let line = if has_lines { "\"\\n\" " } else { "" };
        let line_end = if has_lines { " \"\\n\"" } else { "" };
        if let Some(fields) = member.schema.as_object().filter(|fields| is_text(fields)) {
            return Ok(match texts_of(fields, &member.place)? {
                None => format!("{line}{}", writer.up_to(end)),
                Some(all) => format!("{line}({}){line_end} {}", all.join(" | "), writer.delimiter(end)),
            });
        }
        const KINDS: [&str; 7] = ["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"];
        if !KINDS.iter().any(|kind| member.schema.get(kind).is_some()) {
            let found = "expected a type, without which a value between delimiters may end anywhere, found none";
            return Err(SchemaProblem::new(&member.place, found.to_string()));
        }
        let value = without_delimiters(&self.as_document(&object_of(&member.schema)));
        Ok(format!("{line}{}{line_end} {}", writer.json_rule(&value), writer.delimiter(end)))
    }

    /// All arguments as a literal, with the closing bracket.
    pub(super) fn literal(&self, syntax: &Syntax, writer: &mut Writer<'_>) -> Result<String, SchemaProblem> {
        let separator = char::from(syntax.separator).to_string();
        self.members_in(&self.schema, "#", syntax, &separator, char::from(syntax.close), writer)
    }

    /// Names and values, with the closing bracket. Rules are built from the last member: `first` and `after_member` are
    /// the rest of the list without and with a member before it.
    fn members_in(
        &self,
        schema: &Map<String, Value>,
        place: &str,
        syntax: &Syntax,
        separator: &str,
        close: char,
        writer: &mut Writer<'_>,
    ) -> Result<String, SchemaProblem> {
        let members = members(schema, place)?;
        let end = format!("WS? {}", quoted(&close.to_string()));
        let (mut first, mut after_member) = (end.clone(), end);
        for member in members.iter().rev() {
            let name = &member.name;
            if !is_name(syntax, name) {
                let found = format!("expected a name that the model's calls can have, found {name:?}");
                return Err(SchemaProblem::new(&member.place, found));
            }
            let value = self.value(&member.schema, &member.place, syntax, writer)?;
            let own = format!("{} {} WS? {value} {after_member}", quoted(name), quoted(separator));
            let (then, after) = match member.is_required {
                true => (own.clone(), format!("\",\" WS? {own}")),
                false => (format!("{own} | {first}"), format!("\",\" WS? {own} | {after_member}")),
            };
            first = writer.rule("members", &then);
            after_member = writer.rule("members", &after);
        }
        Ok(first)
    }

    /// One value of a literal.
    fn value(
        &self,
        schema: &Value,
        place: &str,
        syntax: &Syntax,
        writer: &mut Writer<'_>,
    ) -> Result<String, SchemaProblem> {
        let Some(delimiter) = syntax.quote.and_then(|delimiter| std::str::from_utf8(delimiter).ok()) else {
            // Python has JSON's strings, lists and objects, but other keywords.
            return Ok(match schema.get("type") {
                Some(kind) if kind == "boolean" && schema.get("enum").is_none() && schema.get("const").is_none() => {
                    "(\"True\" | \"False\")".to_string()
                }
                _ => writer.json_rule(&self.as_document(&object_of(schema))),
            });
        };
        let kind = schema.get("type").and_then(Value::as_str);
        let fields = schema.as_object().cloned().unwrap_or_default();
        match kind {
            Some("string") => {
                let all = texts_of(&fields, place)?;
                let quote = writer.delimiter(delimiter);
                Ok(match all {
                    None => format!("{quote} {}", writer.up_to(delimiter)),
                    Some(all) => format!("{quote} ({}) {quote}", all.join(" | ")),
                })
            }
            Some("object") => {
                let inner = self.members_in(&fields, place, syntax, ":", '}', writer)?;
                Ok(format!("\"{{\" {inner}"))
            }
            Some("array") => {
                allow_only(&fields, &["items"], place)?;
                let items = fields.get("items").ok_or_else(|| {
                    SchemaProblem::new(place, "expected items beside the type array, found none".to_string())
                })?;
                let item = self.value(items, &format!("{place}/items"), syntax, writer)?;
                let item = writer.rule("item", &item);
                Ok(format!("\"[\" ({item} (\",\" WS? {item})*)? \"]\""))
            }
            Some("integer" | "number" | "boolean" | "null") => Ok(writer.json_rule(&self.as_document(schema))),
            _ => {
                let found = schema.get("type").unwrap_or(schema);
                Err(SchemaProblem::new(
                    place,
                    format!("expected a type alone, which this model's calls can have, found {found}"),
                ))
            }
        }
    }
}

/// A schema as an object, so that keywords can be added to a boolean.
fn object_of(schema: &Value) -> Value {
    if schema.is_object() { schema.clone() } else { json!({ "anyOf": [schema] }) }
}

/// A schema whose strings contain no delimiter, since a delimiter would end the value: strings without other
/// constraints, and names of objects, may not have `<`, with which all delimiters begin.
fn without_delimiters(schema: &Value) -> Value {
    const PATTERN: &str = "^[^<]*$";
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter().map(without_delimiters).collect(),
        other => return other.clone(),
    };
    let mut fields: Map<String, Value> = fields
        .iter()
        .map(|(keyword, value)| {
            let value = match value {
                value if DATA_KEYWORDS.contains(&keyword.as_str()) => value.clone(),
                Value::Object(named) if NAMED_SCHEMA_KEYWORDS.contains(&keyword.as_str()) => {
                    named.iter().map(|(name, schema)| (name.clone(), without_delimiters(schema))).collect()
                }
                value => without_delimiters(value),
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

/// The properties of an object schema; an error if it has other keywords.
fn members(schema: &Map<String, Value>, place: &str) -> Result<Vec<Member>, SchemaProblem> {
    allow_only(schema, &["properties", "required", "additionalProperties"], place)?;
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    if properties.len() > MEMBERS_MAX {
        let found = format!("expected at most {MEMBERS_MAX} for calls of this model, found {}", properties.len());
        return Err(SchemaProblem::new(&format!("{place}/properties"), found));
    }
    if let Some(missing) = required.iter().find(|name| name.as_str().is_none_or(|name| !properties.contains_key(name)))
    {
        return Err(SchemaProblem::new(
            &format!("{place}/required"),
            format!("expected names of properties, found {missing}"),
        ));
    }
    let member = |(name, schema): (String, Value)| Member {
        place: format!("{place}/properties/{name}"),
        is_required: required.iter().any(|other| other == &name),
        name,
        schema,
    };
    Ok(properties.into_iter().map(member).collect())
}

/// Refuses keywords other than these.
fn allow_only(schema: &Map<String, Value>, keywords: &[&str], place: &str) -> Result<(), SchemaProblem> {
    let is_known = |keyword: &str| NEUTRAL_KEYWORDS.contains(&keyword) || keywords.contains(&keyword);
    match schema.keys().find(|keyword| !is_known(keyword)) {
        Some(keyword) => {
            let found = "expected no such keyword, which cannot be enforced in this model's calls, found one";
            Err(SchemaProblem::new(&format!("{place}/{keyword}"), found.to_string()))
        }
        None => Ok(()),
    }
}

fn is_text(schema: &Map<String, Value>) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("string")
}

/// The texts of `enum` or `const`, quoted for a grammar, or `None` if any text is allowed.
fn texts_of(schema: &Map<String, Value>, place: &str) -> Result<Option<Vec<String>>, SchemaProblem> {
    allow_only(schema, &["enum", "const"], place)?;
    let all = match (schema.get("const"), schema.get("enum")) {
        (Some(one), _) => vec![one.clone()],
        (None, Some(Value::Array(all))) => all.clone(),
        (None, _) => return Ok(None),
    };
    let texts: Option<Vec<String>> = all.iter().map(|one| one.as_str().map(quoted)).collect();
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(Some(texts)),
        None => Err(SchemaProblem::new(&format!("{place}/enum"), "expected strings, found others".to_string())),
    }
}
