//! The log of all servers of this program, kept as text: what it says, and what it must not say.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::house::{House, shared};

static LINES: Mutex<String> = Mutex::new(String::new());

/// Writes every event down, of every level.
struct Everything;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a text takes everything");
    }
}

impl Subscriber for Everything {
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

/// Logs from now on, once.
pub fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Everything).expect("nobody else logs"));
}

/// What was logged and has this word.
fn lines_with(word: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.lines().filter(|line| line.contains(word)).map(str::to_string).collect()
}

/// Asks for a text of a prompt with this word, whole and streamed; the ids of the answers, and their texts.
fn ask(house: &House, word: &str) -> (Vec<String>, Vec<String>) {
    let body = json!({ "prompt": format!("my name is {word} and"), "max_tokens": 24, "ignore_eos": true, "seed": 5 });
    let whole = house.post("/v1/completions", &body).good();
    let message = json!([{ "role": "user", "content": format!("i am {word}") }]);
    let chat = json!({ "messages": message, "max_tokens": 24, "stream": true, "ignore_eos": true });
    let events = house.events("/v1/chat/completions", &chat).all().expect("a stream");
    let text = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    let ids = [&whole, &events[0]].map(|answer| answer["id"].as_str().expect("an id").to_string());
    (ids.into(), vec![whole["choices"][0]["text"].as_str().expect("a text").to_string(), text])
}

#[test]
fn the_log_has_a_line_for_each_request_and_nothing_of_its_text() {
    let word = "zanzibarquux";
    let (ids, texts) = ask(shared(), word);
    for id in &ids {
        let line = lines_with(id).into_iter().find(|line| line.contains("answered")).expect("a line of it");
        for part in ["INFO", "prompt_tokens=", "tokens=24", "drafted=", "accepted=", "first_token_ms=", "ms="] {
            assert!(line.contains(part), "no {part}: {line}");
        }
    }
    assert_eq!(lines_with(word), [""; 0]);
    for text in texts {
        // Long enough that no other text, which a test may have logged, begins with the same.
        let some: String = format!("{text:?}").chars().skip(1).take(48).collect();
        assert_eq!(lines_with(&some), [""; 0], "a text is in the log");
    }
    // Refusals, too: what was found is shown to who sent it, and to nobody else.
    shared().post("/v1/completions", &json!({ "prompt": [word, {}] })).error(400);
    shared().post("/v1/chat/completions", &json!({ "messages": word })).error(400);
    assert_eq!(lines_with(word), [""; 0]);
}

#[test]
fn texts_are_logged_where_that_is_asked_for() {
    let house = House::open(|_, server| server.log_prompts = true);
    let word = "timbuktufoo";
    let (ids, _) = ask(&house, word);
    for id in &ids {
        assert!(lines_with(id).iter().any(|line| line.contains(word) && line.contains("prompt=")), "no prompt");
        assert!(lines_with(id).iter().any(|line| line.contains("texts=")), "no text");
    }
    house.end();
}

#[test]
fn unknown_fields_are_ignored_and_named_once() {
    let field = "a_field_of_tomorrow";
    for _ in 0..2 {
        let body = json!({ "prompt": "a", "max_tokens": 1, field: 7 });
        shared().post("/v1/completions", &body).good();
    }
    assert_eq!(lines_with(field).len(), 1);
}
