//! Ollama's requests, `/api/chat` and `/api/generate`, in OpenAI's fields.
//!
//! Each of `options` becomes a field of the request; those that tune Ollama's own runtime have no effect. A prompt of
//! `/api/generate` becomes a user's turn if the model has a chat template and `raw` is not set. A request without a
//! prompt only loads the model, and is answered at once. A suffix makes a fill-in-middle prompt instead of a chat. A
//! template in the request, the tokens of an earlier answer, and images are refused.

use foretoken::ThinkingTags;
use serde_json::{Map, Value, json};

use super::REQUESTED_MODEL;
use super::format::OllamaFormat;
use crate::apis::{self, GenerationRequest};
use crate::app::App;
use crate::error::{ApiError, shown};
use crate::fields::Fields;
use crate::law::REPEAT_PENALTY;

/// A request for generation, or the answer if nothing is to be generated.
type GenerationOrAnswer = Result<GenerationRequest, Value>;

/// Options of Ollama's own runtime, which have no effect here.
const IGNORED: [&str; 16] = [
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_gqa",
    "numa",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "vocab_only",
    "logits_all",
    "mirostat_tau",
    "mirostat_eta",
    "penalize_newline",
];

/// Options that have another name here.
const RENAMED: [(&str, &str); 2] = [REPEAT_PENALTY, ("draft_num_predict", "speculative.n_max")];

/// Fields without effect here.
const IGNORED_FIELDS: [&str; 3] = ["keep_alive", "truncate", "shift"];

/// Levels of reasoning effort.
const THINKING_LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// `/api/chat`.
pub(crate) fn chat(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationOrAnswer, ApiError> {
    let mut format = OllamaFormat::new(requested_name(app, fields)?, true);
    let messages: Option<Vec<Map<String, Value>>> = fields.take("messages", "a list of messages")?;
    let Some(mut messages) = messages.filter(|messages| !messages.is_empty()) else {
        return Ok(Err(loaded_answer(&mut format, fields)));
    };
    let mut calls = OpenCalls::default();
    for (at, message) in messages.iter_mut().enumerate() {
        translate(message, &format!("messages[{at}]"), &mut calls)?;
    }
    // If the last message is an incomplete answer, the model continues it.
    let last = messages.last().filter(|last| last.get("role").is_some_and(|role| role == "assistant"));
    let is_begun = last.is_some_and(|last| !last.contains_key("tool_calls") && last.get("content") != Some(&json!("")));
    if is_begun && !fields.has("add_generation_prompt") && !fields.has("continue_final_message") {
        fields.insert("continue_final_message", "messages", &json!(true))?;
    }
    fields.insert("messages", "messages", &json!(messages))?;
    common_fields(fields)?;
    thinking(app, fields, true)?;
    apis::parse(true, app, key, fields, Some(Box::new(format))).map(Ok)
}

/// `/api/generate`.
pub(crate) fn generate(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationOrAnswer, ApiError> {
    let mut format = OllamaFormat::new(requested_name(app, fields)?, false);
    let refuse =
        |fields: &mut Fields, field: &str, why: &str| match fields.value(field)?.is_none_or(|value| is_empty(&value)) {
            true => Ok(()),
            false => Err(ApiError::unsupported(field, format!("expected none, found some: {why}"))),
        };
    refuse(fields, "template", "the template is the model's")?;
    refuse(fields, "context", "send the earlier messages to /api/chat")?;
    refuse(fields, "images", "prompts are texts")?;
    let has_suffix = fields.peek("suffix")?.is_some_and(|suffix| !is_empty(&suffix));
    let is_raw = fields.boolean("raw")?.unwrap_or(false);
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let prompt = fields.string("prompt")?.unwrap_or_default();
    if prompt.is_empty() && !has_suffix && !fields.has("messages") {
        return Ok(Err(loaded_answer(&mut format, fields)));
    }
    common_fields(fields)?;
    let is_chat = !is_raw && !has_suffix && app.prompter.tokenizer.is_some() && app.prompter.chat_template().is_ok();
    thinking(app, fields, is_chat)?;
    if is_chat {
        let turn = |role: &str, content: String| json!({ "role": role, "content": content });
        let system = system.map(|system| turn("system", system));
        let turns: Vec<Value> = system.into_iter().chain([turn("user", prompt)]).collect();
        fields.insert("messages", "prompt", &json!(turns))?;
    } else {
        if system.is_some() {
            let why = match (is_raw, has_suffix) {
                (true, _) => "beside \"raw\": true",
                (_, true) => "beside a suffix",
                _ => "for a model without a chat template",
            };
            return Err(ApiError::unsupported("system", format!("expected none {why}, found one")));
        }
        fields.insert("prompt", "prompt", &json!(prompt))?;
        log_probabilities_of_completion(fields)?;
    }
    apis::parse(is_chat, app, key, fields, Some(Box::new(format))).map(Ok)
}

/// The model's name as it was requested, which answers repeat.
fn requested_name(app: &App, fields: &mut Fields) -> Result<String, ApiError> {
    Ok(fields.string(REQUESTED_MODEL)?.unwrap_or_else(|| app.model.clone()))
}

/// The answer if nothing is to be generated. Other fields have no effect on it.
fn loaded_answer(format: &mut OllamaFormat, fields: &mut Fields) -> Value {
    *fields = Fields::default();
    format.loaded()
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Null) || value == "" || value.as_array().is_some_and(Vec::is_empty)
}

/// Translates the fields that both kinds of requests share.
fn common_fields(fields: &mut Fields) -> Result<(), ApiError> {
    options(fields)?;
    if !fields.has("stream") {
        fields.insert("stream", "stream", &json!(true))?;
    }
    IGNORED_FIELDS.iter().for_each(|name| drop(fields.raw(name)));
    match fields.value("format")? {
        None => Ok(()),
        Some(Value::String(format)) if format.is_empty() => Ok(()),
        Some(Value::String(format)) if format == "json" => {
            fields.insert("response_format", "format", &json!({ "type": "json_object" }))
        }
        Some(schema @ Value::Object(_)) => fields.insert("json_schema", "format", &schema),
        Some(found) => {
            let expected = "expected \"json\" or a JSON Schema, found";
            Err(ApiError::field("format", format!("{expected} {}", shown(&found.to_string()))))
        }
    }
}

/// Translates the options to fields.
fn options(fields: &mut Fields) -> Result<(), ApiError> {
    const OPTIONS: &str = "options.";
    fields.flatten("options")?;
    // The context is the server's: a prompt that does not fit is refused, and an answer that fills it ends.
    fields.count("options.num_ctx", 0, u32::MAX as usize)?;
    // -2 means as many as fit, as -1 does here.
    if let Some(limit) = fields.integer("options.num_predict", -2, i64::from(u32::MAX))? {
        fields.insert("max_tokens", "options.num_predict", &json!(limit.max(-1)))?;
    }
    for name in fields.unknown() {
        let Some(option) = name.strip_prefix(OPTIONS) else { continue };
        if IGNORED.contains(&option) {
            drop(fields.raw(&name));
            continue;
        }
        let to = RENAMED.iter().find(|(from, _)| *from == option).map_or(option, |(_, to)| to);
        fields.rename(&name, to)?;
    }
    Ok(())
}

/// Translates `think`, which templates call by several names. `is_chat`: whether a template is used at all.
fn thinking(app: &App, fields: &mut Fields, is_chat: bool) -> Result<(), ApiError> {
    let (thinks, level) = match fields.value("think")? {
        None => return Ok(()),
        Some(Value::Bool(thinks)) => (thinks, None),
        Some(Value::String(level)) if THINKING_LEVELS.contains(&level.as_str()) => (true, Some(level)),
        Some(found) => {
            let expected = format!("expected true, false, {}, found", THINKING_LEVELS.join(", "));
            return Err(ApiError::field("think", format!("{expected} {}", shown(&found.to_string()))));
        }
    };
    let template = app.prompter.chat_template().ok().filter(|_| is_chat);
    let can = template.is_some_and(|template| {
        ThinkingTags::of_template(template).is_some() || template.source().contains("reasoning_effort")
    });
    if thinks && !can {
        let why = if is_chat { "this model does not support thinking" } else { "no chat template is used" };
        return Err(ApiError::unsupported("think", format!("expected false, found another: {why}")));
    }
    if !is_chat {
        return Ok(());
    }
    let mut variables = json!({ "enable_thinking": thinks, "thinking": thinks });
    if let Some(level) = level {
        variables["reasoning_effort"] = json!(level);
    }
    fields.insert("chat_template_kwargs", "think", &variables)
}

/// Translates the fields of log-probabilities, which differ between chats and completions.
fn log_probabilities_of_completion(fields: &mut Fields) -> Result<(), ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let tops = fields.value("top_logprobs")?;
    match (wanted, tops) {
        (true, None) => fields.insert("logprobs", "logprobs", &json!(0)),
        (true, Some(tops)) => fields.insert("logprobs", "top_logprobs", &tops),
        (false, Some(tops)) if tops != 0 => {
            Err(ApiError::field("top_logprobs", "expected \"logprobs\": true beside it, found none"))
        }
        (false, _) => Ok(()),
    }
}

