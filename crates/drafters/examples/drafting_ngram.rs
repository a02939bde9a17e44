//! The costs of n-gram models: bytes and time to learn a token, and time of a draft.
//!
//! `cargo run --release -p foretoken-drafters --example drafting_ngram -- [tokens] [file]`. Without a file the text is
//! synthetic: words by Zipf's law, each with a few frequent followers, so that it repeats itself about as natural text
//! does. A file is read as one token for every four bytes of text, by a hash of words and their pieces.

use std::time::Instant;

use foretoken_drafters::NgramDrafter;
use foretoken_speculation::Probes;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Address, Ask, Chance, DraftTree, Drafter, Law, Opening, Sampling, SequenceId, Token};

const VOCABULARY: u64 = 50_000;

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn uniform(seed: u64) -> f64 {
    (mix(seed) >> 11) as f64 / (1u64 << 53) as f64
}

/// A text in which two tokens in three are a frequent follower of the one or two tokens before.
fn synthetic(len: usize) -> Vec<Token> {
    let zipf = |u: f64| ((VOCABULARY as f64).powf(u) - 1.0) as Token;
    let mut text: Vec<Token> = vec![1, 2];
    for i in 2..len as u64 {
        let last = [text[i as usize - 2], text[i as usize - 1]].map(u64::from);
        let follower = |context: u64| zipf(uniform(context << 8 | (8.0 * uniform(3 * i + 2).powi(3)) as u64));
        text.push(match uniform(3 * i) {
            u if u < 0.35 => follower(last[0] << 20 | last[1] | 1 << 50),
            u if u < 0.65 => follower(last[1]),
            _ => zipf(uniform(3 * i + 1)),
        });
    }
    text
}

/// Words of a file, and pieces of long words, as tokens.
fn of_file(path: &str, len: usize) -> Vec<Token> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let words = bytes.split_inclusive(|byte| !byte.is_ascii_alphanumeric());
    let pieces = words.flat_map(|word| word.chunks(6));
    let hash = |piece: &[u8]| piece.iter().fold(0, |state, byte| mix(state ^ u64::from(*byte)));
    pieces.map(|piece| (hash(piece) % VOCABULARY) as Token).take(len).collect()
}

/// The exponential race with noise that is a hash.
struct Race;

impl Chance for Race {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        let time = |(token, p): (Token, f64)| {
            (-(1.0 - uniform(address.position << 32 ^ address.seed ^ u64::from(token))).ln() / p, token)
        };
        let mut times: Vec<(f64, Token)> = law.iter().map(time).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.clear();
        out.extend(times.iter().take(count).map(|(_, token)| *token));
    }

    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a drafter tosses no coin, at {address:?}");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let len = arguments.next().map_or(10_000_000, |len| len.parse().expect("a number of tokens"));
    let text = arguments.next().map_or_else(|| synthetic(len), |path| of_file(&path, len));
    let mut distinct = text.clone();
    distinct.sort_unstable();
    distinct.dedup();
    println!("{} tokens, {} different", text.len(), distinct.len());

    let mut drafter = NgramDrafter::default();
    let (mut worst, parts) = (0.0f64, 10);
    let started = Instant::now();
    for part in text.chunks(text.len().div_ceil(parts)) {
        let started = Instant::now();
        drafter.warm_up(part, 0, None);
        worst = worst.max(started.elapsed().as_secs_f64() / part.len() as f64);
    }
    let mean = started.elapsed().as_secs_f64() / text.len() as f64;
    println!("learn: {:.2} us a token, {:.2} us in the slowest tenth", mean * 1e6, worst * 1e6);
    println!("memory: {:.1} bytes a token", drafter.bytes() as f64 / text.len() as f64);

    for (name, branches_max, temperature, nodes) in
        [("chain of 5, greedy", 1, 0.0, 5), ("chain of 5, T 1", 1, 1.0, 5), ("tree of 16, T 1", 3, 1.0, 16)]
    {
        drafter.branches_max = branches_max;
        let sampling = Sampling { temperature, ..Sampling::default() };
        let (tokens, window) = (&text[..text.len().min(200_000)], 400);
        let (mut tree, mut probes) = (DraftTree::new(), Probes::default());
        let mut best = f64::INFINITY;
        let mut nodes_found = 0;
        for sequence in 0..40 {
            let start = mix(sequence) as usize % (tokens.len() - window);
            let id = SequenceId(sequence);
            drafter.open(&Opening::new(id, &tokens[start..start + 200]));
            let started = Instant::now();
            for end in 201..=window {
                tree.clear();
                let tokens = &tokens[start..start + end];
                let ask = Ask {
                    prompt_len: 200,
                    seed: 1,
                    ..Ask::new(id, tokens, &sampling, Limits::nodes(nodes), &mut tree, &mut probes)
                };
                drafter.draft(&mut [ask], &mut Race);
                nodes_found += tree.len();
            }
            best = best.min(started.elapsed().as_secs_f64() / 200.0);
            drafter.close(id);
        }
        println!("draft, {name}: {:.2} us a pass, {:.1} nodes", best * 1e6, nodes_found as f64 / 8000.0);
    }
}
