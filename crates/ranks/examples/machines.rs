//! Prints where several machines pay, by the cost model of `pass_time.rs`: the table of docs/ranks.md.
//!
//! `cargo run -p foretoken-ranks --example machines`. The model is a dense one of 8 billion weights in Q4_K on machines
//! whose memory delivers 40 GB/s; every number that is assumed is a constant here.

use foretoken_ranks::pass_time::{Link, PassTime};

/// Bytes of the weights, over the bytes a second of a machine's memory: the time of a pass of one row.
const ONE_ROW_SECONDS: f64 = 4.9e9 / 40e9;
/// The time of a pass of 8 rows over that of one row, as measured on two cores.
const EIGHT_ROWS: f64 = 1.25;
/// Tokens of a pass that verifies 7 drafted tokens.
const TOKENS_WITH_DRAFTS: f64 = 3.0;
/// Of a pass, what every rank does for itself (norms, sampling).
const REPEATED: f64 = 0.01;

const LAYERS: f64 = 32.0;
const WIDTH: f64 = 4096.0;
const FFN_WIDTH: f64 = 14_336.0;
const VOCABULARY: f64 = 128_256.0;

/// Links: gigabits a second, and seconds of the smallest exchange.
const LINKS: [(f64, f64); 3] = [(1.0, 60e-6), (10.0, 30e-6), (100.0, 5e-6)];

/// A pass of this many rows, all of whose logits are computed.
fn pass(rows: f64) -> PassTime {
    let slower = 1.0 + (EIGHT_ROWS - 1.0) * (rows - 1.0) / 7.0;
    let seconds = ONE_ROW_SECONDS * slower;
    // Inputs of quantized products are sent as a byte for each element and four for each block of 256.
    let layer = 2.0 * 4.0 * WIDTH + (WIDTH + FFN_WIDTH) * (1.0 + 4.0 / 256.0);
    PassTime {
        divided: seconds * (1.0 - REPEATED),
        repeated: seconds * REPEATED,
        exchanges: 4.0 * LAYERS + 1.0,
        bytes: rows * (LAYERS * layer + 4.0 * VOCABULARY),
    }
}

fn main() {
    let [plain, drafted] = [pass(1.0), pass(8.0)];
    let link = Link::gigabits(1.0, 0.0);
    let tokens_per_second = |pass: &PassTime, ranks, link, tokens| tokens / pass.seconds(ranks, link);
    let one = tokens_per_second(&plain, 1, link, 1.0);
    println!("| machines | link | tokens/s, plain | with drafts | drafts on one machine |");
    println!("|---|---|---|---|---|");
    let drafts_on_one = tokens_per_second(&drafted, 1, link, TOKENS_WITH_DRAFTS);
    println!("| 1 | - | {one:.1} | {drafts_on_one:.1} | 1.00 |");
    for (gigabits, latency) in LINKS {
        for ranks in [2, 4, 8] {
            let link = Link::gigabits(gigabits, latency);
            let with_drafts = tokens_per_second(&drafted, ranks, link, TOKENS_WITH_DRAFTS);
            println!(
                "| {ranks} | {gigabits} Gb/s | {:.1} | {with_drafts:.1} | {:.2} |",
                tokens_per_second(&plain, ranks, link, 1.0),
                with_drafts / drafts_on_one
            );
        }
    }
    println!();
    for ranks in [2, 4, 8] {
        let rate = |pass: &PassTime, latency| pass.least_rate(ranks, latency).map_or(f64::NAN, |rate| rate * 8.0 / 1e9);
        println!(
            "{ranks} machines are faster than one from {:.2} Gb/s on for one row a pass, {:.2} Gb/s for 8 rows (60 us)",
            rate(&plain, 60e-6),
            rate(&drafted, 60e-6)
        );
    }
}
