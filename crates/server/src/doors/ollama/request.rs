//! Ollama's requests, `/api/chat` and `/api/generate`, in OpenAI's fields.
//!
//! Each of `options` becomes a field of the request; those that say how Ollama runs a model change nothing here. A
//! prompt of `/api/generate` becomes a user's turn where the model has a chat template and `raw` is not asked for. A
//! request that has nothing to answer is answered at once: the model is there. A suffix makes a prompt with a gap, and
//! no chat. Left out: a template of the request's own, the tokens of an earlier answer, and pictures, all of which are
//! refused.

use foretoken::ThinkingMarks;
use serde_json::{Map, Value, json};

use super::ASKED;
use super::form::Ollama;
use crate::app::App;
use crate::doors::{self, Asking};
use crate::error::{ApiError, shown};
use crate::fields::Fields;

/// What was asked for, or the answer where nothing is to be written.
type Asked = Result<Asking, Value>;

/// Options that say how Ollama runs a model, and change no text here.
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
const RENAMED: [(&str, &str); 2] =
    [("repeat_penalty", "repetition_penalty"), ("draft_num_predict", "speculative.n_max")];

/// Fields that change no text here.
const IGNORED_FIELDS: [&str; 3] = ["keep_alive", "truncate", "shift"];

/// How much a model that can think is told to.
const LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// `/api/chat`.
pub(crate) fn chat(app: &App, key: u64, fields: &mut Fields) -> Result<Asked, ApiError> {
    let mut form = Ollama::new(name(app, fields)?, true);
    let messages: Option<Vec<Map<String, Value>>> = fields.take("messages", "a list of messages")?;
    let Some(mut messages) = messages.filter(|messages| !messages.is_empty()) else {
        return Ok(Err(loaded(&mut form, fields)));
    };
    let mut calls = Calls::default();
    for (at, message) in messages.iter_mut().enumerate() {
        translate(message, &format!("messages[{at}]"), &mut calls)?;
    }
    // An answer that the client has begun is gone on with.
    let last = messages.last().filter(|last| last.get("role").is_some_and(|role| role == "assistant"));
    let is_begun = last.is_some_and(|last| !last.contains_key("tool_calls") && last.get("content") != Some(&json!("")));
    if is_begun && !fields.has("add_generation_prompt") && !fields.has("continue_final_message") {
        fields.put("continue_final_message", "messages", &json!(true))?;
    }
    fields.put("messages", "messages", &json!(messages))?;
    common(fields)?;
    think(app, fields, true)?;
    doors::read(true, app, key, fields, Some(Box::new(form))).map(Ok)
}

/// `/api/generate`.
pub(crate) fn generate(app: &App, key: u64, fields: &mut Fields) -> Result<Asked, ApiError> {
    let mut form = Ollama::new(name(app, fields)?, false);
    let refuse =
        |fields: &mut Fields, field: &str, why: &str| match fields.value(field)?.is_none_or(|value| is_empty(&value)) {
            true => Ok(()),
            false => Err(ApiError::unsupported(field, format!("expected none, found some: {why}"))),
        };
    refuse(fields, "template", "the template is the model's")?;
    refuse(fields, "context", "give what was said before to /api/chat")?;
    refuse(fields, "images", "prompts are texts")?;
    let has_suffix = fields.peek("suffix")?.is_some_and(|suffix| !is_empty(&suffix));
    let is_raw = fields.truth("raw")?.unwrap_or(false);
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() && !has_suffix && !fields.has("messages") {
        return Ok(Err(loaded(&mut form, fields)));
    }
    common(fields)?;
    let is_chat = !is_raw && !has_suffix && app.prompter.tokenizer.is_some() && app.prompter.chat_template().is_ok();
    think(app, fields, is_chat)?;
    if is_chat {
        let turn = |role: &str, content: String| json!({ "role": role, "content": content });
        let system = system.map(|system| turn("system", system));
        let turns: Vec<Value> = system.into_iter().chain([turn("user", prompt)]).collect();
        fields.put("messages", "prompt", &json!(turns))?;
    } else {
        if system.is_some() {
            let why = match (is_raw, has_suffix) {
                (true, _) => "beside \"raw\": true",
                (_, true) => "beside a suffix",
                _ => "for a model without a chat template",
            };
            return Err(ApiError::unsupported("system", format!("expected none {why}, found one")));
        }
        fields.put("prompt", "prompt", &json!(prompt))?;
        log_probabilities_of_completion(fields)?;
    }
    doors::read(is_chat, app, key, fields, Some(Box::new(form))).map(Ok)
}

/// The model's name as it was asked for, which answers repeat.
fn name(app: &App, fields: &mut Fields) -> Result<String, ApiError> {
    Ok(fields.text(ASKED)?.unwrap_or_else(|| app.model.clone()))
}

/// The answer where nothing is to be written. Other fields change nothing in it.
fn loaded(form: &mut Ollama, fields: &mut Fields) -> Value {
    *fields = Fields::default();
    form.loaded()
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Null) || value == "" || value.as_array().is_some_and(Vec::is_empty)
}

