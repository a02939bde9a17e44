//! Limits of sizes, queues and times, and clients that are slow, idle or disconnected.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, with};
use crate::metrics::metrics;
use crate::test_server::{TestServer, wait_until};

/// A request that is long enough to be observed while it runs, without drafts.
fn long(more: Value) -> Value {
    seeded(1, with(json!({ "max_tokens": 1900, "speculative.n_max": 0 }), more))
}

/// A server that runs one sequence at a time, in a context of 2048 tokens.
fn one_at_a_time(change: impl FnOnce(&mut foretoken_server::ServerSettings)) -> TestServer {
    TestServer::open(|settings, server_settings| {
        settings.parallel = 1;
        settings.model.ctx_size = Some(2048);
        change(server_settings);
    })
}

#[test]
fn bodies_are_bounded() {
    let server = TestServer::open(|_, server_settings| server_settings.body_bytes_max = 1000);
    let fits = seeded(1, json!({ "max_tokens": 1, "user": "x".repeat(700) }));
    server.post("/v1/completions", &fits).success();
    let (_, message) = server.post("/v1/completions", &with(fits, json!({ "user": "x".repeat(1000) }))).error(413);
    assert!(message.contains("1000"), "{message}");
    // A body whose length is only announced, and an endless chunked body.
    let mut client = server.client();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\n", server.address);
    client.send_raw(format!("{head}Content-Length: 99999999999\r\n\r\n").as_bytes()).expect("the server takes it");
    client.send_raw(&[b'x'; 2000]).expect("the server takes it");
    client.receive().expect("an answer").error(413);
    let mut client = server.client();
    client.send_raw(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).expect("the server takes it");
    for _ in 0..11 {
        client.send_raw(format!("64\r\n{}\r\n", "x".repeat(100)).as_bytes()).expect("the server takes it");
    }
    client.receive().expect("an answer").error(413);
    // An endless header.
    let mut client = server.client();
    let endless = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}", "x".repeat(80 << 10));
    if client.send_raw(endless.as_bytes()).is_ok()
        && let Ok(answer) = client.receive()
    {
        assert_eq!(answer.status(), 431);
    }
    server.shut_down();
}

#[test]
fn answers_are_bounded() {
    let server = TestServer::open(|_, server_settings| server_settings.answers_max = 4);
    server.post("/v1/completions", &seeded(1, json!({ "n": 4, "max_tokens": 1 }))).success();
    for (more, field) in [
        (json!({ "n": 5 }), "n"),
        (json!({ "best_of": 5 }), "best_of"),
        (json!({ "n": 2, "prompt": ["a", "b", "c"] }), "prompt"),
    ] {
        assert_eq!(server.post("/v1/completions", &seeded(1, more)).error(400).0.as_deref(), Some(field));
    }
    server.shut_down();
}

#[test]
fn a_full_queue_says_when_to_retry() {
    let server = one_at_a_time(|server_settings| server_settings.queue_max = 1);
    let mut first = server.events("/v1/completions", &long(json!({ "stream": true })));
    first.next().expect("an event");
    let mut second = server.client();
    second
        .send("POST", "/v1/completions", &[], long(json!({ "max_tokens": 2 })).to_string().as_bytes())
        .expect("it is open");
    server.wait_for(1, 1);
    let third = server.post("/v1/completions", &long(json!({})));
    let (_, message) = third.error(429);
    assert!(message.starts_with("queue: expected"), "{message}");
    let retry: u64 = third.head.header("retry-after").and_then(|seconds| seconds.parse().ok()).expect("seconds");
    assert!((1..60).contains(&retry));
    let error = &third.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("queue_full")));
    // A client that disconnects makes room, so the second request runs.
    drop(first);
    assert_eq!(second.receive().expect("an answer").success()["usage"]["completion_tokens"], 2);
    server.wait_for(0, 0);
    server.shut_down();
}

