//! The log of all servers of this program, collected as text: what it must contain, and what it must not contain.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::test_server::{TestServer, shared};

static LINES: Mutex<String> = Mutex::new(String::new());

/// Collects every event of every level.
struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("writing to a String cannot fail");
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("foretoken")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_str(&line.0);
        lines.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Installs the collector, once.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Collector).expect("no other subscriber is installed"));
}

/// The lines of the log that contain this word.
pub fn lines_with(word: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.lines().filter(|line| line.contains(word)).map(str::to_string).collect()
}

/// Sends a completion and a streamed chat whose prompts contain this word. Returns the ids and the texts of the
/// responses.
fn send_requests(server: &TestServer, word: &str) -> (Vec<String>, Vec<String>) {
    let body = json!({ "prompt": format!("my name is {word} and"), "max_tokens": 24, "ignore_eos": true, "seed": 5 });
    let whole = server.post("/v1/completions", &body).success();
    let message = json!([{ "role": "user", "content": format!("i am {word}") }]);
    let chat = json!({ "messages": message, "max_tokens": 24, "stream": true, "ignore_eos": true });
    let events = server.events("/v1/chat/completions", &chat).all().expect("a stream");
    let text = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    let ids = [&whole, &events[0]].map(|answer| answer["id"].as_str().expect("an id").to_string());
    (ids.into(), vec![whole["choices"][0]["text"].as_str().expect("a text").to_string(), text])
}

#[test]
fn the_log_has_a_line_for_each_request_and_nothing_of_its_text() {
    let word = "zanzibarquux";
    let (ids, texts) = send_requests(shared(), word);
    for id in &ids {
        let line = lines_with(id).into_iter().find(|line| line.contains("answered")).expect("a line for the request");
        for part in ["INFO", "prompt_tokens=", "tokens=24", "drafted=", "accepted=", "first_token_ms=", "ms="] {
            assert!(line.contains(part), "no {part}: {line}");
        }
    }
    assert_eq!(lines_with(word), [""; 0]);
    for text in texts {
        // The prefix is long enough that no text logged by another test begins with it.
        let some: String = format!("{text:?}").chars().skip(1).take(48).collect();
        assert_eq!(lines_with(&some), [""; 0], "a text is in the log");
    }
    // Refused values are returned to the client, and not logged.
    shared().post("/v1/completions", &json!({ "prompt": [word, {}] })).error(400);
    shared().post("/v1/chat/completions", &json!({ "messages": word })).error(400);
    assert_eq!(lines_with(word), [""; 0]);
}

#[test]
fn texts_are_logged_if_log_prompts_is_set() {
    let server = TestServer::open(|_, server_settings| server_settings.log_prompts = true);
    let word = "timbuktufoo";
    let (ids, _) = send_requests(&server, word);
    for id in &ids {
        assert!(lines_with(id).iter().any(|line| line.contains(word) && line.contains("prompt=")), "no prompt");
        assert!(lines_with(id).iter().any(|line| line.contains("texts=")), "no text");
    }
    server.shut_down();
}

#[test]
fn unknown_fields_are_ignored_and_named_once() {
    let field = "a_field_of_tomorrow";
    for _ in 0..2 {
        let body = json!({ "prompt": "a", "max_tokens": 1, field: 7 });
        shared().post("/v1/completions", &body).success();
    }
    assert_eq!(lines_with(field).len(), 1);
}
