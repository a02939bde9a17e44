//! What is answered under which path.
//!
//! Every request goes the same way: is it for us (host, origin, key), is its body whole and of a bounded size, is each
//! field what it should be; only then anything is computed. Every refusal is OpenAI's error object, or that of the
//! path's own API. Left out: what fields mean (`ask.rs`), what answers look like (`answer.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{MatchedPath, Path, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::app::App;
use crate::doors::{self, infill, llama_cpp, messages, ollama, responses};
use crate::error::ApiError;
use crate::models::{Models, told};
use crate::requests::{Answered, Key, Number, asks, asks_or_tells, json, tells};
use crate::{guard, page, tokens};

/// Numbers of requests, for their names.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The routes. `/v1` may be left out, as with llama.cpp.
pub(crate) fn router(models: Arc<Models>) -> Router {
    let mut guarded = Router::new().route("/metrics", get(metrics));
    for version in ["", "/v1"] {
        guarded = guarded
            .route(&format!("{version}/models"), get(list))
            .route(&format!("{version}/models/{{*model}}"), get(model))
            .route(
                &format!("{version}/chat/completions"),
                asks(|app, key, fields| doors::read(true, app, key, fields, None)),
            )
            .route(
                &format!("{version}/completions"),
                asks(|app, key, fields| doors::read(false, app, key, fields, None)),
            )
            .route(&format!("{version}/messages"), asks(messages::create))
            .route(&format!("{version}/messages/count_tokens"), tells(messages::count_tokens))
            .route(&format!("{version}/responses"), asks(responses::create))
            .route(
                &format!("{version}/tokenize"),
                tells(|app, _, fields| tokens::tokenize(fields, &app.prompter, &app.limit)),
            )
            .route(&format!("{version}/detokenize"), tells(|app, _, fields| tokens::detokenize(fields, &app.prompter)));
        // Known to clients of others, and nothing that this program does.
        for other in ["embeddings", "rerank", "moderations", "images/generations", "audio/transcriptions"] {
            guarded = guarded.route(&format!("{version}/{other}"), post(unsupported));
        }
    }
    let guarded = guarded
        .route("/completion", asks(llama_cpp::completion))
        .route("/apply-template", tells(llama_cpp::apply_template))
        .route("/props", get(properties))
        .route("/slots", get(slots))
        .route("/infill", asks(infill::infill))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/api/version", get(|| async { json(&ollama::version()) }))
        .route("/api/tags", get(|State(models): State<Arc<Models>>| async move { json(&ollama::tags(&models)) }))
        .route("/api/ps", get(|State(models): State<Arc<Models>>| async move { json(&ollama::running(&models)) }))
        .route("/api/show", tells(ollama::show))
        .route("/api/chat", asks_or_tells(ollama::chat))
        .route("/api/generate", asks_or_tells(ollama::generate));
    let guarded = ollama::REFUSED.into_iter().fold(guarded, |guarded, path| {
        guarded.route(path, any(|request: Request| async move { ollama::refused(request.uri().path()) }))
    });
    let mut all = guarded
        .route_layer(from_fn_with_state(Arc::clone(&models), with_key))
        .route("/health", get(told::health))
        .route("/v1/health", get(told::health));
    if models.shared.settings.page {
        for path in page::paths() {
            all = all.route(path, get(page::file));
        }
    }
    all.fallback(|request: Request| async move { ApiError::not_found(request.uri().path()) })
        .method_not_allowed_fallback(|method: Method| async move { ApiError::method(method.as_str()) })
        .layer(from_fn_with_state(Arc::clone(&models), first))
        .with_state(models)
}