#[test]
fn answers_that_can_start_at_once_do_not_queue() {
    let server = TestServer::open(|_, server_settings| server_settings.queue_max = 1);
    for n in [1, 3, 8, 9] {
        server.post("/v1/completions", &seeded(1, json!({ "n": n, "max_tokens": 2 }))).success();
    }
    // One more than can run and wait: none is started.
    server.post("/v1/completions", &seeded(1, json!({ "n": 10, "max_tokens": 2 }))).error(400);
    server.wait_for(0, 0);
    server.shut_down();
}

#[test]
fn a_request_that_takes_too_long_is_cut_and_says_so() {
    let server = one_at_a_time(|server_settings| server_settings.timeout_s = 1);
    let start = Instant::now();
    let whole = server.post("/v1/completions", &long(json!({ "n": 4 })));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let whole = whole.success();
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["cut_by"]), (&json!("length"), &json!("timeout")));
    assert!(choice["text"].as_str().is_some_and(|text| text.len() > 10));
    assert_eq!(whole["choices"].as_array().map(Vec::len), Some(4));
    let events = server.events("/v1/completions", &long(json!({ "n": 4, "stream": true }))).all().expect("a stream");
    let cut = events.iter().filter(|event| event["choices"][0]["cut_by"] == "timeout").count();
    assert!(cut >= 1, "{:?}", events.last());
    server.wait_for(0, 0);
    // A request that never starts, because others have priority, gets a 429 response.
    let begin = |more: Value| {
        let mut client = server.client();
        let body = long(with(json!({ "n": 4, "stream": true }), more));
        client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("the server takes it");
        wait_until(|| server.load().0 + server.load().1 >= 4);
        client
    };
    let first = begin(json!({}));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post("/v1/completions", &long(json!({}))));
        std::thread::sleep(Duration::from_millis(300));
        let second = begin(json!({ "priority": -1 }));
        let refused = waiting.join().expect("no panic");
        assert!(refused.error(429).1.contains("in time") && refused.head.header("retry-after").is_some());
        drop(second);
    });
    drop(first);
    server.shut_down();
}

#[test]
fn a_client_that_disconnects_frees_its_slot_and_its_pages() {
    let server = one_at_a_time(|_| {});
    let mut sequence_count = 0;
    // This includes clients that have sent the beginning of their next request.
    for (stream, pipelined) in [(true, ""), (false, ""), (true, "G"), (false, "G"), (false, "GET /health HTTP/1.1\r\n")]
    {
        let mut client = server.client();
        client
            .send("POST", "/v1/completions", &[], long(json!({ "stream": stream, "n": 3 })).to_string().as_bytes())
            .expect("the server takes it");
        client.send_raw(pipelined.as_bytes()).expect("the server takes it");
        wait_until(|| server.load().0 == 1);
        let usage = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("foretoken:kv_cache_usage_perc ")).map(str::to_string);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a number")
        };
        wait_until(|| usage(server.get("/metrics").text()) > 0.0);
        drop(client);
        server.wait_for(0, 0);
        assert_eq!(usage(server.get("/metrics").text()), 0.0);
        // All were cancelled.
        sequence_count += 3;
        let cancelled = metrics(&server).value("foretoken:request_success_total", &[("finished_reason", "cancelled")]);
        assert_eq!(cancelled, f64::from(sequence_count), "{stream} {pipelined:?}");
    }
    let generator = server.shut_down();
    assert!(generator.engine.next_request() >= 6);
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let server = TestServer::open(|settings, server_settings| {
        settings.model.ctx_size = Some(2048);
        server_settings.idle_timeout_s = 1;
    });
    // More than sockets buffer: eight answers with all details of each token.
    let body = long(json!({ "stream": true, "n": 8, "logprobs": 20, "return_provenance": true }));
    let mut client = server.client();
    client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("the server takes it");
    wait_until(|| server.load().0 > 0);
    // It stays connected and reads nothing. Another client is served meanwhile, and its sequences are freed.
    server.post("/v1/completions", &seeded(1, json!({ "max_tokens": 2 }))).success();
    server.wait_for(0, 0);
    let mut stream = client.stream();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok();
    server.shut_down();
}

