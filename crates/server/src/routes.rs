//! The server's routes.
//!
//! All requests pass the same checks, before any computation: host, origin and key; a complete body of a bounded size;
//! the value of each field. Errors are OpenAI's error object, or that of the path's own API.

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

use crate::apis::{self, infill, llama_cpp, messages, ollama, responses};
use crate::app::App;
use crate::error::ApiError;
use crate::models::{Models, objects};
use crate::requests::{ApiResult, Key, RequestNumber, generation_or_info_route, generation_route, info_route, json};
use crate::shared::Stage;
use crate::{guard, page, tokens};

/// The number of the next request, of which its id is made.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The router. The prefix `/v1` is optional, as with llama.cpp.
pub(crate) fn router(models: Arc<Models>) -> Router {
    let mut guarded = Router::new().route("/metrics", get(metrics));
    for version in ["", "/v1"] {
        guarded = guarded
            .route(&format!("{version}/models"), get(list))
            .route(&format!("{version}/models/{{*model}}"), get(model))
            .route(
                &format!("{version}/chat/completions"),
                generation_route(|app, key, fields| apis::parse(true, app, key, fields, None)),
            )
            .route(
                &format!("{version}/completions"),
                generation_route(|app, key, fields| apis::parse(false, app, key, fields, None)),
            )
            .route(&format!("{version}/messages"), generation_route(messages::create))
            .route(&format!("{version}/messages/count_tokens"), info_route(messages::count_tokens))
            .route(&format!("{version}/responses"), generation_route(responses::create))
            .route(
                &format!("{version}/tokenize"),
                info_route(|app, _, fields| tokens::tokenize(fields, &app.prompter, &app.limit)),
            )
            .route(
                &format!("{version}/detokenize"),
                info_route(|app, _, fields| tokens::detokenize(fields, &app.prompter)),
            );
        // Paths of other servers that this one does not support.
        for other in ["embeddings", "rerank", "moderations", "images/generations", "audio/transcriptions"] {
            guarded = guarded.route(&format!("{version}/{other}"), post(unsupported));
        }
    }
    let guarded = guarded
        .route("/completion", generation_route(llama_cpp::completion))
        .route("/apply-template", info_route(llama_cpp::apply_template))
        .route("/props", get(properties))
        .route("/slots", get(slots))
        .route("/infill", generation_route(infill::infill))
        .route("/drain", post(objects::drain))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/api/version", get(|| async { json(&ollama::version()) }))
        .route("/api/tags", get(|State(models): State<Arc<Models>>| async move { json(&ollama::tags(&models)) }))
        .route("/api/ps", get(|State(models): State<Arc<Models>>| async move { json(&ollama::running(&models)) }))
        .route("/api/show", info_route(ollama::show))
        .route("/api/chat", generation_or_info_route(ollama::chat))
        .route("/api/generate", generation_or_info_route(ollama::generate));
    let guarded = ollama::UNSUPPORTED_PATHS.into_iter().fold(guarded, |guarded, path| {
        guarded.route(path, any(|request: Request| async move { ollama::unsupported_path(request.uri().path()) }))
    });
    let mut all = guarded
        .route_layer(from_fn_with_state(Arc::clone(&models), require_key))
        .route("/health", get(objects::health))
        .route("/ready", get(objects::ready))
        .route("/v1/health", get(objects::health));
    if models.shared.settings.page {
        for path in page::paths() {
            all = all.route(path, get(page::file));
        }
    }
    all.fallback(|request: Request| async move { ApiError::not_found(request.uri().path()) })
        .method_not_allowed_fallback(|method: Method| async move { ApiError::method(method.as_str()) })
        .layer(from_fn_with_state(Arc::clone(&models), check_and_log))
        .with_state(models)
}

