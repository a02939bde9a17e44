//! Properties of the request parser for arbitrary bodies: it does not panic; a refusal is OpenAI's error object with a
//! message of one line and a 4xx status; the engine takes accepted requests or refuses them with a message. The fuzz
//! target calls the same function.

use std::sync::{LazyLock, Mutex, PoisonError};

use foretoken::{Error, Generator, Race, Settings};
use foretoken_server::fuzzing::{Reader, Refusal};
use foretoken_server::{Server, ServerSettings};
use serde_json::Value;

/// Most answers to one body. It bounds the time of one case.
const ANSWERS_MAX: usize = 8;

/// The path that a body is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Completions,
    Chat,
    Tokenize,
    Detokenize,
}

impl Route {
    const ALL: [Self; 4] = [Self::Completions, Self::Chat, Self::Tokenize, Self::Detokenize];
}

/// The field and the message of OpenAI's error object.
#[track_caller]
pub fn error_of(object: &Value) -> (Option<String>, String) {
    assert_eq!(object.as_object().map(|all| all.len()), Some(1), "{object}");
    let error = object["error"].as_object().unwrap_or_else(|| panic!("no error: {object}"));
    let names: Vec<&str> = error.keys().map(String::as_str).collect();
    // The length of a prompt that does not fit is given if its tokens were counted.
    let is_counted = error["code"] == "context_length_exceeded" && names.len() > 4;
    let further: &[&str] = if is_counted { &["n_prompt_tokens", "n_ctx"] } else { &[] };
    assert_eq!(names, [&["message", "type", "param", "code"], further].concat(), "{object}");
    let message = error["message"].as_str().unwrap_or_else(|| panic!("no message: {object}")).to_string();
    assert!(error["type"].is_string() && (error["code"].is_null() || error["code"].is_string()), "{object}");
    assert!(
        !message.contains('\n') && message.chars().count() < 800,
        "the message is long or has several lines: {message:?}"
    );
    let param = error["param"].as_str().map(str::to_string);
    if let Some(param) = &param {
        assert!(message.starts_with(param.as_str()), "the message does not name {param}: {message}");
    }
    (param, message)
}

fn open() -> (Generator, Reader) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = Settings { parallel: 2, ..Settings::default() };
    settings.model.ctx_size = Some(256);
    settings.model.threads = Some(1);
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    let generator = Server::open(&settings, &mut |_| {}).expect("the demo pair opens");
    let server = ServerSettings { answers_max: ANSWERS_MAX, ..ServerSettings::default() };
    let reader = Reader::new(&generator, &server);
    (generator, reader)
}

/// Parses a body. Its first byte chooses the path. True if it is accepted.
pub fn bytes(data: &[u8]) -> bool {
    data.split_first().is_some_and(|(route, body)| request(Route::ALL[usize::from(route % 4)], body))
}

/// Parses a body that is sent to `route`. True if it is accepted.
pub fn request(route: Route, body: &[u8]) -> bool {
    static ENGINE: LazyLock<Mutex<(Generator, Reader)>> = LazyLock::new(|| Mutex::new(open()));
    let mut guard = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (generator, reader) = &mut *guard;
    let requests = match route {
        Route::Completions => reader.requests(false, body),
        Route::Chat => reader.requests(true, body),
        Route::Tokenize => return reader.tokens(false, body).map_err(check_refusal).is_ok(),
        Route::Detokenize => return reader.tokens(true, body).map_err(check_refusal).is_ok(),
    };
    let Ok(requests) = requests.map_err(check_refusal) else { return false };
    assert!(!requests.is_empty() && requests.len() <= ANSWERS_MAX, "{} requests", requests.len());
    let engine = &mut generator.engine;
    let mut accepted = true;
    for request in requests {
        match engine.submit(request) {
            Ok(sequence) => engine.cancel(sequence),
            Err(error) => {
                accepted = false;
                let message = Error::from(error).to_string();
                assert!(message.contains("expected") && !message.contains('\n'), "{message}");
            }
        }
    }
    engine.step(&mut Race);
    assert!(engine.is_idle());
    accepted
}

fn check_refusal((status, object): Refusal) {
    let (_, message) = error_of(&object);
    assert!(status == 400, "{status} {message}");
    assert!(message.contains(": ") && message.contains("expected"), "{message}");
}
