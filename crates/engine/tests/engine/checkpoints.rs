//! Tests with trained networks: the golden outputs of the demo models and of a story model, plain and speculative.
//!
//! `golden/demo.json` holds greedy continuations of the demo models, computed by transformers in f32. Sampled outputs
//! are compared between plain decoding and every drafter, batch size and number of threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foretoken_drafters::{JacobiDrafter, ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_model::{Checkpoint, Model, Options};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_text::Tokenizer;
use foretoken_weights::gguf;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// The networks and sizes of an engine.
#[derive(Clone, Copy)]
struct Setup<'a> {
    target: &'a Path,
    draft: &'a Path,
    threads: usize,
    batch: usize,
}

/// The numbers of the drafters in an engine made by [`engine`].
const DRAFT: u8 = 0;
const LOOKUP: u8 = 1;
const JACOBI: u8 = 2;

fn load(path: &Path, threads: usize, batch: usize) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options::for_positions(512 * batch, threads);
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn engine(setup: Setup<'_>) -> Engine {
    let Setup { target, draft, threads, batch } = setup;
    let mut engine = Engine::new(Box::new(load(target, threads, batch)), batch, 512);
    let scorer = ExecutorScorer::new(Box::new(load(draft, threads, batch)));
    assert_eq!(engine.add_drafter(Box::new(ModelDrafter::new(scorer))), DRAFT);
    assert_eq!(engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10))), LOOKUP);
    assert_eq!(engine.add_drafter(Box::new(JacobiDrafter::default())), JACOBI);
    engine
}

/// Tokens, bits of log-probabilities, text, and tokens per pass of each request.
fn generate(engine: &mut Engine, requests: &[Request]) -> Vec<(Vec<Token>, Vec<u32>, String, f64)> {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut all = vec![(Vec::new(), Vec::new(), String::new(), 0.0); ids.len()];
    let at = |id| ids.iter().position(|other| *other == id).unwrap();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => emitted.iter().for_each(|emitted| {
                    let (tokens, bits, text, _) = &mut all[at(*sequence)];
                    tokens.push(emitted.token);
                    bits.push(emitted.log_probability.unwrap().to_bits());
                    text.push_str(&emitted.text);
                }),
                Event::Finished { sequence, text, stats, .. } => {
                    all[at(*sequence)].2.push_str(text);
                    all[at(*sequence)].3 = stats.tokens_per_pass();
                }
                Event::Prompt { .. }
                | Event::PromptScored { .. }
                | Event::Drafts { .. }
                | Event::Beams { .. }
                | Event::DrafterFailed { .. } => {}
            }
        }
    }
    all
}

struct Golden {
    model: String,
    prompt: Vec<Token>,
    ids: Vec<Token>,
    text: String,
}

fn goldens() -> Vec<Golden> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/demo.json");
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let ids =
        |value: &serde_json::Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect();
    let golden = |value: &serde_json::Value| Golden {
        model: value["model"].as_str().unwrap().to_string(),
        prompt: ids(&value["prompt_ids"]),
        ids: ids(&value["ids"]),
        text: value["text"].as_str().unwrap().to_string(),
    };
    json.as_array().unwrap().iter().map(golden).collect()
}

fn request(prompt: &[Token], tokenizer: &Arc<Tokenizer>, drafters: &[u8]) -> Request {
    Request {
        tokens_max: Some(120),
        drafters: drafters.to_vec(),
        log_probabilities: true,
        tokenizer: Some(tokenizer.clone()),
        sampling: Sampling { temperature: 0.0, end_tokens: vec![0], ..Sampling::default() },
        ..Request::new(prompt.to_vec())
    }
}

