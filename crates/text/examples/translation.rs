//! What translating between two vocabularies costs: microseconds a pass, there and back, for every pair of vocabularies.
//!
//! ```text
//! cargo run --release -p foretoken-text --example translation -- models/demo-target models/demo-other-tokenizer x.gguf
//! ```
//!
//! A pass reads four tokens of the target and translates a draft of five tokens of the assistant, the text being this
//! file. Each figure is the least of twenty runs over the text. Left out: starting up, which is printed for itself.

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

/// Microseconds a pass of reading and of proposing, in one run over the text.
fn run(pair: &Vocabularies, tokens: &[u32], drafts: &[u32]) -> (f64, f64) {
    let (mut translation, mut pieces) = (pair.begin(), Vec::new());
    let (mut read, mut proposed, mut passes) = (0.0, 0.0, 0);
    for (emitted, drafted) in tokens.chunks(EMITTED).zip(drafts.chunks(DRAFTED).cycle()) {
        let started = Instant::now();
        pair.read(&mut translation, emitted);
        read += started.elapsed().as_secs_f64();
        pieces.clear();
        let started = Instant::now();
        pair.propose(&translation, drafted, &mut pieces);
        proposed += started.elapsed().as_secs_f64();
        passes += 1;
    }
    let micros = 1e6 / f64::from(passes);
    (read * micros, proposed * micros)
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
            let runs: Vec<(f64, f64)> = (0..20).map(|_| run(&pair, &tokens, &drafts)).collect();
            let read = runs.iter().map(|run| run.0).fold(f64::INFINITY, f64::min);
            let draft = runs.iter().map(|run| run.1).fold(f64::INFINITY, f64::min);
            let name = |tokenizer: &Tokenizer| tokenizer.name().rsplit('/').next().unwrap_or("").to_owned();
            let both = read + draft;
            println!("{:<28} {:<28} {read:8.1} {draft:8.1} {both:8.1} {start:9.1}", name(target), name(assistant));
        }
    }
    Ok(())
}
