//! Doors: the APIs of other programs, each under its own paths.
//!
//! The idea: a door turns the fields of its requests into those of a chat or a completion, which are then read like all
//! others, so what is refused, bounded and promised is the same behind every door; and it tells the answer in its own
//! form ([`Form`]). A field that has another name here keeps its own in errors. One request has one answer. Left out:
//! what answers have in common (`answer/form.rs`), and OpenAI's chats and completions.

mod blocks;
pub(crate) mod infill;
pub(crate) mod llama_cpp;
pub(crate) mod messages;
pub(crate) mod ollama;
pub(crate) mod responses;
mod turns;

use foretoken::Request;
use serde_json::Value;

use crate::answer::Kind;
use crate::answer::form::Form;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;

/// What a request asks for, and how it is answered.
pub(crate) struct Asking {
    pub(crate) kind: Kind,
    pub(crate) requests: Vec<Request>,
    /// `None`: in OpenAI's form.
    pub(crate) form: Option<Box<dyn Form>>,
}

/// Reads a chat (else: a completion) from fields that are called as OpenAI calls them, to be answered in a form.
pub(crate) fn read(
    is_chat: bool,
    app: &App,
    key: u64,
    fields: &mut Fields,
    form: Option<Box<dyn Form>>,
) -> Result<Asking, ApiError> {
    if !is_chat {
        infill::with_suffix(app, fields).map_err(|error| fields.named(error))?;
    }
    let (kind, requests) = Kind::read(is_chat, fields, &app.reading(key)).map_err(|error| fields.named(error))?;
    let asking = Asking { kind, requests, form };
    if asking.form.as_ref().is_some_and(|form| !form.may_have_several()) {
        one_answer(&asking).map_err(|error| fields.named(error))?;
    }
    Ok(asking)
}

/// Refuses a request for several answers.
fn one_answer(asking: &Asking) -> Result<(), ApiError> {
    let found = asking.requests.len();
    if found == 1 {
        return Ok(());
    }
    let name = if asking.kind.ask().best_of > 1 { "n" } else { "prompt" };
    Err(ApiError::unsupported(name, format!("expected one answer under this path, found {found}")))
}

/// Refuses fields of OpenAI's chats that have another name behind this door. `own`: both names.
fn refuse_names(fields: &Fields, own: &[(&str, &str)]) -> Result<(), ApiError> {
    match own.iter().find(|(name, _)| fields.has(name)) {
        Some((name, own)) => Err(ApiError::field(name, format!("expected {own} under this path, found {name}"))),
        None => Ok(()),
    }
}

/// An error in the names that fields have behind a door. `own`: names of chats' fields, or ends of such (from a dot
/// on), with those behind the door.
fn named(error: ApiError, own: &[(&str, &str)]) -> ApiError {
    let Some(param) = error.param.clone() else { return error };
    let name = own.iter().fold(param.clone(), |name, (chat, own)| match chat.starts_with('.') {
        true => name.replace(chat, own),
        false if name == *chat => (*own).to_string(),
        false => name,
    });
    if name == param { error } else { error.of_field(&name) }
}

/// How the door of a path says what is wrong; `None`: as OpenAI does.
pub(crate) fn error_object(path: &str, error: &ApiError) -> Option<Value> {
    if path.starts_with(ollama::PATHS) {
        return Some(ollama::error_object(error));
    }
    let path = path.strip_prefix("/v1").unwrap_or(path);
    (path == "/messages" || path.starts_with("/messages/")).then(|| messages::error_object(error))
}

/// Gives the field `model` of a path's requests the name that the server knows it by.
pub(crate) fn name_model(path: &str, fields: &mut Fields, models: &Models) -> Result<(), ApiError> {
    match path.starts_with(ollama::PATHS) {
        true => ollama::name_model(fields, |name| models.find(Some(name)).is_ok()),
        false => Ok(()),
    }
}
