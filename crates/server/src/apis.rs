//! The APIs of other programs, each under its own paths.
//!
//! An API translates the fields of its requests to those of a chat or a completion. These are then parsed as usual, so
//! all APIs have the same checks, limits and promises. The answer has the API's own format ([`AnswerFormat`]). Errors
//! name a field as the API calls it. A request has one answer.

mod blocks;
pub(crate) mod infill;
pub(crate) mod llama_cpp;
pub(crate) mod messages;
pub(crate) mod ollama;
pub(crate) mod responses;
mod turns;

use foretoken::Request;
use serde_json::Value;

use crate::answer::RequestKind;
use crate::answer::format::AnswerFormat;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;
use crate::parse::RequestContext;

/// A parsed request for generation, and the format of its answer.
pub(crate) struct GenerationRequest {
    pub(crate) kind: RequestKind,
    pub(crate) requests: Vec<Request>,
    /// `None`: OpenAI's format.
    pub(crate) format: Option<Box<dyn AnswerFormat>>,
}

/// Parses a chat (else: a completion) from fields with OpenAI's names. `format` is the format of its answer.
pub(crate) fn parse(
    is_chat: bool,
    app: &App,
    key: u64,
    fields: &mut Fields,
    format: Option<Box<dyn AnswerFormat>>,
) -> Result<GenerationRequest, ApiError> {
    let (kind, requests) = parse_openai(is_chat, &app.request_context(key), fields)?;
    let generation = GenerationRequest { kind, requests, format };
    if generation.format.as_ref().is_some_and(|format| !format.may_have_several()) {
        require_one_answer(&generation).map_err(|error| fields.with_sent_name(error))?;
    }
    Ok(generation)
}

/// Parses the fields of a completion or a chat of OpenAI's API: what the client requested, and the engine's requests
/// for it.
pub(crate) fn parse_openai(
    is_chat: bool,
    context: &RequestContext<'_>,
    fields: &mut Fields,
) -> Result<(RequestKind, Vec<Request>), ApiError> {
    if !is_chat {
        infill::with_suffix(context, fields).map_err(|error| fields.with_sent_name(error))?;
    }
    RequestKind::parse(is_chat, fields, context).map_err(|error| fields.with_sent_name(error))
}

/// Refuses a request for several answers.
fn require_one_answer(generation: &GenerationRequest) -> Result<(), ApiError> {
    let found = generation.requests.len();
    if found == 1 {
        return Ok(());
    }
    let name = if generation.kind.options().best_of > 1 { "n" } else { "prompt" };
    Err(ApiError::unsupported(name, format!("expected one answer under this path, found {found}")))
}

/// Refuses fields of OpenAI's chats that this API calls differently. `names`: OpenAI's names and the API's.
fn refuse_names(fields: &Fields, names: &[(&str, &str)]) -> Result<(), ApiError> {
    match names.iter().find(|(name, _)| fields.has(name)) {
        Some((name, own)) => Err(ApiError::field(name, format!("expected {own} under this path, found {name}"))),
        None => Ok(()),
    }
}

/// An error with an API's names of fields. `names`: OpenAI's names, or suffixes of these from a dot on, and the API's.
fn with_api_names(error: ApiError, names: &[(&str, &str)]) -> ApiError {
    let Some(param) = error.param.clone() else { return error };
    let name = names.iter().fold(param.clone(), |name, (chat, own)| match chat.starts_with('.') {
        true => name.replace(chat, own),
        false if name == *chat => (*own).to_string(),
        false => name,
    });
    if name == param { error } else { error.with_field(&name) }
}

/// The error object of the path's API; `None`: OpenAI's.
pub(crate) fn error_object(path: &str, error: &ApiError) -> Option<Value> {
    if path.starts_with(ollama::PATH_PREFIX) {
        return Some(ollama::error_object(error));
    }
    let path = path.strip_prefix("/v1").unwrap_or(path);
    (path == "/messages" || path.starts_with("/messages/")).then(|| messages::error_object(error))
}

/// Replaces the value of the field `model` by the server's name of this model.
pub(crate) fn normalize_model(path: &str, fields: &mut Fields, models: &Models) -> Result<(), ApiError> {
    match path.starts_with(ollama::PATH_PREFIX) {
        true => ollama::normalize_model(fields, |name| models.find(Some(name)).is_ok()),
        false => Ok(()),
    }
}
