//! Many clients at a time, for a while: texts, cancellations and mistakes mixed. Nothing fails that should not,
//! nothing is left, memory stays flat, and every seeded text is the one that is written alone.
//!
//! Ten seconds belong to the tests; `FORETOKEN_LOAD_SECONDS=60 cargo test -p foretoken-server --test load` runs
//! longer. It is a program of its own, so that the memory is its own: that after a third of the time is compared with
//! that at the end.

#[allow(dead_code)]
#[path = "server/bodies.rs"]
mod bodies;
#[allow(dead_code)]
#[path = "server/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "server/house.rs"]
mod house;
#[allow(dead_code)]
#[path = "server/probe.rs"]
mod probe;
#[allow(dead_code)]
#[path = "server/prometheus.rs"]
mod prometheus;

/// Nothing is logged.
mod log {
    pub fn begin() {}
}

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bodies::{seeded, streamed_texts, texts, with};
use crate::client::Client;
use crate::house::House;

const CLIENTS: u64 = 64;
/// Different texts that are asked for.
const TEXTS: u64 = 24;
/// Most that memory may grow behind the first third, in bytes.
const GROWTH_MAX: u64 = 24 << 20;

/// A few random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// What happened.
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

/// The request for one of the texts, in one of the ways that do not change it.
fn body(text: u64, way: u64) -> Value {
    let ignore_eos = text.is_multiple_of(3);
    let prompt = PROMPTS[(text % 4) as usize];
    let law = json!({ "prompt": prompt, "max_tokens": 8 + 5 * text, "ignore_eos": ignore_eos });
    let ways = [
        json!({}),
        json!({ "speculative.n_max": 0 }),
        json!({ "speculative.type": "draft,suffix", "speculative.n_max": 6 }),
        json!({ "speculative.type": "lookup" }),
        json!({ "prediction": { "type": "content", "content": "there was a little girl named lily" } }),
        json!({ "logprobs": 2, "return_provenance": true }),
    ];
    with(with(seeded(text, law), json!({ "stream": way >= 6 })), ways[way as usize % 6].clone())
}

/// Requests that are refused, with the field that is named.
fn mistake(which: u64) -> (Value, &'static str) {
    match which {
        0 => (seeded(1, json!({ "temperature": "hot" })), "temperature"),
        1 => (seeded(1, json!({ "prompt": "word ".repeat(1000) })), "prompt"),
        2 => (seeded(1, json!({ "n": 0 })), "n"),
        _ => (seeded(1, json!({ "suffix": "x" })), "suffix"),
    }
}

/// One request of one client.
fn once(client: &mut Client, dice: &mut Dice, alone: &[String]) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let text = dice.below(TEXTS);
    match dice.below(20) {
        0..12 => {
            let way = dice.below(12);
            let found = if way < 6 {
                client.send("POST", PATH, &[], body(text, way).to_string().as_bytes())?;
                texts(&client.receive()?.good())
            } else {
                streamed_texts(&Client::open(client.address)?.events(PATH, &body(text, way))?.all()?)
            };
            assert_eq!(found, [alone[text as usize].as_str()], "text {text} in way {way}");
            counts.compared = 1;
        }
        12..15 => {
            let more = json!({ "max_tokens": 300, "stream": true, "n": 1 + dice.below(2), "seed": null });
            let mut events = Client::open(client.address)?.events(PATH, &with(body(text, 0), more))?;
            for _ in 0..dice.below(6) {
                events.next()?;
            }
            counts.cancelled = 1;
        }
        15 => {
            let mut gone = Client::open(client.address)?;
            let more = json!({ "max_tokens": 300, "seed": null });
            gone.send("POST", PATH, &[], with(body(text, dice.below(12)), more).to_string().as_bytes())?;
            counts.cancelled = 1;
        }
        16..18 => {
            let (wrong, field) = mistake(dice.below(4));
            client.send("POST", PATH, &[], wrong.to_string().as_bytes())?;
            assert_eq!(client.receive()?.error(400).0.as_deref(), Some(field));
            counts.refused = 1;
        }
        18 => {
            client.send("POST", "/tokenize", &[], json!({ "content": alone[text as usize] }).to_string().as_bytes())?;
            client.receive()?.good();
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

/// Bytes of memory that this program has, where the system says it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[test]
fn sixty_four_clients_lose_nothing_and_leave_nothing() {
    let seconds = std::env::var("FORETOKEN_LOAD_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    let house = House::open(|settings, _| {
        settings.model.threads = Some(2);
        // What drafters remember of all texts grows until it is full, which it is soon.
        settings.speculation.drafters.suffix.capacity = 10_000;
    });
    let alone: Vec<String> = (0..TEXTS).map(|text| texts(&house.post(PATH, &body(text, 1)).good()).remove(0)).collect();
    let (begun, time) = (Instant::now(), Duration::from_secs(seconds));
    let (all, warm) = (Mutex::new(Counts::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (house, alone, all) = (&house, &alone, &all);
            scope.spawn(move || {
                let (mut client, mut dice, mut counts) = (house.client(), Dice(number), Counts::default());
                while begun.elapsed() < time {
                    let done = once(&mut client, &mut dice, alone);
                    counts.add(done.unwrap_or_else(|error| panic!("client {number}: {error}")));
                }
                all.lock().expect("no panic").add(counts);
            });
        }
        std::thread::sleep(time / 3);
        *warm.lock().expect("no panic") = resident_bytes();
    });
    house.wait_for(0, 0);
    let counts = all.into_inner().expect("no panic");
    println!("{counts:?} in {:?}", begun.elapsed());
    assert!(counts.compared > CLIENTS && counts.cancelled > 10 && counts.refused > 10, "{counts:?}");
    let metrics = prometheus::read(house.get("/metrics").text()).expect("Prometheus can read it");
    let http = |status| metrics.value("foretoken:http_requests_total", &[("path", PATH), ("status", status)]);
    assert_eq!(http("400"), counts.refused as f64);
    assert_eq!(http("429") + http("500"), 0.0);
    let ended = |why| metrics.value("foretoken:request_success_total", &[("finished_reason", why)]);
    assert_eq!(ended("failed"), 0.0);
    assert!(ended("length") + ended("stop") >= (counts.compared + TEXTS) as f64);
    if let (Some(warm), Some(last)) = (warm.into_inner().expect("no panic"), resident_bytes()) {
        println!("memory: {} MiB after a third, {} MiB at the end", warm >> 20, last >> 20);
        assert!(last < warm + GROWTH_MAX, "memory grew from {warm} to {last} bytes");
    }
    house.end();
}
