//! JSON Schemas: how they are passed to the library, and the location of an error in a schema.
//!
//! The library's errors have no location. It is found by compiling parts: the first part of the schema that is refused
//! by itself, and the first of its parts, down to the innermost. References may point anywhere, so a part is compiled
//! in a document that also has the whole schema.

mod pattern;
mod strict;

use std::collections::HashSet;

use llguidance::TokenParser;
use llguidance::api::GrammarWithLexer;
use serde_json::{Map, Value, json};

use super::library_errors::{expected, without_pattern_location};
use super::{Tables, depth};

/// The keyword of the library's options for JSON. Users may not set it, since it would change what is enforced.
const OPTIONS: &str = "x-guidance";
/// The key of the whole schema in a document for one of its parts.
const WHOLE: &str = "x-whole";
/// Flexible whitespace, as in llama.cpp: without a limit a model may write whitespace forever.
const WHITESPACE: &str = r" |\n{1,2}[ \t]{0,20}";
/// Total bytes of the documents that are compiled to locate an error; beyond it the last location found is reported.
/// Each attempt compiles a document that has the whole schema.
const SEARCH_MAX_BYTES: usize = 8 << 20;

/// The parser of a schema, or an error with its location.
pub(super) fn compiled(tables: &Tables, schema: &str, flexible: bool) -> Result<TokenParser, String> {
    let schema: Value =
        serde_json::from_str(schema).map_err(|error| format!("expected a JSON Schema, found: {error}"))?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err(format!("expected a JSON Schema (an object), found {}", type_name(&schema)));
    }
    depth::check_schema(&schema)?;
    check(&schema, "#", true)?;
    parser_of(tables, &schema, flexible).map_err(|found| {
        let bytes = schema.to_string().len();
        let mut search = Search { tables, whole: &schema, bytes, bytes_left: SEARCH_MAX_BYTES };
        let (place, found) = search.innermost_refused(found);
        match strict::refusal(&found).and_then(|refusal| refusal.split_once(": ")) {
            // If the search was cut short the keyword may be further within.
            Some((_, found)) if search.bytes_left == 0 => format!("{place}: {found}"),
            Some((keyword, found)) => format!("{place}/{keyword}: {found}"),
            None => format!("{place}: {}", expected("what can be enforced", found)),
        }
    })
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Refuses keywords that the library would not treat as the standard does.
pub(crate) fn check(schema: &Value, place: &str, is_root: bool) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    if fields.contains_key(OPTIONS) {
        return Err(format!("{place}/{OPTIONS}: expected no such keyword, found one"));
    }
    // References are resolved from the root.
    let id = ["$id", "id"].into_iter().find(|id| !is_root && fields.get(*id).is_some_and(Value::is_string));
    if let Some(id) = id {
        return Err(format!("{place}/{id}: expected it at the root alone, found another"));
    }
    parts(fields).into_iter().try_for_each(|(at, part)| check(part, &format!("{place}{}", pointer(&at)), false))
}

/// The parser of a schema that is an object or a boolean.
fn parser_of(tables: &Tables, schema: &Value, flexible: bool) -> Result<TokenParser, String> {
    super::parser(tables, GrammarWithLexer::from_json_schema(with_options(schema, flexible)))
        .map_err(without_pattern_location)
}

/// A schema (an object or a boolean) with the library's options.
pub(crate) fn with_options(schema: &Value, flexible: bool) -> Value {
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        // A boolean as an object, so that options can be added.
        other => Map::from_iter([("anyOf".to_string(), json!([other]))]),
    };
    let mut options = json!({ "whitespace_flexible": flexible, "item_separator": ",", "key_separator": ":" });
    if flexible {
        options["whitespace_pattern"] = WHITESPACE.into();
    }
    schema.insert(OPTIONS.to_string(), options);
    strict_schema(&Value::Object(schema))
}

/// A schema that the library enforces fully.
pub(super) fn strict_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    strict::make_strict(&mut schema);
    schema
}

/// A path in a schema as a JSON pointer.
fn pointer(path: &[String]) -> String {
    path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect()
}

/// The schemas within a schema, each with its path; definitions come last.
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

/// A search for the location of an error.
struct Search<'a> {
    tables: &'a Tables,
    whole: &'a Value,
    /// Length of the whole schema.
    bytes: usize,
    /// Remaining bytes of documents that may be compiled.
    bytes_left: usize,
}

impl<'a> Search<'a> {
    /// The innermost part that is refused by itself, and why. `found` is the error of the whole schema.
    fn innermost_refused(&mut self, mut found: String) -> (String, String) {
        let (mut path, mut schema): (Vec<String>, &Value) = (Vec::new(), self.whole);
        let (references, mut followed) = (references(self.whole), Vec::new());
        while let Value::Object(fields) = schema {
            let used =
                |at: &[String]| !at[0].contains("def") || references.contains(format!("#/{}", at.join("/")).as_str());
            let is_within = self.refused(&without_parts(fields)).is_none();
            let within = parts(fields)
                .into_iter()
                .filter(|(at, _)| is_within && used(at))
                .find_map(|(at, part)| self.refused(part).map(|found| ([path.as_slice(), &at].concat(), part, found)));
            let Some(inner) = within.or_else(|| self.refused_target(fields, &mut followed)) else { break };
            (path, schema, found) = inner;
        }
        (format!("#{}", pointer(&path)), found)
    }

    /// The target of a schema's reference, if that is refused by itself and was not followed before.
    fn refused_target(
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

    /// Why a part is refused by itself, if it is, in a document that also has the whole schema.
    fn refused(&mut self, part: &Value) -> Option<String> {
        let bytes = self.bytes + part.to_string().len();
        if bytes > self.bytes_left {
            self.bytes_left = 0;
            return None;
        }
        self.bytes_left -= bytes;
        let (mut part, mut whole) = (part.clone(), self.whole.clone());
        redirect_references(&mut part);
        redirect_references(&mut whole);
        let mut document = match part {
            Value::Object(_) => part,
            other => json!({ "anyOf": [other] }),
        };
        // The whole schema names its draft.
        if let Some(draft) = self.whole.get("$schema") {
            document["$schema"] = draft.clone();
        }
        document[WHOLE] = whole;
        let found = parser_of(self.tables, &document, false).err()?;
        Some(found.replace(&format!("#/{WHOLE}"), "#"))
    }
}

/// The references in a schema.
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

/// A schema whose parts are all `true`.
fn without_parts(schema: &Map<String, Value>) -> Value {
    let mut without_parts = schema.clone();
    for (at, part) in parts(schema) {
        let mut place = &mut without_parts[at[0].as_str()];
        if let Some(name) = at.get(1) {
            place = match place {
                Value::Array(items) => &mut items[name.parse::<usize>().expect("a number of parts")],
                fields => &mut fields[name.as_str()],
            };
        }
        // "not" is refused whatever it has.
        if at[0] != "not" && part.is_object() {
            *place = Value::Bool(true);
        }
    }
    if let Some(alternatives) = without_parts.get_mut("oneOf") {
        *alternatives = json!([true]);
    }
    Value::Object(without_parts)
}

/// Redirects references to the whole schema to its place in the document.
fn redirect_references(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match value {
            Value::String(reference) if name == "$ref" && reference.starts_with('#') => {
                *reference = format!("#/{WHOLE}{}", reference[1..].trim_end_matches('/'));
            }
            value => redirect_references(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(redirect_references),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
