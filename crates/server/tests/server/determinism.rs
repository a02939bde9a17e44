//! A seeded text under *exact* is always the same: with and without drafts, streamed or not, alone or in a batch, and
//! from the library itself.

use foretoken::settings::SamplingSettings;
use foretoken::{Error, Event, Generator, seed_of_answer};
use serde_json::{Value, json};

use crate::bodies::{PROMPT, seeded, streamed_texts, texts, with};
use crate::test_server::{settings, shared};

/// The text of a request for one completion.
#[track_caller]
pub fn text_of(body: &Value) -> String {
    texts(&shared().post("/v1/completions", body).success()).remove(0)
}

/// The text of the library's own loop.
fn text_of_the_library(seed: u64) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut generator = Generator::open(&settings(&folder)).expect("the demo pair opens");
    let settings = SamplingSettings {
        temperature: Some(0.9),
        tokens_max: 40.into(),
        ignore_eos: true,
        seed: Some(seed),
        ..SamplingSettings::default()
    };
    let sampling = generator.prompter.decide(&settings).expect("they are good");
    let request = generator.prompter.request_by(PROMPT, &sampling).expect("it is good");
    let answers = generator.run(vec![request], &mut |_, _: &Event| -> Result<bool, Error> { Ok(true) });
    answers.expect("it runs").remove(0).text
}

#[test]
fn a_seeded_text_is_the_same_for_every_way_of_requesting_it() {
    let expected = text_of_the_library(7);
    assert!(expected.len() > 40, "{expected:?}");
    for more in [
        json!({}),
        json!({ "speculative.n_max": 0 }),
        json!({ "speculative": { "type": "none" } }),
        json!({ "speculative.type": "draft", "speculative.n_max": 3 }),
        json!({ "speculative.type": "draft,suffix", "speculative.n_max": 12, "speculative.n_min": 2 }),
        json!({ "speculative.type": "lookup" }),
        json!({ "speculative.verify": "exact" }),
        json!({ "prediction": { "type": "content", "content": &expected } }),
        json!({ "prediction": { "type": "content", "content": "nothing of the kind" } }),
        json!({ "logprobs": 3 }),
        json!({ "return_provenance": true }),
        json!({ "n": 1, "best_of": 1, "priority": 5, "cache_salt": "pepper", "user": "anybody" }),
    ] {
        let body = seeded(7, more);
        assert_eq!(text_of(&body), expected, "{body}");
        let events = shared().events("/v1/completions", &with(body.clone(), json!({ "stream": true })));
        assert_eq!(streamed_texts(&events.all().expect("a stream")), [expected.as_str()], "{body}");
    }
    assert_ne!(text_of(&seeded(8, json!({}))), expected);
}

#[test]
fn a_batch_changes_no_text() {
    let alone: Vec<String> = (0..12).map(|seed| text_of(&seeded(seed, json!({ "speculative.n_max": 0 })))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let ask = |seed| scope.spawn(move || text_of(&seeded(seed, json!({}))));
        let handles: Vec<_> = (0..12).map(ask).collect();
        handles.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn each_of_several_answers_has_its_own_seed_which_is_returned() {
    let answer = shared().post("/v1/completions", &seeded(11, json!({ "n": 3 }))).success();
    let separate = texts(&answer);
    for (index, text) in separate.iter().enumerate() {
        let seed = seed_of_answer(11, index);
        assert_eq!(answer["choices"][index]["seed"], seed);
        assert_eq!(&text_of(&seeded(seed, json!({}))), text);
    }
    assert!(separate[0] != separate[1] && separate[1] != separate[2]);
    let events = shared().events("/v1/completions", &seeded(11, json!({ "n": 3, "stream": true })));
    assert_eq!(streamed_texts(&events.all().expect("a stream")), separate);
    // Each of several prompts has its own answers, in order, whether prompts are texts or tokens.
    let tokens = shared().post("/tokenize", &json!({ "content": PROMPT })).success()["tokens"].clone();
    let both = json!({ "prompt": [PROMPT, "The weather is"], "n": 2 });
    let answer = shared().post("/v1/completions", &seeded(11, both)).success();
    assert_eq!(texts(&answer)[..2], separate[..2]);
    assert_eq!(texts(&answer).len(), 4);
    let lists = shared().post("/v1/completions", &seeded(11, json!({ "prompt": [tokens, [5, 6]] }))).success();
    assert_eq!(texts(&lists)[0], separate[0]);
    assert_eq!(text_of(&seeded(11, json!({ "prompt": tokens }))), separate[0]);
}

#[test]
fn a_missing_seed_is_drawn_and_returned_and_reproduces_the_text() {
    let open = seeded(0, json!({ "seed": null }));
    let [one, two] = [(); 2].map(|()| shared().post("/v1/completions", &open).success());
    assert_ne!(one["choices"][0]["seed"], two["choices"][0]["seed"]);
    let seed = one["choices"][0]["seed"].as_u64().expect("a seed");
    assert_eq!(text_of(&seeded(seed, json!({}))), texts(&one)[0]);
    // JSON readers that have only doubles can represent it.
    assert!(seed < 1 << 53, "{seed}");
}

#[test]
fn the_other_promises_are_served_too() {
    for verify in ["rejection", "block"] {
        let answer = shared().post("/v1/completions", &seeded(3, json!({ "speculative.verify": verify }))).success();
        assert_eq!(answer["usage"]["completion_tokens"], 40, "{verify}");
    }
}
