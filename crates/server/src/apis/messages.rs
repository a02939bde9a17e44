//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.
//!
//! Content blocks are translated to the messages of a chat, and the other fields to a chat's fields. Consecutive texts
//! of one role are one message, as in that API. Clients write a line of billing attribution before the system prompt,
//! which changes with each request; it is removed, since otherwise no prefix would be found in the cache. Images,
//! documents, Anthropic's own tools, reasoning budgets and edits of the context are not supported
//! (`context_management` is ignored).

mod format;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::turns::{Function, Tool, Turns, texts};
use super::{GenerationRequest, refuse_names, with_api_names};
use crate::apis;
use crate::app::App;
use crate::error::{ApiError, shown};
use crate::fields::Fields;
use format::MessagesFormat;
pub(crate) use format::error_object;

/// Fields of OpenAI's chats that have another name here.
const RENAMED_FIELDS: [(&str, &str); 7] = [
    ("stop", "stop_sequences"),
    ("max_completion_tokens", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
];

/// OpenAI's names in errors, and the names here.
const ERROR_NAMES: [(&str, &str); 3] =
    [("stop", "stop_sequences"), (".function.parameters", ".input_schema"), (".function.name", ".name")];

/// Fields without effect on answers here.
const IGNORED: [&str; 5] = ["context_management", "betas", "anthropic_beta", "inference_geo", "speed"];

/// The beginning of a line of billing attribution.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// `/v1/messages`.
pub(crate) fn create(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationRequest, ApiError> {
    if !fields.has("max_tokens") {
        return Err(ApiError::field("max_tokens", "expected a whole number from 1 up, found none"));
    }
    parse(app, key, fields)
}

/// `/v1/messages/count_tokens`: tokens of the prompt that the same request would have.
pub(crate) fn count_tokens(app: &App, key: u64, fields: &mut Fields) -> Result<Value, ApiError> {
    let GenerationRequest { requests, .. } = parse(app, key, fields)?;
    Ok(json!({ "input_tokens": requests[0].prompt.len() }))
}

fn parse(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationRequest, ApiError> {
    refuse_names(fields, &RENAMED_FIELDS)?;
    for name in ["logprobs", "top_logprobs"] {
        if fields.has(name) {
            let why = "answers of this path have no log-probabilities";
            return Err(ApiError::unsupported(name, format!("expected none, found some: {why}")));
        }
    }
    for (name, why) in [("mcp_servers", "there are no remote tools"), ("container", "there are no containers")] {
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if fields.value(name)?.is_some_and(|value| !empty(&value)) {
            return Err(ApiError::unsupported(name, format!("expected none, found some: {why}")));
        }
    }
    IGNORED.iter().for_each(|name| drop(fields.raw(name)));
    conversation(fields)?;
    tools(fields)?;
    thinking(fields)?;
    output_config(fields)?;
    fields.rename("stop_sequences", "stop")?;
    let format = Box::new(MessagesFormat::default());
    apis::parse(true, app, key, fields, Some(format)).map_err(|error| with_api_names(error, &ERROR_NAMES))
}

/// Translates the system prompt and the messages.
fn conversation(fields: &mut Fields) -> Result<(), ApiError> {
    let mut turns = Turns::default();
    let system = texts(fields, "system", |block| text_block(block, "a system prompt is text"))?;
    for text in system.into_iter().filter_map(without_attribution) {
        turns.continue_or_begin("system").add_text(text);
    }
    let messages = fields.objects("messages")?.filter(|messages| !messages.is_empty());
    let expected = "expected a list of at least one message, found none";
    for mut message in messages.ok_or_else(|| ApiError::field("messages", expected))? {
        let role = match message.required_string("role")?.as_str() {
            "assistant" => "assistant",
            "user" => "user",
            // Most templates allow a system message only at the beginning; later ones become a user's messages.
            "system" if turns.has_conversation_begun() => "user",
            "system" => "system",
            other => {
                let expected = format!("expected user or assistant, found {:?}", shown(other));
                return Err(ApiError::field(&message.name("role"), expected));
            }
        };
        if message.has_string("content") {
            turns.continue_or_begin(role).add_text(message.required_string("content")?);
            continue;
        }
        let expected = "expected a string or a list of blocks, found none";
        let blocks = message.objects("content")?;
        for block in blocks.ok_or_else(|| ApiError::field(&message.name("content"), expected))? {
            add_block(role, block, &mut turns)?;
        }
    }
    let continues_answer = turns.ends_with_partial_answer();
    turns.write_to(fields, "messages")?;
    if continues_answer && !fields.has("continue_final_message") && !fields.has("add_generation_prompt") {
        fields.insert("continue_final_message", "messages", &true)?;
    }
    Ok(())
}

/// The text of a block of type `text`. `why`: the reason in the error for other types.
fn text_block(mut block: Fields, why: &str) -> Result<String, ApiError> {
    match block.required_string("type")?.as_str() {
        "text" => block.required_string("text"),
        other => Err(unsupported_type(&block, "text", other, why)),
    }
}

fn unsupported_type(block: &Fields, expected: &str, found: &str, why: &str) -> ApiError {
    ApiError::unsupported(&block.name("type"), format!("expected {expected}, found {:?}: {why}", shown(found)))
}

/// A system prompt without the line of billing attribution; `None` if there is no other text.
fn without_attribution(text: String) -> Option<String> {
    if !text.trim_start().starts_with(ATTRIBUTION) {
        return Some(text);
    }
    let rest = text.trim_start().split_once('\n').map_or("", |(_, rest)| rest);
    (!rest.trim().is_empty()).then(|| rest.to_string())
}

/// Adds a block to the conversation.
fn add_block(role: &'static str, mut block: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let kind = block.required_string("type")?;
    match (role, kind.as_str()) {
        (_, "text") => turns.continue_or_begin(role).add_text(block.required_string("text")?),
        ("user", "tool_result") => {
            let call_id = block.required_string("tool_use_id")?;
            let is_error = block.boolean("is_error")?.unwrap_or(false);
            let texts = texts(&mut block, "content", |part| text_block(part, "results of tools are text"))?;
            turns.add_result(call_id, texts, is_error);
        }
        ("assistant", "tool_use") => {
            let (id, name) = (block.required_string("id")?, block.required_string("name")?);
            let input = block.raw_object("input")?;
            let input = input.ok_or_else(|| ApiError::field(&block.name("input"), "expected an object, found none"))?;
            turns.continue_or_begin(role).add_call(id, name, input);
        }
        ("assistant", "thinking") => turns.continue_or_begin(role).add_reasoning(&block.required_string("thinking")?),
        // Only Anthropic can decrypt it.
        ("assistant", "redacted_thinking") => {}
        ("assistant", other) => {
            let expected = "text, tool_use, thinking or redacted_thinking";
            return Err(unsupported_type(&block, expected, other, "answers here have no other type"));
        }
        (_, other) => {
            return Err(unsupported_type(
                &block,
                "text or tool_result",
                other,
                "images and documents are not supported",
            ));
        }
    }
    Ok(())
}

/// Translates the tools and the tool choice.
fn tools(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(all) = fields.objects("tools")? {
        let tools: Vec<Tool> = all.into_iter().map(tool).collect::<Result<_, _>>()?;
        fields.insert("tools", "tools", &tools)?;
    }
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(()) };
    let chosen = match choice.required_string("type")?.as_str() {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({ "type": "function", "function": { "name": choice.required_string("name")? } }),
        other => {
            let expected = format!("expected auto, any, tool or none, found {:?}", shown(other));
            return Err(ApiError::field(&choice.name("type"), expected));
        }
    };
    if let Some(alone) = choice.boolean("disable_parallel_tool_use")? {
        fields.insert("parallel_tool_calls", &choice.name("disable_parallel_tool_use"), &!alone)?;
    }
    fields.insert("tool_choice", "tool_choice", &chosen)
}

fn tool(mut tool: Fields) -> Result<Tool, ApiError> {
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
        return Err(unsupported_type(&tool, "custom", &kind, "the server has no tools of its own"));
    }
    let name = tool.required_string("name")?;
    if name.is_empty() {
        return Err(ApiError::field(&tool.name("name"), "expected a name, found an empty one"));
    }
    let schema = tool.raw_object("input_schema")?;
    let missing = || ApiError::field(&tool.name("input_schema"), "expected a JSON Schema, found none");
    let parameters = Some(schema.ok_or_else(missing)?);
    let strict = tool.boolean("strict")?.filter(|is_strict| *is_strict);
    Ok(Function { name, description: tool.string("description")?, parameters, strict }.into())
}

/// Translates `thinking` to the variables of chat templates. A budget is checked and has no effect.
fn thinking(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    thinking.count("budget_tokens", 0, u32::MAX as usize)?;
    let is_enabled = match thinking.required_string("type")?.as_str() {
        "enabled" => true,
        "disabled" => false,
        // The model decides, as by default.
        "adaptive" => return Ok(()),
        other => {
            let expected = format!("expected enabled, disabled or adaptive, found {:?}", shown(other));
            return Err(ApiError::field(&thinking.name("type"), expected));
        }
    };
    let given = fields.object("chat_template_kwargs")?.map(|given| given.into_values().collect());
    let mut variables: BTreeMap<String, Box<RawValue>> = given.unwrap_or_default();
    for name in ["enable_thinking", "thinking"] {
        let word = if is_enabled { "true" } else { "false" }.to_string();
        if variables.insert(name.to_string(), RawValue::from_string(word).expect("it is JSON")).is_some() {
            let expected = format!("expected it or chat_template_kwargs.{name}, found both");
            return Err(ApiError::field("thinking", expected));
        }
    }
    fields.insert("chat_template_kwargs", "chat_template_kwargs", &variables)
}

/// Translates the output's format and the reasoning effort.
fn output_config(fields: &mut Fields) -> Result<(), ApiError> {
    let mut schema_field = "output_format".to_string();
    let mut format = fields.object("output_format")?;
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.string("effort")? {
            fields.insert("reasoning_effort", &config.name("effort"), &effort)?;
        }
        if let Some(inner) = config.object("format")? {
            if format.is_some() {
                return Err(ApiError::field("output_format", "expected it or output_config.format, found both"));
            }
            (schema_field, format) = (config.name("format"), Some(inner));
        }
    }
    let Some(mut format) = format else { return Ok(()) };
    match format.required_string("type")?.as_str() {
        "json_schema" => {
            let schema = format.raw_object("schema")?;
            let missing = || ApiError::field(&format.name("schema"), "expected a JSON Schema, found none");
            let both = BTreeMap::from([
                ("type", RawValue::from_string("\"json_schema\"".to_string()).expect("it is JSON")),
                ("schema", schema.ok_or_else(missing)?),
            ]);
            fields.insert("response_format", &schema_field, &both)
        }
        other => Err(unsupported_type(&format, "json_schema", other, "there is no other format")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_attribution_is_removed() {
        let line = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;";
        let rest = |text: &str| without_attribution(text.to_string());
        assert_eq!((rest(line), rest(&format!("{line}\n"))), (None, None));
        assert_eq!(rest(&format!("{line}\nBe brief.")).as_deref(), Some("Be brief."));
        for other in ["Be brief.", "", &format!("Be brief.\n{line}")] {
            assert_eq!(rest(other).as_deref(), Some(other));
        }
    }
}
