//! A seeded text under *exact* is the same however it is asked for: drafted or not, streamed or whole, alone or in
//! company, and by the library itself.

use foretoken::settings::SamplingSettings;
use foretoken::{Error, Event, Generator, seed_of_answer};
use serde_json::{Value, json};

use crate::bodies::{PROMPT, seeded, streamed_texts, texts, with};
use crate::house::{settings, shared};

/// The text of a request for one.
#[track_caller]
pub fn text_of(body: &Value) -> String {
    texts(&shared().post("/v1/completions", body).good()).remove(0)
}

/// The text of the library's own loop.
fn by_the_library(seed: u64) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut generator = Generator::open(&settings(&folder)).expect("the demo pair opens");
    let asked = SamplingSettings {
        temperature: Some(0.9),
        tokens_max: 40.into(),
        ignore_eos: true,
        seed: Some(seed),
        ..SamplingSettings::default()
    };
    let decided = generator.prompter.decide(&asked).expect("they are good");
    let request = generator.prompter.request_by(PROMPT, &decided).expect("it is good");
    let answers = generator.run(vec![request], &mut |_, _: &Event| -> Result<bool, Error> { Ok(true) });
    answers.expect("it runs").remove(0).text
}

#[test]
fn a_seeded_text_is_the_same_however_it_is_asked_for() {
    let expected = by_the_library(7);
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
fn company_changes_no_text() {
    let alone: Vec<String> = (0..12).map(|seed| text_of(&seeded(seed, json!({ "speculative.n_max": 0 })))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let ask = |seed| scope.spawn(move || text_of(&seeded(seed, json!({}))));
        let asked: Vec<_> = (0..12).map(ask).collect();
        asked.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn several_answers_have_seeds_of_their_own_which_are_told() {
    let answer = shared().post("/v1/completions", &seeded(11, json!({ "n": 3 }))).good();
    let told = texts(&answer);
    for (index, text) in told.iter().enumerate() {
        let seed = seed_of_answer(11, index);
        assert_eq!(answer["choices"][index]["seed"], seed);
        assert_eq!(&text_of(&seeded(seed, json!({}))), text);
    }
    assert!(told[0] != told[1] && told[1] != told[2]);
    let events = shared().events("/v1/completions", &seeded(11, json!({ "n": 3, "stream": true })));
    assert_eq!(streamed_texts(&events.all().expect("a stream")), told);
    // Several prompts: each with its own answers, in order; both ways of writing them.
    let tokens = shared().post("/tokenize", &json!({ "content": PROMPT })).good()["tokens"].clone();
    let both = json!({ "prompt": [PROMPT, "The weather is"], "n": 2 });
    let answer = shared().post("/v1/completions", &seeded(11, both)).good();
    assert_eq!(texts(&answer)[..2], told[..2]);
    assert_eq!(texts(&answer).len(), 4);
    let lists = shared().post("/v1/completions", &seeded(11, json!({ "prompt": [tokens, [5, 6]] }))).good();
    assert_eq!(texts(&lists)[0], told[0]);
    assert_eq!(text_of(&seeded(11, json!({ "prompt": tokens }))), told[0]);
}

#[test]
fn a_seed_that_is_open_is_drawn_told_and_repeats_the_text() {
    let open = seeded(0, json!({ "seed": null }));
    let [one, two] = [(); 2].map(|()| shared().post("/v1/completions", &open).good());
    assert_ne!(one["choices"][0]["seed"], two["choices"][0]["seed"]);
    let seed = one["choices"][0]["seed"].as_u64().expect("a seed");
    assert_eq!(text_of(&seeded(seed, json!({}))), texts(&one)[0]);
    // As it stands in JSON of a reader that has doubles only.
    assert!(seed < 1 << 53, "{seed}");
}

#[test]
fn the_other_promises_answer_too() {
    for verify in ["rejection", "block"] {
        let answer = shared().post("/v1/completions", &seeded(3, json!({ "speculative.verify": verify }))).good();
        assert_eq!(answer["usage"]["completion_tokens"], 40, "{verify}");
    }
}
