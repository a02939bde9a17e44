//! What laws without a filter cost in a large vocabulary: milliseconds and allocated bytes, of one law and of a pass.
//!
//! At temperature 1, without top-k and the like, a law is a probability for every token of the vocabulary. A pass here
//! is what a draft of four tokens needs: four laws of the drafter, drawn from, up to five of the target, and
//! verification. The example also measures the time of the log-probabilities of a token.
//!
//! `cargo run -p foretoken-speculation --example unfiltered_laws [-- 131072]`

use std::hint::black_box;
use std::time::Instant;

use allocation_counter::measure;
use foretoken_speculation::{
    Address, Chance, Context, DraftTree, Law, NodeId, Pass, Promise, Proposal, RawLaw, Sampling, Scratch,
};
use foretoken_speculation::{Token, verify};

/// Number of drafted tokens.
const DEPTH: usize = 4;
/// Number of passes that are measured, after as many that are not (warm-up).
const PASSES: u64 = 15;

/// A hash of a number, scaled to between 0 and 1.
fn noise(number: u64) -> f64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws by cumulated probability.
struct Dice;

impl Dice {
    fn roll(address: Address) -> f64 {
        noise(
            noise((address.pass * 8 + address.position + address.purpose as u64) << 40).to_bits()
                + u64::from(address.index),
        )
    }
}

impl Chance for Dice {
    fn draw(&mut self, law: &Law, _count: usize, address: Address, out: &mut Vec<Token>) {
        let mut left = Dice::roll(address);
        let drawn = law.iter().find(|(_, p)| {
            left -= p;
            left < 0.0
        });
        out.clear();
        out.push(drawn.map_or(law.tokens()[0], |(token, _)| token));
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        Dice::roll(address) < probability
    }
}

/// Prints the median time of the later measurements, and the bytes that were allocated on average.
fn report(name: &str, found: &mut Vec<(f64, u64)>, extra: &str) {
    found.drain(..PASSES as usize);
    let bytes: u64 = found.iter().map(|found| found.1).sum::<u64>() / PASSES;
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("{name}: {:.2} ms, {bytes} bytes allocated{extra}", found[PASSES as usize / 2].0 * 1e3);
}

/// Measures the log-probabilities of a token.
fn log_probabilities(rows: &[Vec<f32>]) {
    for (name, top) in [("a log-probability", 0), ("a log-probability and the top 5", 5), ("... and the top 20", 20)] {
        let mut found: Vec<(f64, u64)> = Vec::new();
        for (token, row) in (0..2 * PASSES as Token).zip(rows.iter().cycle()) {
            let began = Instant::now();
            let bytes = measure(|| {
                let raw = RawLaw::new(row);
                black_box((raw.log_probability(token), raw.top(top)));
            });
            found.push((began.elapsed().as_secs_f64(), bytes.bytes_total));
        }
        report(name, &mut found, "");
    }
}

fn main() {
    let vocabulary: u32 = std::env::args().nth(1).map_or(131_072, |text| text.parse().expect("a number of tokens"));
    let row = |seed: u64, scale: f64| -> Vec<f32> {
        (0..u64::from(vocabulary)).map(|token| (scale * noise(token * 7919 + seed)) as f32).collect()
    };
    let target_rows: Vec<Vec<f32>> = (0..=DEPTH as u64).map(|seed| row(seed, 8.0)).collect();
    let draft_rows: Vec<Vec<f32>> = target_rows
        .iter()
        .enumerate()
        .map(|(i, target)| target.iter().zip(row(i as u64 + 100, 2.0)).map(|(logit, noise)| logit + noise).collect())
        .collect();
    let sampling = Sampling::default();
    let (mut draft, mut target) = (Scratch::default(), Scratch::default());
    let mut tree = DraftTree::new();
    let mut drawn = Vec::new();

    let mut found: Vec<(f64, u64)> = Vec::new();
    for _ in 0..2 * PASSES {
        let began = Instant::now();
        let bytes = measure(|| drop(sampling.law_with(&target_rows[0], &Context::EMPTY, &mut target))).bytes_total;
        found.push((began.elapsed().as_secs_f64(), bytes));
    }
    report("one law", &mut found, "");
    log_probabilities(&target_rows);
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        found.clear();
        let mut accepted = 0;
        for start in 0..2 * PASSES {
            let pass = Pass { seed: 1, request: 0, start };
            let began = Instant::now();
            let bytes = measure(|| {
                tree.clear();
                let mut parent: Option<NodeId> = None;
                for (depth, row) in draft_rows[..DEPTH].iter().enumerate() {
                    let law = sampling.law_with(row, &Context::EMPTY, &mut draft);
                    let position = start + depth as u64;
                    let proposal = if promise == Promise::Exact {
                        Dice.draw(&law, 1, Address::token(1, position), &mut drawn);
                        tree.keep_law(parent, law, 0);
                        Proposal::Point
                    } else {
                        let id = tree.add_law(law);
                        Dice.draw(tree.law(id), 1, Address::draft(pass, position, id), &mut drawn);
                        Proposal::Drawn(id)
                    };
                    parent = Some(tree.offer(parent, drawn[0], proposal, 0));
                }
                let mut laws = |node: Option<NodeId>| {
                    let row = &target_rows[node.map_or(0, |node| tree.depth(node))];
                    sampling.law_with(row, &Context::EMPTY, &mut target)
                };
                accepted += verify(&tree, &mut laws, promise, pass, &mut Dice).path.len();
            })
            .bytes_total;
            found.push((began.elapsed().as_secs_f64(), bytes));
        }
        report(&format!("a pass, {promise:?}"), &mut found, &format!(", {accepted} tokens accepted"));
    }
}
