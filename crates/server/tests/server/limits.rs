//! Limits: sizes, queues, times, and clients that are slow, idle or gone.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, with};
use crate::house::{House, wait_until};
use crate::metrics::metrics;

/// A text that is long enough to be in the middle of it, and drafts nothing.
fn long(more: Value) -> Value {
    seeded(1, with(json!({ "max_tokens": 1900, "speculative.n_max": 0 }), more))
}

/// A server for one text at a time, in a context of 2048 tokens.
fn narrow(change: impl FnOnce(&mut foretoken_server::ServerSettings)) -> House {
    House::open(|settings, server| {
        settings.parallel = 1;
        settings.model.ctx_size = Some(2048);
        change(server);
    })
}

#[test]
fn bodies_are_bounded() {
    let house = House::open(|_, server| server.body_bytes_max = 1000);
    let fits = seeded(1, json!({ "max_tokens": 1, "user": "x".repeat(700) }));
    house.post("/v1/completions", &fits).good();
    let (_, message) = house.post("/v1/completions", &with(fits, json!({ "user": "x".repeat(1000) }))).error(413);
    assert!(message.contains("1000"), "{message}");
    // Who only announces it, and who sends it in chunks without an end.
    let mut client = house.client();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\n", house.address);
    client.raw(format!("{head}Content-Length: 99999999999\r\n\r\n").as_bytes()).expect("the server takes it");
    client.raw(&[b'x'; 2000]).expect("the server takes it");
    client.receive().expect("an answer").error(413);
    let mut client = house.client();
    client.raw(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).expect("the server takes it");
    for _ in 0..11 {
        client.raw(format!("64\r\n{}\r\n", "x".repeat(100)).as_bytes()).expect("the server takes it");
    }
    client.receive().expect("an answer").error(413);
    // A head without an end.
    let mut client = house.client();
    let endless = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}", "x".repeat(80 << 10));
    if client.raw(endless.as_bytes()).is_ok()
        && let Ok(answer) = client.receive()
    {
        assert_eq!(answer.status(), 431);
    }
    house.end();
}

#[test]
fn answers_are_bounded() {
    let house = House::open(|_, server| server.answers_max = 4);
    house.post("/v1/completions", &seeded(1, json!({ "n": 4, "max_tokens": 1 }))).good();
    for (more, field) in [
        (json!({ "n": 5 }), "n"),
        (json!({ "best_of": 5 }), "best_of"),
        (json!({ "n": 2, "prompt": ["a", "b", "c"] }), "prompt"),
    ] {
        assert_eq!(house.post("/v1/completions", &seeded(1, more)).error(400).0.as_deref(), Some(field));
    }
    house.end();
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let house = narrow(|server| server.queue_max = 1);
    let mut first = house.events("/v1/completions", &long(json!({ "stream": true })));
    first.next().expect("an event");
    let mut second = house.client();
    second
        .send("POST", "/v1/completions", &[], long(json!({ "max_tokens": 2 })).to_string().as_bytes())
        .expect("it is open");
    house.wait_for(1, 1);
    let third = house.post("/v1/completions", &long(json!({})));
    let (_, message) = third.error(429);
    assert!(message.starts_with("queue: expected"), "{message}");
    let retry: u64 = third.head.header("retry-after").and_then(|seconds| seconds.parse().ok()).expect("seconds");
    assert!((1..60).contains(&retry));
    let error = &third.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("queue_full")));
    // Who goes makes room: the second's turn comes.
    drop(first);
    assert_eq!(second.receive().expect("an answer").good()["usage"]["completion_tokens"], 2);
    house.wait_for(0, 0);
    house.end();
}

#[test]
fn answers_that_can_begin_at_once_do_not_queue() {
    let house = House::open(|_, server| server.queue_max = 1);
    for n in [1, 3, 8, 9] {
        house.post("/v1/completions", &seeded(1, json!({ "n": n, "max_tokens": 2 }))).good();
    }
    // One more than can run and wait: none of them is begun.
    house.post("/v1/completions", &seeded(1, json!({ "n": 10, "max_tokens": 2 }))).error(400);
    house.wait_for(0, 0);
    house.end();
}

