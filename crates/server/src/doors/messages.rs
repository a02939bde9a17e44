//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.
//!
//! The idea: blocks become messages of a chat, checked by their places, and the rest of a request becomes the fields of
//! a chat. Texts of one speaker that follow each other are one message, as that API has it. A line of attribution that
//! clients write before the system's text changes with each request; it is for whoever bills, not for the model, and is
//! left out, or no prefix of a conversation would ever be found again. Left out: pictures, documents, tools of
//! Anthropic's own, budgets of thoughts, edits of the context (`context_management` is ignored).

mod form;

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::turns::{Function, Tool, Turns, texts};
use super::{Asking, named, refuse_names};
use crate::app::App;
use crate::doors;
use crate::error::{ApiError, shown};
use crate::fields::Fields;
use form::MessageForm;
pub(crate) use form::error_object;

/// Fields of chats, and what they are called here.
const OTHERS: [(&str, &str); 7] = [
    ("stop", "stop_sequences"),
    ("max_completion_tokens", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
];

/// What of chats' fields errors may name.
const NAMES: [(&str, &str); 3] =
    [("stop", "stop_sequences"), (".function.parameters", ".input_schema"), (".function.name", ".name")];

/// What a client says of itself, and what asks for nothing that would change a text here.
const IGNORED: [&str; 5] = ["context_management", "betas", "anthropic_beta", "inference_geo", "speed"];

/// What stands at the beginning of a line that says whom a request is billed to.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// `/v1/messages`.
pub(crate) fn create(app: &App, key: u64, fields: &mut Fields) -> Result<Asking, ApiError> {
    if !fields.has("max_tokens") {
        return Err(ApiError::field("max_tokens", "expected a whole number from 1 up, found none"));
    }
    read(app, key, fields)
}

/// `/v1/messages/count_tokens`: tokens of the prompt that the same request would have.
pub(crate) fn count_tokens(app: &App, key: u64, fields: &mut Fields) -> Result<Value, ApiError> {
    let Asking { requests, .. } = read(app, key, fields)?;
    Ok(json!({ "input_tokens": requests[0].prompt.len() }))
}

fn read(app: &App, key: u64, fields: &mut Fields) -> Result<Asking, ApiError> {
    refuse_names(fields, &OTHERS)?;
    for name in ["logprobs", "top_logprobs"] {
        if fields.has(name) {
            let why = "answers of this path do not tell log-probabilities";
            return Err(ApiError::unsupported(name, format!("expected none, found some: {why}")));
        }
    }
    for (name, why) in [("mcp_servers", "no server is asked for tools"), ("container", "nothing is run")] {
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if fields.value(name)?.is_some_and(|value| !empty(&value)) {
            return Err(ApiError::unsupported(name, format!("expected none, found some: {why}")));
        }
    }
    IGNORED.iter().for_each(|name| drop(fields.raw(name)));
    conversation(fields)?;
    tools(fields)?;
    thinking(fields)?;
    output(fields)?;
    fields.rename("stop_sequences", "stop")?;
    let form = Box::new(MessageForm::default());
    doors::read(true, app, key, fields, Some(form)).map_err(|error| named(error, &NAMES))
}

/// The system's text and the messages.
fn conversation(fields: &mut Fields) -> Result<(), ApiError> {
    let mut turns = Turns::default();
    let system = texts(fields, "system", |block| text_alone(block, "no other part of a system's text is read"))?;
    for text in system.into_iter().filter_map(without_attribution) {
        turns.go_on("system").say(text);
    }
    let messages = fields.objects("messages")?.filter(|messages| !messages.is_empty());
    let expected = "expected a list of at least one message, found none";
    for mut message in messages.ok_or_else(|| ApiError::field("messages", expected))? {
        let role = match message.text_of("role")?.as_str() {
            "assistant" => "assistant",
            "user" => "user",
            // Most templates know a system only at the beginning; elsewhere it speaks as a user does.
            "system" if turns.have_begun() => "user",
            "system" => "system",
            other => {
                let expected = format!("expected user or assistant, found {:?}", shown(other));
                return Err(ApiError::field(&message.name("role"), expected));
            }
        };
        if message.has_text("content") {
            turns.go_on(role).say(message.text_of("content")?);
            continue;
        }
        let expected = "expected a string or a list of blocks, found none";
        let blocks = message.objects("content")?;
        for block in blocks.ok_or_else(|| ApiError::field(&message.name("content"), expected))? {
            take(role, block, &mut turns)?;
        }
    }
    let begins = turns.begin_an_answer();
    turns.put(fields, "messages")?;
    if begins && !fields.has("continue_final_message") && !fields.has("add_generation_prompt") {
        fields.put("continue_final_message", "messages", &true)?;
    }
    Ok(())
}

/// The text of a block of text. `why` there is no other.
fn text_alone(mut block: Fields, why: &str) -> Result<String, ApiError> {
    match block.text_of("type")?.as_str() {
        "text" => block.text_of("text"),
        other => Err(other_block(&block, "text", other, why)),
    }
}

fn other_block(block: &Fields, expected: &str, found: &str, why: &str) -> ApiError {
    ApiError::unsupported(&block.name("type"), format!("expected {expected}, found {:?}: {why}", shown(found)))
}

/// A system's text without the line that says whom a request is billed to; nothing if that was all.
fn without_attribution(text: String) -> Option<String> {
    if !text.trim_start().starts_with(ATTRIBUTION) {
        return Some(text);
    }
    let rest = text.trim_start().split_once('\n').map_or("", |(_, rest)| rest);
    (!rest.trim().is_empty()).then(|| rest.to_string())
}

/// Adds a block of a message.
fn take(role: &'static str, mut block: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let kind = block.text_of("type")?;
    match (role, kind.as_str()) {
        (_, "text") => turns.go_on(role).say(block.text_of("text")?),
        ("user", "tool_result") => {
            let call = block.text_of("tool_use_id")?;
            let is_error = block.truth("is_error")?.unwrap_or(false);
            let texts = texts(&mut block, "content", |part| text_alone(part, "tools answer with text"))?;
            turns.result(call, texts, is_error);
        }
        ("assistant", "tool_use") => {
            let (id, name) = (block.text_of("id")?, block.text_of("name")?);
            let input = block.raw_object("input")?;
            let input = input.ok_or_else(|| ApiError::field(&block.name("input"), "expected an object, found none"))?;
            turns.go_on(role).call(id, name, input);
        }
        ("assistant", "thinking") => turns.go_on(role).think(&block.text_of("thinking")?),
        // Nobody but its author can read it.
        ("assistant", "redacted_thinking") => {}
        ("assistant", other) => {
            let expected = "text, tool_use, thinking or redacted_thinking";
            return Err(other_block(&block, expected, other, "a model of texts wrote no other"));
        }
        (_, other) => {
            return Err(other_block(&block, "text or tool_result", other, "pictures and documents are not read"));
        }
    }
    Ok(())
}

/// The tools, and whether they are called.
fn tools(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(all) = fields.objects("tools")? {
        let tools: Vec<Tool> = all.into_iter().map(tool).collect::<Result<_, _>>()?;
        fields.put("tools", "tools", &tools)?;
    }
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(()) };
    let chosen = match choice.text_of("type")?.as_str() {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({ "type": "function", "function": { "name": choice.text_of("name")? } }),
        other => {
            let expected = format!("expected auto, any, tool or none, found {:?}", shown(other));
            return Err(ApiError::field(&choice.name("type"), expected));
        }
    };
    if let Some(alone) = choice.truth("disable_parallel_tool_use")? {
        fields.put("parallel_tool_calls", &choice.name("disable_parallel_tool_use"), &!alone)?;
    }
    fields.put("tool_choice", "tool_choice", &chosen)
}

