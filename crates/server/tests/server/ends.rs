//! How a server ends: texts finish, or are cut at the deadline; nobody new is let in; nothing is left.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bodies::{seeded, streamed_texts};
use crate::client::Client;
use crate::house::{House, wait_until};
use crate::texts::text_of;

#[test]
fn texts_finish_before_the_server_ends() {
    let expected = text_of(&seeded(5, json!({})));
    let mut house = House::open(|_, _| {});
    // One that is idle must not hold the end up, nor one that has half a request.
    let mut idle = house.client();
    idle.get("/health").good();
    let mut events = house.events("/v1/completions", &seeded(5, json!({ "stream": true })));
    let first = events.next().expect("an event").expect("an event");
    let mut whole = house.client();
    whole.send("POST", "/v1/completions", &[], seeded(5, json!({})).to_string().as_bytes()).expect("it is open");
    wait_until(|| house.load().0 + house.load().1 >= 1);
    house.ask_to_end();
    let rest = events.all().expect("a stream");
    let all: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert_eq!(streamed_texts(&all), [expected.as_str()]);
    assert!(idle.is_closed());
    if let Ok(answer) = whole.receive() {
        assert_eq!(answer.good()["choices"][0]["text"], expected);
        assert_eq!(answer.head.header("connection"), Some("close"));
    }
    let address = house.address;
    let begun = Instant::now();
    house.end();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(Client::open(address).is_err(), "somebody still listens");
}

#[test]
fn texts_are_cut_at_the_deadline() {
    let mut house = House::open(|settings, server| {
        settings.model.ctx_size = Some(2048);
        settings.parallel = 1;
        server.shutdown_timeout_s = 0;
    });
    let long =
        |stream: bool| seeded(5, json!({ "max_tokens": 1900, "n": 8, "speculative.n_max": 0, "stream": stream }));
    let mut events = house.events("/v1/completions", &long(true));
    events.next().expect("an event");
    let mut whole = house.client();
    whole.send("POST", "/v1/completions", &[], long(false).to_string().as_bytes()).expect("it is open");
    wait_until(|| house.load().1 > 8);
    let begun = Instant::now();
    house.ask_to_end();
    let rest = events.all().expect("it is told to its end");
    let cut = rest.iter().filter(|event| event["choices"][0]["cut_by"] == "shutdown");
    assert_eq!(cut.count(), 8);
    // It had not begun.
    whole.receive().expect("an answer").error(429);
    house.end();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[test]
fn clients_that_do_nothing_do_not_keep_a_server() {
    let mut house = House::open(|_, server| server.shutdown_timeout_s = 1);
    let mut half = house.client();
    half.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{").expect("it is open");
    let mut head = house.client();
    head.raw(b"GET /hea").expect("it is open");
    let deaf = house.client();
    house.get("/health").good();
    let begun = Instant::now();
    house.ask_to_end();
    house.end();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    drop((half, head, deaf));
}
