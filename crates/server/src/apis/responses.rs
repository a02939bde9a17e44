//! OpenAI's `/v1/responses`, stateless: each request has its whole conversation.
//!
//! Items are translated to the messages of a chat; consecutive reasoning, texts and calls of the model are one message.
//! Stored responses, background processing and OpenAI's own tools are refused by name. Images and files, encrypted
//! reasoning, and summaries of reasoning are not supported.

mod format;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::turns::{Function, Tool, Turns, texts};
use super::{GenerationRequest, refuse_names, require_one_answer, with_api_names};
use crate::apis;
use crate::app::App;
use crate::error::{ApiError, shown};
use crate::fields::{Fields, READABLE};
use crate::law::decimal;
use format::ResponsesFormat;

/// Fields of OpenAI's chats that have another name here.
const RENAMED_FIELDS: [(&str, &str); 8] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("n_predict", "max_output_tokens"),
    ("max_new_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("logprobs", "include"),
];

/// The chats' names in errors, and the names here.
const ERROR_NAMES: [(&str, &str); 5] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("logprobs", "include"),
    (".function.parameters", ".parameters"),
    (".function.name", ".name"),
];

/// Unsupported fields, the values that turn them off, and the reason.
const UNSUPPORTED: [(&str, &[&str], &str); 5] = [
    ("previous_response_id", &[], "nothing is stored; send the conversation in input"),
    ("conversation", &[], "nothing is stored; send the conversation in input"),
    ("background", &["false"], "a response is sent in the request's connection"),
    ("prompt", &[], "there are no stored prompts; use instructions and input"),
    ("truncation", &["\"disabled\""], "a conversation is not truncated"),
];

/// Fields without effect on answers here.
const IGNORED: [&str; 2] = ["max_tool_calls", "prompt_cache_options"];

/// The supported value of `include`.
const LOG_PROBABILITIES: &str = "message.output_text.logprobs";

/// `/v1/responses`.
pub(crate) fn create(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationRequest, ApiError> {
    refuse_names(fields, &RENAMED_FIELDS)?;
    for (name, off_values, why) in UNSUPPORTED {
        if let Some(found) = fields.raw(name).filter(|found| !off_values.contains(&found.get())) {
            let expected = format!("expected none, found {}: {why}", shown(found.get()));
            return Err(ApiError::unsupported(name, expected));
        }
    }
    IGNORED.iter().for_each(|name| drop(fields.raw(name)));
    let mut echo = echo(fields)?;
    conversation(fields)?;
    if let Some(all) = fields.objects("tools")? {
        let tools: Vec<Tool> = all.into_iter().map(tool).collect::<Result<_, _>>()?;
        fields.insert("tools", "tools", &tools)?;
    }
    if let Some(effort) = fields.object("reasoning")?.map(|mut reasoning| reasoning.string("effort")).transpose()? {
        fields.insert("reasoning_effort", "reasoning.effort", &effort)?;
    }
    text_format(fields)?;
    log_probabilities(fields)?;
    fields.rename("max_output_tokens", "max_tokens")?;
    let mut generation =
        apis::parse(true, app, key, fields, None).map_err(|error| with_api_names(error, &ERROR_NAMES))?;
    require_one_answer(&generation)?;
    let law = &generation.requests[0].sampling;
    for (name, number) in [("temperature", law.temperature), ("top_p", law.top_p)] {
        echo.insert(name.to_string(), decimal(number));
    }
    generation.format = Some(Box::new(ResponsesFormat::new(echo, law.end_tokens.clone())));
    Ok(generation)
}

/// The request's fields that a response repeats, with their defaults.
fn echo(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let repeated = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("user", Value::Null),
    ];
    let mut echo = Map::new();
    for (name, default) in repeated {
        let value = fields.peek(name)?.unwrap_or(default);
        echo.insert(name.to_string(), value);
    }
    let always = [
        ("background", json!(false)),
        ("previous_response_id", Value::Null),
        ("service_tier", json!("default")),
        ("store", json!(false)),
        ("truncation", json!("disabled")),
    ];
    echo.extend(always.map(|(name, value)| (name.to_string(), value)));
    Ok(echo)
}

/// Translates instructions and input.
fn conversation(fields: &mut Fields) -> Result<(), ApiError> {
    let mut turns = Turns::default();
    if let Some(instructions) = fields.string("instructions")? {
        turns.continue_or_begin("system").add_text(instructions);
    }
    if fields.has_string("input") {
        turns.begin("user").add_text(fields.required_string("input")?);
        return turns.write_to(fields, "input");
    }
    let items = fields.objects("input")?.filter(|items| !items.is_empty());
    let expected = "expected a string or a list of at least one item, found none";
    for item in items.ok_or_else(|| ApiError::field("input", expected))? {
        add_item(item, &mut turns)?;
    }
    turns.write_to(fields, "input")
}

