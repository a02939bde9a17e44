//! How a server ends: texts finish, or are cut at the deadline; nobody new is let in; nothing is left.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, streamed_texts};
use crate::client::Client;
use crate::house::{House, wait_until};
use crate::texts::text_of;

#[test]
fn texts_finish_before_the_server_ends() {
    let expected = text_of(&seeded(5, json!({ "max_tokens": 150 })));
    let mut house = House::open(|_, _| {});
    // One that is idle must not hold the end up.
    let mut idle = house.client();
    idle.get("/health").good();
    let mut events = house.events("/v1/completions", &seeded(5, json!({ "max_tokens": 150, "stream": true })));
    let first = events.next().expect("an event").expect("an event");
    let mut whole = house.client();
    whole
        .send("POST", "/v1/completions", &[], seeded(5, json!({ "max_tokens": 150 })).to_string().as_bytes())
        .expect("it is open");
    wait_until(|| house.load().0 + house.load().1 >= 2);
    house.ask_to_end();
    let rest = events.all().expect("a stream");
    let all: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert_eq!(streamed_texts(&all), [expected.as_str()]);
    assert!(idle.is_closed());
    let answer = whole.receive().expect("an answer");
    assert_eq!(answer.good()["choices"][0]["text"], expected);
    assert_eq!(answer.head.header("connection"), Some("close"));
    let address = house.address;
    let begun = Instant::now();
    house.end();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(Client::open(address).is_err(), "somebody still listens");
}

#[test]
fn texts_that_take_long_finish_too() {
    let mut house = House::open(|settings, server| {
        settings.model.ctx_size = Some(2048);
        settings.parallel = 1;
        server.shutdown_timeout_s = 60;
    });
    let long = |stream: bool| seeded(5, json!({ "max_tokens": 1900, "ignore_eos": true, "n": 3, "stream": stream }));
    let events = house.events("/v1/completions", &long(true));
    let mut whole = house.client();
    whole.send("POST", "/v1/completions", &[], long(false).to_string().as_bytes()).expect("it is open");
    wait_until(|| house.load().0 + house.load().1 >= 6);
    let begun = Instant::now();
    house.ask_to_end();
    let ends = |answer: &Value| answer["choices"][0]["finish_reason"] == "length";
    let all = events.all().expect("it is told to its end");
    assert_eq!(all.iter().filter(|event| ends(event)).count(), 3);
    assert!(ends(&whole.receive().expect("an answer").good()));
    assert!(begun.elapsed() > Duration::from_secs(2), "too fast to test anything: {:?}", begun.elapsed());
    house.end();
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
    let mut house = House::open(|_, server| server.shutdown_timeout_s = 30);
    let mut half = house.client();
    half.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{").expect("it is open");
    let mut head = house.client();
    head.raw(b"GET /hea").expect("it is open");
    let deaf = house.client();
    // More than may be read at a time.
    let begin = |_| {
        let mut large = house.client();
        large
            .raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
            .expect("open");
        large
    };
    let large: Vec<_> = (0..60).map(begin).collect();
    let mut slow = house.client();
    slow.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n").expect("it is open");
    let mut sending = slow.stream().try_clone().expect("a second handle");
    let sends = std::thread::spawn(move || {
        while sending.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Instant::now()
    });
    house.get("/health").good();
    let begun = Instant::now();
    house.ask_to_end();
    half.receive().expect("an answer").error(503);
    slow.receive().expect("an answer").error(503);
    let answered = Instant::now();
    house.end();
    // Who is still sending has a moment to see the answer: closed at once, it would be told of a broken connection.
    let sent = sends.join().expect("it ends with the connection") - answered;
    assert!(sent > Duration::from_millis(300), "{sent:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop((half, head, deaf, large));
}

#[test]
fn an_answer_that_a_client_is_slow_to_take_is_not_cut_with_those_that_do_nothing() {
    let mut house = House::open(|_, server| server.shutdown_timeout_s = 30);
    let file = house.get("/app.js").body;
    // More than the system keeps for a client that takes nothing yet.
    let answers = (16 << 20) / file.len();
    let mut slow = house.client();
    slow.raw("GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(answers).as_bytes()).expect("it is open");
    std::thread::sleep(Duration::from_millis(500));
    house.ask_to_end();
    std::thread::sleep(Duration::from_secs(3));
    let mut taken = Vec::new();
    slow.stream().read_to_end(&mut taken).expect("it is ended, not broken");
    let (found, all) = (taken.len(), answers * file.len());
    assert!(found < all, "the system kept it all, and this test tests nothing");
    assert!(taken.ends_with(&file), "cut after {found} bytes");
    house.end();
}
