//! What is answered under which path.
//!
//! Every request goes the same way: is it for us (host, origin, key), is its body whole and of a bounded size, is each
//! field what it should be; only then anything is computed. Every refusal is OpenAI's error object, or that of the
//! path's own API. Left out: what fields mean (`ask.rs`), what answers look like (`answer.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::answer::{Head, form, stream, whole};
use crate::app::App;
use crate::doors::{self, Asking, llama_cpp, messages, responses};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::run::Run;
use crate::{connections, guard, models, page, tokens};

/// Bodies of so many bytes are read whatever else is.
const SMALL_BODY: usize = 64 << 10;

/// Numbers of requests, for their names.
static NEXT: AtomicU64 = AtomicU64::new(0);

type Answered = Result<Response, ApiError>;

/// The routes. `/v1` may be left out, as with llama.cpp.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut guarded = Router::new().route("/metrics", get(metrics));
    for version in ["", "/v1"] {
        guarded = guarded
            .route(&format!("{version}/models"), get(list))
            .route(&format!("{version}/models/{{*model}}"), get(model))
            .route(&format!("{version}/chat/completions"), post(chat))
            .route(&format!("{version}/completions"), post(completion))
            .route(&format!("{version}/messages"), post(messages))
            .route(&format!("{version}/messages/count_tokens"), post(count_tokens))
            .route(&format!("{version}/responses"), post(responses))
            .route(&format!("{version}/tokenize"), post(tokenize))
            .route(&format!("{version}/detokenize"), post(detokenize));
        // Known to clients of others, and nothing that this program does.
        for other in ["embeddings", "rerank", "moderations", "images/generations", "audio/transcriptions"] {
            guarded = guarded.route(&format!("{version}/{other}"), post(unsupported));
        }
    }
    let guarded = guarded
        .route("/completion", post(llama_completion))
        .route("/apply-template", post(apply_template))
        .route("/props", get(properties))
        .route("/slots", get(slots))
        .route("/infill", post(unsupported));
    let mut all = guarded
        .route_layer(from_fn_with_state(Arc::clone(&app), with_key))
        .route("/health", get(models::health))
        .route("/v1/health", get(models::health));
    if app.settings.page {
        for path in page::paths() {
            all = all.route(path, get(page::file));
        }
    }
    all.fallback(|request: Request| async move { ApiError::not_found(request.uri().path()) })
        .method_not_allowed_fallback(|method: Method| async move { ApiError::method(method.as_str()) })
        .layer(from_fn_with_state(Arc::clone(&app), first))
        .with_state(app)
}