/// The fields that both kinds of requests have.
fn common(fields: &mut Fields) -> Result<(), ApiError> {
    options(fields)?;
    if !fields.has("stream") {
        fields.put("stream", "stream", &json!(true))?;
    }
    IGNORED_FIELDS.iter().for_each(|name| drop(fields.raw(name)));
    match fields.value("format")? {
        None => Ok(()),
        Some(Value::String(format)) if format.is_empty() => Ok(()),
        Some(Value::String(format)) if format == "json" => {
            fields.put("response_format", "format", &json!({ "type": "json_object" }))
        }
        Some(schema @ Value::Object(_)) => fields.put("json_schema", "format", &schema),
        Some(found) => {
            let expected = "expected \"json\" or a JSON Schema, found";
            Err(ApiError::field("format", format!("{expected} {}", shown(&found.to_string()))))
        }
    }
}

/// Makes fields of the options.
fn options(fields: &mut Fields) -> Result<(), ApiError> {
    const OPTIONS: &str = "options.";
    fields.flatten("options")?;
    // The context is the server's: a prompt that does not fit is refused, and a text that fills it ends.
    fields.count("options.num_ctx", 0, u32::MAX as usize)?;
    // -2 is as much as fits, which is what -1 is here.
    if let Some(most) = fields.whole("options.num_predict", -2, i64::from(u32::MAX))? {
        fields.put("max_tokens", "options.num_predict", &json!(most.max(-1)))?;
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

/// `think`: templates have several names for it. `is_chat`: whether there is a template that could heed it.
fn think(app: &App, fields: &mut Fields, is_chat: bool) -> Result<(), ApiError> {
    let (thinks, level) = match fields.value("think")? {
        None => return Ok(()),
        Some(Value::Bool(thinks)) => (thinks, None),
        Some(Value::String(level)) if LEVELS.contains(&level.as_str()) => (true, Some(level)),
        Some(found) => {
            let expected = format!("expected true, false, {}, found", LEVELS.join(", "));
            return Err(ApiError::field("think", format!("{expected} {}", shown(&found.to_string()))));
        }
    };
    let template = app.prompter.chat_template().ok().filter(|_| is_chat);
    let can = template.is_some_and(|template| {
        ThinkingMarks::of_template(template).is_some() || template.source().contains("reasoning_effort")
    });
    if thinks && !can {
        let why = if is_chat { "this model does not support thinking" } else { "there is no chat template at work" };
        return Err(ApiError::unsupported("think", format!("expected false, found another: {why}")));
    }
    if !is_chat {
        return Ok(());
    }
    let mut variables = json!({ "enable_thinking": thinks, "thinking": thinks });
    if let Some(level) = level {
        variables["reasoning_effort"] = json!(level);
    }
    fields.put("chat_template_kwargs", "think", &variables)
}

/// Chats and completions say differently how many probable tokens are told.
fn log_probabilities_of_completion(fields: &mut Fields) -> Result<(), ApiError> {
    let wanted = fields.truth("logprobs")?.unwrap_or(false);
    let tops = fields.value("top_logprobs")?;
    match (wanted, tops) {
        (true, None) => fields.put("logprobs", "logprobs", &json!(0)),
        (true, Some(tops)) => fields.put("logprobs", "top_logprobs", &tops),
        (false, Some(tops)) if tops != 0 => {
            Err(ApiError::field("top_logprobs", "expected \"logprobs\": true beside it, found none"))
        }
        (false, _) => Ok(()),
    }
}

/// Calls that have no answer yet, by function and name: who does not name them means the first of the function.
#[derive(Default)]
struct Calls {
    made: usize,
    open: Vec<(Value, String)>,
}

/// Gives the fields of a message OpenAI's names. Calls get names where they have none, since some templates want them.
fn translate(message: &mut Map<String, Value>, place: &str, calls: &mut Calls) -> Result<(), ApiError> {
    if message.remove("images").is_some_and(|images| !is_empty(&images)) {
        let expected = "expected none, found some: messages are texts";
        return Err(ApiError::unsupported(&format!("{place}.images"), expected));
    }
    for (from, to) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        let Some(value) = message.remove(from).filter(|value| !is_empty(value)) else { continue };
        if message.get(to).is_some_and(|there| *there != value) {
            let expected = format!("expected it or {place}.{to}, found both");
            return Err(ApiError::field(&format!("{place}.{from}"), expected));
        }
        message.insert(to.to_string(), value);
    }
    if message.get("tool_calls").is_some_and(is_empty) {
        message.remove("tool_calls");
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(call) = call.as_object_mut() else { continue };
        calls.made += 1;
        call.entry("type").or_insert_with(|| json!("function"));
        // Nine letters and digits, which every template takes.
        let id = call.entry("id").or_insert_with(|| json!(format!("call{:05}", calls.made)));
        let id = id.as_str().unwrap_or_default().to_string();
        let function = call.get("function").and_then(|function| function.get("name"));
        calls.open.push((function.cloned().unwrap_or_default(), id));
    }
    if message.get("role").is_some_and(|role| role == "tool") {
        let told = message.get("tool_call_id").and_then(Value::as_str);
        let function = message.get("name");
        let answered = match told {
            Some(told) => calls.open.iter().position(|(_, id)| id == told),
            None => calls.open.iter().position(|(name, _)| function.is_none_or(|function| function == name)),
        };
        if let Some((_, id)) = answered.map(|at| calls.open.remove(at)) {
            message.insert("tool_call_id".to_string(), json!(id));
        }
    }
    Ok(())
}