#[test]
fn a_text_that_takes_too_long_is_cut_and_says_so() {
    let house = narrow(|server| server.timeout_s = 1);
    let begun = Instant::now();
    let whole = house.post("/v1/completions", &long(json!({ "n": 4 })));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let whole = whole.good();
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["cut_by"]), (&json!("length"), &json!("timeout")));
    assert!(choice["text"].as_str().is_some_and(|text| text.len() > 10));
    assert_eq!(whole["choices"].as_array().map(Vec::len), Some(4));
    let events = house.events("/v1/completions", &long(json!({ "n": 4, "stream": true }))).all().expect("a stream");
    let cut = events.iter().filter(|event| event["choices"][0]["cut_by"] == "timeout").count();
    assert!(cut >= 1, "{:?}", events.last());
    house.wait_for(0, 0);
    // Who was not let in at all, because others go first, is told to come again.
    let begin = |more: Value| {
        let mut client = house.client();
        let body = long(with(json!({ "n": 4, "stream": true }), more));
        client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("the server takes it");
        wait_until(|| house.load().0 + house.load().1 >= 4);
        client
    };
    let first = begin(json!({}));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| house.post("/v1/completions", &long(json!({}))));
        std::thread::sleep(Duration::from_millis(300));
        let second = begin(json!({ "priority": -1 }));
        let refused = waiting.join().expect("no panic");
        assert!(refused.error(429).1.contains("in time") && refused.head.header("retry-after").is_some());
        drop(second);
    });
    drop(first);
    house.end();
}

#[test]
fn a_client_that_goes_away_frees_its_place_and_its_pages() {
    let house = narrow(|_| {});
    let mut asked = 0;
    // Also one that has sent the beginning of its next request already.
    for (stream, behind) in [(true, ""), (false, ""), (true, "G"), (false, "G"), (false, "GET /health HTTP/1.1\r\n")] {
        let mut client = house.client();
        client
            .send("POST", "/v1/completions", &[], long(json!({ "stream": stream, "n": 3 })).to_string().as_bytes())
            .expect("the server takes it");
        client.raw(behind.as_bytes()).expect("the server takes it");
        wait_until(|| house.load().0 == 1);
        let usage = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("foretoken:kv_cache_usage_perc ")).map(str::to_string);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a number")
        };
        wait_until(|| usage(house.get("/metrics").text()) > 0.0);
        drop(client);
        house.wait_for(0, 0);
        assert_eq!(usage(house.get("/metrics").text()), 0.0);
        // None was written to its end.
        asked += 3;
        let cancelled = metrics(&house).value("foretoken:request_success_total", &[("finished_reason", "cancelled")]);
        assert_eq!(cancelled, f64::from(asked), "{stream} {behind:?}");
    }
    let generator = house.end();
    assert!(generator.engine.next_request() >= 6);
}

#[test]
fn a_client_that_takes_nothing_is_dropped() {
    let house = House::open(|settings, server| {
        settings.model.ctx_size = Some(2048);
        server.idle_timeout_s = 1;
    });
    // More than sockets hold: eight texts with all that can be told of each token.
    let body = long(json!({ "stream": true, "n": 8, "logprobs": 20, "return_provenance": true }));
    let mut client = house.client();
    client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("the server takes it");
    wait_until(|| house.load().0 > 0);
    // It stays connected and reads nothing; another one is served meanwhile, and its place is free again.
    house.post("/v1/completions", &seeded(1, json!({ "max_tokens": 2 }))).good();
    house.wait_for(0, 0);
    let mut stream = client.stream();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok();
    house.end();
}

#[test]
fn a_client_that_owes_a_request_is_dropped() {
    let house = House::open(|_, server| server.idle_timeout_s = 1);
    let slow_head = |bytes: &[u8]| {
        let begun = Instant::now();
        let mut client = house.client();
        client.raw(bytes).expect("the server takes it");
        let closed = client.is_closed();
        (closed, begun.elapsed(), client)
    };
    for bytes in [&b""[..], b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b"] {
        let (closed, time, mut client) = slow_head(bytes);
        if !closed {
            assert_eq!(client.receive().expect("an answer").status(), 408);
        }
        assert!(time > Duration::from_millis(800) && time < Duration::from_secs(10), "{time:?}");
    }
    // A body that does not come is told.
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\n{{", house.address);
    let mut client = house.client();
    client.raw(head.as_bytes()).expect("the server takes it");
    client.receive().expect("an answer").error(408);
    // A connection that is kept for later requests is closed when none comes.
    let mut client = house.client();
    client.get("/health").good();
    let begun = Instant::now();
    assert!(client.is_closed());
    assert!(begun.elapsed() > Duration::from_millis(800) && begun.elapsed() < Duration::from_secs(10));
    house.end();
}

#[test]
fn connections_are_bounded_and_wait_their_turn() {
    let house = House::open(|_, server| server.connections_max = 2);
    let mut kept = [house.client(), house.client()];
    kept.iter_mut().for_each(|client| drop(client.get("/health").good()));
    let mut third = house.client();
    third.send("GET", "/health", &[], &[]).expect("the system takes it");
    std::thread::sleep(Duration::from_millis(200));
    third.stream().set_nonblocking(true).expect("it can be set");
    let nothing = third.stream().peek(&mut [0]).expect_err("nobody answers");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    third.stream().set_nonblocking(false).expect("it can be set");
    drop(kept);
    third.receive().expect("an answer").good();
    drop(third);
    house.end();
}
