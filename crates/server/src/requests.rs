//! From the body of a request to its answer.
//!
//! A body is read within bounds of bytes and time, its model is found, and opened if it is not; then something is made
//! of its fields: what is asked for ([`asks`]), or what is answered at once ([`tells`]). Left out: paths (`routes.rs`),
//! what fields mean (`ask.rs`, `doors.rs`), what answers look like (`answer.rs`).

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::Instant;

use crate::answer::{Head, form, stream, whole};
use crate::app::App;
use crate::connections;
use crate::doors::{self, Asking};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;
use crate::run::Run;
use crate::shared::Shared;

/// Bodies of so many bytes are read whatever else is.
const SMALL_BODY: usize = 64 << 10;

pub(crate) type Answered = Result<Response, ApiError>;

/// The number of a request, of which its name is made.
#[derive(Clone, Copy)]
pub(crate) struct Number(pub(crate) u64);

/// Whose request it is: a number for each key.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) u64);

pub(crate) fn json(value: &Value) -> Response {
    json_text(value.to_string())
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Makes something of the fields of a request. Second: whose it is.
pub(crate) type Make<T> = fn(&App, u64, &mut Fields) -> Result<T, ApiError>;

/// A path whose requests are answered by a model.
pub(crate) fn asks(make: Make<Asking>) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| complete(models, request, make))
}

/// The same of a path whose requests may ask for nothing to be written, and are then answered with what is known.
pub(crate) fn asks_or_tells(make: Make<Result<Asking, Value>>) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| async move {
        let begun = Begun::of(&models, &request);
        match made(&models, request, make).await? {
            (app, Ok(asking)) => answer(app, begun, asking).await,
            (_, Err(known)) => Ok(json(&known)),
        }
    })
}

/// A path whose requests are answered with what is made of their fields.
pub(crate) fn tells(make: Make<Value>) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| async move {
        made(&models, request, make).await.map(|(_, value)| json(&value))
    })
}

/// The model that a request names, and what is made of its fields. It may take longer than a moment, so it is not done
/// where connections are served.
async fn made<T: Send + 'static>(
    models: &Arc<Models>,
    request: Request,
    make: Make<T>,
) -> Result<(Arc<App>, T), ApiError> {
    let deadline = Instant::now() + models.shared.settings.timeout();
    let shared = &models.shared;
    let key = request.extensions().get::<Key>().map_or(0, |Key(key)| *key);
    let path = request.uri().path().to_string();
    let is_small = |length: usize| length <= SMALL_BODY;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length| length > shared.settings.body_bytes_max) {
        // Nothing of it is read, and who asks whether it may go on (Expect: 100-continue) is not told to.
        return Err(ApiError::too_large(shared.settings.body_bytes_max));
    }
    let read = async {
        // Whoever sends much waits for a place before it is read.
        let place = match length.is_some_and(is_small) {
            true => None,
            false => Some(shared.large_bodies.acquire().await.expect("nobody closes it")),
        };
        Ok((place, read(shared, request.into_body()).await?))
    };
    let (place, body) = tokio::select! {
        biased;
        read = read => read?,
        () = connections::too_late(shared) => return Err(ApiError::ending()),
    };
    let finding = Arc::clone(models);
    let found = move || {
        let mut fields = Fields::of_body(&body)?;
        drop(body);
        doors::name_model(&path, &mut fields, &finding)?;
        let name = fields.text("model")?;
        let entry = finding.find(name.as_deref())?;
        Ok(match finding.ready(entry) {
            Some(app) => Named::Ready(made_of(app, key, fields, make)?),
            None => Named::Closed(name, fields),
        })
    };
    let found = apart(found).await;
    drop(place);
    match found? {
        Named::Ready(made) => Ok(made),
        Named::Closed(name, fields) => {
            let app = models.open(models.find(name.as_deref())?, deadline).await?;
            apart(move || made_of(app, key, fields, make)).await
        }
    }
}

/// What a request is for, by the model that it names.
enum Named<T> {
    /// It is open, and this was made of the fields.
    Ready((Arc<App>, T)),
    /// It has to be opened first.
    Closed(Option<String>, Fields),
}

fn made_of<T>(app: Arc<App>, key: u64, mut fields: Fields, make: Make<T>) -> Result<(Arc<App>, T), ApiError> {
    // Where the model lies is nobody's business.
    let made = make(&app, key, &mut fields);
    let made = made.map_err(|error| error.renamed(&app.prompter.target.name, &app.model))?;
    app.log_unknown(fields.unknown());
    Ok((app, made))
}

/// Runs what may take a while beside those who serve connections.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(ApiError::bug(format!("request: expected it to be understood, found a bug: {error}")))
    })
}

/// Reads a body, within its bounds of bytes and time.
async fn read(shared: &Shared, body: Body) -> Result<Bytes, ApiError> {
    let most = shared.settings.body_bytes_max;
    match tokio::time::timeout(shared.settings.idle_timeout(), Limited::new(body, most).collect()).await {
        Err(_) => Err(ApiError::too_slow(shared.settings.idle_timeout_s)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(most)),
        Ok(Err(error)) => Err(ApiError::bad(format!("body: expected all of it, found it broken off: {error}"))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// When a request came, by its number, and until when it may take.
struct Begun {
    number: u64,
    deadline: Instant,
}

impl Begun {
    fn of(models: &Models, request: &Request) -> Self {
        let number = request.extensions().get::<Number>().map_or(0, |Number(number)| *number);
        Self { number, deadline: Instant::now() + models.shared.settings.timeout() }
    }
}

/// Has answers written that are asked for.
async fn complete(models: Arc<Models>, request: Request, make: Make<Asking>) -> Answered {
    let begun = Begun::of(&models, &request);
    let (app, asking) = made(&models, request, make).await?;
    answer(app, begun, asking).await
}

async fn answer(app: Arc<App>, Begun { number, deadline }: Begun, asking: Asking) -> Answered {
    let Asking { kind, requests, form } = asking;
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
