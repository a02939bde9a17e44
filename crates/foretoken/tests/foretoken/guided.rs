//! Guided decoding with the demo model: each text matches its grammar, and is the same with and without drafters;
//! invalid grammars are refused before anything is generated.
#![cfg(feature = "demo")]

use foretoken::settings::{GrammarForcing, GuidedSettings, SamplingSettings};
use foretoken::{Answer, ChatMessage, FinishReason, Generator, Origin, Prompt, Request, Settings};
use serde_json::Value;

use crate::generators::run;

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": { "type": "string", "minLength": 1, "maxLength": 12 },
        "kind": { "enum": ["dog", "cat", null] },
        "age": { "type": "integer", "minimum": 0, "maximum": 30 },
        "friends": { "type": "array", "items": { "type": "string", "pattern": "^[a-z]{2,6}$" }, "maxItems": 3 }
    },
    "required": ["name", "kind", "age", "friends"],
    "additionalProperties": false
}"#;

/// Whether a text is valid under [`SCHEMA`], checked without a library.
fn is_valid(text: &str) -> bool {
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return false };
    let in_order = fields.keys().eq(["name", "kind", "age", "friends"]);
    let name = fields["name"].as_str().is_some_and(|name| (1..=12).contains(&name.chars().count()));
    let kind = fields["kind"].is_null() || ["dog", "cat"].iter().any(|kind| fields["kind"] == *kind);
    let age = fields["age"].as_u64().is_some_and(|age| age <= 30);
    let friends = fields["friends"].as_array().is_some_and(|friends| {
        let is_name = |name: &str| (2..=6).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase());
        friends.len() <= 3 && friends.iter().all(|friend| friend.as_str().is_some_and(is_name))
    });
    in_order && name && kind && age && friends
}

fn guided(guided: GuidedSettings, temperature: f32, seed: u64) -> SamplingSettings {
    let tokens_max = 200.into();
    SamplingSettings { guided, temperature: Some(temperature), seed: Some(seed), tokens_max, ..Default::default() }
}

fn schema() -> GuidedSettings {
    GuidedSettings { json_schema: Some(SCHEMA.to_string()), ..GuidedSettings::default() }
}

fn without_drafters(requests: &[Request]) -> Vec<Request> {
    requests.iter().map(|request| Request { drafters: Vec::new(), ..request.clone() }).collect()
}

#[test]
fn texts_of_a_schema_are_valid_and_the_same_without_drafters() {
    let mut settings = Settings { parallel: 4, ..Settings::default() };
    settings.speculation.spec_type = "draft+suffix+lookup".parse().expect("these are there");
    let mut generator = Generator::open(&settings).expect("the demo model opens");
    let mut requests = Vec::new();
    for (temperature, seed) in [(0.0, 0), (0.8, 1), (0.8, 2), (1.5, 3), (1.5, 4), (3.0, 5)] {
        let decided = generator.prompter.decide(&guided(schema(), temperature, seed)).expect("the schema is valid");
        let again = generator.prompter.decide(&guided(schema(), temperature, seed)).expect("the schema is valid");
        let (first, second) = (decided.grammar.clone().expect("one"), again.grammar.expect("one"));
        assert!(std::sync::Arc::ptr_eq(&first, &second), "it is compiled once");
        requests.push(generator.prompter.request_by("the little dog", &decided).expect("the request is valid"));
    }
    let plain = run(&mut generator, &without_drafters(&requests));
    let drafted = run(&mut generator, &requests);
    for (plain, drafted) in plain.iter().zip(&drafted) {
        assert_eq!((plain.ids(), &plain.text), (drafted.ids(), &drafted.text));
        assert!(matches!(plain.reason, Some(FinishReason::EndToken(_))), "{plain:?}");
        assert!(is_valid(&plain.text), "{}", plain.text);
    }
    let drafts: usize =
        drafted.iter().flat_map(|answer| &answer.emitted).filter(|token| token.origin != Origin::Target).count();
    assert!(drafts > 0, "nothing was drafted");
}

#[test]
fn canonical_forcing_skips_more_passes_and_texts_stay_valid() {
    let mut settings = Settings { parallel: 4, ..Settings::default() };
    settings.speculation.spec_type = "draft+suffix+grammar".parse().expect("these are there");
    let mut generator = Generator::open(&settings).expect("the demo model opens");
    let mut skipped = [0, 0];
    for (forcing, skipped) in [GrammarForcing::Off, GrammarForcing::Canonical].into_iter().zip(&mut skipped) {
        let mut requests = Vec::new();
        for (temperature, seed) in [(0.0, 0), (0.9, 1), (1.5, 2), (3.0, 3)] {
            let mut settings = guided(schema(), temperature, seed);
            settings.guided.grammar_forcing = forcing;
            let decided = generator.prompter.decide(&settings).expect("the schema is valid");
            requests.push(generator.prompter.request_by("the little dog", &decided).expect("the request is valid"));
        }
        let plain = run(&mut generator, &without_drafters(&requests));
        let computed = requests.iter().map(|request| Request { skip_forced: false, ..request.clone() });
        let computed = run(&mut generator, &computed.collect::<Vec<_>>());
        for ((plain, computed), drafted) in plain.iter().zip(&computed).zip(&run(&mut generator, &requests)) {
            assert_eq!((plain.ids(), &plain.text), (drafted.ids(), &drafted.text));
            assert_eq!((plain.ids(), &plain.text), (computed.ids(), &computed.text));
            let forced = |answer: &Answer| answer.emitted.iter().filter(|token| token.origin == Origin::Forced).count();
            assert_eq!(forced(plain), forced(computed), "forced tokens are the same with and without passes");
            assert_eq!((forced(plain), computed.stats.skipped), (plain.stats.skipped, 0));
            assert!(is_valid(&plain.text), "{}", plain.text);
            *skipped += plain.stats.skipped;
        }
    }
    assert!(skipped[0] > 0 && 2 * skipped[1] > 3 * skipped[0], "{skipped:?}");
}

