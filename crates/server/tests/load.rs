//! Many concurrent clients for some time: completions, cancellations and invalid requests mixed. Valid requests
//! succeed, nothing is left, memory stays constant, and every seeded text equals that of a request alone.
//!
//! It runs ten seconds by default; `FORETOKEN_LOAD_SECONDS=60 cargo test -p foretoken-server --test load` runs longer.
//! It is a program of its own, so that its memory can be measured: memory after a third of the time is compared with
//! that at the end.

#[allow(dead_code)]
#[path = "server/bodies.rs"]
mod bodies;
#[allow(dead_code)]
#[path = "server/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "server/probe.rs"]
mod probe;
#[allow(dead_code)]
#[path = "server/prometheus.rs"]
mod prometheus;
#[allow(dead_code)]
#[path = "server/test_server.rs"]
mod test_server;

/// Nothing is logged.
mod log {
    pub fn install() {}
}

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, streamed_texts, texts, with};
use crate::client::Client;
use crate::test_server::TestServer;

const CLIENTS: u64 = 64;
/// Number of different texts.
const TEXTS: u64 = 24;
/// Maximum growth of memory after the first third, in bytes.
const GROWTH_MAX: u64 = 24 << 20;

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// How many requests of each kind were made.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    compared: u64,
    cancelled: u64,
    refused: u64,
    other: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.compared += other.compared;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.other += other.other;
    }
}

const PATH: &str = "/v1/completions";
const PROMPTS: [&str; 4] =
    ["Once upon a time,", "<|user|>i need a hotel<|end|><|assistant|>", "tom has 4 apples", "the"];

/// A request for one of the texts, in one of the variants that do not change it.
fn body(text: u64, variant: u64) -> Value {
    let ignore_eos = text.is_multiple_of(3);
    let prompt = PROMPTS[(text % 4) as usize];
    let fields = json!({ "prompt": prompt, "max_tokens": 8 + 5 * text, "ignore_eos": ignore_eos });
    let variants = [
        json!({}),
        json!({ "speculative.n_max": 0 }),
        json!({ "speculative.type": "draft,suffix", "speculative.n_max": 6 }),
        json!({ "speculative.type": "lookup" }),
        json!({ "prediction": { "type": "content", "content": "there was a little girl named lily" } }),
        json!({ "logprobs": 2, "return_provenance": true }),
    ];
    with(with(seeded(text, fields), json!({ "stream": variant >= 6 })), variants[variant as usize % 6].clone())
}

/// An invalid request, and the field that the error must name.
fn invalid_body(which: u64) -> (Value, &'static str) {
    match which {
        0 => (seeded(1, json!({ "temperature": "hot" })), "temperature"),
        1 => (seeded(1, json!({ "prompt": "word ".repeat(1000) })), "prompt"),
        2 => (seeded(1, json!({ "n": 0 })), "n"),
        _ => (seeded(1, json!({ "suffix": "x" })), "suffix"),
    }
}

/// Sends one random request of a client.
fn run_request(client: &mut Client, random: &mut Random, expected: &[String]) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let text = random.below(TEXTS);
    match random.below(20) {
        0..12 => {
            let variant = random.below(12);
            let found = if variant < 6 {
                client.send("POST", PATH, &[], body(text, variant).to_string().as_bytes())?;
                texts(&client.receive()?.success())
            } else {
                streamed_texts(&Client::try_connect(client.address)?.events(PATH, &body(text, variant))?.all()?)
            };
            assert_eq!(found, [expected[text as usize].as_str()], "text {text}, variant {variant}");
            counts.compared = 1;
        }
        12..15 => {
            let more = json!({ "max_tokens": 300, "stream": true, "n": 1 + random.below(2), "seed": null });
            let mut events = Client::try_connect(client.address)?.events(PATH, &with(body(text, 0), more))?;
            for _ in 0..random.below(6) {
                events.next()?;
            }
            counts.cancelled = 1;
        }
        15 => {
            let mut leaving = Client::try_connect(client.address)?;
            let more = json!({ "max_tokens": 300, "seed": null });
            leaving.send("POST", PATH, &[], with(body(text, random.below(12)), more).to_string().as_bytes())?;
            counts.cancelled = 1;
        }
        16..18 => {
            let (wrong, field) = invalid_body(random.below(4));
            client.send("POST", PATH, &[], wrong.to_string().as_bytes())?;
            assert_eq!(client.receive()?.error(400).0.as_deref(), Some(field));
            counts.refused = 1;
        }
        18 => {
            client.send(
                "POST",
                "/tokenize",
                &[],
                json!({ "content": expected[text as usize] }).to_string().as_bytes(),
            )?;
            client.receive()?.success();
            counts.other = 1;
        }
        _ => {
            client.send("GET", "/metrics", &[], &[])?;
            prometheus::read(client.receive()?.text()).expect("Prometheus can read it");
            counts.other = 1;
        }
    }
    Ok(counts)
}

/// Resident memory of this program in bytes, if the system reports it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[test]
fn sixty_four_clients_get_correct_texts_and_leave_nothing() {
    let seconds = std::env::var("FORETOKEN_LOAD_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    let server = TestServer::open(|settings, _| {
        settings.model.threads = Some(2);
        // The suffix drafter's memory of all texts grows up to its capacity, which is reached soon.
        settings.speculation.drafters.suffix.capacity = 10_000;
    });
    let expected: Vec<String> =
        (0..TEXTS).map(|text| texts(&server.post(PATH, &body(text, 1)).success()).remove(0)).collect();
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let (all, early) = (Mutex::new(Counts::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (server, expected, all) = (&server, &expected, &all);
            scope.spawn(move || {
                let (mut client, mut random, mut counts) = (server.client(), Random(number), Counts::default());
                while start.elapsed() < time {
                    let done = run_request(&mut client, &mut random, expected);
                    counts.add(done.unwrap_or_else(|error| panic!("client {number}: {error}")));
                }
                all.lock().expect("no panic").add(counts);
            });
        }
        std::thread::sleep(time / 3);
        *early.lock().expect("no panic") = resident_bytes();
    });
    server.wait_for(0, 0);
    let counts = all.into_inner().expect("no panic");
    println!("{counts:?} in {:?}", start.elapsed());
    assert!(counts.compared > CLIENTS && counts.cancelled > 10 && counts.refused > 10, "{counts:?}");
    let metrics = prometheus::read(server.get("/metrics").text()).expect("Prometheus can read it");
    let http = |status| metrics.value("foretoken:http_requests_total", &[("path", PATH), ("status", status)]);
    assert_eq!(http("400"), counts.refused as f64);
    assert_eq!(http("429") + http("500"), 0.0);
    let ended = |why| metrics.value("foretoken:request_success_total", &[("finished_reason", why)]);
    assert_eq!(ended("failed"), 0.0);
    assert!(ended("length") + ended("stop") >= (counts.compared + TEXTS) as f64);
    if let (Some(early), Some(last)) = (early.into_inner().expect("no panic"), resident_bytes()) {
        println!("memory: {} MiB after a third, {} MiB at the end", early >> 20, last >> 20);
        assert!(last < early + GROWTH_MAX, "memory grew from {early} to {last} bytes");
    }
    server.shut_down();
}