/// The outermost layer: checks host and origin, and logs and counts the response.
async fn check_and_log(State(models): State<Arc<Models>>, mut request: Request, next: Next) -> Response {
    let shared = &models.shared;
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(RequestNumber(number));
    let matched = request.extensions().get::<MatchedPath>();
    let path = matched.map_or("other".to_string(), |path| path.as_str().to_string());
    let requested_path = request.uri().path().to_string();
    let headers = request.headers();
    let origin = guard::check_host(&shared.settings, shared.address, &request)
        .and_then(|()| guard::check_site(&shared.settings, &request))
        .and_then(|()| guard::origin(&shared.settings, headers));
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response = match &origin {
        Err(error) => error.clone().into_response(),
        Ok(Some(_)) if is_preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(_) => next.run(request).await,
    };
    if let Ok(Some(origin)) = origin {
        guard::allow_origin(response.headers_mut(), origin);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(object) = response.extensions().get().and_then(|error| apis::error_object(&requested_path, error)) {
        *response.body_mut() = Body::from(object.to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if *shared.stage.borrow() == Stage::Draining {
        // A router that keeps connections opens its next one to another server.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let id = shared.request_id(number);
    let status = response.status().as_u16();
    if let Some(ApiError { message: why, param, .. }) = response.extensions().get() {
        // The value found may be part of a prompt.
        let why = (status >= 500 || shared.settings.log_prompts).then_some(why);
        match status {
            500.. if status != StatusCode::SERVICE_UNAVAILABLE => tracing::error!(id, path, status, why, "failed"),
            _ => tracing::debug!(id, path, status, param, why, "refused"),
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    shared.http.count_response(&path, status);
    response
}

/// Refuses requests without a valid key, if keys are required.
async fn require_key(State(models): State<Arc<Models>>, mut request: Request, next: Next) -> ApiResult {
    let key = guard::key(&models.shared.settings, request.headers())?;
    request.extensions_mut().insert(Key(key));
    Ok(next.run(request).await)
}

async fn metrics(
    State(models): State<Arc<Models>>,
    query: Result<Query<QueryParameters>, QueryRejection>,
) -> ApiResult {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let app = models.find(QueryParameters::read(query)?.model.as_deref())?.loaded();
    let model_metrics = app.map(|app| app.metrics.text(app.engine.workload(), app.engine.pass_totals()));
    Ok(([(header::CONTENT_TYPE, kind)], models.shared.http.text(&models.shared.settings.metrics_prefix, model_metrics))
        .into_response())
}

/// Parameters in a path's query string.
#[derive(Deserialize)]
struct QueryParameters {
    /// The model, if not the first.
    model: Option<String>,
    /// `1`: it is an error if all slots are busy.
    fail_on_no_slot: Option<String>,
}

impl QueryParameters {
    fn read(found: Result<Query<Self>, QueryRejection>) -> Result<Self, ApiError> {
        let wrong = |error: QueryRejection| ApiError::bad(format!("query: expected model=NAME, found {error}"));
        found.map(|Query(parameters)| parameters).map_err(wrong)
    }
}

async fn list(State(models): State<Arc<Models>>) -> Response {
    let all: Vec<Value> = models.entries().iter().map(|entry| objects::object(&models, entry)).collect();
    json(&json!({ "object": "list", "data": all }))
}

async fn model(State(models): State<Arc<Models>>, model: Result<Path<String>, PathRejection>) -> ApiResult {
    let found = model.map_or("bytes that are no UTF-8".to_string(), |Path(model)| model);
    Ok(json(&objects::object(&models, models.find(Some(&found))?)))
}

async fn unsupported(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::unsupported("path", format!("expected one that generates text (/v1/chat/completions, ...), found {path}"))
}

async fn load(models: &Arc<Models>, name: Option<&str>) -> Result<Arc<App>, ApiError> {
    models.load(models.find(name)?, Instant::now() + models.shared.settings.timeout()).await
}

async fn tokenizer_info(
    State(models): State<Arc<Models>>,
    query: Result<Query<QueryParameters>, QueryRejection>,
) -> ApiResult {
    let app = load(&models, QueryParameters::read(query)?.model.as_deref()).await?;
    Ok(json(&tokens::info(&app.prompter)?))
}

async fn properties(
    State(models): State<Arc<Models>>,
    query: Result<Query<QueryParameters>, QueryRejection>,
) -> ApiResult {
    let app = load(&models, QueryParameters::read(query)?.model.as_deref()).await?;
    Ok(json(&llama_cpp::properties(&app)))
}

async fn slots(State(models): State<Arc<Models>>, query: Result<Query<QueryParameters>, QueryRejection>) -> ApiResult {
    let QueryParameters { model, fail_on_no_slot } = QueryParameters::read(query)?;
    // Monitoring does not load a model.
    let entry = models.find(model.as_deref())?;
    let closed = || ApiError::unavailable(&format!("model {}: expected it loaded, found it unloaded", entry.name));
    let app = entry.loaded().ok_or_else(closed)?;
    if fail_on_no_slot.as_deref() == Some("1") && app.engine.workload().running >= app.parallel {
        return Err(ApiError::unavailable("slots: expected one that is free, found none"));
    }
    Ok(json(&llama_cpp::slots(&app)))
}