#[test]
fn each_kind_of_grammar_has_its_setting() {
    let mut generator = Generator::open(&Settings::default()).expect("the demo model opens");
    let some = |text: &str| Some(text.to_string());
    let none = GuidedSettings::default;
    let of = |guided_by: GuidedSettings, is_one: fn(&str) -> bool, generator: &mut Generator| {
        let decided = generator.prompter.decide(&guided(guided_by, 1.0, 9)).expect("the grammar is valid");
        let request = generator.prompter.request_by("the little dog", &decided).expect("the request is valid");
        let answers = run(generator, &[request]);
        assert!(is_one(&answers[0].text), "{:?}", answers[0].text);
    };
    of(
        GuidedSettings { regex: some("[ab]{3}c"), ..none() },
        |text| text.len() == 4 && text.ends_with('c'),
        &mut generator,
    );
    of(
        GuidedSettings { grammar: some("start: \"a\" start \"b\" | \"c\""), ..none() },
        |text| text.contains('c'),
        &mut generator,
    );
    let choices = vec!["yes".to_string(), "no".to_string()];
    of(GuidedSettings { choices, ..none() }, |text| ["yes", "no"].contains(&text), &mut generator);
}

#[test]
fn an_invalid_grammar_is_refused_by_its_setting() {
    let generator = Generator::open(&Settings::default()).expect("the demo model opens");
    let prompter = &generator.prompter;
    let refused = |settings: SamplingSettings| {
        let request = prompter.decide(&settings).and_then(|decided| prompter.request_by("once", &decided));
        request.map(drop).expect_err("refused").to_string()
    };
    let bad =
        GuidedSettings { json_schema: Some(r#"{"properties": {"a": {"not": {}}}}"#.into()), ..Default::default() };
    let said = refused(guided(bad, 0.0, 0));
    assert!(said.starts_with("json_schema: #/properties/a/not: expected what can be enforced"), "{said}");
    let said = refused(SamplingSettings { ignore_eos: true, ..guided(schema(), 0.0, 0) });
    assert!(said.starts_with("json_schema: expected tokens that end a text, found none (ignore_eos"), "{said}");
}

#[test]
fn a_run_is_repeated_from_its_record() {
    let settings = Settings { sampling: guided(schema(), 0.9, 11), ..Settings::default() };
    let mut generator = Generator::open(&settings).expect("the demo model opens");
    let request = generator.request("the little dog").expect("the request is valid");
    let first = run(&mut generator, &[request]);
    let record = serde_json::to_string(&generator.record()).expect("it can be written");
    drop(generator);
    let mut generator = Generator::repeat(&serde_json::from_str(&record).expect("and read")).expect("it opens");
    let request = generator.request("the little dog").expect("the request is valid");
    assert_eq!(run(&mut generator, &[request])[0].text, first[0].text);
}

/// Twenty texts with a person, an event, a product or an order in each, for a real model: a GGUF file of
/// SmolLM2-135M-Instruct that `FORETOKEN_SMOLLM2` names.
#[test]
fn a_real_model_extracts_what_its_schemas_say() {
    let Some(model) = std::env::var_os("FORETOKEN_SMOLLM2") else {
        println!("skipped: FORETOKEN_SMOLLM2 names no model");
        return;
    };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/extractions");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    let mut settings = Settings { parallel: 5, ..Settings::default() };
    settings.model.path = Some(model.into());
    let mut generator = Generator::open(&settings).expect("it opens");
    let prompts = read("prompts.jsonl");
    let prompts: Vec<Value> = prompts.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(prompts.len(), 20);
    let mut requests = Vec::new();
    for prompt in &prompts {
        let schema = read(&format!("{}.json", prompt["category"].as_str().expect("a name")));
        let guided = GuidedSettings { json_schema: Some(schema), ..GuidedSettings::default() };
        let settings = SamplingSettings { guided, temperature: Some(0.0), ..SamplingSettings::default() };
        let decided = generator.prompter.decide(&settings).expect("the schema is valid");
        let said = ChatMessage::new("user", prompt["prompt"].as_str().expect("a text"));
        requests.push(generator.prompter.request_by(Prompt::Chat(vec![said]), &decided).expect("the request is valid"));
    }
    let plain = run(&mut generator, &without_drafters(&requests));
    let drafted = run(&mut generator, &requests);
    let mut passes = [0, 0];
    for ((prompt, plain), drafted) in prompts.iter().zip(&plain).zip(&drafted) {
        assert_eq!((plain.ids(), &plain.text), (drafted.ids(), &drafted.text), "{prompt}");
        let schema = read(&format!("{}.json", prompt["category"].as_str().expect("a name")));
        let schema = serde_json::from_str(&schema).expect("JSON");
        let validator = jsonschema::validator_for(&schema).expect("the schema is valid");
        let said: Value = serde_json::from_str(&plain.text).expect(&plain.text);
        assert!(validator.is_valid(&said), "{prompt}: {said}");
        passes = [passes[0] + plain.stats.passes, passes[1] + drafted.stats.passes];
    }
    assert!(passes[0] > 2 * passes[1], "{passes:?} passes without and with drafts");
}
