//! After any sequence of requests the engine is empty and consistent: valid, invalid, cancelled, too large and
//! unfinished requests, concurrent and one after another.

use std::io;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bodies::seeded;
use crate::test_server::TestServer;

/// What a client does.
#[derive(Clone, Debug)]
enum Action {
    /// Sends a request and reads the complete response.
    Read { n: u64, len: u64, stream: bool },
    /// Sends a request, reads this many events, and disconnects.
    Leave { n: u64, events: usize },
    /// Sends a request and disconnects at once.
    LeaveAtOnce { stream: bool },
    /// Sends an invalid body.
    Wrong(usize),
    /// Sends a body that is too large.
    TooLarge,
    /// Sends part of a body and disconnects.
    Unfinished,
    /// Sends several requests on one connection and waits for none of them.
    Pipelined(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1..4u64, 0..60u64, any::<bool>()).prop_map(|(n, len, stream)| Action::Read { n, len, stream }),
        3 => (1..4u64, 0..6usize).prop_map(|(n, events)| Action::Leave { n, events }),
        1 => any::<bool>().prop_map(|stream| Action::LeaveAtOnce { stream }),
        2 => (0..6usize).prop_map(Action::Wrong),
        1 => Just(Action::TooLarge),
        1 => Just(Action::Unfinished),
        1 => (1..5usize).prop_map(Action::Pipelined),
    ]
}

/// Runs an action. An I/O error means that the server misbehaved.
fn run(server: &TestServer, action: &Action, seed: u64) -> io::Result<()> {
    let path = "/v1/completions";
    let long = |more: Value| seeded(seed, crate::bodies::with(json!({ "max_tokens": 100 }), more)).to_string();
    let mut client = server.client();
    match action {
        Action::Read { n, len, stream } => {
            let body = long(json!({ "n": n, "max_tokens": len, "stream": stream, "logprobs": 1 }));
            client.send("POST", path, &[], body.as_bytes())?;
            let status = client.receive()?.status();
            // The queue may be full.
            assert!(status == 200 || status == 429, "{status}");
        }
        Action::Leave { n, events } => {
            let body = seeded(seed, json!({ "max_tokens": 100, "n": n, "stream": true }));
            if let Ok(mut stream) = client.events(path, &body) {
                for _ in 0..*events {
                    stream.next()?;
                }
            }
        }
        Action::LeaveAtOnce { stream } => {
            client.send("POST", path, &[], long(json!({ "stream": stream })).as_bytes())?;
        }
        Action::Wrong(which) => {
            let bodies = [
                "",
                "{",
                "[]",
                "{\"prompt\": 5}",
                "{\"prompt\": \"a\", \"n\": 0}",
                "{\"prompt\": \"a\", \"logit_bias\": {\"9999\": 1}}",
            ];
            client.send("POST", path, &[], bodies[*which].as_bytes())?;
            let status = client.receive()?.status();
            // A full queue is refused before the engine checks the request.
            assert!(status == 400 || (status == 429 && *which == 5), "{status}");
        }
        Action::TooLarge => {
            client.send("POST", path, &[], long(json!({ "user": "x".repeat(50_000) })).as_bytes())?;
            client.receive()?.error(413);
        }
        Action::Unfinished => {
            client.send_raw(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"",
            )?;
        }
        Action::Pipelined(count) => {
            for _ in 0..*count {
                client.send("POST", path, &[], long(json!({ "max_tokens": 20 })).as_bytes())?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn afterwards_the_engine_is_empty_and_consistent(
        actions in proptest::collection::vec((action(), 0..8u64), 1..24),
        ends_at_once in any::<bool>(),
    ) {
        let mut server = TestServer::open(|settings, server_settings| {
            settings.parallel = 3;
            settings.model.ctx_size = Some(128);
            server_settings.queue_max = 6;
            server_settings.body_bytes_max = 40_000;
            server_settings.shutdown_timeout_s = u64::from(!ends_at_once);
        });
        std::thread::scope(|scope| {
            let server = &server;
            for (number, (action, pause_ms)) in actions.iter().enumerate() {
                std::thread::sleep(Duration::from_millis(*pause_ms));
                let seed = number as u64;
                scope.spawn(move || run(server, action, seed).unwrap_or_else(|error| panic!("{action:?}: {error}")));
            }
        });
        if !ends_at_once {
            server.wait_for(0, 0);
        }
        server.begin_shutdown();
        server.shut_down();
    }
}