#[test]
fn the_demo_models_write_the_outputs_of_transformers_with_any_drafters() {
    let (target, draft) = (models().join("demo-target"), models().join("demo-draft"));
    let tokenizer = Arc::new(Tokenizer::from_dir(&target).unwrap());
    for (name, target) in [("demo-target", &target), ("demo-draft", &draft)] {
        let goldens: Vec<Golden> = goldens().into_iter().filter(|golden| golden.model == name).collect();
        let mut engine = engine(Setup { target, draft: &draft, threads: 2, batch: goldens.len() });
        for drafters in [&[][..], &[LOOKUP], &[DRAFT], &[DRAFT, LOOKUP], &[JACOBI]] {
            let requests: Vec<Request> = goldens.iter().map(|g| request(&g.prompt, &tokenizer, drafters)).collect();
            for (golden, (ids, _, text, rate)) in goldens.iter().zip(generate(&mut engine, &requests)) {
                assert_eq!(ids, golden.ids, "{name}, drafters {drafters:?}");
                assert_eq!(text, golden.text, "{name}, drafters {drafters:?}");
                assert!(if drafters.is_empty() { rate == 1.0 } else { rate >= 1.0 }, "tokens per pass: {rate}");
            }
        }
    }
}

#[test]
fn sampled_outputs_are_the_same_for_every_drafter_batch_and_number_of_threads() {
    let (target, draft) = (models().join("demo-target"), models().join("demo-draft"));
    let tokenizer = Arc::new(Tokenizer::from_dir(&target).unwrap());
    let samplers = [
        Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() },
        Sampling { temperature: 1.0, end_tokens: vec![0], ..Sampling::default() },
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.2, penalty_window: Some(32), ..Sampling::default() },
        Sampling { typical_p: 0.8, presence_penalty: 0.4, ..Sampling::default() },
    ];
    let all = |drafters: &[u8], budget: &BudgetKind| -> Vec<Request> {
        let prompts = goldens().into_iter().filter(|golden| golden.model == "demo-target");
        let with = |(i, golden): (usize, Golden)| Request {
            sampling: samplers[i].clone(),
            seed: 7 + i as u64,
            tokens_max: Some(60),
            budget: budget.clone(),
            ..request(&golden.prompt, &tokenizer, drafters)
        };
        prompts.enumerate().map(with).collect()
    };
    let heuristic = BudgetKind::Heuristic { nodes_max: 16 };
    let mut alone = engine(Setup { target: &target, draft: &draft, threads: 1, batch: 1 });
    let expected = generate(&mut alone, &all(&[], &heuristic));
    for (threads, batch) in [(1, 1), (2, 1), (3, 4)] {
        let mut engine = engine(Setup { target: &target, draft: &draft, threads, batch });
        for (drafters, budget) in [
            (&[DRAFT][..], heuristic.clone()),
            (&[LOOKUP, DRAFT], BudgetKind::Fixed { nodes: 7 }),
            (&[DRAFT, LOOKUP], BudgetKind::Fixed { nodes: 12 }),
            (&[JACOBI, LOOKUP], BudgetKind::Fixed { nodes: 9 }),
        ] {
            for (expected, found) in expected.iter().zip(generate(&mut engine, &all(drafters, &budget))) {
                assert_eq!(
                    (&found.0, &found.1, &found.2),
                    (&expected.0, &expected.1, &expected.2),
                    "{threads} {batch}"
                );
            }
        }
    }
}

