//! OpenAI's `/v1/responses`, without a store: each request brings its whole conversation.
//!
//! The idea: items become messages of a chat, checked by their places; thoughts, texts and calls of the model that
//! follow each other are one message. What asks for earlier responses, for work in the background or for tools of
//! OpenAI's own is refused by name. Left out: pictures and files, encrypted thoughts, summaries of thoughts.

mod form;

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::turns::{Function, Tool, Turns, texts};
use super::{Asking, named, one_answer, refuse_names};
use crate::app::App;
use crate::doors;
use crate::error::{ApiError, shown};
use crate::fields::{Fields, READABLE};
use form::ResponseForm;

/// Fields of chats, and what they are called here.
const OTHERS: [(&str, &str); 8] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("n_predict", "max_output_tokens"),
    ("max_new_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("logprobs", "include"),
];

/// What of chats' fields errors may name.
const NAMES: [(&str, &str); 5] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("logprobs", "include"),
    (".function.parameters", ".parameters"),
    (".function.name", ".name"),
];

/// What is not done, the values that ask for nothing, and why.
const REFUSED: [(&str, &[&str], &str); 5] = [
    ("previous_response_id", &[], "nothing is stored; send the conversation in input"),
    ("conversation", &[], "nothing is stored; send the conversation in input"),
    ("background", &["false"], "answers come in their own connection"),
    ("prompt", &[], "there are no prompts by name; use instructions and input"),
    ("truncation", &["\"disabled\""], "a conversation is not cut"),
];

/// Fields that change no answer here.
const IGNORED: [&str; 2] = ["max_tool_calls", "prompt_cache_options"];

/// What of `include` is told.
const LOG_PROBABILITIES: &str = "message.output_text.logprobs";

/// `/v1/responses`.
pub(crate) fn create(app: &App, key: u64, fields: &mut Fields) -> Result<Asking, ApiError> {
    refuse_names(fields, &OTHERS)?;
    for (name, harmless, why) in REFUSED {
        if let Some(found) = fields.raw(name).filter(|found| !harmless.contains(&found.get())) {
            let expected = format!("expected none, found {}: {why}", shown(found.get()));
            return Err(ApiError::unsupported(name, expected));
        }
    }
    IGNORED.iter().for_each(|name| drop(fields.raw(name)));
    let mut echo = echo(fields)?;
    conversation(fields)?;
    if let Some(all) = fields.objects("tools")? {
        let tools: Vec<Tool> = all.into_iter().map(tool).collect::<Result<_, _>>()?;
        fields.put("tools", "tools", &tools)?;
    }
    if let Some(effort) = fields.object("reasoning")?.map(|mut reasoning| reasoning.text("effort")).transpose()? {
        fields.put("reasoning_effort", "reasoning.effort", &effort)?;
    }
    form_of_text(fields)?;
    log_probabilities(fields)?;
    fields.rename("max_output_tokens", "max_tokens")?;
    let mut asking = doors::read(true, app, key, fields, None).map_err(|error| named(error, &NAMES))?;
    one_answer(&asking)?;
    let law = &asking.requests[0].sampling;
    for (name, number) in [("temperature", law.temperature), ("top_p", law.top_p)] {
        // As it was written, not as a number of twice the digits.
        echo.insert(name.to_string(), json!(number.to_string().parse::<f64>().unwrap_or_default()));
    }
    asking.form = Some(Box::new(ResponseForm::new(echo, law.end_tokens.clone())));
    Ok(asking)
}

