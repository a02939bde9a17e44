//! Ollama's own API, under `/api/`.
//!
//! A program written for Ollama works if its address is changed. Fields and answers have Ollama's names, a model has
//! the tag `:latest` or none, streams are lines of JSON and the default, and an error is one string. Requests are
//! parsed in `ollama/request.rs`, answers formatted in `ollama/format.rs`, models described in `ollama/models.rs`.
//! Embeddings, images, and changes of the set of models are not supported.

mod format;
mod models;
mod request;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
pub(crate) use models::{running, show, tags};
pub(crate) use request::{chat, generate};

/// The beginning of its paths.
pub(crate) const PATH_PREFIX: &str = "/api/";

/// Its paths that are not supported.
pub(crate) const UNSUPPORTED_PATHS: [&str; 8] = [
    "/api/embed",
    "/api/embeddings",
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/{digest}",
];

/// The version of Ollama whose API this is; clients check it before they use newer features.
const VERSION: &str = "0.9.7";

/// The tag of models that are named without one.
const LATEST: &str = ":latest";

/// The internal field with the model's name as it was requested. Clients do not send a field of this name.
const REQUESTED_MODEL: &str = "model as asked";

/// `/api/version`.
pub(crate) fn version() -> Value {
    json!({ "version": VERSION, "foretoken": env!("CARGO_PKG_VERSION") })
}

/// The error of one of the [`UNSUPPORTED_PATHS`] paths.
pub(crate) fn unsupported_path(path: &str) -> ApiError {
    let why = match path {
        "/api/embed" | "/api/embeddings" => "there are no embeddings",
        _ => "the models are chosen when the server is started",
    };
    let paths = "/api/chat, /api/generate, /api/show, /api/tags, /api/ps or /api/version";
    ApiError::unsupported("path", format!("expected {paths}, found {path}: {why}"))
}

/// Ollama's error object.
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

/// Replaces the value of `model` by the server's name of the model, which may differ in the tag. Older clients call the
/// field `name`.
pub(crate) fn normalize_model(fields: &mut Fields, is_known: impl Fn(&str) -> bool) -> Result<(), ApiError> {
    fields.rename("name", "model")?;
    drop(fields.raw(REQUESTED_MODEL));
    let Some(requested) = fields.string("model")? else { return Ok(()) };
    let untagged = requested.strip_suffix(LATEST).unwrap_or(&requested);
    let named = [requested.as_str(), untagged].into_iter().find(|name| is_known(name)).unwrap_or(&requested);
    fields.insert("model", "model", &json!(named))?;
    fields.insert(REQUESTED_MODEL, REQUESTED_MODEL, &json!(requested))
}

/// The model's name with a tag, as Ollama's clients expect it.
fn tagged(model: &str) -> String {
    if model.contains(':') { model.to_string() } else { format!("{model}{LATEST}") }
}

/// A time in Ollama's format: RFC 3339 in UTC, to the nanosecond.
fn rfc3339(time: std::time::SystemTime) -> String {
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
        assert_eq!(rfc3339(time), "2024-02-29T12:34:56.000001002Z");
    }

    #[test]
    fn models_are_known_with_and_without_their_tag() {
        for (model, requested, named) in [
            ("m", "m", "m"),
            ("m", "m:latest", "m"),
            ("m", "m:7b", "m:7b"),
            ("m", "other:latest", "other:latest"),
            ("m:latest", "m:latest", "m:latest"),
            ("m:7b", "m:7b", "m:7b"),
        ] {
            let mut fields = Fields::of_body(json!({ "name": requested }).to_string().as_bytes()).expect("an object");
            normalize_model(&mut fields, |name| name == model).expect("a text");
            assert_eq!(fields.string("model"), Ok(Some(named.to_string())));
            assert_eq!(fields.string(REQUESTED_MODEL), Ok(Some(requested.to_string())));
        }
        assert_eq!(["m", "m:7b"].map(tagged), ["m:latest", "m:7b"]);
    }
}
