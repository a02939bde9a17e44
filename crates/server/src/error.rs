//! Errors in OpenAI's format: a status, and an object that names the field.
//!
//! The message alone suffices to correct the request: it names the field, the expected value and the value found, which
//! is shortened since it may be megabytes. A status of 500 is a bug of the server.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use foretoken::line::one_line;
use foretoken::{Error, ExecutorError, Message, RequestError};
use serde_json::{Value, json};

/// Why a request is refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// OpenAI's type of error.
    pub(crate) kind: &'static str,
    /// The field that is wrong, if one is.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which the client may retry.
    pub(crate) retry_after_s: Option<u64>,
    /// For a prompt that is too long: its tokens, and the tokens of the context.
    pub(crate) context: Option<Box<[usize; 2]>>,
}

/// Maximum number of characters of a found value that a message shows.
const SHOWN_MAX: usize = 80;

/// Maximum number of characters of a message.
const MESSAGE_MAX: usize = 500;

/// A found value on one line, shortened.
pub(crate) fn shown(found: &str) -> String {
    one_line(found, SHOWN_MAX)
}

impl ApiError {
    fn new(status: StatusCode, message: String) -> Self {
        let kind = "invalid_request_error";
        // A value found by the library is not always short.
        let message = one_line(&message, MESSAGE_MAX);
        Self { status, message, kind, param: None, code: None, retry_after_s: None, context: None }
    }

    /// An error that concerns no single field.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message.into())
    }

    /// An error in a field: its name, then the expected and the found value.
    pub(crate) fn field(name: &str, rest: impl std::fmt::Display) -> Self {
        let name = shown(name);
        Self { param: Some(name.clone()), ..Self::bad(format!("{name}: {rest}")) }
    }

    /// Whether the error concerns one of these fields.
    pub(crate) fn concerns(&self, fields: &[&str]) -> bool {
        self.param.as_deref().is_some_and(|param| fields.contains(&param))
    }

    /// The same error, attributed to another field.
    pub(crate) fn with_field(self, name: &str) -> Self {
        let rest = self.message.split_once(": ").map_or(self.message.as_str(), |(_, rest)| rest);
        Self { message: format!("{name}: {rest}"), param: Some(name.to_string()), ..self }
    }

    /// A field that asks for something that the server does not support.
    pub(crate) fn unsupported(name: &str, rest: impl std::fmt::Display) -> Self {
        Self { code: Some("unsupported"), ..Self::field(name, rest) }
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let message = format!("path: expected one of this server's (/v1/chat/completions, ...), found {}", shown(path));
        Self { code: Some("not_found"), ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    pub(crate) fn method(method: &str) -> Self {
        let message = format!("method: expected another one for this path, found {}", shown(method));
        Self { code: Some("method_not_allowed"), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, message) }
    }

    pub(crate) fn model(expected: &str, found: &str) -> Self {
        let message = format!("model: expected {expected}, found {}", shown(found));
        let error = Self::new(StatusCode::NOT_FOUND, message);
        Self { param: Some("model".into()), code: Some("model_not_found"), ..error }
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "Authorization: expected \"Bearer\" and one of the server's API keys, found another or none";
        let error = Self::new(StatusCode::UNAUTHORIZED, message.into());
        Self { kind: "authentication_error", code: Some("invalid_api_key"), ..error }
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::FORBIDDEN, message.into());
        Self { kind: "permission_error", ..error }
    }

    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let message = format!("body: expected at most {bytes_max} bytes, found more");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub(crate) fn too_slow(seconds: u64) -> Self {
        let message = format!("body: expected all of it within {seconds} s, found less");
        Self::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// The server shuts down before it has received the whole request.
    pub(crate) fn ending() -> Self {
        Self::unavailable("body: expected all of it before the shutdown, found less")
    }

    /// An error that is temporary.
    pub(crate) fn unavailable(message: &str) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message.into());
        Self { kind: "server_error", retry_after_s: Some(1), ..error }
    }

    /// The server shuts down, so another one should be asked.
    pub(crate) fn shutting_down() -> Self {
        let error = Self::unavailable("server: expected one that accepts requests, found it shutting down");
        Self { code: Some("shutdown"), retry_after_s: Some(5), ..error }
    }

    /// The queue is full, or the request waited too long.
    pub(crate) fn busy(message: impl Into<String>, retry_after_s: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message.into());
        Self { kind: "rate_limit_error", code: Some("queue_full"), retry_after_s: Some(retry_after_s), ..error }
    }

    /// A prompt of `tokens` tokens does not fit into a context of `context` tokens.
    pub(crate) fn too_long(tokens: usize, context: usize, error: Self) -> Self {
        Self { code: Some("context_length_exceeded"), context: Some(Box::new([tokens, context])), ..error }
    }

    /// A bug of the server, or the engine has stopped.
    pub(crate) fn bug(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, message.into());
        Self { kind: "server_error", ..error }
    }

    /// The library's error about a setting or a prompt, with the names of request fields.
    pub(crate) fn of(error: &Error) -> Self {
        let message = error.with_names(field_of_setting);
        match error {
            Error::Request(RequestError::Queue { .. }) => Self::busy(message, 1),
            Error::Request(RequestError::PromptTooLong { found, context }) => {
                Self::too_long(*found, *context, Self { param: Some("prompt".into()), ..Self::bad(message) })
            }
            Error::Request(RequestError::SourceLength { found, most }) if found > most => {
                Self::too_long(*found, *most, Self::bad(message).with_field("prompt"))
            }
            Error::Stopped(_) | Error::Thread(_) => Self::bug(message),
            _ => {
                let mut name = message.split(':').next().unwrap_or_default();
                if matches!(error, Error::Setting(_)) {
                    // The value may follow the setting's name.
                    name = name.split(' ').next().unwrap_or_default();
                }
                let name = name.to_string();
                let is_field = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
                match name.as_str() {
                    // What an encoder reads is the prompt here.
                    "source" => Self::bad(message).with_field("prompt"),
                    _ => Self { param: is_field.then_some(name), ..Self::bad(message) },
                }
            }
        }
    }

    /// Why a running request failed: an error in a field, an executor that failed, or else a bug of the server or of
    /// the model.
    pub(crate) fn from_failure(reason: &str) -> Self {
        let message = Message::of_failure(reason);
        match message.begins_with() {
            Some(_) => Self::of(&Error::Setting(message)),
            // Another server can answer, so routers that repeat what got 503 are told so.
            None if reason.starts_with(ExecutorError::FAILED) => {
                Self { code: Some("executor_failed"), ..Self::unavailable(reason) }
            }
            None => Self::bug(reason),
        }
    }

    /// The same error with `from` replaced by `to` in its message.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        Self { message: self.message.replace(from, to), ..self }
    }

    /// The error as OpenAI's JSON object.
    pub(crate) fn object(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        let mut object = json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
        if let Some([tokens, context]) = self.context.as_deref() {
            // llama.cpp's clients look for these.
            object["error"]["n_prompt_tokens"] = json!(tokens);
            object["error"]["n_ctx"] = json!(context);
        }
        object
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.object().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The log reads it from there.
        response.extensions_mut().insert(self);
        response
    }
}

