//! From the body of a request to its answer.
//!
//! A body is read within limits of bytes and time. The model that it names is loaded if necessary. Its fields are then
//! parsed: into a generation request ([`generation_route`]), or into a value that is returned at once ([`info_route`]).
//! The paths are in `routes.rs`, the fields in `parse.rs` and `apis.rs`, the formats of answers in `answer.rs`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::Instant;

use crate::answer::{AnswerContext, complete, format, stream};
use crate::apis::{self, GenerationRequest};
use crate::app::App;
use crate::connections;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;
use crate::parse::beams;
use crate::run::{NotBegun, Run};
use crate::shared::Shared;

/// Largest body, in bytes, that is read without waiting for a permit.
const SMALL_BODY: usize = 64 << 10;

pub(crate) type ApiResult = Result<Response, ApiError>;

/// The number of a request, of which its id is made.
#[derive(Clone, Copy)]
pub(crate) struct RequestNumber(pub(crate) u64);

/// A number that identifies the API key of a request.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) u64);

pub(crate) fn json(value: &Value) -> Response {
    json_text(value.to_string())
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Parses the fields of a request. The second argument identifies its API key.
pub(crate) type ParseFields<T> = fn(&App, u64, &mut Fields) -> Result<T, ApiError>;

/// A route whose requests are answered by a model.
pub(crate) fn generation_route(parse: ParseFields<GenerationRequest>) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| answer_generation_request(models, request, parse))
}

/// Like [`generation_route`], for requests that may be answered without generation, for which `parse` returns
/// `Ok(Err(answer))`.
pub(crate) fn generation_or_info_route(
    parse: ParseFields<Result<GenerationRequest, Value>>,
) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| async move {
        let start = RequestStart::of(&models, &request);
        match parse_request(&models, request, parse).await? {
            (app, Ok(generation)) => answer(app, start, generation).await,
            (_, Err(info)) => Ok(json(&info)),
        }
    })
}

/// A route whose requests are answered with the value parsed from their fields.
pub(crate) fn info_route(parse: ParseFields<Value>) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| async move {
        parse_request(&models, request, parse).await.map(|(_, value)| json(&value))
    })
}

/// Parses a request, and loads its model if necessary. This may take long, so the thread of connections does not do it.
async fn parse_request<T: Send + 'static>(
    models: &Arc<Models>,
    request: Request,
    parse: ParseFields<T>,
) -> Result<(Arc<App>, T), ApiError> {
    let deadline = Instant::now() + models.shared.settings.timeout();
    let shared = &models.shared;
    let key = request.extensions().get::<Key>().map_or(0, |Key(key)| *key);
    let path = request.uri().path().to_string();
    let is_small = |length: usize| length <= SMALL_BODY;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length| length > shared.settings.body_bytes_max) {
        // Nothing of it is read, and `Expect: 100-continue` is not answered with 100.
        return Err(ApiError::too_large(shared.settings.body_bytes_max));
    }
    let read = async {
        // A large body waits for a permit before it is read.
        let permit = match length.is_some_and(is_small) {
            true => None,
            false => Some(shared.large_bodies.acquire().await.expect("the semaphore is never closed")),
        };
        Ok((permit, read(shared, request.into_body()).await?))
    };
    let (permit, body) = tokio::select! {
        biased;
        read = read => read?,
        () = connections::shutdown_grace_over(shared) => return Err(ApiError::ending()),
    };
    let models_of_task = Arc::clone(models);
    let found = move || {
        let mut fields = Fields::of_body(&body)?;
        drop(body);
        apis::normalize_model(&path, &mut fields, &models_of_task)?;
        let name = fields.string("model")?;
        let entry = models_of_task.find(name.as_deref())?;
        Ok(match models_of_task.touch(entry) {
            Some(app) => ModelState::Ready(parse_fields(app, key, fields, parse)?),
            None => ModelState::Unloaded(name, fields),
        })
    };
    let found = run_blocking(found).await;
    drop(permit);
    match found? {
        ModelState::Ready(parsed) => Ok(parsed),
        ModelState::Unloaded(name, fields) => {
            let app = models.load(models.find(name.as_deref())?, deadline).await?;
            run_blocking(move || parse_fields(app, key, fields, parse)).await
        }
    }
}