/// Adds an item to the conversation.
fn add_item(mut item: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let kind = item.string("type")?.unwrap_or_else(|| "message".to_string());
    match kind.as_str() {
        "message" => message(item, turns),
        "function_call" => {
            let (id, name) = (item.required_string("call_id")?, item.required_string("name")?);
            let arguments_name = item.name("arguments");
            let arguments = item.required_string("arguments")?;
            if serde_json::from_str::<Map<String, Value>>(&arguments).is_err() {
                let expected = format!("expected the text of an object of {READABLE}, found {}", shown(&arguments));
                return Err(ApiError::field(&arguments_name, expected));
            }
            let arguments = RawValue::from_string(arguments).expect("it was read as JSON");
            turns.continue_or_begin("assistant").add_call(id, name, arguments);
            Ok(())
        }
        "function_call_output" => {
            let call_id = item.required_string("call_id")?;
            if !item.has("output") {
                let expected = "expected a string or a list of parts, found none";
                return Err(ApiError::field(&item.name("output"), expected));
            }
            let texts = texts(&mut item, "output", content_part_text)?;
            turns.add_result(call_id, texts, false);
            Ok(())
        }
        "reasoning" => {
            let reasoning = |part: Fields| part_text(part, &["reasoning_text", "summary_text"], "reasoning is text");
            let (whole, summary) = (texts(&mut item, "content", reasoning)?, texts(&mut item, "summary", reasoning)?);
            let reasoning = if whole.is_empty() { summary } else { whole };
            reasoning.iter().for_each(|reasoning| turns.continue_or_begin("assistant").add_reasoning(reasoning));
            Ok(())
        }
        other => {
            let expected = "expected message, function_call, function_call_output or reasoning";
            let why = "nothing is stored, and the server has no tools of its own";
            let found = shown(other);
            Err(ApiError::unsupported(&item.name("type"), format!("{expected}, found {found:?}: {why}")))
        }
    }
}

fn message(mut item: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let role = item.required_string("role")?;
    let turn = match role.as_str() {
        "user" => turns.begin("user"),
        // Instructions and developers' messages before the first turn are one message.
        "system" | "developer" => turns.continue_or_begin("system"),
        "assistant" => turns.continue_or_begin("assistant"),
        other => {
            let expected = format!("expected user, assistant, system or developer, found {:?}", shown(other));
            return Err(ApiError::field(&item.name("role"), expected));
        }
    };
    if !item.has("content") {
        return Err(ApiError::field(&item.name("content"), "expected a string or a list of parts, found none"));
    }
    texts(&mut item, "content", content_part_text)?.into_iter().for_each(|text| turn.add_text(text));
    Ok(())
}

fn content_part_text(part: Fields) -> Result<String, ApiError> {
    part_text(part, &["input_text", "output_text", "text", "refusal"], "images and files are not supported")
}

/// The text of a part that has one of these types.
fn part_text(mut part: Fields, kinds: &[&str], why: &str) -> Result<String, ApiError> {
    let kind = part.required_string("type")?;
    match kinds.contains(&kind.as_str()) {
        true => part.required_string(if kind == "refusal" { "refusal" } else { "text" }),
        false => {
            let expected = format!("expected {}, found {:?}: {why}", kinds.join(", "), shown(&kind));
            Err(ApiError::unsupported(&part.name("type"), expected))
        }
    }
}

fn tool(mut tool: Fields) -> Result<Tool, ApiError> {
    let kind = tool.required_string("type")?;
    if kind != "function" {
        let why = "the server has no tools of its own";
        let expected = format!("expected function, found {:?}: {why}", shown(&kind));
        return Err(ApiError::unsupported(&tool.name("type"), expected));
    }
    let name = tool.required_string("name")?;
    if name.is_empty() {
        return Err(ApiError::field(&tool.name("name"), "expected a name, found an empty one"));
    }
    let strict = tool.boolean("strict")?.filter(|is_strict| *is_strict);
    let parameters = tool.raw_object("parameters")?;
    Ok(Function { name, description: tool.string("description")?, parameters, strict }.into())
}

/// Translates the output's format, whose schema is beside its type here.
fn text_format(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    if let Some(other) = text.string("verbosity")?.filter(|verbosity| verbosity != "medium") {
        let expected = format!("expected medium, found {:?}: set it in the instructions", shown(&other));
        return Err(ApiError::unsupported(&text.name("verbosity"), expected));
    }
    let Some(mut format) = text.object("format")? else { return Ok(()) };
    let kind = format.required_string("type")?;
    let quoted = serde_json::value::to_raw_value(&kind).expect("a string can be serialized");
    let mut object = BTreeMap::from([("type", quoted)]);
    if kind == "json_schema" {
        let schema = format.raw_object("schema")?;
        let missing = || ApiError::field(&format.name("schema"), "expected a JSON Schema, found none");
        object.insert("schema", schema.ok_or_else(missing)?);
    }
    fields.insert("response_format", "text.format", &object)
}

/// Translates the `include` of log-probabilities.
fn log_probabilities(fields: &mut Fields) -> Result<(), ApiError> {
    let included: Vec<String> = fields.take("include", "a list of strings")?.unwrap_or_default();
    if included.iter().any(|name| name == LOG_PROBABILITIES) {
        return fields.insert("logprobs", "include", &true);
    }
    match fields.peek("top_logprobs")?.is_some_and(|tops| tops != 0) {
        true => {
            let expected = format!("expected {LOG_PROBABILITIES:?} in include beside it, found none");
            Err(ApiError::field("top_logprobs", expected))
        }
        false => Ok(()),
    }
}
