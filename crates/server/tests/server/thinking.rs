//! Reasoning before an answer is returned apart from it: the demo model under templates with reasoning tags.
//!
//! The demo model writes no tags by itself, so a regular expression makes it write them.

use serde_json::{Value, json};

use crate::bodies::with;
use crate::test_server::TestServer;
use crate::tools::TEMPLATE;

const PATH: &str = "/v1/chat/completions";

/// A server whose prompts end with this.
fn server(end: &str) -> TestServer {
    TestServer::open(|settings, _| {
        let template = TEMPLATE.replace("'<|assistant|>'", &format!("'<|assistant|>{end}'"));
        settings.model.chat_template = Some(format!("{template}{{# </think> #}}"));
    })
}

/// A server whose prompts end the reasoning, so that the regular expression applies from the first token.
fn reasoning_ended() -> TestServer {
    server("<think></think>")
}

fn body(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    let regex = "<think>\n[a-c]{3,9}\n</think>\n\n(yes|no)";
    with(json!({ "messages": messages, "max_tokens": 60, "temperature": 1.0, "regex": regex }), more)
}

/// Reasoning and answer, which must be the same whether or not the response is streamed.
#[track_caller]
fn parts(server: &TestServer, body: &Value) -> (String, String) {
    let answer = server.post(PATH, body).success();
    let message = &answer["choices"][0]["message"];
    let text = |part: &Value| part.as_str().unwrap_or_default().to_string();
    let whole = (text(&message["reasoning_content"]), text(&message["content"]));
    let events = server.events(PATH, &with(body.clone(), json!({ "stream": true }))).all().expect("a stream");
    let joined = |name: &str| events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect();
    let streamed: (String, String) = (joined("reasoning_content"), joined("content"));
    assert_eq!(streamed, whole);
    whole
}

#[test]
fn reasoning_is_separated_from_the_answer() {
    let server = reasoning_ended();
    for seed in 0..4 {
        let (reasoning, answer) = parts(&server, &body(json!({ "seed": seed })));
        assert!(
            (3..=9).contains(&reasoning.len()) && reasoning.bytes().all(|byte| b"abc".contains(&byte)),
            "{reasoning}"
        );
        assert!(answer == "yes" || answer == "no", "{answer}");
        let unparsed = json!({ "seed": seed, "reasoning_format": "none" });
        let whole = format!("<think>\n{reasoning}\n</think>\n\n{answer}");
        assert_eq!(parts(&server, &body(unparsed)), (String::new(), whole));
    }
    let (param, message) = server.post(PATH, &body(json!({ "reasoning_format": "other" }))).error(400);
    assert_eq!(param.as_deref(), Some("reasoning_format"), "{message}");
}

#[test]
fn calls_follow_reasoning() {
    let server = reasoning_ended();
    let regex = r#"<think>[a-c]{3,9}</think>\n<tool_call>\{"name": "f"\}</tool_call>"#;
    // A regular expression together with callable tools is refused, so `tool_choice` is "none" and calls are not
    // parsed.
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let more = json!({ "seed": 1, "regex": regex, "tools": [tool], "tool_choice": "none" });
    let (reasoning, answer) = parts(&server, &body(more));
    assert!(reasoning.len() >= 3 && answer.starts_with("<tool_call>{"), "{reasoning} {answer}");
    // Forced calls begin where reasoning has ended.
    let more = json!({ "seed": 1, "regex": null, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false });
    let answer = server.post(PATH, &body(more)).success();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}", "{answer}");
}

#[test]
fn a_regex_applies_after_reasoning_that_the_prompt_begins() {
    let server = server("<think>\\n");
    let in_reasoning = body(json!({ "seed": 5, "regex": "7+", "max_tokens": 12 }));
    let (reasoning, answer) = parts(&server, &in_reasoning);
    assert!(!reasoning.is_empty() && !reasoning.contains('7') && answer.is_empty(), "{reasoning:?} {answer:?}");
    let whole = server.post(PATH, &in_reasoning).success();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let plain = with(in_reasoning.clone(), json!({ "speculative.n_max": 0 }));
    assert_eq!(parts(&server, &plain).0, reasoning, "with and without drafts");
    let free = with(in_reasoning, json!({ "regex": null }));
    // Reasoning is unconstrained, except that the text cannot end in it.
    let free = parts(&server, &free).0;
    assert!(reasoning.starts_with(&free) && free.len() > 5, "{reasoning:?} {free:?}");
}

#[test]
fn a_model_that_may_reason_does_not_have_to() {
    let server = server("");
    let (reasoning, answer) = parts(&server, &body(json!({ "seed": 2, "regex": "(yes|no)" })));
    assert!(reasoning.is_empty() && (answer == "yes" || answer == "no"), "{reasoning:?} {answer:?}");
    let off = json!({ "seed": 2, "chat_template_kwargs": { "enable_thinking": false } });
    let (reasoning, answer) = parts(&server, &body(off));
    assert!(reasoning.len() >= 3 && (answer == "yes" || answer == "no"), "{reasoning:?} {answer:?}");
}
