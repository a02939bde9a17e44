//! JSON Schemas: what the library is told about them, and where in a schema a complaint lies.
//!
//! The library says what is wrong and not where. A place is found by asking again: a part of a schema that is refused
//! by itself is where to look, and of its parts the first that is refused by itself, down to the innermost. References
//! go through the whole, so a part is asked about in a document that holds the whole beside it.

mod pattern;
mod strict;

use std::collections::HashSet;

use llguidance::TokenParser;
use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::complaint::{expected, of_schema};
use super::{Tables, depth};

/// The keyword with which the library is told how to write JSON. A user's would change what is promised.
const OPTIONS: &str = "x-guidance";
/// Where the whole schema lies in a document about one of its parts.
const WHOLE: &str = "x-whole";
/// Whitespace where it is flexible, as llama.cpp has it: without a bound a model may write nothing else any more.
const WHITESPACE: &str = r" |\n{1,2}[ \t]{0,20}";
/// Bytes of all documents in which is asked where a complaint lies: what follows is said of the last place that was
/// found. Each question costs what compiling its document does, and each document holds the whole schema.
const ASKED_MAX_BYTES: usize = 8 << 20;

/// The parser of a schema, or what is wrong with it, and where.
pub(super) fn compiled(tables: &Tables, schema: &str, flexible: bool) -> Result<TokenParser, String> {
    let schema: Value =
        serde_json::from_str(schema).map_err(|error| format!("expected a JSON Schema, found: {error}"))?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err(format!("expected a JSON Schema (an object), found {}", kind(&schema)));
    }
    depth::of_schema(&schema)?;
    check(&schema, "#", true)?;
    parsed(tables, &schema, flexible).map_err(|found| {
        let bytes = schema.to_string().len();
        let mut search = Search { tables, whole: &schema, bytes, bytes_left: ASKED_MAX_BYTES };
        let (place, found) = search.innermost(found);
        match strict::refusal(&found).and_then(|refusal| refusal.split_once(": ")) {
            // Where the search was given up the keyword may stand further within.
            Some((_, found)) if search.bytes_left == 0 => format!("{place}: {found}"),
            Some((keyword, found)) => format!("{place}/{keyword}: {found}"),
            None => format!("{place}: {}", expected("what can be enforced", found)),
        }
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// What the library would take another way than the standard has it.
pub(crate) fn check(schema: &Value, place: &str, is_root: bool) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    if fields.contains_key(OPTIONS) {
        return Err(format!("{place}/{OPTIONS}: expected no such keyword, found one"));
    }
    // References are read as those of the whole.
    let id = ["$id", "id"].into_iter().find(|id| !is_root && fields.get(*id).is_some_and(Value::is_string));
    if let Some(id) = id {
        return Err(format!("{place}/{id}: expected it at the root alone, found another"));
    }
    parts(fields).into_iter().try_for_each(|(at, part)| check(part, &format!("{place}{}", pointer(&at)), false))
}

/// The parser of a schema that is an object or a boolean.
fn parsed(tables: &Tables, schema: &Value, flexible: bool) -> Result<TokenParser, String> {
    super::parser(tables, GrammarWithLexer::from_json_schema(with_options(schema, flexible))).map_err(of_schema)
}

/// A schema that is an object or a boolean, with how its JSON is written.
pub(crate) fn with_options(schema: &Value, flexible: bool) -> Value {
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        // What a boolean means, where options can stand beside it.
        other => Map::from_iter([("anyOf".to_string(), json!([other]))]),
    };
    let mut options = json!({ "whitespace_flexible": flexible, "item_separator": ",", "key_separator": ":" });
    if flexible {
        options["whitespace_pattern"] = WHITESPACE.into();
    }
    schema.insert(OPTIONS.to_string(), options);
    told_strictly(&Value::Object(schema))
}

/// A schema as the library keeps to it.
pub(super) fn told_strictly(schema: &Value) -> Value {
    let mut schema = schema.clone();
    strict::make_strict(&mut schema);
    schema
}

/// A path in a schema, as references write it.
fn pointer(path: &[String]) -> String {
    path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect()
}

