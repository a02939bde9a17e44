//! Ollama's own API, under `/api/`.
//!
//! A program that was written for Ollama works with another address. Fields and answers have Ollama's names, a model
//! has the tag `:latest` or none, streams are lines of JSON and come unless `stream` is false, and errors are one text.
//! Requests are read in `ollama/request.rs`, answers told in `ollama/form.rs`, models in `ollama/models.rs`. Left out:
//! embeddings, pictures, and whatever changes which models there are.

mod form;
mod models;
mod request;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
pub(crate) use models::{running, show, tags};
pub(crate) use request::{chat, generate};

/// What its paths begin with.
pub(crate) const PATHS: &str = "/api/";

/// Its paths that ask for what is not done here.
pub(crate) const REFUSED: [&str; 8] = [
    "/api/embed",
    "/api/embeddings",
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/{digest}",
];

/// The version of Ollama whose API this is, which clients look at before they use what is newer.
const VERSION: &str = "0.9.7";

/// The tag of models that are named without one.
const LATEST: &str = ":latest";

/// Where a model's name as it was asked for is kept among a request's fields. Nobody sends one of this name.
const ASKED: &str = "model as asked";

/// `/api/version`.
pub(crate) fn version() -> Value {
    json!({ "version": VERSION, "foretoken": env!("CARGO_PKG_VERSION") })
}

/// Why one of the [`REFUSED`] paths is refused.
pub(crate) fn refused(path: &str) -> ApiError {
    let why = match path {
        "/api/embed" | "/api/embeddings" => "there are no embeddings",
        _ => "which models there are is decided where the server is started",
    };
    let paths = "/api/chat, /api/generate, /api/show, /api/tags, /api/ps or /api/version";
    ApiError::unsupported("path", format!("expected {paths}, found {path}: {why}"))
}

/// An error as Ollama tells it.
pub(crate) fn error_object(error: &ApiError) -> Value {
    let message = &error.message;
    match error.code {
        // Clients look for these words.
        Some("model_not_found") => {
            let found = message.split_once(", found ").map_or(message.as_str(), |(_, found)| found);
            json!({ "error": format!("model '{found}' not found ({message})") })
        }
        _ => json!({ "error": message }),
    }
}

/// Gives the field `model` the name that the server knows it by, where that differs by the tag alone. `name`, as older
/// clients call it, is the same field.
pub(crate) fn name_model(fields: &mut Fields, is_known: impl Fn(&str) -> bool) -> Result<(), ApiError> {
    fields.rename("name", "model")?;
    drop(fields.raw(ASKED));
    let Some(asked) = fields.text("model")? else { return Ok(()) };
    let untagged = asked.strip_suffix(LATEST).unwrap_or(&asked);
    let named = [asked.as_str(), untagged].into_iter().find(|name| is_known(name)).unwrap_or(&asked);
    fields.put("model", "model", &json!(named))?;
    fields.put(ASKED, ASKED, &json!(asked))
}

/// The name that Ollama's clients see.
fn tagged(model: &str) -> String {
    if model.contains(':') { model.to_string() } else { format!("{model}{LATEST}") }
}

/// A time as Ollama writes it: RFC 3339 in UTC, to the nanosecond.
fn written(time: std::time::SystemTime) -> String {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}Z", foretoken::strftime(since.as_secs(), "%FT%T"), since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_written_to_the_nanosecond() {
        let time = UNIX_EPOCH + Duration::new(1_709_210_096, 1_002);
        assert_eq!(written(time), "2024-02-29T12:34:56.000001002Z");
    }

    #[test]
    fn models_are_known_with_and_without_their_tag() {
        for (model, asked, named) in [
            ("m", "m", "m"),
            ("m", "m:latest", "m"),
            ("m", "m:7b", "m:7b"),
            ("m", "other:latest", "other:latest"),
            ("m:latest", "m:latest", "m:latest"),
            ("m:7b", "m:7b", "m:7b"),
        ] {
            let mut fields = Fields::of_body(json!({ "name": asked }).to_string().as_bytes()).expect("an object");
            name_model(&mut fields, |name| name == model).expect("a text");
            assert_eq!(fields.text("model"), Ok(Some(named.to_string())));
            assert_eq!(fields.text(ASKED), Ok(Some(asked.to_string())));
        }
        assert_eq!(["m", "m:7b"].map(tagged), ["m:latest", "m:7b"]);
    }
}
