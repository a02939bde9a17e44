//! How a server shuts down: requests finish or are cut at the deadline, new ones are refused, and nothing is left.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, streamed_texts, with};
use crate::client::Client;
use crate::determinism::text_of;
use crate::log::lines_with;
use crate::test_server::{TestServer, wait_until};

#[test]
fn requests_finish_before_the_server_shuts_down() {
    let expected = text_of(&seeded(5, json!({ "max_tokens": 150 })));
    let mut server = TestServer::open(|_, _| {});
    // An idle connection must not delay the shutdown.
    let mut idle = server.client();
    idle.get("/health").success();
    let mut events = server.events("/v1/completions", &seeded(5, json!({ "max_tokens": 150, "stream": true })));
    let first = events.next().expect("an event").expect("an event");
    let mut whole = server.client();
    whole
        .send("POST", "/v1/completions", &[], seeded(5, json!({ "max_tokens": 150 })).to_string().as_bytes())
        .expect("it is open");
    wait_until(|| server.load().0 + server.load().1 >= 2);
    server.begin_shutdown();
    let rest = events.all().expect("a stream");
    let all: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert_eq!(streamed_texts(&all), [expected.as_str()]);
    assert!(idle.is_closed());
    let answer = whole.receive().expect("an answer");
    assert_eq!(answer.success()["choices"][0]["text"], expected);
    assert_eq!(answer.head.header("connection"), Some("close"));
    let address = server.address;
    let start = Instant::now();
    server.shut_down();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(Client::try_connect(address).is_err(), "something still listens");
}

#[test]
fn long_requests_finish_too() {
    let mut server = TestServer::open(|settings, server_settings| {
        settings.model.ctx_size = Some(2048);
        settings.parallel = 1;
        server_settings.shutdown_timeout_s = 60;
    });
    let long = |stream: bool| seeded(5, json!({ "max_tokens": 1900, "ignore_eos": true, "n": 3, "stream": stream }));
    let events = server.events("/v1/completions", &long(true));
    let mut whole = server.client();
    whole.send("POST", "/v1/completions", &[], long(false).to_string().as_bytes()).expect("it is open");
    wait_until(|| server.load().0 + server.load().1 >= 6);
    let start = Instant::now();
    server.begin_shutdown();
    let ends = |answer: &Value| answer["choices"][0]["finish_reason"] == "length";
    let all = events.all().expect("a complete stream");
    assert_eq!(all.iter().filter(|event| ends(event)).count(), 3);
    assert!(ends(&whole.receive().expect("an answer").success()));
    assert!(start.elapsed() > Duration::from_secs(2), "too fast to test anything: {:?}", start.elapsed());
    server.shut_down();
}

#[test]
fn requests_are_cut_at_the_deadline() {
    let mut server = TestServer::open(|settings, server_settings| {
        settings.model.ctx_size = Some(2048);
        settings.parallel = 1;
        server_settings.shutdown_timeout_s = 0;
    });
    let long =
        |stream: bool| seeded(5, json!({ "max_tokens": 1900, "n": 8, "speculative.n_max": 0, "stream": stream }));
    let mut events = server.events("/v1/completions", &long(true));
    events.next().expect("an event");
    let mut queued = server.client();
    let body = with(long(true), json!({ "n": 1, "echo": true }));
    queued.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("it is open");
    let mut whole = server.client();
    whole.send("POST", "/v1/completions", &[], long(false).to_string().as_bytes()).expect("it is open");
    wait_until(|| server.load().1 > 12);
    let start = Instant::now();
    server.begin_shutdown();
    let rest = events.all().expect("a complete stream");
    let cut = rest.iter().filter(|event| event["choices"][0]["cut_by"] == "shutdown");
    assert_eq!(cut.count(), 8);
    // These were still queued.
    for mut refused in [whole, queued] {
        let answer = refused.receive().expect("an answer");
        answer.error(503);
        assert_eq!(answer.json()["error"]["code"], "shutdown");
        assert_eq!(answer.head.header("retry-after"), Some("5"));
        let id = answer.head.header("x-request-id").expect("an id");
        let lines = lines_with(&format!("{id}\""));
        assert!(lines.iter().any(|line| line.contains("refused") && line.contains("status=503")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("answered")), "{lines:?}");
    }
    server.shut_down();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

#[test]
fn idle_clients_do_not_delay_the_shutdown() {
    let mut server = TestServer::open(|_, server_settings| server_settings.shutdown_timeout_s = 30);
    let mut half = server.client();
    half.send_raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        .expect("it is open");
    let mut head = server.client();
    head.send_raw(b"GET /hea").expect("it is open");
    let silent = server.client();
    // More large bodies than may be read at the same time.
    let begin = |_| {
        let mut large = server.client();
        large
            .send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
            .expect("open");
        large
    };
    let large: Vec<_> = (0..60).map(begin).collect();
    let mut slow = server.client();
    slow.send_raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n")
        .expect("it is open");
    let mut sending = slow.stream().try_clone().expect("a second handle");
    let sends = std::thread::spawn(move || {
        while sending.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Instant::now()
    });
    server.get("/health").success();
    let start = Instant::now();
    server.begin_shutdown();
    half.receive().expect("an answer").error(503);
    slow.receive().expect("an answer").error(503);
    let answered = Instant::now();
    server.shut_down();
    // A client that is still sending gets a moment to read the response: if the connection were closed at once, it
    // would see a broken connection instead.
    let sent = sends.join().expect("it ends with the connection") - answered;
    assert!(sent > Duration::from_millis(300), "{sent:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop((half, head, silent, large));
}

#[test]
fn a_response_that_a_client_reads_slowly_is_not_cut() {
    let mut server = TestServer::open(|_, server_settings| server_settings.shutdown_timeout_s = 30);
    let file = server.get("/app.js").body;
    // More than the system buffers for a client that reads nothing yet.
    let answers = (16 << 20) / file.len();
    let mut slow = server.client();
    slow.send_raw("GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(answers).as_bytes()).expect("it is open");
    std::thread::sleep(Duration::from_millis(500));
    server.begin_shutdown();
    std::thread::sleep(Duration::from_secs(3));
    let mut taken = Vec::new();
    slow.stream().read_to_end(&mut taken).expect("the connection is closed, not reset");
    let (found, all) = (taken.len(), answers * file.len());
    assert!(found < all, "the system buffered everything, so this test tests nothing");
    assert!(taken.ends_with(&file), "cut after {found} bytes");
    server.shut_down();
}