/// What every request goes through first: is it for us, and may its page ask? It is counted, whatever comes of it.
async fn first(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(Number(number));
    let matched = request.extensions().get::<MatchedPath>();
    let path = matched.map_or("other".to_string(), |path| path.as_str().to_string());
    let headers = request.headers();
    let origin =
        guard::check_host(&app.settings, app.address, &request).and_then(|()| guard::origin(&app.settings, headers));
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
    if let Some(object) = response.extensions().get().and_then(|error| doors::error_object(&path, error)) {
        *response.body_mut() = Body::from(object.to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let id = app.name_of_request(number);
    let status = response.status().as_u16();
    if let Some(ApiError { message: why, param, .. }) = response.extensions().get() {
        // What was found may be a part of a prompt.
        let why = (status >= 500 || app.settings.log_prompts).then_some(why);
        match status {
            500.. if status != StatusCode::SERVICE_UNAVAILABLE => tracing::error!(id, path, status, why, "failed"),
            _ => tracing::debug!(id, path, status, param, why, "refused"),
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    app.metrics.answered(&path, status);
    response
}

/// The number of a request, of which its name is made.
#[derive(Clone, Copy)]
struct Number(u64);

/// Whose request it is: a number for each key.
#[derive(Clone, Copy)]
struct Key(u64);

/// Lets only those pass who have a key, where one is needed.
async fn with_key(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Answered {
    let key = guard::key(&app.settings, request.headers())?;
    request.extensions_mut().insert(Key(key));
    Ok(next.run(request).await)
}

fn json(value: &Value) -> Response {
    json_text(value.to_string())
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(app.engine.workload(), app.engine.pass_totals())).into_response()
}

async fn list(State(app): State<Arc<App>>) -> Response {
    json(&json!({ "object": "list", "data": [models::object(&app)] }))
}

async fn model(State(app): State<Arc<App>>, model: Result<Path<String>, PathRejection>) -> Answered {
    let found = model.map_or("bytes that are no UTF-8".to_string(), |Path(model)| model);
    if found == app.model { Ok(json(&models::object(&app))) } else { Err(ApiError::model(&app.model, &found)) }
}

async fn unsupported(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::unsupported("path", format!("expected one for texts (/v1/chat/completions, ...), found {path}"))
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Answered {
    understand(&app, request, |app, _, fields| tokens::tokenize(fields, &app.prompter, &app.limit)).await
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Answered {
    understand(&app, request, |app, _, fields| tokens::detokenize(fields, &app.prompter)).await
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Answered {
    complete(app, request, |app, key, fields| doors::read(true, app, key, fields, None)).await
}

async fn completion(State(app): State<Arc<App>>, request: Request) -> Answered {
    complete(app, request, |app, key, fields| doors::read(false, app, key, fields, None)).await
}

async fn messages(State(app): State<Arc<App>>, request: Request) -> Answered {
    complete(app, request, messages::create).await
}

async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Answered {
    understand(&app, request, messages::count_tokens).await
}

async fn responses(State(app): State<Arc<App>>, request: Request) -> Answered {
    complete(app, request, responses::create).await
}

async fn llama_completion(State(app): State<Arc<App>>, request: Request) -> Answered {
    complete(app, request, llama_cpp::completion).await
}

async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Answered {
    understand(&app, request, llama_cpp::apply_template).await
}

async fn properties(State(app): State<Arc<App>>) -> Response {
    json(&llama_cpp::properties(&app))
}

async fn slots(State(app): State<Arc<App>>, request: Request) -> Answered {
    let wants_free = request.uri().query().is_some_and(|query| query.split('&').any(|one| one == "fail_on_no_slot=1"));
    if wants_free && app.engine.workload().running >= app.parallel {
        return Err(ApiError::unavailable("slots: expected one that is free, found none"));
    }
    Ok(json(&llama_cpp::slots(&app)))
}

/// Answers with what is made of the fields of a request.
async fn understand(app: &Arc<App>, request: Request, make: Make<Value>) -> Answered {
    made(app, request, make).await.map(|value| json(&value))
}

/// Makes something of the fields of a request. Second: whose it is.
type Make<T> = fn(&App, u64, &mut Fields) -> Result<T, ApiError>;

/// What is made of the fields of a request. It may take longer than a moment, so it is not done where connections are
/// served.
async fn made<T: Send + 'static>(app: &Arc<App>, request: Request, make: Make<T>) -> Result<T, ApiError> {
    let key = request.extensions().get::<Key>().map_or(0, |Key(key)| *key);
    let is_small = |length: usize| length <= SMALL_BODY;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length| length > app.settings.body_bytes_max) {
        // Nothing of it is read, and who asks whether it may go on (Expect: 100-continue) is not told to.
        return Err(ApiError::too_large(app.settings.body_bytes_max));
    }
    let read = async {
        // Whoever sends much waits for a place before it is read.
        let place = match length.is_some_and(is_small) {
            true => None,
            false => Some(app.large_bodies.acquire().await.expect("nobody closes it")),
        };
        Ok((place, read(app, request.into_body()).await?))
    };
    let (place, body) = tokio::select! {
        biased;
        read = read => read?,
        () = connections::too_late(app) => return Err(ApiError::ending()),
    };
    let shared = Arc::clone(app);
    let done = tokio::task::spawn_blocking(move || {
        let mut fields = Fields::of_body(&body)?;
        drop(body);
        // There is one model; a request that names another one is not answered by it.
        if let Some(found) = fields.text("model")?.filter(|found| *found != shared.model) {
            return Err(ApiError::model(&shared.model, &found));
        }
        let made = make(&shared, key, &mut fields)?;
        shared.log_unknown(fields.unknown());
        Ok(made)
    });
    let done = done.await;
    drop(place);
    match done {
        // Where the model lies is nobody's business.
        Ok(done) => done.map_err(|error| error.renamed(&app.prompter.target.name, &app.model)),
        Err(error) => Err(ApiError::bug(format!("request: expected it to be understood, found a bug: {error}"))),
    }
}

/// Reads a body, within its bounds of bytes and time.
async fn read(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let most = app.settings.body_bytes_max;
    match tokio::time::timeout(app.settings.idle_timeout(), Limited::new(body, most).collect()).await {
        Err(_) => Err(ApiError::too_slow(app.settings.idle_timeout_s)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(most)),
        Ok(Err(error)) => Err(ApiError::bad(format!("body: expected all of it, found it broken off: {error}"))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// Completions of both kinds.
async fn complete(app: Arc<App>, request: Request, make: Make<Asking>) -> Answered {
    let deadline = Instant::now() + app.settings.timeout();
    let number = request.extensions().get::<Number>().map_or(0, |Number(number)| *number);
    let Asking { kind, requests, form } = made(&app, request, make).await?;
    let (most, found) = (app.settings.queue_max + app.parallel, requests.len());
    if found > most {
        let expected = format!("expected at most {most} answers (those that are written at a time, and the queue)");
        return Err(ApiError::field("n", format!("{expected}, found {found}")));
    }
    let head = Head::new(Arc::clone(&app), kind, number, form.as_ref().map(|form| form.prefix()));
    tracing::debug!(id = head.id, answers = requests.len(), prompt_tokens = requests[0].prompt.len(), "asked");
    if let (true, Some(tokenizer)) = (app.settings.log_prompts, &app.prompter.tokenizer) {
        tracing::info!(id = head.id, prompt = tokenizer.decode(&requests[0].prompt, false), "prompt");
    }
    // On its own, so that what was submitted is cancelled even if this request's client goes away meanwhile.
    let started = tokio::spawn(Run::start(app, head.id.clone(), deadline, requests)).await;
    let started = started.map_err(|error| ApiError::bug(format!("request: expected it to begin, found {error}")))?;
    let run = started.map_err(|error| head.kind.named(error))?;
    Ok(match (head.kind.ask().stream, form) {
        (Some(_), None) => stream::response(head, run),
        (None, None) => json_text(whole::tell(head, run).await?),
        (Some(_), Some(form)) => form::stream(head, run, form),
        (None, Some(form)) => json_text(form::tell_whole(head, run, form).await?),
    })
}
