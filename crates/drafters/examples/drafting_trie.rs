//! The costs of trie lookahead: time of a retrieval, time of an insertion, memory; each with its limit.
//!
//! The store holds synthetic text: words by Zipf's law, and after each word usually one of a few successors of its own,
//! again by Zipf's law, so that branches repeat as in a real text and there are always new ones. Times are the minimum
//! over several repetitions. `cargo run --release -p foretoken-drafters --example drafting_trie [million tokens]`; the
//! exit status is 1 if a limit is exceeded.

use std::time::Instant;

use foretoken_drafters::{TrieDrafter, TrieOptions};
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Address, Ask, Chance, DraftTree, Drafter, Law, Opening, Probes, Sampling, SequenceId, StepOutput, Tenant, Token,
};

const VOCABULARY: u64 = 32_000;
const CONTEXT: usize = 4096;
const REPETITIONS: usize = 5;
const SEQUENCE: SequenceId = SequenceId(1);

struct NoChance;

impl Chance for NoChance {
    fn draw(&mut self, _law: &Law, _count: usize, address: Address, _out: &mut Vec<Token>) {
        panic!("a draw at {address:?}");
    }
    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a coin at {address:?}");
    }
}

/// A reproducible chain of words.
struct Text {
    state: u64,
    last: u64,
}

impl Text {
    fn new(seed: u64) -> Text {
        Text { state: seed, last: 0 }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A rank from 0 below `ranks`, with probability about 1 / rank.
    fn rank(&mut self, ranks: u64) -> u64 {
        let uniform = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
        ((ranks as f64).powf(uniform) as u64 - 1).min(ranks - 1)
    }

    fn next(&mut self) -> Token {
        self.last = match self.random() % 4 {
            0 => self.rank(VOCABULARY),
            // One of this word's own successors, by a hash of both.
            _ => {
                let successor = self.rank(64);
                let mut words = Text::new(self.last * 64 + successor);
                words.rank(VOCABULARY)
            }
        };
        self.last as Token
    }

    fn take(&mut self, len: usize) -> Vec<Token> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// Prints a figure with its limit; returns whether the limit is kept.
fn line(what: &str, figure: f64, unit: &str, limit: f64) -> bool {
    let verdict = if figure <= limit { "ok" } else { "EXCEEDED" };
    println!("{what:46} {figure:8.2} {unit:14} limit {limit:5} {verdict}");
    figure <= limit
}

/// Inserts texts of a thousand tokens into a new drafter. `least`: the fewest seconds that each of them took so far, in
/// this repetition or an earlier one; the work is the same each time.
fn fill(options: TrieOptions, least: &mut [f64]) -> TrieDrafter {
    let mut drafter = TrieDrafter::new(options);
    let mut text = Text::new(1);
    for least in least {
        let text = text.take(1000);
        let start = Instant::now();
        drafter.warm_up(&text, 0, None);
        *least = least.min(start.elapsed().as_secs_f64());
    }
    drafter
}

/// Drafts before each token of `written`, after the prompt. `least`: the fewest seconds that each draft took so far.
fn retrieve(drafter: &mut TrieDrafter, prompt: &[Token], written: &[Token], least: &mut [f64]) {
    let mut tokens = prompt.to_vec();
    let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
    for (&token, least) in written.iter().zip(least) {
        tree.clear();
        let start = Instant::now();
        let ask = Ask {
            prompt_len: prompt.len(),
            ..Ask::new(SEQUENCE, &tokens, &sampling, Limits::nodes(15), &mut tree, &mut probes)
        };
        drafter.draft(&mut [ask], &mut NoChance);
        *least = least.min(start.elapsed().as_secs_f64());
        tokens.push(token);
        let output = StepOutput {
            sequence: SEQUENCE,
            tokens: &tokens,
            emitted: &[token],
            tree: &tree,
            path: &[],
            probes: &[],
            hidden_from: 0,
            hidden: &[],
        };
        drafter.observe(&[output]);
    }
}

fn main() {
    let millions: usize = std::env::args().nth(1).map_or(10, |millions| millions.parse().expect("million tokens"));
    let tokens = millions * 1_000_000;
    let options = TrieOptions::default();
    println!("{options:?}\n{tokens} tokens in store, {CONTEXT} in context, vocabulary {VOCABULARY}");

    let mut least = vec![f64::MAX; tokens / 1000];
    let mut drafter = fill(options, &mut least);
    for _ in 1..REPETITIONS {
        drafter = fill(options, &mut least);
    }
    let insertion = least.iter().sum::<f64>() * 1e6 / tokens as f64;
    let bytes = drafter.memory_bytes() as f64 / tokens as f64;
    println!("{} nodes in store, {:.0} MB", drafter.nodes(), drafter.memory_bytes() as f64 / 1e6);

    let mut text = Text::new(2);
    let (prompt, written) = (text.take(CONTEXT), text.take(500));
    let (mut opening, mut closing) = (f64::MAX, f64::MAX);
    let mut least = vec![f64::MAX; written.len()];
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        drafter.open(&Opening { tenant: Tenant(1), ..Opening::new(SEQUENCE, &prompt) });
        opening = opening.min(start.elapsed().as_secs_f64() * 1e6 / prompt.len() as f64);
        retrieve(&mut drafter, &prompt, &written, &mut least);
        let start = Instant::now();
        drafter.close(SEQUENCE);
        closing = closing.min(start.elapsed().as_secs_f64() * 1e6 / written.len() as f64);
    }
    let retrieval = least.iter().sum::<f64>() * 1e6 / written.len() as f64;
    let kept = [
        line("retrieval, 15 nodes", retrieval, "us a pass", 50.0),
        line("insertion into the store, pruning included", insertion, "us a token", 2.0),
        line("insertion of a prompt of 4096 tokens", opening, "us a token", 2.0),
        line("output moved to the store at the end", closing, "us a token", 2.0),
        line("memory of the store", bytes, "bytes a token", 64.0),
    ];
    std::process::exit(i32::from(kept.contains(&false)));
}