/// Calls that have no result yet, with function and id: a result without an id belongs to the first of its
/// function.
#[derive(Default)]
struct OpenCalls {
    /// All calls so far.
    count: usize,
    open: Vec<(Value, String)>,
}

/// Translates a message to OpenAI's fields. Calls without an id get one, since some templates need it.
fn translate(message: &mut Map<String, Value>, path: &str, calls: &mut OpenCalls) -> Result<(), ApiError> {
    if message.remove("images").is_some_and(|images| !is_empty(&images)) {
        let expected = "expected none, found some: messages are texts";
        return Err(ApiError::unsupported(&format!("{path}.images"), expected));
    }
    for (from, to) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        let Some(value) = message.remove(from).filter(|value| !is_empty(value)) else { continue };
        if message.get(to).is_some_and(|there| *there != value) {
            let expected = format!("expected it or {path}.{to}, found both");
            return Err(ApiError::field(&format!("{path}.{from}"), expected));
        }
        message.insert(to.to_string(), value);
    }
    if message.get("tool_calls").is_some_and(is_empty) {
        message.remove("tool_calls");
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(call) = call.as_object_mut() else { continue };
        calls.count += 1;
        call.entry("type").or_insert_with(|| json!("function"));
        // Nine letters and digits, which every template accepts.
        let id = call.entry("id").or_insert_with(|| json!(format!("call{:05}", calls.count)));
        let id = id.as_str().unwrap_or_default().to_string();
        let function = call.get("function").and_then(|function| function.get("name"));
        calls.open.push((function.cloned().unwrap_or_default(), id));
    }
    if message.get("role").is_some_and(|role| role == "tool") {
        let given_id = message.get("tool_call_id").and_then(Value::as_str);
        let function = message.get("name");
        let result_of = match given_id {
            Some(given_id) => calls.open.iter().position(|(_, id)| id == given_id),
            None => calls.open.iter().position(|(name, _)| function.is_none_or(|function| function == name)),
        };
        if let Some((_, id)) = result_of.map(|at| calls.open.remove(at)) {
            message.insert("tool_call_id".to_string(), json!(id));
        }
    }
    Ok(())
}
