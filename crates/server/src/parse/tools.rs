//! Tools of a chat: the functions, whether one must be called, and the grammar of constrained calls.
//!
//! A forced call (`required`, or a named function) is the whole answer, and its arguments match the function's schema
//! even if it is not `strict`: only a grammar guarantees that a call is generated. If calls are free, those of `strict`
//! functions match their schema, and other text is unconstrained. Choices among a subset of the tools (`allowed_tools`)
//! are not supported.

use std::sync::Arc;

use foretoken::{
    CallsWanted, Error, Grammar, GrammarSource, Json, Prompter, TextError, Tokenizer, ToolFormat, ToolFunction,
};
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// Whether calls may, must, or must not be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    None,
    Auto,
    Required,
    /// The function with this index must be called.
    Named(usize),
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// The template's input; `None` if there is no tool to call.
    pub(super) json: Option<Vec<Json>>,
    functions: Vec<ToolFunction>,
    choice: Choice,
    /// Whether an answer may have several calls.
    pub(super) parallel: bool,
}

impl Tools {
    /// Parses the fields. The size of the template's input is added to `bytes`.
    pub(super) fn parse(fields: &mut Fields, bytes: &mut usize) -> Result<Self, ApiError> {
        let raw = fields.raw("tools");
        *bytes += raw.as_ref().map_or(0, |tools| tools.get().len());
        let (json, functions) = match &raw {
            Some(raw) => parse_tools(raw.get())?,
            None => (Vec::new(), Vec::new()),
        };
        let choice = choice(fields, &functions)?;
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        // If it must not call tools, they are omitted from the prompt.
        let json = Some(json).filter(|json| !json.is_empty() && choice != Choice::None);
        Ok(Self { json, functions, choice, parallel: parallel && !matches!(choice, Choice::Named(_)) })
    }

    /// Whether and how calls are constrained.
    fn calls_wanted(&self) -> Option<CallsWanted> {
        match self.choice {
            _ if self.json.is_none() => None,
            Choice::Required | Choice::Named(_) => Some(CallsWanted::Forced),
            Choice::Auto => self.functions.iter().any(|function| function.is_strict).then_some(CallsWanted::Free),
            Choice::None => None,
        }
    }

    /// Whether an answer consists of calls only.
    pub(super) fn are_forced(&self) -> bool {
        self.calls_wanted() == Some(CallsWanted::Forced)
    }

    /// Whether the request requires constrained calls.
    pub(super) fn are_binding(&self) -> bool {
        self.calls_wanted().is_some()
    }

    /// The functions that may be called, and the index of the first.
    fn callable(&self) -> (usize, &[ToolFunction]) {
        match self.choice {
            Choice::Named(number) => (number, &self.functions[number..=number]),
            _ => (0, &self.functions),
        }
    }

    /// The grammar of an answer with constrained calls; `None` if calls are unconstrained.
    pub(super) fn grammar(&self, format: ToolFormat, prompter: &Prompter) -> Result<Option<Arc<Grammar>>, ApiError> {
        let (Some(calls_wanted), Some(tokenizer)) = (self.calls_wanted(), &prompter.tokenizer) else { return Ok(None) };
        let (_, functions) = self.callable();
        let source = format.grammar_of_calls(tokenizer, functions, calls_wanted, self.parallel).map_err(
            |(place, found)| match (place.is_empty(), self.choice) {
                (true, _) => ApiError::unsupported("tool_choice", format!("{found}; it can be required")),
                (false, Choice::Named(number)) => {
                    ApiError::unsupported(&format!("tools{}", place.replacen("[0]", &format!("[{number}]"), 1)), found)
                }
                (false, _) => ApiError::unsupported(&format!("tools{place}"), found),
            },
        )?;
        match Grammar::compile(tokenizer, &source) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(TextError::Grammar { found, .. }) => Err(self.grammar_error(format, tokenizer, calls_wanted, found)),
            Err(error) => Err(ApiError::of(&Error::from(error))),
        }
    }

    /// The error of the first function whose calls cannot be enforced: preferably that of its schema alone, which names
    /// the position in the schema.
    fn grammar_error(
        &self,
        format: ToolFormat,
        tokenizer: &Tokenizer,
        calls_wanted: CallsWanted,
        found: String,
    ) -> ApiError {
        let refused = |source: GrammarSource| match Grammar::compile(tokenizer, &source) {
            Err(TextError::Grammar { found, .. }) => Some(found),
            _ => None,
        };
        let (first, functions) = self.callable();
        for (number, function) in functions.iter().enumerate() {
            let alone = format.grammar_of_calls(tokenizer, std::slice::from_ref(function), calls_wanted, false);
            let Some(found) = alone.ok().and_then(refused) else { continue };
            let schema = function.parameters.as_ref().map(Value::to_string);
            let schema = schema.map(|schema| GrammarSource::JsonSchema { schema, flexible: true });
            let place = format!("tools[{}].function.parameters", first + number);
            return ApiError::field(&place, schema.and_then(refused).unwrap_or(found));
        }
        ApiError::field("tools", found)
    }
}

