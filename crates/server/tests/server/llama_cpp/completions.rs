//! Expectations of `/completion`.

use serde_json::{Map, Value, json};

use super::Expectation::{self, Differs, Met};
use super::{PROMPT, completion, events, is_complete, probabilities, refused, text, tokens_of, with_prompt};

pub const COMPLETIONS: [(&str, Expectation); 26] = [
    (
        "completion: not streamed, without tokens",
        Met(|| {
            let answer = completion(json!({}));
            is_complete(&answer);
            assert_eq!(answer["tokens"], json!([]));
        }),
    ),
    (
        "completion: not streamed, with tokens",
        Met(|| {
            let answer = completion(json!({ "return_tokens": true }));
            let tokens = answer["tokens"].as_array().expect("a list");
            assert!(tokens.len() == 8 && tokens.iter().all(Value::is_u64));
        }),
    ),
    (
        "completion: streamed, one event per token and a last one",
        Met(|| {
            let all = events("/completion", with_prompt(json!({})));
            let (last, written) = all.split_last().expect("some");
            is_complete(last);
            assert_eq!(last["generation_settings"]["stream"], true);
            for event in written {
                assert_eq!(event["stop"], false);
                assert!(event["tokens"].as_array().is_some_and(|tokens| tokens.len() == 1), "{event}");
            }
        }),
    ),
    (
        "completion: the same text streamed and not",
        Met(|| {
            let body = json!({ "seed": 3, "temperature": 1.0 });
            let all = events("/completion", with_prompt(body.clone()));
            let joined: String = all.iter().map(text).collect();
            assert_eq!(joined, text(&completion(body)));
        }),
    ),
    (
        "completion: the same seed, the same text",
        Met(|| {
            let body = json!({ "seed": 42, "temperature": 1.0, "cache_prompt": false });
            assert_eq!(text(&completion(body.clone())), text(&completion(body)));
        }),
    ),
    (
        "completion: another seed, another text",
        Met(|| {
            let with_seed = |seed: u64| completion(json!({ "seed": seed, "temperature": 1.5, "n_predict": 24 }));
            assert_ne!(text(&with_seed(1)), text(&with_seed(2)));
        }),
    ),
    (
        "completion: the same text beside other requests",
        Met(|| {
            let one = || text(&completion(json!({ "seed": 42, "temperature": 1.0 }))).to_string();
            let alone = one();
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().for_each(|other| assert_eq!(other.join().expect("an answer"), alone));
            });
        }),
    ),
    ("completion: too long a prompt", Met(|| refused("/completion", json!({ "prompt": PROMPT.repeat(90) }), "prompt"))),
    ("completion: of tokens", Met(|| assert!(!text(&completion(json!({ "prompt": tokens_of(PROMPT) }))).is_empty()))),
    (
        "completion: of lists of tokens",
        Met(|| {
            let tokens = tokens_of(PROMPT);
            let both = completion(json!({ "prompt": [tokens, tokens], "temperature": 0 }));
            assert_eq!(both.as_array().map(Vec::len), Some(2));
            assert_eq!(both[0]["content"], both[1]["content"]);
        }),
    ),
    (
        "completion: of tokens and of texts",
        Met(|| {
            let both = completion(json!({ "prompt": [tokens_of(PROMPT), PROMPT], "temperature": 0 }));
            assert_eq!(both[0]["content"], both[1]["content"]);
        }),
    ),
    (
        "completion: of tokens and texts in one prompt",
        Met(|| {
            let answer = completion(json!({ "prompt": [1, 2, 3, PROMPT, 7, 8, PROMPT] }));
            assert!(!text(&answer).is_empty());
            // A leading text is tokenized as a prompt of its own.
            let tokens = |prompt: Value| completion(json!({ "prompt": prompt }))["tokens_evaluated"].take();
            assert_eq!(tokens(json!([PROMPT, 7])).as_u64(), tokens(json!(PROMPT)).as_u64().map(|count| count + 1));
        }),
    ),
    (
        "completion: many concurrently",
        Met(|| {
            std::thread::scope(|scope| {
                let ask = || completion(json!({ "n_predict": 32 }));
                let all: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
                all.into_iter().for_each(|one| assert!(!text(&one.join().expect("an answer")).is_empty()));
            });
        }),
    ),
    (
        "completion: all fields of the answer",
        Met(|| assert!(completion(json!({ "response_fields": [] }))["generation_settings"].is_object())),
    ),
    (
        "completion: some fields of the answer",
        Met(|| {
            let fields = ["content", "generation_settings/n_predict", "prompt"];
            let answer = completion(json!({ "response_fields": fields }));
            assert_eq!(answer.as_object().map(Map::len), Some(3));
            assert_eq!(answer["generation_settings/n_predict"], 8);
            assert!(answer["prompt"].as_str().is_some_and(|prompt| prompt.ends_with(PROMPT)));
        }),
    ),
    (
        "completion: probabilities",
        Met(|| {
            let answer = completion(json!({ "n_probs": 10, "n_predict": 5, "temperature": 0, "ignore_eos": true }));
            probabilities(&answer["completion_probabilities"], 5);
        }),
    ),
    (
        "completion: probabilities, streamed",
        Met(|| {
            let body = json!({ "n_probs": 10, "n_predict": 5, "temperature": 0, "ignore_eos": true });
            let all = events("/completion", with_prompt(body));
            let (_, written) = all.split_last().expect("some");
            written.iter().for_each(|event| probabilities(&event["completion_probabilities"], 1));
        }),
    ),
    (
        "completion: n_probs 0 asks for none",
        Met(|| assert!(completion(json!({ "n_probs": 0 })).get("completion_probabilities").is_none())),
    ),
    (
        "completion: probabilities after the samplers",
        Differs(
            || refused("/completion", with_prompt(json!({ "post_sampling_probs": true })), "post_sampling_probs"),
            "probabilities are the model's own, as for drafts",
        ),
    ),
    (
        "completion: a bias of tokens",
        Met(|| {
            let first = completion(json!({ "return_tokens": true, "temperature": 0 }))["tokens"][0].take();
            let other = json!({ "return_tokens": true, "temperature": 0, "logit_bias": [[first, false]] });
            assert_ne!(completion(other)["tokens"][0], first);
        }),
    ),
    (
        "completion: a bias of texts",
        Differs(
            || refused("/completion", with_prompt(json!({ "logit_bias": [["little", -0.5]] })), "logit_bias"),
            "a text is several tokens, and a bias of each token is not a bias of the text",
        ),
    ),
    (
        "completion: the stop string is returned",
        Met(|| {
            let body = json!({ "n_predict": 64, "temperature": 0 });
            let whole = text(&completion(body)).to_string();
            let word = whole.split_whitespace().nth(2).expect("some words").to_string();
            let answer = completion(json!({ "n_predict": 64, "temperature": 0, "stop": [word] }));
            assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!(word)));
        }),
    ),
    (
        "completion: several answers to a prompt",
        Met(|| assert_eq!(completion(json!({ "n_cmpl": 3 })).as_array().map(Vec::len), Some(3))),
    ),
    (
        "completion: progress of prompt processing",
        Met(|| {
            let prompt = format!("{PROMPT} bird and {}", "a dog and a cat and ".repeat(20));
            let all = events("/completion", with_prompt(json!({ "prompt": prompt, "return_progress": true })));
            let progress = all.iter().filter_map(|event| event.get("prompt_progress")).next_back().expect("some");
            assert_eq!(progress["processed"], progress["total"]);
        }),
    ),
    (
        "completion: a time limit",
        Differs(
            || refused("/completion", with_prompt(json!({ "t_max_predict_ms": 5 })), "t_max_predict_ms"),
            "a text that depends on time cannot be reproduced; --timeout limits the time of a request",
        ),
    ),
    (
        "completion: a context that shifts",
        Differs(
            || {
                let answer = completion(json!({ "n_predict": 600, "ignore_eos": true }));
                assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
            },
            "a text ends if the context is full: text after a shift is not the model's",
        ),
    ),
];
