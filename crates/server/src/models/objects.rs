//! `/v1/models`, `/health` and `/ready`: what the models are, the server's health, and whether it takes requests.
//!
//! For a model that is not loaded, the object has its names and that status.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use foretoken::settings::SamplingSettings;
use foretoken::{Sampling, SpecType};
use serde_json::{Value, json};

use super::{Entry, Models};
use crate::app::App;
use crate::error::ApiError;
use crate::law::decimal;
use crate::shared::Stage;

/// A model's object, with what a client may want to know before its first request.
pub(crate) fn object(models: &Models, entry: &Entry) -> Value {
    let app = entry.loaded();
    let mut object = json!({
        "id": entry.name,
        "object": "model",
        "created": models.shared.created,
        "owned_by": "foretoken",
        "aliases": entry.aliases,
        // As llama.cpp's router has it.
        "status": { "value": if app.is_some() { "loaded" } else { "unloaded" } },
    });
    if let Some(app) = app {
        object["max_model_len"] = json!(app.prompter.context);
        object["meta"] = meta(&app);
    }
    object
}

fn meta(app: &App) -> Value {
    let prompter = &app.prompter;
    let auto = prompter.method(&SpecType::Auto, false).map(|method| method.drafters).unwrap_or_default();
    let auto: Vec<&String> = auto.iter().filter_map(|number| prompter.names.get(usize::from(*number))).collect();
    json!({
        "n_ctx": prompter.context,
        "n_vocab": prompter.target.spec.vocabulary,
        "parallel": app.parallel,
        "chat": prompter.tokenizer.is_some() && prompter.chat_template().is_ok(),
        "drafters": prompter.names,
        "spec_type": app.spec_type,
        "auto": auto,
        "verify": app.promise,
        "lossy_lenience": decimal(app.lossy_lenience),
        "defaults": defaults(&prompter.decided.sampling),
    })
}

/// What a request has that leaves all open. Temperature and top-k come first.
fn defaults(law: &Sampling) -> Value {
    let mut defaults = json!({ "temperature": decimal(law.temperature), "top_k": law.top_k });
    for number in SamplingSettings::NUMBERS {
        defaults[number.name] = decimal((number.parameter().get)(law));
    }
    defaults
}

/// For how long the server is not ready after a pass that failed. Then a router may try again.
const NOT_READY_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The server is healthy unless an engine has stopped, or its executor failed the latest pass.
pub(crate) async fn health(State(models): State<Arc<Models>>) -> Result<Response, ApiError> {
    state(&models, "ok", Duration::MAX)
}

/// Whether routers should send requests: as long as the server is healthy and nobody asked for its shutdown. Without
/// requests it could not be seen that passes succeed again, so it is ready again some time after one that failed.
pub(crate) async fn ready(State(models): State<Arc<Models>>) -> Result<Response, ApiError> {
    match *models.shared.stage.borrow() {
        Stage::Serving => state(&models, "ready", NOT_READY_AFTER_FAILURE),
        _ => Err(ApiError::shutting_down()),
    }
}

/// The server's state in a word, with its load.
///
/// # Errors
/// An engine has stopped, or its executor failed the latest pass, less than `failure` ago.
fn state(models: &Models, status: &str, failure: Duration) -> Result<Response, ApiError> {
    let (mut running, mut waiting) = (0, 0);
    for app in models.loaded() {
        if app.engine.has_ended() {
            return Err(ApiError::bug("engine: expected one that runs, found it stopped"));
        }
        if app.engine.failing_for().is_some_and(|time| time < failure) {
            let found = "found the latest failed (the log says why)";
            return Err(ApiError::unavailable(&format!("engine: expected passes that succeed, {found}")));
        }
        let workload = app.engine.workload();
        (running, waiting) = (running + workload.running, waiting + workload.waiting);
    }
    let body = json!({ "status": status, "running": running, "waiting": waiting });
    Ok(([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response())
}

/// Asks for the server's shutdown, as SIGTERM does, where a key protects it.
pub(crate) async fn drain(State(models): State<Arc<Models>>) -> Result<Response, ApiError> {
    let settings = &models.shared.settings;
    if settings.api_keys.is_empty() {
        let expected = "expected a server with API keys, since anybody could shut down one without";
        return Err(ApiError::forbidden(format!("drain: {expected}, found none")));
    }
    models.shared.drain_requested.notify_one();
    let body = json!({
        "status": "draining",
        "drain_delay": settings.drain_delay_s,
        "shutdown_timeout": settings.shutdown_timeout_s,
    });
    Ok((StatusCode::ACCEPTED, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response())
}