/// What every request goes through first: is it for us, and may its page ask? It is counted, whatever comes of it.
async fn first(State(models): State<Arc<Models>>, mut request: Request, next: Next) -> Response {
    let shared = &models.shared;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(Number(number));
    let matched = request.extensions().get::<MatchedPath>();
    let path = matched.map_or("other".to_string(), |path| path.as_str().to_string());
    let asked = request.uri().path().to_string();
    let headers = request.headers();
    let origin = guard::check_host(&shared.settings, shared.address, &request)
        .and_then(|()| guard::origin(&shared.settings, headers));
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response = match &origin {
        Err(error) => error.clone().into_response(),
        Ok(Some(_)) if is_preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(_) => next.run(request).await,
    };
    if let Ok(Some(origin)) = origin {
        guard::allow(response.headers_mut(), origin);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(object) = response.extensions().get().and_then(|error| doors::error_object(&asked, error)) {
        *response.body_mut() = Body::from(object.to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let id = shared.name_of_request(number);
    let status = response.status().as_u16();
    if let Some(ApiError { message: why, param, .. }) = response.extensions().get() {
        // What was found may be a part of a prompt.
        let why = (status >= 500 || shared.settings.log_prompts).then_some(why);
        match status {
            500.. if status != StatusCode::SERVICE_UNAVAILABLE => tracing::error!(id, path, status, why, "failed"),
            _ => tracing::debug!(id, path, status, param, why, "refused"),
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    shared.http.answered(&path, status);
    response
}

/// Lets only those pass who have a key, where one is needed.
async fn with_key(State(models): State<Arc<Models>>, mut request: Request, next: Next) -> Answered {
    let key = guard::key(&models.shared.settings, request.headers())?;
    request.extensions_mut().insert(Key(key));
    Ok(next.run(request).await)
}

async fn metrics(State(models): State<Arc<Models>>, query: Result<Query<Asked>, QueryRejection>) -> Answered {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let app = models.find(Asked::read(query)?.model.as_deref())?.opened();
    let of_model = app.map(|app| app.metrics.text(app.engine.workload(), app.engine.pass_totals()));
    Ok(([(header::CONTENT_TYPE, kind)], models.shared.http.text(of_model)).into_response())
}

/// What may stand behind a path's question mark.
#[derive(Deserialize)]
struct Asked {
    /// Which model, if not the first.
    model: Option<String>,
    /// Whether it is an error that every slot is busy: `1`.
    fail_on_no_slot: Option<String>,
}

impl Asked {
    fn read(found: Result<Query<Self>, QueryRejection>) -> Result<Self, ApiError> {
        let wrong = |error: QueryRejection| ApiError::bad(format!("query: expected model=NAME, found {error}"));
        found.map(|Query(asked)| asked).map_err(wrong)
    }
}

async fn list(State(models): State<Arc<Models>>) -> Response {
    let all: Vec<Value> = models.entries().iter().map(|entry| told::object(&models, entry)).collect();
    json(&json!({ "object": "list", "data": all }))
}

async fn model(State(models): State<Arc<Models>>, model: Result<Path<String>, PathRejection>) -> Answered {
    let found = model.map_or("bytes that are no UTF-8".to_string(), |Path(model)| model);
    Ok(json(&told::object(&models, models.find(Some(&found))?)))
}

async fn unsupported(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::unsupported("path", format!("expected one for texts (/v1/chat/completions, ...), found {path}"))
}

async fn opened(models: &Arc<Models>, name: Option<&str>) -> Result<Arc<App>, ApiError> {
    models.open(models.find(name)?, Instant::now() + models.shared.settings.timeout()).await
}

async fn tokenizer_info(State(models): State<Arc<Models>>, query: Result<Query<Asked>, QueryRejection>) -> Answered {
    let app = opened(&models, Asked::read(query)?.model.as_deref()).await?;
    Ok(json(&tokens::info(&app.prompter)?))
}

async fn properties(State(models): State<Arc<Models>>, query: Result<Query<Asked>, QueryRejection>) -> Answered {
    let app = opened(&models, Asked::read(query)?.model.as_deref()).await?;
    Ok(json(&llama_cpp::properties(&app)))
}

async fn slots(State(models): State<Arc<Models>>, query: Result<Query<Asked>, QueryRejection>) -> Answered {
    let Asked { model, fail_on_no_slot } = Asked::read(query)?;
    // Whoever watches opens nothing.
    let entry = models.find(model.as_deref())?;
    let closed = || ApiError::unavailable(&format!("model {}: expected it loaded, found it unloaded", entry.name));
    let app = entry.opened().ok_or_else(closed)?;
    if fail_on_no_slot.as_deref() == Some("1") && app.engine.workload().running >= app.parallel {
        return Err(ApiError::unavailable("slots: expected one that is free, found none"));
    }
    Ok(json(&llama_cpp::slots(&app)))
}
