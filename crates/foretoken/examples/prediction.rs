//! Measures how much faster a text is generated with a prediction of it in which some words are wrong.
//!
//! The target continues each prompt of a file greedily. Then one word in twenty is replaced by another word of the same
//! text, and the text is generated again with the changed text as prediction, with each method of drafting. The program
//! prints a line for each method: tokens per pass, drafted and accepted tokens, speedup over plain decoding, and
//! whether all texts are equal.
//!
//! ```text
//! cargo run --release -p foretoken --example prediction -- models/demo-target bench/prompts.jsonl [percent]
//! ```

use std::error::Error;

use foretoken::generator::Choices;
use foretoken::settings::Budget;
use foretoken::{Answer, BudgetKind, Event, Generator, Request, Settings, Tenant, Token, report};
use foretoken_text::Tokenizer;

/// Tokens of a text.
const LEN: usize = 256;
/// The number of measurements, of which the fastest counts.
const REPETITIONS: usize = 3;

/// The text with about `percent` of its words replaced by other words of the text. A word begins with a space.
fn changed(text: &[Token], tokenizer: &Tokenizer, percent: usize, seed: usize) -> Vec<Token> {
    let words: Vec<&[Token]> = text.chunk_by(|_, token| !tokenizer.token_bytes(*token).starts_with(b" ")).collect();
    let hash = |i: usize| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize).wrapping_add(seed * 7919) >> 33;
    let word = |i: usize| if hash(i) % 100 < percent { words[hash(i + words.len()) % words.len()] } else { words[i] };
    (0..words.len()).flat_map(word).copied().collect()
}

fn run(generator: &mut Generator, tenant: &mut u64, requests: &[Request]) -> Result<Vec<Answer>, foretoken::Error> {
    let mut best: Option<(f64, Vec<Answer>)> = None;
    for _ in 0..REPETITIONS {
        let mut answers = Vec::new();
        for request in requests {
            // Each request has its own tenant, so that drafters have learned none of its texts.
            *tenant += 1;
            let request = Request { tenant: Tenant(*tenant), ..request.clone() };
            let go_on = &mut |_: usize, _: &Event| -> Result<bool, foretoken::Error> { Ok(true) };
            answers.extend(generator.run(vec![request], go_on)?);
        }
        let rate = report::total(answers.iter().map(|answer| &answer.stats)).tokens_per_second().unwrap_or_default();
        if best.as_ref().is_none_or(|(before, _)| *before < rate) {
            best = Some((rate, answers));
        }
    }
    Ok(best.map(|(_, answers)| answers).unwrap_or_default())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(prompts)) = (arguments.next(), arguments.next()) else {
        return Err("expected a model and a file of prompts".into());
    };
    let percent: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let mut settings = Settings::default();
    settings.model.path = Some(model.into());
    settings.model.ctx_size = Some(1024);
    settings.sampling.temperature = Some(0.0);
    settings.sampling.tokens_max = LEN.into();
    settings.sampling.ignore_eos = true;
    let mut generator = Generator::with(&Choices::for_requests(&settings), &mut |_| {})?;
    let prompter = generator.prompter.clone();
    let tokenizer: &Tokenizer = prompter.tokenizer.as_deref().ok_or("expected a model with a tokenizer")?;
    let lines = std::fs::read_to_string(prompts)?;
    let prompt = |line: &str| -> Result<String, Box<dyn Error>> {
        let line: serde_json::Value = serde_json::from_str(line)?;
        Ok(line["prompt"].as_str().ok_or("expected a prompt")?.to_string())
    };
    let prompts = lines.lines().take(12).map(prompt).collect::<Result<Vec<_>, _>>()?;
    let (mut requests, mut tenant) = (Vec::new(), 0);
    for prompt in &prompts {
        requests.push(Request { drafters: Vec::new(), ..generator.request(prompt.as_str())? });
    }
    let plain = run(&mut generator, &mut tenant, &requests)?;
    let texts: Vec<_> = plain.iter().map(Answer::ids).collect();
    let rate = |answers: &[Answer]| report::total(answers.iter().map(|answer| &answer.stats)).tokens_per_second();
    println!("plain: {:.0} tokens/s", rate(&plain).unwrap_or_default());
    for (i, (request, answer)) in requests.iter_mut().zip(&plain).enumerate() {
        request.prediction = changed(&answer.ids(), tokenizer, percent, i);
    }
    for (name, budget) in [("fixed 16", BudgetKind::Fixed { nodes: 16 }), ("auto", Budget::Auto.up_to(None))] {
        for spec_type in ["prediction", "suffix", "lookup", "prediction+suffix", "auto"] {
            let method = prompter.method(&spec_type.parse()?, true)?;
            let requests_now: Vec<Request> = requests
                .iter()
                .map(|request| Request {
                    budget: budget.clone(),
                    drafters: method.drafters.clone(),
                    order: method.order,
                    ..request.clone()
                })
                .collect();
            let answers = run(&mut generator, &mut tenant, &requests_now)?;
            let stats = report::total(answers.iter().map(|answer| &answer.stats));
            let same = answers.iter().map(Answer::ids).eq(texts.iter().cloned());
            let number = prompter.names.iter().position(|name| name == "prediction").unwrap_or_default();
            let followed = &stats.drafters[number];
            println!(
                "{name}, {spec_type}: {:.2} tokens a pass, {} drafted, {} accepted ({:.0} %), {:.2} times plain, \
                 of the prediction drafter {} of {}; drafting {:.2} us a token, same texts: {same}",
                stats.tokens_per_pass(),
                stats.drafted,
                stats.accepted,
                100.0 * stats.acceptance_rate().unwrap_or_default(),
                rate(&answers).unwrap_or_default() / rate(&plain).unwrap_or(1.0),
                followed.accepted,
                followed.drafted,
                stats.drafters.iter().map(|drafter| drafter.time.as_secs_f64()).sum::<f64>() * 1e6
                    / stats.emitted as f64,
            );
        }
    }
    Ok(())
}
