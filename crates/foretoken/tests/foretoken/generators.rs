//! Generators: models are loaded once, and a record is enough to repeat a run.

use std::path::PathBuf;
use std::sync::Arc;

use foretoken::generator::{Choices, Opening};
use foretoken::settings::Budget;
use foretoken::{Answer, Error, Generator, Order, Promise, Record, Request, Settings};

fn demo(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// The demo models as folders, with costs in a file of this folder, so that no test writes into the cache folder.
pub fn settings(folder: &tempfile::TempDir) -> Settings {
    let mut settings = Settings::default();
    settings.model.path = Some(demo("demo-target"));
    settings.model.ctx_size = Some(128);
    settings.speculation.model_draft = vec![demo("demo-draft")];
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    settings.sampling.tokens_max = 24.into();
    settings
}

/// Runs requests to their ends.
pub fn run(generator: &mut Generator, requests: &[Request]) -> Vec<Answer> {
    generator.run::<Error>(requests.to_vec(), &mut |_, _| Ok(true)).expect("the requests are valid")
}

/// The answers to some prompts, and the numbers of the requests.
fn texts(generator: &mut Generator) -> Vec<(Vec<u32>, Option<u64>)> {
    let prompts = ["once upon a time, there was a", "the little dog", "once upon a time, there was a"];
    let requests = prompts.map(|prompt| generator.request(prompt).expect("the model has a tokenizer"));
    run(generator, &requests).iter().map(|answer| (answer.ids(), answer.request)).collect()
}

#[test]
fn a_draft_model_is_loaded_once_for_all_its_drafters() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let settings = settings(&folder);
    let methods = ["draft", "draft:lookup", "draft:suffix", "draft+suffix"];
    let methods = methods.map(|method| method.parse().expect("it is well-formed")).to_vec();
    let mut loaded = 0;
    let choices = Choices { methods, ..Choices::new(&settings) };
    let generator = Generator::with(&choices, &mut |opening| {
        loaded += usize::from(matches!(opening, Opening::Loading { done, of } if done == of));
    });
    let names = generator.expect("the models open").prompter.names.clone();
    assert_eq!((loaded, names.join(" ").as_str()), (2, "draft draft:lookup draft:suffix suffix"));
}

#[test]
fn requests_choose_among_the_available_drafters() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.spec_type = "draft:lookup".parse().expect("it is well-formed");
    let generator = Generator::with(&Choices::for_requests(&settings), &mut |_| {}).expect("the models open");
    let prompter = &generator.prompter;
    let names = "draft:lookup draft lookup llma trie suffix ngram prediction jacobi grammar";
    assert_eq!(prompter.names.join(" "), names);
    assert_eq!(prompter.methods[0].drafters, [0], "the settings' method comes first");
    let named = |spec_type: &str, has_prediction: bool| {
        let method = prompter.method(&spec_type.parse().expect("it is well-formed"), has_prediction)?;
        let names = method.drafters.iter().map(|number| prompter.names[usize::from(*number)].as_str());
        Ok((names.collect::<Vec<_>>().join(" "), method.order))
    };
    for (spec_type, has_prediction, expected, order) in [
        ("none", true, "", Order::Given),
        ("auto", false, "draft suffix grammar", Order::Learned),
        ("auto", true, "prediction draft suffix grammar", Order::LearnedBehindFirst),
        ("suffix+draft", true, "suffix draft", Order::Given),
        ("draft:lookup", false, "draft:lookup", Order::Given),
        ("prediction,trie", true, "prediction trie", Order::Given),
    ] {
        assert_eq!(named(spec_type, has_prediction), Ok((expected.to_string(), order)), "{spec_type}");
    }
    let there = names.replace(' ', ", ");
    let refused = |spec_type: &str| {
        let error: Error = named(spec_type, false).expect_err(spec_type);
        let expected = format!("spec_type {spec_type}: expected drafters that are there ({there}), found ");
        error.to_string().strip_prefix(&expected).expect("what is there is named").to_string()
    };
    assert_eq!(refused("phrases"), "phrases");
    assert_eq!(refused("lookup+draft:suffix"), "draft:suffix");
    assert_eq!(refused("draft+draft"), "draft of draft model 2");
}

#[test]
fn a_generator_of_one_drafter_offers_no_other() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.model_draft.clear();
    settings.speculation.spec_type = "lookup".parse().expect("it is well-formed");
    let prompter = Arc::clone(&Generator::open(&settings).expect("it is there").prompter);
    let auto = prompter.method(&"auto".parse().expect("well-formed"), true).expect("what is there goes together");
    assert_eq!(auto.drafters, [0; 0]);
    let refused = prompter.method(&"trie".parse().expect("well-formed"), false).expect_err("there is none");
    assert_eq!(refused.to_string(), "spec_type trie: expected drafters that are there (lookup), found trie");
    // Without a draft model, the others are there.
    let generator = Generator::with(&Choices::for_requests(&settings), &mut |_| {}).expect("it is there");
    assert_eq!(generator.prompter.names.join(" "), "lookup llma trie suffix ngram prediction jacobi grammar");
}

