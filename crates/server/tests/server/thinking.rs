//! What a model thinks before it answers, told apart: the demo model under templates with the marks of thoughts.
//!
//! The demo model writes no marks by itself, so a form that begins at once makes it write them.

use serde_json::{Value, json};

use crate::bodies::with;
use crate::house::House;
use crate::tools::TEMPLATE;

const PATH: &str = "/v1/chat/completions";

/// A server whose prompts end so.
fn house(end: &str) -> House {
    House::open(|settings, _| {
        let template = TEMPLATE.replace("'<|assistant|>'", &format!("'<|assistant|>{end}'"));
        settings.model.chat_template = Some(format!("{template}{{# </think> #}}"));
    })
}

/// Thinking is over before the answer begins, and so the answer has to have this form from its beginning on.
fn over() -> House {
    house("<think></think>")
}

fn body(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    let regex = "<think>\n[a-c]{3,9}\n</think>\n\n(yes|no)";
    with(json!({ "messages": messages, "max_tokens": 60, "temperature": 1.0, "regex": regex }), more)
}

/// Thoughts and answer of a whole and of a streamed answer, which have to be the same.
#[track_caller]
fn parts(house: &House, body: &Value) -> (String, String) {
    let answer = house.post(PATH, body).good();
    let message = &answer["choices"][0]["message"];
    let text = |part: &Value| part.as_str().unwrap_or_default().to_string();
    let whole = (text(&message["reasoning_content"]), text(&message["content"]));
    let events = house.events(PATH, &with(body.clone(), json!({ "stream": true }))).all().expect("a stream");
    let of = |name: &str| events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect();
    let streamed: (String, String) = (of("reasoning_content"), of("content"));
    assert_eq!(streamed, whole);
    whole
}

#[test]
fn thoughts_are_told_apart_from_the_answer() {
    let house = over();
    for seed in 0..4 {
        let (thoughts, answer) = parts(&house, &body(json!({ "seed": seed })));
        assert!((3..=9).contains(&thoughts.len()) && thoughts.bytes().all(|byte| b"abc".contains(&byte)), "{thoughts}");
        assert!(answer == "yes" || answer == "no", "{answer}");
        let unparted = json!({ "seed": seed, "reasoning_format": "none" });
        let whole = format!("<think>\n{thoughts}\n</think>\n\n{answer}");
        assert_eq!(parts(&house, &body(unparted)), (String::new(), whole));
    }
    let (param, message) = house.post(PATH, &body(json!({ "reasoning_format": "other" }))).error(400);
    assert_eq!(param.as_deref(), Some("reasoning_format"), "{message}");
}

#[test]
fn calls_follow_thoughts() {
    let house = over();
    let form = r#"<think>[a-c]{3,9}</think>\n<tool_call>\{"name": "f"\}</tool_call>"#;
    // A form beside tools is refused, so the model is told of them and calls are not looked for in its place.
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let more = json!({ "seed": 1, "regex": form, "tools": [tool], "tool_choice": "none" });
    let (thoughts, answer) = parts(&house, &body(more));
    assert!(thoughts.len() >= 3 && answer.starts_with("<tool_call>{"), "{thoughts} {answer}");
    // Forced calls begin where thinking has ended.
    let more = json!({ "seed": 1, "regex": null, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false });
    let answer = house.post(PATH, &body(more)).good();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}", "{answer}");
}

#[test]
fn a_form_waits_for_the_end_of_thoughts_that_the_prompt_begins() {
    let house = house("<think>\\n");
    let begun = body(json!({ "seed": 5, "regex": "7+", "max_tokens": 12 }));
    let (thoughts, answer) = parts(&house, &begun);
    assert!(!thoughts.is_empty() && !thoughts.contains('7') && answer.is_empty(), "{thoughts:?} {answer:?}");
    let whole = house.post(PATH, &begun).good();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let plain = with(begun.clone(), json!({ "speculative.n_max": 0 }));
    assert_eq!(parts(&house, &plain).0, thoughts, "drafted and plain");
    let free = with(begun, json!({ "regex": null }));
    // Thoughts are free, but that no text ends in them.
    let free = parts(&house, &free).0;
    assert!(thoughts.starts_with(&free) && free.len() > 5, "{thoughts:?} {free:?}");
}

#[test]
fn a_model_that_may_think_is_not_made_to() {
    let house = house("");
    let (thoughts, answer) = parts(&house, &body(json!({ "seed": 2, "regex": "(yes|no)" })));
    assert!(thoughts.is_empty() && (answer == "yes" || answer == "no"), "{thoughts:?} {answer:?}");
    let off = json!({ "seed": 2, "chat_template_kwargs": { "enable_thinking": false } });
    let (thoughts, answer) = parts(&house, &body(off));
    assert!(thoughts.len() >= 3 && (answer == "yes" || answer == "no"), "{thoughts:?} {answer:?}");
}
