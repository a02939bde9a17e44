//! Streams a text while it is generated, token by token, with a draft model: `cargo run --release --example stream`.
//!
//! The engine runs on a thread of its own, and this thread prints. At the end it prints the number of the target's
//! passes.

use std::io::Write;
use std::sync::mpsc::channel;

use foretoken::{EngineThread, Error, Event, Generator, Settings};

fn main() -> Result<(), Error> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "Once upon a time, there was a little".to_string());
    let mut settings = Settings::default();
    settings.speculation.spec_type = "draft+suffix".parse().expect("two drafters");
    settings.sampling.tokens_max = 64.into();
    let generator = Generator::open(&settings)?;
    generator.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let request = generator.request(prompt.as_str())?;
    let engine = EngineThread::start(generator)?;
    let (events, received) = channel();
    engine.submit(request, &events)?;
    for event in received {
        print!("{}", event.text());
        std::io::stdout().flush().ok();
        if let Event::Finished { stats, reason, .. } = event {
            println!("\n{} tokens in {} passes: {reason:?}", stats.emitted, stats.passes);
            break;
        }
    }
    Ok(())
}
