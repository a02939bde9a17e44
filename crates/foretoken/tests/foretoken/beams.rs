//! Beam searches: what they find equals what transformers finds, with drafts and without, and settings say what is
//! searched for.
//!
//! The golden searches (`bench/peers/golden_beams.py`) are of five golden networks: Llama, Gemma 3 and gpt-oss, whose
//! windows are shorter than prompt and text, T5 and mT5.

use std::path::{Path, PathBuf};

use foretoken::settings::{Budget, Limit};
use foretoken::{
    Answer, BeamStats, CacheType, EarlyStopping, Error, Event, Generator, Prompt, Request, Settings, Token,
};
use serde::Deserialize;
use serde_json::Value;

/// The most that a score or a sum of log-probabilities differs from transformers', which computes them in f32; relative
/// to itself if it is above 1, since penalties below 0 multiply.
const DIFFERENCE_MAX: f64 = 1e-4;

/// A search of transformers, with its names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What the encoder reads, if the network has one.
    source: Option<Vec<Token>>,
    prompt: Vec<Token>,
    num_beams: usize,
    length_penalty: f32,
    early_stopping: Value,
    max_new_tokens: usize,
    end_tokens: Vec<Token>,
    repetition_penalty: Option<f32>,
    #[serde(default)]
    min_new_tokens: usize,
    found: Vec<Found>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Found {
    ids: Vec<Token>,
    score: f64,
    log_probability: Option<f64>,
}

fn cases(name: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/beams/{name}.json"));
    let text = std::fs::read_to_string(path).expect("the golden searches are there");
    serde_json::from_str(&text).expect("the golden searches have these fields")
}

