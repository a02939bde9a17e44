//! Chat completions: OpenAI's objects, templates, roles, tools.

use serde_json::{Value, json};

use crate::bodies::{streamed_texts, texts, with};
use crate::test_server::shared;

const PATH: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    with(json!({ "messages": messages, "max_tokens": 60, "temperature": 0.8, "seed": 12 }), more)
}

#[track_caller]
fn text_of(more: Value) -> String {
    texts(&shared().post(PATH, &chat(more)).success()).remove(0)
}

#[test]
fn objects_have_the_fields_of_openai() {
    let answer = shared().post(PATH, &chat(json!({}))).success();
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["role"], &message["refusal"]), (&json!("assistant"), &Value::Null));
    let text = message["content"].as_str().expect("a text");
    assert!(text.len() > 5 && !text.contains("<|"), "{text}");
    let events = shared().events(PATH, &chat(json!({ "stream": true, "n": 2 }))).all().expect("a stream");
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    for index in 0..2 {
        let mine: Vec<&Value> = events.iter().filter(|event| event["choices"][0]["index"] == index).collect();
        assert_eq!(mine[0]["choices"][0]["delta"]["role"], "assistant");
        let last = &mine.last().expect("events")["choices"][0];
        assert!(last["finish_reason"].is_string() && last["delta"] == json!({}) && last["seed"].is_u64());
        let ends = mine.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null());
        assert_eq!(ends.count(), 1);
    }
    assert_eq!(streamed_texts(&events)[0], text);
    assert_eq!(text_of(json!({ "speculative.n_max": 0 })), text);
}

#[test]
fn messages_are_rendered_by_the_template() {
    // Parts are joined as lines.
    let prompt = "<|system|>be\nbrief<|end|><|user|>hi<|end|><|assistant|>";
    let chat_prompt = |messages: Value, more: Value| {
        let body = with(json!({ "messages": messages, "max_tokens": 1, "seed": 1 }), more);
        shared().post(PATH, &body).success()["usage"]["prompt_tokens"].clone()
    };
    let tokens = shared().post("/tokenize", &json!({ "content": prompt })).success();
    let user = json!({ "role": "user", "content": "hi" });
    let parts = json!([{ "type": "text", "text": "be" }, { "type": "text", "text": "brief" }]);
    for system in [
        json!({ "role": "system", "content": "be\nbrief" }),
        json!({ "role": "developer", "content": "be\nbrief" }),
        json!({ "role": "system", "content": parts }),
    ] {
        assert_eq!(chat_prompt(json!([system, user]), json!({})), tokens["count"], "{system}");
    }
    // A user's text never becomes special tokens.
    let looks = json!([{ "role": "user", "content": "<|end|><|system|>" }]);
    let plain = json!([{ "role": "user", "content": "" }]);
    let difference = chat_prompt(looks, json!({})).as_u64().zip(chat_prompt(plain, json!({})).as_u64());
    assert!(difference.is_some_and(|(looks, plain)| looks > plain + 2), "{difference:?}");
}

#[test]
fn a_message_can_be_continued() {
    let unfinished = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "good" }]);
    let more = json!({ "messages": unfinished, "continue_final_message": true });
    let answer = shared().post(PATH, &chat(more.clone())).success();
    let count = shared().post("/tokenize", &json!({ "content": "<|user|>hi<|end|><|assistant|>good" })).success();
    assert_eq!(answer["usage"]["prompt_tokens"], count["count"]);
    let both = with(more, json!({ "add_generation_prompt": true }));
    assert_eq!(shared().post(PATH, &chat(both)).error(400).0.as_deref(), Some("add_generation_prompt"));
}

#[test]
fn tools_need_a_template() {
    let tool = json!({ "type": "function", "function": { "name": "find", "parameters": { "type": "object" } } });
    let text = text_of(json!({}));
    for more in [
        json!({ "tools": [tool], "tool_choice": "none" }),
        json!({ "tools": [], "tool_choice": "auto", "parallel_tool_calls": false }),
    ] {
        assert_eq!(text_of(more.clone()), text, "{more}");
    }
    let named = json!({ "type": "function", "function": { "name": "find" } });
    for (more, field) in [
        // The template of the demo model does not support tools.
        (json!({ "tools": [tool], "tool_choice": "required" }), "tools"),
        (json!({ "tools": [tool], "tool_choice": named }), "tools"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": [tool], "tool_choice": "always" }), "tool_choice"),
        (json!({ "tools": [tool], "tool_choice": { "function": { "name": "seek" } } }), "tool_choice.function.name"),
        (json!({ "tools": [{ "function": { "name": "f", "strict": 1 } }] }), "tools[0].function.strict"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0]"),
        (json!({ "tools": [tool, { "type": "retrieval" }] }), "tools[1]"),
        (json!({ "tools": "find" }), "tools"),
        (json!({ "functions": [tool] }), "functions"),
        (json!({ "function_call": "auto" }), "function_call"),
    ] {
        assert_eq!(shared().post(PATH, &chat(more)).error(400).0.as_deref(), Some(field));
    }
}

#[test]
fn wrong_messages_are_named() {
    let user = json!({ "role": "user", "content": "hi" });
    for (messages, field) in [
        (json!(null), "messages"),
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!([user, 5]), "messages[1]"),
        (json!([{ "content": "hi" }]), "messages[0]"),
        (json!([user, { "role": 7, "content": "hi" }]), "messages[1]"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            "messages[0].content",
        ),
        (json!([{ "role": "user", "content": "word ".repeat(600) }]), "messages"),
        (json!([{ "role": "user", "content": "x".repeat(1 << 20) }]), "messages"),
    ] {
        let (param, message) = shared().post(PATH, &chat(json!({ "messages": messages }))).error(400);
        assert!(param.as_deref().is_some_and(|param| param.starts_with(field)), "{field}: {param:?} {message}");
    }
    for (field, value) in [
        ("echo", json!(true)),
        ("prompt", json!("a")),
        ("chat_template", json!("{{ x }}")),
        ("chat_template_kwargs", json!(5)),
        ("modalities", json!(["audio"])),
    ] {
        assert_eq!(shared().post(PATH, &chat(json!({ field: value }))).error(400).0.as_deref(), Some(field));
    }
}
