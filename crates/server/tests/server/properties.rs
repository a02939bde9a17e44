//! After any sequence of requests the engine is empty and intact: good ones, wrong ones, ones that are cancelled in the
//! middle, too large ones, half ones, at the same time and one after another.

use std::io;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bodies::seeded;
use crate::house::House;

/// What a client does.
#[derive(Clone, Debug)]
enum Act {
    /// Asks for a text and takes all of it.
    Whole { n: u64, len: u64, stream: bool },
    /// Asks, takes so many events, and goes.
    Goes { n: u64, events: usize },
    /// Asks and goes at once.
    GoesAtOnce { stream: bool },
    /// Something is wrong with it.
    Wrong(usize),
    /// It is too large.
    Large,
    /// Its body never ends, and its client goes.
    Half,
    /// Several on one connection, of which the client waits for none.
    Pipelined(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..4u64, 0..60u64, any::<bool>()).prop_map(|(n, len, stream)| Act::Whole { n, len, stream }),
        3 => (1..4u64, 0..6usize).prop_map(|(n, events)| Act::Goes { n, events }),
        1 => any::<bool>().prop_map(|stream| Act::GoesAtOnce { stream }),
        2 => (0..6usize).prop_map(Act::Wrong),
        1 => Just(Act::Large),
        1 => Just(Act::Half),
        1 => (1..5usize).prop_map(Act::Pipelined),
    ]
}

/// Does it. What the server does wrong is an error, except that it may end before.
fn does(house: &House, act: &Act, seed: u64) -> io::Result<()> {
    let path = "/v1/completions";
    let long = |more: Value| seeded(seed, crate::bodies::with(json!({ "max_tokens": 100 }), more)).to_string();
    let mut client = house.client();
    match act {
        Act::Whole { n, len, stream } => {
            let body = long(json!({ "n": n, "max_tokens": len, "stream": stream, "logprobs": 1 }));
            client.send("POST", path, &[], body.as_bytes())?;
            let status = client.receive()?.status();
            // There may be more than can wait.
            assert!(status == 200 || status == 429, "{status}");
        }
        Act::Goes { n, events } => {
            let body = seeded(seed, json!({ "max_tokens": 100, "n": n, "stream": true }));
            if let Ok(mut stream) = client.events(path, &body) {
                for _ in 0..*events {
                    stream.next()?;
                }
            }
        }
        Act::GoesAtOnce { stream } => client.send("POST", path, &[], long(json!({ "stream": stream })).as_bytes())?,
        Act::Wrong(which) => {
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
            // What the engine would refuse is not looked at while nobody can wait.
            assert!(status == 400 || (status == 429 && *which == 5), "{status}");
        }
        Act::Large => {
            client.send("POST", path, &[], long(json!({ "user": "x".repeat(50_000) })).as_bytes())?;
            client.receive()?.error(413);
        }
        Act::Half => {
            client
                .raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"")?;
        }
        Act::Pipelined(count) => {
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
    fn afterwards_the_engine_is_empty_and_intact(
        acts in proptest::collection::vec((act(), 0..8u64), 1..24),
        ends_at_once in any::<bool>(),
    ) {
        let mut house = House::open(|settings, server| {
            settings.parallel = 3;
            settings.model.ctx_size = Some(128);
            server.queue_max = 6;
            server.body_bytes_max = 40_000;
            server.shutdown_timeout_s = u64::from(!ends_at_once);
        });
        std::thread::scope(|scope| {
            let house = &house;
            for (number, (act, pause_ms)) in acts.iter().enumerate() {
                std::thread::sleep(Duration::from_millis(*pause_ms));
                scope.spawn(move || does(house, act, number as u64).unwrap_or_else(|error| panic!("{act:?}: {error}")));
            }
        });
        if !ends_at_once {
            house.wait_for(0, 0);
        }
        house.ask_to_end();
        house.end();
    }
}
