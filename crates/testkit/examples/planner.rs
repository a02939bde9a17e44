//! Measures what the planner gains over plain decoding in simulated scenarios. Seconds are those of the simulation, so
//! the numbers are the same on every machine and in every run.
//!
//! ```text
//! cargo run --release -p foretoken-testkit --example planner -- [--json]
//! ```
//!
//! Prints a line for each scenario (`crates/testkit/src/world/scenarios.rs`): tokens, seconds and tokens per second of
//! all seeds, and how many times as fast as plain decoding; with `--json` the same as an object a line.
//! `bench/constants` runs it once for each changed constant of the planner.

use std::process::ExitCode;

use foretoken_testkit::world::{Measured, scenarios};
use serde_json::json;

/// How often each scenario is run.
const SEEDS: u64 = 24;

fn main() -> ExitCode {
    let options: Vec<String> = std::env::args().skip(1).collect();
    if let Some(other) = options.iter().find(|option| *option != "--json") {
        eprintln!("expected --json or nothing, found {other}");
        return ExitCode::from(2);
    }
    for scenario in scenarios() {
        let measured = scenario.measure(0..SEEDS);
        let Measured { tokens, seconds, .. } = measured;
        let (name, speed, gain) = (scenario.name, measured.tokens_per_second(), measured.gain());
        if options.is_empty() {
            println!("{name:<18} {tokens:>6} tokens {seconds:>8.2} s {speed:>7.2} tokens/s {gain:>7.3} times plain");
        } else {
            let line = json!({
                "scenario": name, "tokens": tokens, "seconds": seconds, "tokens_per_second": speed, "gain": gain,
            });
            println!("{line}");
        }
    }
    ExitCode::SUCCESS
}