/// What a response says of its request, and what it says where the request does not.
fn echo(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let said = [
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
    for (name, otherwise) in said {
        let value = fields.peek(name)?.unwrap_or(otherwise);
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

/// Instructions and input.
fn conversation(fields: &mut Fields) -> Result<(), ApiError> {
    let mut turns = Turns::default();
    if let Some(instructions) = fields.text("instructions")? {
        turns.go_on("system").say(instructions);
    }
    if fields.has_text("input") {
        turns.begin("user").say(fields.text_of("input")?);
        return turns.put(fields, "input");
    }
    let items = fields.objects("input")?.filter(|items| !items.is_empty());
    let expected = "expected a string or a list of at least one item, found none";
    for item in items.ok_or_else(|| ApiError::field("input", expected))? {
        take(item, &mut turns)?;
    }
    turns.put(fields, "input")
}

/// Adds an item.
fn take(mut item: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let kind = item.text("type")?.unwrap_or_else(|| "message".to_string());
    match kind.as_str() {
        "message" => message(item, turns),
        "function_call" => {
            let (id, name) = (item.text_of("call_id")?, item.text_of("name")?);
            let place = item.name("arguments");
            let arguments = item.text_of("arguments")?;
            if serde_json::from_str::<Map<String, Value>>(&arguments).is_err() {
                let expected = format!("expected the text of an object of {READABLE}, found {}", shown(&arguments));
                return Err(ApiError::field(&place, expected));
            }
            let arguments = RawValue::from_string(arguments).expect("it was read as JSON");
            turns.go_on("assistant").call(id, name, arguments);
            Ok(())
        }
        "function_call_output" => {
            let call = item.text_of("call_id")?;
            if !item.has("output") {
                let expected = "expected a string or a list of parts, found none";
                return Err(ApiError::field(&item.name("output"), expected));
            }
            let texts = texts(&mut item, "output", text_of_part)?;
            turns.result(call, texts, false);
            Ok(())
        }
        "reasoning" => {
            let thoughts = |part: Fields| text_of(part, &["reasoning_text", "summary_text"], "thoughts are text");
            let (whole, summary) = (texts(&mut item, "content", thoughts)?, texts(&mut item, "summary", thoughts)?);
            let thoughts = if whole.is_empty() { summary } else { whole };
            thoughts.iter().for_each(|thoughts| turns.go_on("assistant").think(thoughts));
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
    let role = item.text_of("role")?;
    let turn = match role.as_str() {
        "user" => turns.begin("user"),
        // Instructions and what developers say before the first turn are one text.
        "system" | "developer" => turns.go_on("system"),
        "assistant" => turns.go_on("assistant"),
        other => {
            let expected = format!("expected user, assistant, system or developer, found {:?}", shown(other));
            return Err(ApiError::field(&item.name("role"), expected));
        }
    };
    if !item.has("content") {
        return Err(ApiError::field(&item.name("content"), "expected a string or a list of parts, found none"));
    }
    texts(&mut item, "content", text_of_part)?.into_iter().for_each(|text| turn.say(text));
    Ok(())
}

fn text_of_part(part: Fields) -> Result<String, ApiError> {
    text_of(part, &["input_text", "output_text", "text", "refusal"], "pictures and files are not read")
}

/// The text of a part of one of these kinds.
fn text_of(mut part: Fields, kinds: &[&str], why: &str) -> Result<String, ApiError> {
    let kind = part.text_of("type")?;
    match kinds.contains(&kind.as_str()) {
        true => part.text_of(if kind == "refusal" { "refusal" } else { "text" }),
        false => {
            let expected = format!("expected {}, found {:?}: {why}", kinds.join(", "), shown(&kind));
            Err(ApiError::unsupported(&part.name("type"), expected))
        }
    }
}

fn tool(mut tool: Fields) -> Result<Tool, ApiError> {
    let kind = tool.text_of("type")?;
    if kind != "function" {
        let why = "the server has no tools of its own";
        let expected = format!("expected function, found {:?}: {why}", shown(&kind));
        return Err(ApiError::unsupported(&tool.name("type"), expected));
    }
    let name = tool.text_of("name")?;
    if name.is_empty() {
        return Err(ApiError::field(&tool.name("name"), "expected a name, found an empty one"));
    }
    let strict = tool.truth("strict")?.filter(|is_strict| *is_strict);
    let parameters = tool.raw_object("parameters")?;
    Ok(Function { name, description: tool.text("description")?, parameters, strict }.into())
}

/// The form of the answer, which stands beside its type here.
fn form_of_text(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    if let Some(other) = text.text("verbosity")?.filter(|verbosity| verbosity != "medium") {
        let expected = format!("expected medium, found {:?}: say it in the instructions", shown(&other));
        return Err(ApiError::unsupported(&text.name("verbosity"), expected));
    }
    let Some(mut format) = text.object("format")? else { return Ok(()) };
    let kind = format.text_of("type")?;
    let quoted = serde_json::value::to_raw_value(&kind).expect("a text can be written");
    let mut made = BTreeMap::from([("type", quoted)]);
    if kind == "json_schema" {
        let schema = format.raw_object("schema")?;
        let missing = || ApiError::field(&format.name("schema"), "expected a JSON Schema, found none");
        made.insert("schema", schema.ok_or_else(missing)?);
    }
    fields.put("response_format", "text.format", &made)
}

/// Log-probabilities are told where `include` has them.
fn log_probabilities(fields: &mut Fields) -> Result<(), ApiError> {
    let included: Vec<String> = fields.take("include", "a list of strings")?.unwrap_or_default();
    if included.iter().any(|name| name == LOG_PROBABILITIES) {
        return fields.put("logprobs", "include", &true);
    }
    match fields.peek("top_logprobs")?.is_some_and(|tops| tops != 0) {
        true => {
            let expected = format!("expected {LOG_PROBABILITIES:?} in include beside it, found none");
            Err(ApiError::field("top_logprobs", expected))
        }
        false => Ok(()),
    }
}