fn network(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

/// A generator of a golden network, in f32 throughout, which this network drafts for, if any, always two steps of a
/// search of four beams.
fn generator(name: &str, draft: Option<&str>) -> Generator {
    let mut settings = Settings { parallel: 4, ..Settings::default() };
    settings.model.path = Some(network(name));
    (settings.model.cache_type_k, settings.model.cache_type_v) = (CacheType::F32, CacheType::F32);
    settings.model.threads = Some(1);
    settings.speculation.spec_type = if draft.is_some() { "draft" } else { "none" }.parse().expect("drafters");
    settings.speculation.model_draft = draft.map(network).into_iter().collect();
    (settings.speculation.budget, settings.speculation.draft.n_max) = (Budget::Fixed, Some(8));
    Generator::open(&settings).expect("the golden network opens")
}

/// The request of a case, through the settings that users have.
fn request(generator: &Generator, case: &Case) -> Request {
    let mut settings = generator.prompter.decided.asked.clone();
    (settings.num_beams, settings.n_best) = (case.num_beams, case.num_beams);
    settings.length_penalty = Some(case.length_penalty);
    settings.early_stopping = Some(match &case.early_stopping {
        Value::Bool(true) => EarlyStopping::True,
        Value::Bool(false) => EarlyStopping::False,
        other => {
            assert_eq!(other, "never");
            EarlyStopping::Never
        }
    });
    (settings.tokens_max, settings.tokens_min) = (case.max_new_tokens.into(), case.min_new_tokens);
    settings.repetition_penalty = case.repetition_penalty.or(Some(1.0));
    settings.penalty_window = Some(Limit(None));
    let decided = generator.prompter.decide(&settings).expect("good settings");
    let (prompter, prompt) = (&generator.prompter, Prompt::Ids(case.prompt.clone()));
    let request = match case.source.clone().map(Prompt::Ids) {
        Some(source) => prompter.request_with_source(&source, Some(&prompt), &decided),
        None => prompter.request_by(prompt, &decided),
    };
    let mut request = request.expect("tokens are a prompt");
    request.sampling.end_tokens.clone_from(&case.end_tokens);
    request
}

fn run(generator: &mut Generator, requests: Vec<Request>) -> Vec<Answer> {
    let go_on = &mut |_: usize, _: &Event| -> Result<bool, Error> { Ok(true) };
    generator.run(requests, go_on).expect("the requests are good")
}

/// Compares what was found for a case with what transformers found.
fn compare(place: &str, case: &Case, answer: &Answer) {
    assert_eq!(answer.failure, None, "{place}");
    let ids: Vec<&[Token]> = answer.beams.iter().map(|beam| &beam.tokens[..]).collect();
    let expected: Vec<&[Token]> = case.found.iter().map(|found| &found.ids[..]).collect();
    assert_eq!(ids, expected, "{place}");
    for (beam, found) in answer.beams.iter().zip(&case.found) {
        let sum = found.log_probability.unwrap_or(beam.log_probability);
        for (what, ours, theirs) in [("score", beam.score, found.score), ("sum", beam.log_probability, sum)] {
            let most = DIFFERENCE_MAX * theirs.abs().max(1.0);
            assert!((ours - theirs).abs() <= most, "{place}: {what} {ours}, and {theirs} in transformers");
        }
    }
    let each: Vec<Vec<Token>> = answer.each().iter().map(|one| one.ids()).collect();
    assert_eq!(each, expected, "{place}");
}

/// The cases of a network without drafts, drafted by itself and by another network.
fn equals_transformers(name: &str, other: &str) {
    let all = cases(name);
    assert!(all.len() >= 16 && all.iter().any(|case| case.end_tokens.is_empty()), "{name}: {} cases", all.len());
    for draft in [None, Some(name), Some(other)] {
        let mut generator = generator(name, draft);
        let mut beams = BeamStats::default();
        for (number, case) in all.iter().enumerate() {
            let request = request(&generator, case);
            let answers = run(&mut generator, vec![request]);
            compare(&format!("{name}, drafted by {draft:?}, case {number}"), case, &answers[0]);
            beams.add(&answers[0].stats.beams);
        }
        assert_eq!(beams.checked > 0, draft.is_some(), "{name}, drafted by {draft:?}: {beams:?}");
        // The network itself is always right.
        assert_eq!(beams.inclusion_rate() == Some(1.0), draft == Some(name), "{name} by {draft:?}: {beams:?}");
    }
}

#[test]
fn llama_finds_what_transformers_finds() {
    equals_transformers("llama", "llama3-rope");
}

#[test]
fn gemma_3_finds_what_transformers_finds() {
    equals_transformers("gemma3", "mistral");
}

#[test]
fn gpt_oss_finds_what_transformers_finds() {
    equals_transformers("gpt_oss", "mistral");
}

#[test]
fn t5_finds_what_transformers_finds() {
    equals_transformers("t5", "t5-long");
    equals_transformers("mt5", "t5-v1_1");
}

#[test]
fn a_record_repeats_a_search() {
    let mut settings = Settings { parallel: 3, ..Settings::default() };
    settings.model.path = Some(network("llama"));
    settings.sampling.tokens_max = 12.into();
    (settings.sampling.num_beams, settings.sampling.n_best) = (3, 2);
    settings.sampling.early_stopping = Some(EarlyStopping::Never);
    let mut first = Generator::open(&settings).expect("the golden network opens");
    let requests = first.prompter.requests(vec![5, 6, 7]).expect("tokens are a prompt");
    assert_eq!(requests.len(), 1);
    let answers = run(&mut first, requests.clone());
    assert_eq!(answers[0].beams.len(), 2);
    let record = serde_json::to_string(&first.record()).expect("a record can be written");
    let mut again = Generator::repeat(&serde_json::from_str(&record).expect("it is read")).expect("it opens again");
    let requests = again.prompter.requests(vec![5, 6, 7]).expect("tokens are a prompt");
    assert_eq!(run(&mut again, requests)[0].beams, answers[0].beams);
}

#[test]
fn the_cache_has_room_for_searches_up_to_the_end_of_the_context() {
    for (name, tokens_max) in [("llama", None), ("gemma3", None), ("gpt_oss", None), ("llama", Some(40))] {
        let mut settings = Settings::default();
        settings.model.path = Some(network(name));
        (settings.sampling.num_beams, settings.sampling.tokens_max) = (7, Limit(tokens_max));
        let generator = Generator::open(&settings).expect("the golden network opens");
        let request = generator.request(vec![5, 6, 7]).expect("tokens are a prompt");
        assert_eq!(generator.engine.check(&request), Ok(()), "{name}, {tokens_max:?}");
        let more = Request { tokens_max: None, ..request };
        assert_eq!(generator.engine.check(&more).is_ok(), tokens_max.is_none(), "{name}, {tokens_max:?}");
    }
}