fn tool(mut tool: Fields) -> Result<Tool, ApiError> {
    if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
        return Err(other_block(&tool, "custom", &kind, "the server has no tools of its own"));
    }
    let name = tool.text_of("name")?;
    if name.is_empty() {
        return Err(ApiError::field(&tool.name("name"), "expected a name, found an empty one"));
    }
    let schema = tool.raw_object("input_schema")?;
    let missing = || ApiError::field(&tool.name("input_schema"), "expected a JSON Schema, found none");
    let parameters = Some(schema.ok_or_else(missing)?);
    let strict = tool.truth("strict")?.filter(|is_strict| *is_strict);
    Ok(Function { name, description: tool.text("description")?, parameters, strict }.into())
}

/// Whether the model thinks, as templates call it. A model thinks as long as it likes: budgets are only looked at.
fn thinking(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    thinking.count("budget_tokens", 0, u32::MAX as usize)?;
    let wanted = match thinking.text_of("type")?.as_str() {
        "enabled" => true,
        "disabled" => false,
        // The model decides, as without a word.
        "adaptive" => return Ok(()),
        other => {
            let expected = format!("expected enabled, disabled or adaptive, found {:?}", shown(other));
            return Err(ApiError::field(&thinking.name("type"), expected));
        }
    };
    let given = fields.object("chat_template_kwargs")?.map(|given| given.into_values().collect());
    let mut variables: BTreeMap<String, Box<RawValue>> = given.unwrap_or_default();
    for name in ["enable_thinking", "thinking"] {
        let word = if wanted { "true" } else { "false" }.to_string();
        if variables.insert(name.to_string(), RawValue::from_string(word).expect("it is JSON")).is_some() {
            let expected = format!("expected it or chat_template_kwargs.{name}, found both");
            return Err(ApiError::field("thinking", expected));
        }
    }
    fields.put("chat_template_kwargs", "chat_template_kwargs", &variables)
}

/// The form of the answer, and how hard the model thinks.
fn output(fields: &mut Fields) -> Result<(), ApiError> {
    let mut place = "output_format".to_string();
    let mut format = fields.object("output_format")?;
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.text("effort")? {
            fields.put("reasoning_effort", &config.name("effort"), &effort)?;
        }
        if let Some(inner) = config.object("format")? {
            if format.is_some() {
                return Err(ApiError::field("output_format", "expected it or output_config.format, found both"));
            }
            (place, format) = (config.name("format"), Some(inner));
        }
    }
    let Some(mut format) = format else { return Ok(()) };
    match format.text_of("type")?.as_str() {
        "json_schema" => {
            let schema = format.raw_object("schema")?;
            let missing = || ApiError::field(&format.name("schema"), "expected a JSON Schema, found none");
            let both = BTreeMap::from([
                ("type", RawValue::from_string("\"json_schema\"".to_string()).expect("it is JSON")),
                ("schema", schema.ok_or_else(missing)?),
            ]);
            fields.put("response_format", &place, &both)
        }
        other => Err(other_block(&format, "json_schema", other, "answers have no other form")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_attribution_is_left_out() {
        let line = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;";
        let left = |text: &str| without_attribution(text.to_string());
        assert_eq!((left(line), left(&format!("{line}\n"))), (None, None));
        assert_eq!(left(&format!("{line}\nBe brief.")).as_deref(), Some("Be brief."));
        for other in ["Be brief.", "", &format!("Be brief.\n{line}")] {
            assert_eq!(left(other).as_deref(), Some(other));
        }
    }
}
