//! The costs of drafting by lookup: time of a pass, time and memory of a token of history, each with its limit.
//!
//! A context of 4096 tokens and a history of 10 million (or as many millions as the first argument), of two kinds:
//! words as in a language (Zipf's law, each word with followers of its own, phrases that are repeated), and the worst
//! case of one phrase that is repeated for ever. Times are the minimum over several series; each series of the first
//! kind reads a text that was not read before, so that the history is not in a cache already.
//!
//! ```text
//! cargo run --release -p foretoken-drafters --example drafting_lookup
//! ```
//!
//! Acceptance is measured by `foretoken bench replay`, on recorded texts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use foretoken_drafters::SuffixDrafter;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Address, Ask, Chance, DraftTree, Drafter, Law, Opening, Probes, Sampling, SequenceId, Tenant, Token,
};

const CONTEXT_LEN: usize = 4096;
const TEXT_LEN: usize = 1000;
const SERIES: u64 = 5;
const REPETITIONS: u32 = 3;
const PASSES: usize = 200;
const NODES_MAX: usize = 16;
const SEQUENCE: SequenceId = SequenceId(1);

/// Neither drafter draws.
struct NoChance;

impl Chance for NoChance {
    fn draw(&mut self, _law: &Law, _count: usize, address: Address, _out: &mut Vec<Token>) {
        panic!("a draw at {address:?}");
    }
    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a coin at {address:?}");
    }
}

/// A text without end.
struct Writer {
    state: u64,
    written: Vec<Token>,
    repetitive: bool,
    /// The position that a phrase is copied from, and how much of it is left.
    phrase: (usize, usize),
}

impl Writer {
    fn new(seed: u64, repetitive: bool) -> Writer {
        Writer { state: seed, written: vec![0], repetitive, phrase: (0, 0) }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// The next token.
    fn write(&mut self) -> Token {
        let last = self.written[self.written.len() - 1];
        let token = if self.repetitive {
            (last + 1) % 3
        } else if self.phrase.1 > 0 {
            self.phrase = (self.phrase.0 + 1, self.phrase.1 - 1);
            self.written[self.phrase.0 - 1]
        } else {
            let (kind, rank) = (self.random() % 100, zipf(self.random(), 32_000));
            if kind < 2 {
                let from = self.random() as usize % self.written.len();
                self.phrase = (from, (5 + kind as usize * 20).min(self.written.len() - from));
            }
            match kind {
                // A word of its own, or a follower of the last one: each word has its own order of them.
                0..30 => rank,
                _ => zipf(mix(u64::from(last) << 20 | u64::from(zipf(self.random(), 2000))), 32_000),
            }
        };
        self.written.push(token);
        token
    }

    fn text(&mut self, len: usize) -> Vec<Token> {
        (0..len).map(|_| self.write()).collect()
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A rank from 0 with a probability of about 1 / (rank + 1), by inversion.
fn zipf(random: u64, words: u32) -> Token {
    let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
    (f64::from(words).powf(uniform) as Token - 1).min(words - 1)
}

/// Mean time of `draft` over the passes of a sequence; the minimum over several series.
fn time_of_a_pass(drafter: &mut dyn Drafter, seed: u64, repetitive: bool) -> Duration {
    let sampling = Sampling::default();
    let (mut tree, mut probes) = (DraftTree::new(), Probes::default());
    let mut least = Duration::MAX;
    for series in 0..SERIES {
        let mut writer = Writer::new(seed + series, repetitive);
        let mut tokens = writer.text(CONTEXT_LEN - PASSES);
        drafter.open(&Opening { tenant: Tenant(series), ..Opening::new(SEQUENCE, &tokens) });
        let mut sum = Duration::ZERO;
        for _ in 0..PASSES {
            tokens.push(writer.write());
            tree.clear();
            let ask = Ask::new(SEQUENCE, &tokens, &sampling, Limits::nodes(NODES_MAX), &mut tree, &mut probes);
            let start = Instant::now();
            drafter.draft(&mut [ask], &mut NoChance);
            sum += start.elapsed();
        }
        drafter.close(SEQUENCE);
        least = least.min(sum / PASSES as u32);
    }
    least
}

/// A suffix drafter that has read `tokens` tokens, and the mean time of reading one: for each text the minimum over
/// several repetitions, since later texts take longer.
fn warmed_up(tokens: usize, repetitive: bool) -> (SuffixDrafter, Duration) {
    let mut times = vec![Duration::MAX; tokens / TEXT_LEN];
    for repetition in 1.. {
        // Room for what the series add when they are closed: half of the capacity is kept in any case.
        let mut drafter = SuffixDrafter::new(2 * tokens);
        let mut writer = Writer::new(1, repetitive);
        for time in &mut times {
            let text = writer.text(TEXT_LEN);
            let start = Instant::now();
            drafter.warm_up(&text, 1, None);
            *time = start.elapsed().min(*time);
        }
        if repetition == REPETITIONS {
            return (drafter, times.iter().sum::<Duration>() / tokens as u32);
        }
    }
    unreachable!("at least one repetition")
}

fn main() -> ExitCode {
    let millions: usize = std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(10);
    let tokens = millions * 1_000_000;
    let mut all_kept = true;
    let mut line = |what: &str, kind: &str, value: f64, limit: f64, unit: &str| {
        all_kept &= value <= limit;
        let verdict = if value <= limit { "kept" } else { "NOT KEPT" };
        println!("{what:<32} {kind:<10} {value:>8.2} {unit:<14} limit {limit:>3} {verdict}");
    };
    println!("context {CONTEXT_LEN}, {NODES_MAX} nodes, history of {millions} million tokens");
    for (kind, repetitive) in [("language", false), ("one phrase", true)] {
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let chain = time_of_a_pass(&mut SuffixDrafter::lookup_chain(1, 3, NODES_MAX), 100, repetitive);
        line("lookup, one occurrence", kind, micros(chain), 20.0, "us a pass");
        let lookup = time_of_a_pass(&mut SuffixDrafter::lookup(1, 3, NODES_MAX), 200, repetitive);
        line("lookup, a tree", kind, micros(lookup), 20.0, "us a pass");
        let (mut suffix, insertion) = warmed_up(tokens, repetitive);
        line("suffix, insertion", kind, micros(insertion), 2.0, "us a token");
        let bytes = suffix.history_bytes() as f64 / suffix.history_tokens() as f64;
        line("suffix, memory", kind, bytes, 64.0, "bytes a token");
        let pass = time_of_a_pass(&mut suffix, 300, repetitive);
        line("suffix, drafting", kind, micros(pass), 20.0, "us a pass");
    }
    if all_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