/// The state of the model that a request names.
enum ModelState<T> {
    /// It is loaded, and the fields were parsed.
    Ready((Arc<App>, T)),
    /// It has to be loaded first.
    Unloaded(Option<String>, Fields),
}

fn parse_fields<T>(
    app: Arc<App>,
    key: u64,
    mut fields: Fields,
    parse: ParseFields<T>,
) -> Result<(Arc<App>, T), ApiError> {
    // Errors do not reveal the path of the model.
    let parsed = parse(&app, key, &mut fields);
    let parsed = parsed.map_err(|error| error.renamed(&app.prompter.target.name, &app.model))?;
    app.log_unknown(fields.unknown());
    Ok((app, parsed))
}

/// Runs long work on a thread other than that of the connections.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(ApiError::bug(format!("request: expected it to be parsed, found a bug: {error}"))))
}

/// Reads a body, within the limits of bytes and time.
async fn read(shared: &Shared, body: Body) -> Result<Bytes, ApiError> {
    let bytes_max = shared.settings.body_bytes_max;
    match tokio::time::timeout(shared.settings.idle_timeout(), Limited::new(body, bytes_max).collect()).await {
        Err(_) => Err(ApiError::too_slow(shared.settings.idle_timeout_s)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(bytes_max)),
        Ok(Err(error)) => Err(ApiError::bad(format!("body: expected all of it, found it broken off: {error}"))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// The number and the deadline of a request that was received.
struct RequestStart {
    number: u64,
    deadline: Instant,
}

impl RequestStart {
    fn of(models: &Models, request: &Request) -> Self {
        let number = request.extensions().get::<RequestNumber>().map_or(0, |RequestNumber(number)| *number);
        Self { number, deadline: Instant::now() + models.shared.settings.timeout() }
    }
}

/// Answers a generation request.
async fn answer_generation_request(
    models: Arc<Models>,
    request: Request,
    parse: ParseFields<GenerationRequest>,
) -> ApiResult {
    let start = RequestStart::of(&models, &request);
    let (app, generation) = parse_request(&models, request, parse).await?;
    answer(app, start, generation).await
}

async fn answer(
    app: Arc<App>,
    RequestStart { number, deadline }: RequestStart,
    generation: GenerationRequest,
) -> ApiResult {
    let GenerationRequest { kind, requests, format } = generation;
    if format.is_some() && kind.options().sampling.has_beams() {
        let found = "found true: beam searches are for /v1/chat/completions and /v1/completions";
        return Err(ApiError::unsupported(beams::FIELD, format!("expected false under this path, {found}")));
    }
    let (answers_max, found) = (app.settings.queue_max + app.parallel, requests.len());
    if found > answers_max {
        let expected = format!("expected at most {answers_max} answers (those generated at a time, and the queue)");
        return Err(ApiError::field("n", format!("{expected}, found {found}")));
    }
    let context = AnswerContext::new(&app, kind, number, format.as_ref().map(|format| format.prefix()));
    tracing::debug!(id = context.id, answers = requests.len(), prompt_tokens = requests[0].input().len(), "received");
    if let (true, Some(tokenizer)) = (app.settings.log_prompts, &app.prompter.tokenizer) {
        tracing::info!(id = context.id, prompt = tokenizer.decode(requests[0].input(), false), "prompt");
    }
    // A task of its own cancels the submitted requests even if the client disconnects meanwhile.
    let started = tokio::spawn(Run::start(app, context.id.clone(), deadline, requests)).await;
    let started = started.map_err(|error| ApiError::bug(format!("request: expected it to begin, found {error}")))?;
    let mut run = started.map_err(|error| context.kind.attribute(error))?;
    if context.kind.options().stream.is_some() {
        let begun = run.begin(context.kind.options().progress).await;
        begun.map_err(|why| match why {
            NotBegun::Cut(cut) => complete::cut_before_start(&context, cut),
            NotBegun::Failed(index, why) => complete::failed(&context, &why, run.records()[index].forbids),
        })?;
    }
    Ok(match (context.kind.options().stream, format) {
        (Some(_), None) => stream::response(context, run),
        (None, None) => json_text(complete::answer(context, run).await?),
        (Some(_), Some(format)) => format::stream(context, run, format),
        (None, Some(format)) => json_text(format::complete(context, run, format).await?),
    })
}