/// A token's log-probability and those of the top tokens, as bits.
fn bits(value: Option<f32>, top: &[(u32, f32)]) -> (Option<u32>, Vec<(u32, u32)>) {
    (value.map(f32::to_bits), top.iter().map(|(token, value)| (*token, value.to_bits())).collect())
}

#[test]
fn scores_of_a_prompt_equal_those_of_generating_it() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.parallel = 2;
    settings.sampling.ignore_eos = true;
    // A fixed budget, so that drafts are made even if they do not pay on this machine.
    settings.speculation.spec_type = "draft".parse().expect("it is well-formed");
    settings.speculation.budget = Budget::Fixed;
    settings.speculation.draft.n_max = Some(4);
    let mut generator = Generator::open(&settings).expect("the models open");
    let requests = ["once upon a time, there was a", "the little dog"].map(|prompt| {
        let request = generator.request(prompt).expect("the model has a tokenizer");
        Request { log_probabilities: true, top_log_probabilities: 5, ..request }
    });
    let written = run(&mut generator, &requests);
    let scored = [1, 0].map(|number| {
        let prompt = [&requests[number].prompt[..], &written[number].ids()].concat();
        let request = Request { prompt, prompt_log_probabilities: true, ..requests[number].clone() };
        Request { tokens_max: Some(number), ..request }
    });
    let again = run(&mut generator, &scored);
    for (answer, written, request) in [(&again[0], &written[1], &scored[0]), (&again[1], &written[0], &scored[1])] {
        assert!(answer.scored.iter().map(|one| one.token).eq(request.prompt.iter().copied()));
        assert!(answer.scored[0].log_probability.is_none() && answer.scored[1].log_probability.is_some());
        let behind = &answer.scored[answer.scored.len() - written.emitted.len()..];
        let found: Vec<_> = behind.iter().map(|one| bits(one.log_probability, &one.top)).collect();
        let expected: Vec<_> = written.emitted.iter().map(|one| bits(one.log_probability, &one.top)).collect();
        assert_eq!(found, expected);
        assert_eq!(answer.ids().len(), request.tokens_max.unwrap());
    }
    assert!(written.iter().any(|answer| answer.stats.accepted > 0), "some of it was drafted");
}

#[test]
fn a_run_under_rejection_is_repeated_from_its_record_alone() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.verify = Promise::Rejection;
    settings.parallel = 2;
    let mut first = Generator::open(&settings).expect("the models open");
    let written = serde_json::to_string(&first.record()).expect("a record can be written");
    let expected = texts(&mut first);
    assert!(expected[0].0 != expected[2].0, "under rejection each request draws for itself");
    // The file of costs is not needed any more.
    std::fs::remove_file(folder.path().join("costs.json")).expect("costs were written");
    let record: Record = serde_json::from_str(&written).expect("a record can be read");
    assert!(record.settings.sampling.seed.is_some() && record.costs.is_some());
    assert_eq!(texts(&mut Generator::repeat(&record).expect("nothing has changed")), expected);
    let later = Record { first_request: 9, ..record };
    let later = texts(&mut Generator::repeat(&later).expect("nothing has changed"));
    assert!(later[0].0 != expected[0].0 && later[0].1 == Some(9));
}

#[test]
fn any_of_several_answers_is_repeated_from_the_record() {
    let prompt = "once upon a time, there was a little girl who lived in a small house near the forest with her dog";
    for promise in [Promise::Exact, Promise::Rejection] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let mut settings = settings(&folder);
        settings.speculation.verify = promise;
        settings.sampling.n_best = 3;
        settings.sampling.temperature = Some(1.5);
        settings.sampling.seed = Some(7);
        settings.parallel = 3;
        let mut first = Generator::open(&settings).expect("the models open");
        let record = first.record();
        let requests = first.prompter.requests(prompt).expect("the model has a tokenizer");
        let answers = run(&mut first, &requests);
        assert!(answers[0].ids() != answers[1].ids() && answers[1].ids() != answers[2].ids());
        assert_eq!(answers[0].seed, 7);
        let mut again = Generator::repeat(&record).expect("nothing has changed");
        let requests = again.prompter.requests(prompt).expect("the model has a tokenizer");
        let repeated = run(&mut again, &requests);
        let texts = |answers: &[Answer]| answers.iter().map(Answer::ids).collect::<Vec<_>>();
        assert_eq!(texts(&repeated), texts(&answers), "{promise:?}");
        if promise == Promise::Exact {
            let alone = run(&mut again, &requests[2..]);
            assert_eq!(alone[0].ids(), answers[2].ids());
        }
    }
}
