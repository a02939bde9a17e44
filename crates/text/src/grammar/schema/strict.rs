//! Makes a schema strict: keywords that the library would ignore are refused, and formats that it takes loosely become
//! patterns.
//!
//! Every object of a document that could be a schema is processed, even if only a reference leads to it. The values of
//! `const`, `enum`, `default` and `examples` are data.

use serde_json::{Map, Value};

use super::pattern::translated;

/// Keywords whose value has a schema for each name.
const SCHEMAS_BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose value is data, not a schema.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords with numbers, which the library handles as floats.
const NUMBERS: [&str; 7] =
    ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Assertions of some draft that the library would ignore in another.
const ASSERTIONS: [&str; 11] = [
    "if",
    "not",
    "contains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$recursiveRef",
    "$dynamicRef",
];

/// Prefix of the invalid types that make the library refuse a schema.
const REFUSED: &str = "refused/";

/// Makes a document strict. A schema that would be ignored or not treated as the standard does gets an invalid type:
/// the library refuses it where it reaches it, and [`refusal`] extracts the message.
pub(super) fn make_strict(document: &mut Value) {
    let draft = document.get("$schema").and_then(Value::as_str).unwrap_or_default().to_string();
    StrictPass { draft: &draft }.value(document, false);
}

/// The message of such a type in an error of the library: a keyword, and what was expected.
pub(super) fn refusal(error: &str) -> Option<&str> {
    error.strip_prefix("Invalid type: ")?.strip_prefix(REFUSED)
}

struct StrictPass<'a> {
    /// The value of the document's `$schema`.
    draft: &'a str,
}

impl StrictPass<'_> {
    fn value(&self, value: &mut Value, is_names: bool) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields.iter_mut() {
                    if is_names || !DATA.contains(&name.as_str()) {
                        self.value(value, !is_names && SCHEMAS_BY_NAME.contains(&name.as_str()));
                    }
                }
                if !is_names && let Err(refusal) = self.schema(fields) {
                    ASSERTIONS.into_iter().for_each(|name| drop(fields.shift_remove(name)));
                    fields.insert("type".into(), format!("{REFUSED}{refusal}").into());
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item, false)),
            _ => {}
        }
    }

    fn schema(&self, fields: &mut Map<String, Value>) -> Result<(), String> {
        // A value of `false` asserts nothing.
        for name in ["uniqueItems", "exclusiveMinimum", "exclusiveMaximum"] {
            if fields.get(name) == Some(&Value::Bool(false)) {
                fields.shift_remove(name);
            }
        }
        self.check_keywords(fields)?;
        if let Some(name) = NUMBERS.into_iter().find(|name| fields.get(*name).is_some_and(|value| !is_exact(value))) {
            return Err(format!("{name}: expected whole numbers up to 2^53, found a larger one"));
        }
        let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false))
            && !fields.contains_key("patternProperties");
        // A property that is listed twice counts once for readers.
        if !is_closed && fields.get("minProperties").and_then(Value::as_u64).is_some_and(|least| least > required + 1) {
            return Err(format!(
                "minProperties: expected at most one more than are required, found {}",
                fields["minProperties"]
            ));
        }
        if let Some(Value::String(pattern)) = fields.get_mut("pattern") {
            *pattern = translated(pattern).map_err(|error| format!("pattern: {error}"))?;
        }
        if let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") {
            let mut strict = Map::new();
            for (pattern, schema) in std::mem::take(patterns) {
                let name = translated(&pattern).map_err(|error| format!("patternProperties/{pattern}: {error}"))?;
                if strict.insert(name, schema).is_some() {
                    return Err(format!("patternProperties/{pattern}: expected one of this meaning, found another"));
                }
            }
            *patterns = strict;
        }
        format(fields)
    }

    /// Refuses keywords that the library would ignore.
    fn check_keywords(&self, fields: &Map<String, Value>) -> Result<(), String> {
        let is_old = ["draft-04", "draft-06", "draft-07", "2019-09"].iter().any(|draft| self.draft.contains(draft));
        if let Some(name) = ASSERTIONS.into_iter().find(|name| asserts(fields, name)) {
            return Err(format!("{name}: expected what can be enforced, found {name}"));
        }
        let is_list = fields.get("items").is_some_and(Value::is_array) || fields.contains_key("additionalItems");
        if fields.contains_key("prefixItems") && (is_old || is_list) {
            return Err("prefixItems: expected it in draft 2020-12, with items as a schema, found another".to_string());
        }
        // In later drafts they are annotations.
        let is_seven = self.draft.contains("draft-06") || self.draft.contains("draft-07");
        let content = ["contentEncoding", "contentMediaType"].into_iter().find(|name| fields.contains_key(*name));
        if let Some(name) = content.filter(|_| is_seven) {
            return Err(format!("{name}: expected what can be enforced, found what these drafts ask for"));
        }
        match fields.get("$ref").and_then(Value::as_str) {
            Some(reference) if reference.contains(['~', '%']) => {
                Err(format!("$ref: expected names without escapes, found {reference}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a schema has a keyword with a value that asserts something.
fn asserts(fields: &Map<String, Value>, name: &str) -> bool {
    match fields.get(name) {
        None => false,
        // Only schemas: other values mean that the object is something else.
        Some(value) => value.is_object() || value.is_boolean() || value.is_string() && name.starts_with('$'),
    }
}

/// Whether all integers are exact as floats.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64() || number.as_i64().is_some_and(|number| number.unsigned_abs() <= 1 << 53)
        }
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(fields) => fields.values().all(is_exact),
        _ => true,
    }
}

const TIME: &str = concat!(
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00))",
);
const DATE: &str = concat!(
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// Labels of host names, without hyphens in the third and fourth place, which mark encoded names.
const LABEL: &str = concat!(
    r"[0-9A-Za-z](?:[0-9A-Za-z]|[0-9A-Za-z-][0-9A-Za-z]|[0-9A-Za-z-]{2}[0-9A-Za-z]",
    r"|[0-9A-Za-z-](?:[0-9A-Za-z][0-9A-Za-z-]|-[0-9A-Za-z])[0-9A-Za-z-]{0,58}[0-9A-Za-z])?",
);
const HOST_MAX: u64 = 253;

/// Replaces formats that the library takes more loosely than their standards by patterns, and refuses "unknown", which
/// is the library's own.
fn format(fields: &mut Map<String, Value>) -> Result<(), String> {
    let Some(Value::String(format)) = fields.get("format") else { return Ok(()) };
    let pattern = match format.as_str() {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}[tT]{TIME}$"),
        "hostname" => format!(r"^{LABEL}(?:\.{LABEL})*$"),
        "unknown" => return Err("format: expected one that can be enforced, found \"unknown\"".to_string()),
        _ => return Ok(()),
    };
    let is_host = format == "hostname";
    fields.shift_remove("format");
    if is_host {
        let most = fields.get("maxLength").and_then(Value::as_u64).unwrap_or(HOST_MAX);
        fields.insert("maxLength".into(), most.min(HOST_MAX).into());
    }
    // If there is a pattern already, both have to match.
    let pattern = Value::from(pattern);
    if !fields.contains_key("pattern") {
        fields.insert("pattern".into(), pattern);
    } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
        all.push(Value::Object(Map::from_iter([("pattern".to_string(), pattern)])));
    }
    Ok(())
}