/// Tools of type `function`: the template's input, and the functions.
fn parse_tools(raw: &str) -> Result<(Vec<Json>, Vec<ToolFunction>), ApiError> {
    let seen: Vec<Value> = serde_json::from_str(raw)
        .map_err(|_| ApiError::field("tools", format!("expected a list of tools, found {}", shown(raw))))?;
    let mut functions = Vec::new();
    for (at, tool) in seen.iter().enumerate() {
        let kind = tool.get("type").and_then(Value::as_str);
        let function = tool.get("function");
        let name = function.and_then(|function| function.get("name")).and_then(Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty() && kind.is_none_or(|kind| kind == "function")) else {
            let expected = "expected an object of type function with a name, found";
            return Err(ApiError::field(&format!("tools[{at}]"), format!("{expected} {}", shown(&tool.to_string()))));
        };
        let field_value =
            |field: &str| function.and_then(|function| function.get(field)).filter(|value| !value.is_null());
        let is_strict = match field_value("strict").or_else(|| tool.get("strict")) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(other) => {
                let found = shown(&other.to_string());
                let place = format!("tools[{at}].function.strict");
                return Err(ApiError::field(&place, format!("expected true or false, found {found}")));
            }
        };
        functions.push(ToolFunction {
            name: name.to_string(),
            parameters: field_value("parameters").cloned(),
            is_strict,
        });
    }
    // Parsed again, since templates render tools in the order of their keys.
    let json = serde_json::from_str(raw)
        .map_err(|_| ApiError::field("tools", format!("expected objects, found {}", shown(raw))))?;
    Ok((json, functions))
}

/// Whether the model may or must call tools.
fn choice(fields: &mut Fields, functions: &[ToolFunction]) -> Result<Choice, ApiError> {
    let forced = |choice: Choice, found: &str| match functions.is_empty() {
        true => Err(ApiError::field("tool_choice", format!("expected tools beside it, found {found} and none"))),
        false => Ok(choice),
    };
    let value = fields.value("tool_choice")?;
    match &value {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) if choice == "auto" => Ok(Choice::Auto),
        Some(Value::String(choice)) if choice == "none" => Ok(Choice::None),
        Some(Value::String(choice)) if choice == "required" => forced(Choice::Required, "required"),
        Some(Value::Object(named)) if named.get("type").is_none_or(|kind| kind == "function") => {
            let name = named.get("function").and_then(|function| function.get("name")).or_else(|| named.get("name"));
            let name = name.and_then(Value::as_str).unwrap_or_default();
            match functions.iter().position(|function| function.name == name) {
                Some(number) => Ok(Choice::Named(number)),
                None => {
                    let expected = format!("expected a function of tools, found {:?}", shown(name));
                    Err(ApiError::field("tool_choice.function.name", expected))
                }
            }
        }
        Some(found) => {
            let expected = "expected auto, none, required or a function, found";
            Err(ApiError::field("tool_choice", format!("{expected} {}", shown(&found.to_string()))))
        }
    }
}