/// The schemas within a schema, each by its path; those that are only referred to come last.
fn parts(schema: &Map<String, Value>) -> Vec<(Vec<String>, &Value)> {
    let mut parts = Vec::new();
    for keyword in [
        "properties",
        "patternProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "prefixItems",
        "items",
        "additionalItems",
        "additionalProperties",
        "not",
        "$defs",
        "definitions",
    ] {
        let inner: Vec<(Option<String>, &Value)> = match schema.get(keyword) {
            None => continue,
            Some(Value::Object(fields)) if keyword.ends_with("roperties") || keyword.contains("def") => {
                let of_names = keyword != "additionalProperties";
                let named = fields.iter().map(|(name, part)| (Some(name.clone()), part));
                if of_names { named.collect() } else { vec![(None, &schema[keyword])] }
            }
            Some(Value::Array(items)) => {
                items.iter().enumerate().map(|(i, part)| (Some(i.to_string()), part)).collect()
            }
            Some(part) => vec![(None, part)],
        };
        parts.extend(inner.into_iter().map(|(name, part)| {
            let path = std::iter::once(keyword.to_string()).chain(name);
            (path.collect(), part)
        }));
    }
    parts
}

/// A search for the place of a complaint.
struct Search<'a> {
    tables: &'a Tables,
    whole: &'a Value,
    /// Length of the whole as a text.
    bytes: usize,
    /// Of documents that may still be asked about.
    bytes_left: usize,
}

impl<'a> Search<'a> {
    /// The innermost place that is refused by itself, and why, with what was said about the whole.
    fn innermost(&mut self, mut found: String) -> (String, String) {
        let (mut path, mut schema): (Vec<String>, &Value) = (Vec::new(), self.whole);
        let (references, mut followed) = (references(self.whole), Vec::new());
        while let Value::Object(fields) = schema {
            let used =
                |at: &[String]| !at[0].contains("def") || references.contains(format!("#/{}", at.join("/")).as_str());
            let is_within = self.refused(&shell(fields)).is_none();
            let within = parts(fields)
                .into_iter()
                .filter(|(at, _)| is_within && used(at))
                .find_map(|(at, part)| self.refused(part).map(|found| ([path.as_slice(), &at].concat(), part, found)));
            let Some(inner) = within.or_else(|| self.referred(fields, &mut followed)) else { break };
            (path, schema, found) = inner;
        }
        (format!("#{}", pointer(&path)), found)
    }

    /// What a schema refers to, if that is refused by itself and was not followed before.
    fn referred(
        &mut self,
        schema: &Map<String, Value>,
        followed: &mut Vec<String>,
    ) -> Option<(Vec<String>, &'a Value, String)> {
        let reference = schema.get("$ref")?.as_str()?.strip_prefix("#/")?.to_string();
        if followed.contains(&reference) {
            return None;
        }
        let part = self.whole.pointer(&format!("/{reference}"))?;
        let path: Vec<String> = reference.split('/').map(str::to_string).collect();
        let found = self.refused(part)?;
        followed.push(reference);
        Some((path, part, found))
    }

    /// Why a part is refused by itself, if it is, in a document that holds the whole beside it.
    fn refused(&mut self, part: &Value) -> Option<String> {
        let bytes = self.bytes + part.to_string().len();
        if bytes > self.bytes_left {
            self.bytes_left = 0;
            return None;
        }
        self.bytes_left -= bytes;
        let (mut part, mut whole) = (part.clone(), self.whole.clone());
        refer(&mut part);
        refer(&mut whole);
        let mut document = match part {
            Value::Object(_) => part,
            other => json!({ "anyOf": [other] }),
        };
        // Which draft it is of is said of the whole.
        if let Some(draft) = self.whole.get("$schema") {
            document["$schema"] = draft.clone();
        }
        document[WHOLE] = whole;
        let found = parsed(self.tables, &document, false).err()?;
        Some(found.replace(&format!("#/{WHOLE}"), "#"))
    }
}

/// What is referred to in a schema.
fn references(schema: &Value) -> HashSet<&str> {
    let (mut found, mut open) = (HashSet::new(), vec![schema]);
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    found
}

/// A schema whose parts may be anything.
fn shell(schema: &Map<String, Value>) -> Value {
    let mut shell = schema.clone();
    for (at, part) in parts(schema) {
        let mut place = &mut shell[at[0].as_str()];
        if let Some(name) = at.get(1) {
            place = match place {
                Value::Array(items) => &mut items[name.parse::<usize>().expect("a number of parts")],
                fields => &mut fields[name.as_str()],
            };
        }
        // "not" is refused whatever stands in it, and combinations of nothing are no combinations.
        if at[0] != "not" && part.is_object() {
            *place = Value::Bool(true);
        }
    }
    if let Some(alternatives) = shell.get_mut("oneOf") {
        *alternatives = json!([true]);
    }
    Value::Object(shell)
}

/// Makes references into the whole schema those into where it lies.
fn refer(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match value {
            Value::String(reference) if name == "$ref" && reference.starts_with('#') => {
                *reference = format!("#/{WHOLE}{}", reference[1..].trim_end_matches('/'));
            }
            value => refer(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(refer),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
