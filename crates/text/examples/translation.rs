//! Benchmarks translation between two vocabularies: microseconds a pass, in both directions, for every pair.
//!
//! ```text
//! cargo run --release -p foretoken-text --example translation -- models/demo-target models/demo-other-tokenizer x.gguf
//! ```
//!
//! A pass reads four tokens of the target and translates a draft of five tokens of the assistant, along the text of
//! this file. Each figure is the median of all passes of ten runs. The start-up time is printed separately.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foretoken_text::{Tokenizer, Vocabularies};

const TEXT: &str = include_str!("translation.rs");
const EMITTED: usize = 4;
const DRAFTED: usize = 5;

fn tokenizer(path: &str) -> Result<Arc<Tokenizer>, Box<dyn std::error::Error>> {
    let path = Path::new(path);
    Ok(Arc::new(match path.is_dir() {
        true => Tokenizer::from_dir(path)?,
        false => Tokenizer::from_gguf(&path.display().to_string(), &foretoken_weights::gguf::open(path)?.metadata)?,
    }))
}

/// Adds the microseconds of every pass of one run over the text, of reading and of proposing.
fn run(pair: &Vocabularies, tokens: &[u32], drafts: &[u32], read: &mut Vec<f64>, proposed: &mut Vec<f64>) {
    let (mut translation, mut pieces) = (pair.begin(), Vec::new());
    for (emitted, drafted) in tokens.chunks(EMITTED).zip(drafts.chunks(DRAFTED).cycle()) {
        let started = Instant::now();
        pair.read(&mut translation, emitted);
        read.push(started.elapsed().as_secs_f64() * 1e6);
        pieces.clear();
        let started = Instant::now();
        pair.propose(&translation, drafted, &mut pieces);
        proposed.push(started.elapsed().as_secs_f64() * 1e6);
    }
}

/// The median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let all = paths.iter().map(|path| tokenizer(path)).collect::<Result<Vec<_>, _>>()?;
    println!(
        "{:<28} {:<28} {:>8} {:>8} {:>8} {:>9}",
        "target", "assistant", "read us", "draft us", "pass us", "start ms"
    );
    for (i, target) in all.iter().enumerate() {
        for (_, assistant) in all.iter().enumerate().filter(|(j, _)| *j != i) {
            let started = Instant::now();
            let pair = Vocabularies::new(Arc::clone(target), Arc::clone(assistant), 10, 10)?;
            let start = started.elapsed().as_secs_f64() * 1e3;
            let (tokens, drafts) = (target.encode_plain(TEXT)?, assistant.encode_plain(TEXT)?);
            let (mut read, mut draft) = (Vec::new(), Vec::new());
            (0..10).for_each(|_| run(&pair, &tokens, &drafts, &mut read, &mut draft));
            let (read, draft) = (median(read), median(draft));
            let name = |tokenizer: &Tokenizer| tokenizer.name().rsplit('/').next().unwrap_or("").to_owned();
            let both = read + draft;
            println!("{:<28} {:<28} {read:8.1} {draft:8.1} {both:8.1} {start:9.1}", name(target), name(assistant));
        }
    }
    Ok(())
}
