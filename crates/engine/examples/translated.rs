//! Measures the acceptance of an assistant with another tokenizer, in both ways, against a draft model with the
//! target's vocabulary.
//!
//! ```text
//! cargo run --release -p foretoken-engine --example translated -- models prompts.jsonl 10 64 5
//! ```
//!
//! Arguments: the folder of the demo models, a file with a `category` and a `prompt` per line, prompts per category,
//! tokens per prompt, nodes per draft. Prints accepted over drafted tokens and tokens per pass, not the speed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use foretoken_drafters::ModelDrafter;
use foretoken_engine::{
    BudgetKind, Engine, Event, ExecutorScorer, Race, Request, Stats, TranslationSettings, TranslationWay,
    translated_drafter,
};
use foretoken_model::{Checkpoint, Model, Options};
use foretoken_speculation::{DraftSettings, Promise, Sampling};
use foretoken_text::Tokenizer;

type Failure = Box<dyn std::error::Error>;

fn load(folder: &Path) -> Result<(Box<Model>, Arc<Tokenizer>), Failure> {
    let model = Model::load(&Checkpoint::open(folder)?, Options::for_positions(8192, 2), &mut |_, _| ())?;
    Ok((Box::new(model), Arc::new(Tokenizer::from_dir(folder)?)))
}

/// Numbers of the drafters of [`engine`].
const DRAFTERS: [(&str, u8); 4] = [("same tokenizer", 0), ("text, greedy", 1), ("text, sampled", 2), ("shared", 3)];

fn engine(models: &Path, prompts: usize) -> Result<(Engine, Arc<Tokenizer>), Failure> {
    let (target, tokenizer) = load(&models.join("demo-target"))?;
    let mut engine = Engine::new(target, prompts, 1024);
    let (draft, _) = load(&models.join("demo-draft"))?;
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(draft))));
    let text = TranslationSettings { way: TranslationWay::Text, ..TranslationSettings::default() };
    let settings = DraftSettings { temperature: Some(1.0), ..DraftSettings::default() };
    let sampled = TranslationSettings { draft: settings, ..text };
    let shared = TranslationSettings { way: TranslationWay::Shared, ..text };
    for settings in [text, sampled, shared] {
        let (assistant, assistant_tokenizer) = load(&models.join("demo-other-tokenizer"))?;
        engine.add_drafter(translated_drafter(assistant, &tokenizer, &assistant_tokenizer, &settings)?);
    }
    Ok((engine, tokenizer))
}

fn run(engine: &mut Engine, requests: &[Request]) -> Result<Stats, Failure> {
    for request in requests {
        engine.submit(request.clone())?;
    }
    let mut all = Stats::default();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Finished { stats, .. } => all.add(stats),
                Event::DrafterFailed { message, .. } => return Err(message.clone().into()),
                Event::Tokens { .. }
                | Event::Prompt { .. }
                | Event::PromptScored { .. }
                | Event::Drafts { .. }
                | Event::Beams { .. } => {}
            }
        }
    }
    Ok(all)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [models, file, count, tokens, nodes] = arguments.as_slice() else {
        return Err("expected: models prompts.jsonl prompts tokens nodes".into());
    };
    let (count, tokens, nodes): (usize, usize, usize) = (count.parse()?, tokens.parse()?, nodes.parse()?);
    let mut categories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        categories.entry(text("category")).or_default().push(text("prompt"));
    }
    let (mut engine, tokenizer) = engine(Path::new(models), count)?;
    println!(
        "{:<12} {:<10} {:>4} {:<16} {:>8} {:>9} {:>7}",
        "text", "promise", "temp", "drafter", "drafted", "accepted", "a pass"
    );
    for (category, prompts) in &categories {
        for (promise, temperature) in [(Promise::Exact, 0.0), (Promise::Exact, 1.0), (Promise::Rejection, 1.0)] {
            for (name, number) in DRAFTERS {
                let mut requests = Vec::new();
                for (seed, prompt) in prompts.iter().take(count).enumerate() {
                    requests.push(Request {
                        tokens_max: Some(tokens),
                        sampling: Sampling { temperature, ..Sampling::default() },
                        seed: seed as u64,
                        promise,
                        budget: BudgetKind::Fixed { nodes },
                        drafters: vec![number],
                        ..Request::new(tokenizer.encode(prompt, true)?)
                    });
                }
                let stats = run(&mut engine, &requests)?;
                let rate = stats.acceptance_rate().unwrap_or_default();
                println!(
                    "{category:<12} {:<10} {temperature:>4} {name:<16} {:>8} {rate:>9.3} {:>7.2}",
                    format!("{promise:?}").to_lowercase(),
                    stats.drafted,
                    stats.tokens_per_pass()
                );
            }
        }
    }
    Ok(())
}