#[test]
fn a_stop_string_or_an_end_token_inside_a_draft_ends_the_output_as_without_one() {
    let (target, draft) = (models().join("demo-target"), models().join("demo-draft"));
    let tokenizer = Arc::new(Tokenizer::from_dir(&target).unwrap());
    let golden = &goldens()[0];
    let mut engine = engine(Setup { target: &target, draft: &draft, threads: 2, batch: 1 });
    let budget = BudgetKind::Fixed { nodes: 12 };
    for from in [20, 33, 47, 60] {
        let start = golden.text.char_indices().nth(from).unwrap().0;
        let stop: String = golden.text[start..].chars().take(3).collect();
        let before = &golden.text[..golden.text.find(&stop).unwrap()];
        let end = golden.ids[from / 2];
        let until_end = golden.ids.iter().position(|id| *id == end).unwrap() + 1;
        let mut plain = None;
        for drafters in [&[][..], &[LOOKUP], &[DRAFT], &[LOOKUP, DRAFT]] {
            let all = Request { budget: budget.clone(), ..request(&golden.prompt, &tokenizer, drafters) };
            let (ids, _, text, _) =
                generate(&mut engine, &[Request { stop: vec![stop.clone()], ..all.clone() }]).remove(0);
            assert_eq!(text, before, "stop {stop:?}, drafters {drafters:?}");
            assert_eq!(&ids, plain.get_or_insert(ids.clone()), "stop {stop:?}, drafters {drafters:?}");
            let sampling = Sampling { end_tokens: vec![end], ..all.sampling.clone() };
            let (ids, ..) = generate(&mut engine, &[Request { sampling, ..all }]).remove(0);
            assert_eq!(ids, golden.ids[..until_end], "end token {end}, drafters {drafters:?}");
        }
    }
}

#[test]
fn greedy_rejection_and_block_write_the_golden_output() {
    let (target, draft) = (models().join("demo-target"), models().join("demo-draft"));
    let tokenizer = Arc::new(Tokenizer::from_dir(&target).unwrap());
    let golden = &goldens()[0];
    let mut engine = engine(Setup { target: &target, draft: &draft, threads: 2, batch: 1 });
    for promise in [Promise::Rejection, Promise::Block] {
        let request = Request { promise, ..request(&golden.prompt, &tokenizer, &[DRAFT, LOOKUP]) };
        assert_eq!(generate(&mut engine, &[request])[0].0, golden.ids);
    }
}

#[test]
fn the_story_model_writes_its_golden_output() {
    let Some(data) = std::env::var_os("FORETOKEN_TEST_DATA") else {
        println!("skipped: FORETOKEN_TEST_DATA is not set");
        return;
    };
    let folder = Path::new(&data).join("models/stories260K");
    let path = folder.join("stories260K.gguf");
    let expected = std::fs::read_to_string(folder.join("expected_greedy_200steps.txt")).unwrap();
    let metadata = gguf::open(&path).unwrap().metadata;
    let tokenizer = Arc::new(Tokenizer::from_gguf("stories260K.gguf", &metadata).unwrap());
    let prompt = tokenizer.encode("", true).unwrap();
    assert_eq!(prompt, [tokenizer.bos().unwrap()], "an empty prompt is the beginning-of-sequence token alone");
    let mut engine = engine(Setup { target: &path, draft: &path, threads: 2, batch: 1 });
    for drafters in [&[][..], &[LOOKUP], &[DRAFT], &[DRAFT, LOOKUP]] {
        let (_, _, text, rate) =
            generate(&mut engine, &[Request { tokens_max: Some(220), ..request(&prompt, &tokenizer, drafters) }])
                .remove(0);
        assert!(text.starts_with(expected.trim_end()), "drafters {drafters:?}:\n{text}\nexpected\n{expected}");
        println!("drafters {drafters:?}: {rate:.2} tokens per pass");
    }
}

#[test]
fn requested_special_tokens_are_shown() {
    let target = models().join("demo-target");
    let tokenizer = Arc::new(Tokenizer::from_dir(&target).unwrap());
    let mark = tokenizer.special_tokens(&["<|call|>"]);
    let golden = &goldens()[0];
    let mut engine = engine(Setup { target: &target, draft: &models().join("demo-draft"), threads: 2, batch: 1 });
    for (shown, expected) in [(&mark[..], "<|call|><|call|>"), (&[], "")] {
        let mut asked =
            Request { tokens_max: Some(2), shown_special: shown.into(), ..request(&golden.prompt, &tokenizer, &[]) };
        asked.sampling.logit_bias = vec![(mark[0], 1000.0)];
        let (ids, _, text, _) = generate(&mut engine, &[asked]).remove(0);
        assert_eq!((ids, text.as_str()), (vec![mark[0]; 2], expected));
    }
}