#[test]
fn a_client_that_does_not_complete_a_request_is_disconnected() {
    let server = TestServer::open(|_, server_settings| server_settings.idle_timeout_s = 1);
    let slow_head = |bytes: &[u8]| {
        let start = Instant::now();
        let mut client = server.client();
        client.send_raw(bytes).expect("the server takes it");
        let closed = client.is_closed();
        (closed, start.elapsed(), client)
    };
    for bytes in [&b""[..], b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b"] {
        let (closed, time, mut client) = slow_head(bytes);
        if !closed {
            assert_eq!(client.receive().expect("an answer").status(), 408);
        }
        assert!(time > Duration::from_millis(800) && time < Duration::from_secs(10), "{time:?}");
    }
    // A body that does not arrive gets a 408 response.
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\n{{", server.address);
    let mut client = server.client();
    client.send_raw(head.as_bytes()).expect("the server takes it");
    client.receive().expect("an answer").error(408);
    // A kept-alive connection is closed if no further request arrives.
    let mut client = server.client();
    client.get("/health").success();
    let start = Instant::now();
    assert!(client.is_closed());
    assert!(start.elapsed() > Duration::from_millis(800) && start.elapsed() < Duration::from_secs(10));
    server.shut_down();
}

#[test]
fn connections_are_bounded_and_the_longest_awaited_one_makes_room() {
    let server = TestServer::open(|_, server_settings| server_settings.connections_max = 2);
    let mut kept = [server.client(), server.client()];
    kept.iter_mut().for_each(|client| drop(client.get("/health").success()));
    let mut third = server.client();
    third.send("GET", "/health", &[], &[]).expect("the system takes it");
    std::thread::sleep(Duration::from_millis(200));
    third.stream().set_nonblocking(true).expect("it can be set");
    let nothing = third.stream().peek(&mut [0]).expect_err("nobody answers");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    third.stream().set_nonblocking(false).expect("it can be set");
    // None was idle for long yet; then the one that is idle for longest is closed.
    third.receive().expect("an answer").success();
    let [mut first, mut second] = kept;
    assert!(first.is_closed());
    second.get("/health").success();
    // Requests of which a part is missing do not keep others out either.
    second.send_raw(b"GET /hea").expect("it is open");
    third.send_raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{").expect("it is open");
    std::thread::sleep(Duration::from_millis(1200));
    for _ in 0..2 {
        server.get("/health").success();
    }
    let mut fresh = [server.client(), server.client()];
    fresh.iter_mut().for_each(|client| drop(client.get("/health").success()));
    assert!(second.is_closed() && third.is_closed());
    server.shut_down();
}

#[test]
fn a_connection_whose_request_is_being_answered_makes_no_room() {
    let server = one_at_a_time(|server_settings| server_settings.connections_max = 1);
    let mut events = server.events("/v1/completions", &long(json!({ "stream": true })));
    let mut others = Vec::new();
    events.next().expect("an event");
    let mut second = server.client();
    second.send("GET", "/health", &[], &[]).expect("the system takes it");
    second.stream().set_read_timeout(Some(Duration::from_millis(1500))).expect("it can be set");
    let nothing = second.stream().peek(&mut [0]).expect_err("nobody answers");
    assert!(matches!(nothing.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{nothing}");
    second.stream().set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
    assert!(events.next().expect("an event").is_some());
    // As many others may wait to be accepted as the system allows, which Linux says here.
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    for number in 0..most.trim().parse::<usize>().unwrap_or(0).min(200) {
        let waiting = TcpStream::connect_timeout(&server.address, Duration::from_millis(900));
        others.push(waiting.unwrap_or_else(|error| panic!("client {number}: {error}")));
    }
    drop((events, others));
    second.receive().expect("an answer").success();
    drop(second);
    server.shut_down();
}
