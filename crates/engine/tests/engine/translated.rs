//! Tests of assistants with another tokenizer, with the trained demo models: the output is the same with fewer passes,
//! and vocabularies without common tokens are refused.

use std::path::Path;
use std::sync::Arc;

use foretoken_engine::{
    BudgetKind, Engine, Event, Race, Request, Stats, TranslationSettings, TranslationWay, translated_drafter,
};
use foretoken_model::{Checkpoint, Model, Options};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_text::{GgufVocabulary, Tokenizer};

fn load(name: &str) -> (Box<Model>, Arc<Tokenizer>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{error}"));
    let model = Model::load(&checkpoint, Options::for_positions(1024, 1), &mut |_, _| ());
    (Box::new(model.unwrap_or_else(|error| panic!("{error}"))), Arc::new(Tokenizer::from_dir(&folder).unwrap()))
}

/// Runs requests together. Returns their outputs and the sum of their statistics.
fn generate(engine: &mut Engine, requests: &[Request]) -> (Vec<Vec<Token>>, Stats) {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let (mut outputs, mut all) = (vec![Vec::new(); ids.len()], Stats::default());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let at = ids.iter().position(|id| id == sequence).unwrap();
                    outputs[at].extend(emitted.iter().map(|emitted| emitted.token));
                }
                Event::Finished { stats, .. } => all.add(stats),
                Event::DrafterFailed { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
    }
    (outputs, all)
}

const PROMPTS: [&str; 2] = [
    "<|system|>Services: Restaurants_2<|end|><|user|>Hi, could you get me a restaurant booking on the 8th please?\
     <|end|><|assistant|>Any preference on the restaurant, location and time?<|end|><|user|>Could you get me a \
     reservation at P.f. Chang's in Corte Madera at afternoon 12?<|end|><|assistant|>",
    "once upon a time there was a little dog who lived in a big house. one day",
];

#[test]
fn an_assistant_with_another_tokenizer_saves_passes_and_does_not_change_the_output() {
    let (target, tokenizer) = load("demo-target");
    let mut engine = Engine::new(target, 2, 512);
    for way in [TranslationWay::Text, TranslationWay::Shared, TranslationWay::ByPromise] {
        let (assistant, assistant_tokenizer) = load("demo-other-tokenizer");
        let settings = TranslationSettings { way, ..TranslationSettings::default() };
        engine.add_drafter(translated_drafter(assistant, &tokenizer, &assistant_tokenizer, &settings).unwrap());
    }
    let requests = |temperature: f32, promise, drafters: &[u8]| -> Vec<Request> {
        let request = |(seed, prompt): (usize, &&str)| Request {
            tokens_max: Some(24),
            sampling: Sampling { temperature, ..Sampling::default() },
            seed: seed as u64,
            promise,
            budget: BudgetKind::Fixed { nodes: 4 },
            drafters: drafters.to_vec(),
            ..Request::new(tokenizer.encode(prompt, true).unwrap())
        };
        PROMPTS.iter().enumerate().map(request).collect()
    };
    for temperature in [0.0, 0.7] {
        let (plain, _) = generate(&mut engine, &requests(temperature, Promise::Exact, &[]));
        for drafters in [&[0][..], &[1], &[2], &[0, 1]] {
            let (outputs, stats) = generate(&mut engine, &requests(temperature, Promise::Exact, drafters));
            assert_eq!(outputs, plain, "drafters {drafters:?} at temperature {temperature}");
            let floor = if temperature == 0.0 { 1.5 } else { 1.05 };
            let found = stats.tokens_per_pass();
            assert!(found > floor, "drafters {drafters:?} at temperature {temperature}: {found} tokens per pass");
        }
    }
    let (_, stats) = generate(&mut engine, &requests(0.7, Promise::Rejection, &[2]));
    assert!(stats.tokens_per_pass() > 1.2, "{} tokens per pass", stats.tokens_per_pass());
}

#[test]
fn vocabularies_without_common_tokens_are_refused() {
    let (assistant, _) = load("demo-other-tokenizer");
    let (_, target) = load("demo-target");
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: vec!["\u{e000}".into(), "\u{e001}".into()],
        scores: vec![0.0; 2],
        token_types: vec![1; 2],
        add_bos: Some(false),
        ..GgufVocabulary::default()
    };
    let strange = Arc::new(Tokenizer::from_gguf_vocabulary("strange", &vocabulary).unwrap());
    let error = translated_drafter(assistant, &target, &strange, &TranslationSettings::default()).err().unwrap();
    let error = error.to_string();
    assert!(error.starts_with("assistant strange: expected a vocabulary that shares tokens with "), "{error}");
    assert!(error.ends_with("demo-target, found 0 of 2 in common"), "{error}");
}