/// The request field that sets this setting.
fn field_of_setting(setting: &str) -> String {
    match setting {
        "penalty_window" => "repeat_last_n",
        "tokens_max" => "max_tokens",
        "tokens_min" => "min_tokens",
        "n_best" => "n",
        "num_beams" => "use_beam_search",
        "banned_tokens" => "logit_bias",
        "spec_type" => "speculative.type",
        "verify" => "speculative.verify",
        "lossy_lenience" => "speculative.lossy_lenience",
        "budget" => "speculative.n_max",
        "draft.n_max" => "speculative.n_max",
        "draft.n_min" => "speculative.n_min",
        "draft.p_min" => "speculative.p_min",
        "prompt_ids" => "prompt",
        other => other,
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_values_are_one_short_line() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(1 << 20)).len(), SHOWN_MAX + 3);
        assert_eq!(shown(&"\u{7f}".repeat(1 << 20)), "\\u{7f}".repeat(SHOWN_MAX / 6) + "...");
    }

    #[test]
    fn errors_of_the_library_name_the_field() {
        let refused = Error::Request(RequestError::PromptTooLong { found: 9, context: 8 });
        let error = ApiError::of(&refused);
        assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some("prompt")));
        let full = ApiError::of(&Error::Request(RequestError::Queue { waiting_max: 1 }));
        assert_eq!((full.status, full.retry_after_s), (StatusCode::TOO_MANY_REQUESTS, Some(1)));
    }
}
