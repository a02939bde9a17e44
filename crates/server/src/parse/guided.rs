//! Structured outputs: a schema, a regular expression, a grammar, or a list of choices that the answer must match.
//!
//! The fields have many names: OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`,
//! llama.cpp's `json_schema` and `grammar`, SGLang's `regex` and `ebnf`. All of them become the library's settings,
//! whose errors are attributed to the field that was sent. Schemas are always enforced, whether or not `strict` is set.
//! Structural tags are not supported.

use foretoken::settings::GuidedSettings;

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// A constraint, and the field that sets it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Guided {
    field: String,
    pub(super) settings: GuidedSettings,
}

impl Guided {
    fn new(field: &str, settings: GuidedSettings) -> Self {
        Self { field: field.to_string(), settings }
    }

    /// An error in one of the library's settings, attributed to the field that sets it.
    pub(super) fn attribute(&self, error: ApiError) -> ApiError {
        let is_guided = error.concerns(&["json_schema", "regex", "grammar", "choices"]);
        if is_guided { error.with_field(&self.field) } else { error }
    }

    /// The field that sets the constraint.
    pub(super) fn field(&self) -> &str {
        &self.field
    }
}

/// The schema of any object, for `json_object`.
const OBJECT: &str = r#"{"type": "object"}"#;

/// vLLM's options besides constraints, which have no effect here.
const IGNORED: [&str; 3] = ["disable_any_whitespace", "disable_fallback", "_backend"];

fn schema(schema: impl Into<String>) -> GuidedSettings {
    GuidedSettings { json_schema: Some(schema.into()), ..GuidedSettings::default() }
}

fn grammar(grammar: String) -> GuidedSettings {
    GuidedSettings { grammar: Some(grammar), ..GuidedSettings::default() }
}

fn regex(regex: String) -> GuidedSettings {
    GuidedSettings { regex: Some(regex), ..GuidedSettings::default() }
}

fn choices(choices: Vec<String>) -> GuidedSettings {
    GuidedSettings { choices, ..GuidedSettings::default() }
}

/// The constraint of a request, if it has one.
pub(super) fn parse(fields: &mut Fields) -> Result<Option<Guided>, ApiError> {
    let mut all: Vec<Guided> = Vec::new();
    all.extend(response_format(fields)?);
    if let Some(mut options) = fields.object("structured_outputs")? {
        let names = ["json", "regex", "choice", "grammar"].map(|name| options.name(name));
        all.extend(constraints(&mut options, ["json", "regex", "choice", "grammar"], names)?);
        if options.boolean("json_object")?.unwrap_or(false) {
            all.push(Guided::new(&options.name("json_object"), schema(OBJECT)));
        }
        // JSON is always generated without whitespace, by one implementation.
        IGNORED.iter().for_each(|name| drop(options.raw(name)));
        options.refuse_others("", "json, json_object, regex, choice or grammar alone")?;
    }
    let guided = ["guided_json", "guided_regex", "guided_choice", "guided_grammar"];
    all.extend(constraints(fields, guided, guided.map(str::to_string))?);
    drop(fields.raw("guided_decoding_backend"));
    fields.refuse_others("guided_", "guided_json, guided_regex, guided_choice or guided_grammar alone")?;
    let others = ["json_schema", "regex", "choices", "grammar"];
    all.extend(constraints(fields, others, others.map(str::to_string))?);
    if let Some(text) = fields.string("ebnf")?.filter(|text| !text.is_empty()) {
        all.push(Guided::new("ebnf", grammar(text)));
    }
    match &all[..] {
        [first, second, ..] => {
            let expected = format!("expected none beside {}, found one: an answer has one constraint", first.field);
            Err(ApiError::field(&second.field, expected))
        }
        _ => Ok(all.pop()),
    }
}

/// The constraints in these fields: a schema, an expression, a list of choices, and a grammar. Empty strings count as
/// absent; an empty list of choices is an error.
fn constraints(
    fields: &mut Fields,
    [json, expression, list, text]: [&str; 4],
    names: [String; 4],
) -> Result<Vec<Guided>, ApiError> {
    let mut all = Vec::new();
    if let Some(raw) = fields.raw(json).filter(|raw| !matches!(raw.get(), "\"\"" | "null")) {
        // vLLM accepts a schema as a string, too.
        let text = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_string());
        all.push(Guided::new(&names[0], schema(text)));
    }
    if let Some(text) = fields.string(expression)?.filter(|text| !text.is_empty()) {
        all.push(Guided::new(&names[1], regex(text)));
    }
    let is_present = fields.has(list);
    let found = fields.strings(list)?;
    if is_present && found.is_empty() {
        return Err(ApiError::field(&names[2], "expected at least one choice, found an empty list"));
    }
    if is_present {
        all.push(Guided::new(&names[2], choices(found)));
    }
    if let Some(text) = fields.string(text)?.filter(|text| !text.is_empty()) {
        all.push(Guided::new(&names[3], grammar(text)));
    }
    Ok(all)
}

/// OpenAI's `response_format`; llama.cpp's clients put the schema beside the type.
fn response_format(fields: &mut Fields) -> Result<Option<Guided>, ApiError> {
    let name = fields.name("response_format");
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    let beside = format.raw("schema");
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => {
            let text = beside.map_or_else(|| OBJECT.to_string(), |schema| schema.get().to_string());
            Ok(Some(Guided::new(&name, schema(text))))
        }
        Some("json_schema") => {
            let mut inner = format.object("json_schema")?;
            let own = inner.as_mut().and_then(|inner| inner.raw("schema"));
            let schema_field = if own.is_some() || beside.is_none() { "json_schema.schema" } else { "schema" };
            match own.or(beside) {
                Some(found) => Ok(Some(Guided::new(&format.name(schema_field), schema(found.get())))),
                None => Err(ApiError::field(&format.name(schema_field), "expected a JSON Schema, found none")),
            }
        }
        found => {
            let found = found.map_or("none".to_string(), shown);
            let expected = format!("expected text, json_object or json_schema, found {found}");
            Err(ApiError::field(&format.name("type"), expected))
        }
    }
}
