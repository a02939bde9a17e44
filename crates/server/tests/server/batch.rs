//! Bodies of batch files: they get the choices and the errors that a server answers the same bodies with.

use foretoken::{Error, Generator, Prompt};
use foretoken_server::batch::{BatchRequest, Outcome, Parser};
use foretoken_server::{Server, ServerSettings};
use serde_json::{Value, json};

use crate::bodies::{PROMPT, with};
use crate::test_server::{TestServer, settings};
use crate::tools::TEMPLATE;

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A generator and its parser, without a server.
struct Batch {
    generator: Generator,
    parser: Parser,
    /// The file of measured pass costs is written there.
    _folder: tempfile::TempDir,
}

impl Batch {
    fn open(server: &ServerSettings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = settings(&folder);
        settings.model.chat_template = Some(TEMPLATE.to_string());
        settings.sampling.tokens_max = 8.into();
        let generator = Server::open(&settings, &mut |_| {}).expect("the demo pair opens");
        let parser = Parser::new(&generator, server);
        Self { generator, parser, _folder: folder }
    }

    /// What becomes of a request.
    fn outcome(&mut self, request: &BatchRequest) -> Outcome {
        let (parsed, requests) = match self.parser.parse(request, 7) {
            Ok(parsed) => parsed,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if let Some(error) = requests.iter().find_map(|request| self.generator.engine.check(request).err()) {
            return parsed.refused(error);
        }
        let answers = self.generator.run(requests, &mut |_, _| -> Result<bool, Error> { Ok(true) });
        parsed.answered(&answers.expect("the engine accepts them"))
    }

    /// The response in the line of the output.
    #[track_caller]
    fn response(&mut self, url: &str, body: &Value) -> Value {
        let line = json!({ "custom_id": "a", "method": "POST", "url": url, "body": body }).to_string();
        let outcome = self.outcome(&BatchRequest::of_line(&line).expect("it is a request"));
        let line = self.parser.output_line(7, "a", &outcome);
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
        let mut output: Value = serde_json::from_str(&line).expect("JSON");
        let names: Vec<&String> = output.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["id", "custom_id", "response", "error"]);
        assert_eq!((&output["custom_id"], &output["error"]), (&json!("a"), &Value::Null));
        let (id, request_id) = (&output["id"], &output["response"]["request_id"]);
        assert_eq!(id.as_str().and_then(|id| id.strip_prefix("batch_req_")), request_id.as_str());
        output["response"].take()
    }
}

/// What does not depend on the time and the id of a request.
fn fixed(body: &Value) -> Value {
    let mut choices = body["choices"].clone();
    let calls = choices.as_array_mut().into_iter().flatten();
    let calls = calls.filter_map(|choice| choice.pointer_mut("/message/tool_calls")?.as_array_mut()).flatten();
    // It is made of the request's id.
    calls.for_each(|call| call["id"] = Value::Null);
    let usage = ["prompt_tokens", "completion_tokens"].map(|field| body["usage"][field].clone());
    json!([body["object"], body["model"], choices, usage])
}

#[test]
fn answers_equal_those_over_http() {
    let server = TestServer::open(|settings, _| settings.model.chat_template = Some(TEMPLATE.to_string()));
    let mut batch = Batch::open(&ServerSettings::default());
    let user = json!({ "role": "user", "content": "i want to find a restaurant" });
    let chat = json!({ "messages": [user], "max_tokens": 30, "temperature": 0.9, "seed": 12 });
    let text = json!({ "prompt": PROMPT, "max_tokens": 12, "temperature": 0.9, "seed": 3 });
    let schema = json!({ "type": "object", "properties": { "sea": { "type": "boolean" } }, "required": ["sea"],
        "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "find", "strict": true, "parameters": schema } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    for (url, body) in [
        (COMPLETIONS, text.clone()),
        (COMPLETIONS, with(text.clone(), json!({ "n": 2, "best_of": 3, "logprobs": 2, "echo": true }))),
        (COMPLETIONS, with(text.clone(), json!({ "prompt": [PROMPT, [5, 6, 7]], "temperature": 0 }))),
        (COMPLETIONS, with(text.clone(), json!({ "stop": [" a"], "speculative.n_max": 0, "model": "demo-target" }))),
        (COMPLETIONS, with(text.clone(), json!({ "temperature": 0, "use_beam_search": true, "n": 2, "best_of": 3 }))),
        (CHATS, chat.clone()),
        (CHATS, with(chat.clone(), json!({ "n": 3, "logprobs": true, "top_logprobs": 2 }))),
        (CHATS, with(chat.clone(), json!({ "response_format": format }))),
        (CHATS, with(chat.clone(), json!({ "tools": [tool], "tool_choice": "required", "max_tokens": 100 }))),
    ] {
        let response = batch.response(url, &body);
        assert_eq!(response["status_code"], 200, "{body}: {response}");
        let expected = server.post(url, &body).success();
        assert_eq!(fixed(&response["body"]), fixed(&expected), "{body}");
        let names = |object: &Value| object.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&response["body"]), names(&expected), "{body}");
    }
    server.shut_down();
}

#[test]
fn errors_equal_those_over_http() {
    let server = TestServer::open(|settings, _| settings.model.chat_template = Some(TEMPLATE.to_string()));
    let mut batch = Batch::open(&ServerSettings::default());
    for (url, body) in [
        (COMPLETIONS, json!({ "prompt": PROMPT, "temperature": -1 })),
        (COMPLETIONS, json!({ "prompt": PROMPT, "model": "gpt-4o-mini" })),
        (COMPLETIONS, json!({ "prompt": PROMPT, "suffix": "." })),
        // These are refused by the engine.
        (COMPLETIONS, json!({ "prompt": [[1, 99999], [1]], "max_tokens": 2 })),
        (COMPLETIONS, json!({ "prompt": PROMPT, "logit_bias": { "99999": 1 } })),
        (COMPLETIONS, json!({ "prompt": vec![1; 512] })),
        (CHATS, json!({ "messages": [] })),
        (CHATS, json!({ "messages": [{ "role": "user", "content": "hi ".repeat(600) }] })),
        (CHATS, json!([])),
    ] {
        let response = batch.response(url, &body);
        let expected = server.post(url, &body);
        assert_eq!(response["status_code"], expected.status(), "{body}");
        assert_eq!(response["body"], expected.json(), "{body}");
    }
    server.shut_down();
}

#[test]
fn streams_are_refused_and_other_names_only_without_an_alias() {
    let body = json!({ "prompt": PROMPT, "max_tokens": 2, "stream": true });
    let aliases = vec!["*".to_string()];
    let mut batch = Batch::open(&ServerSettings { aliases, ..ServerSettings::default() });
    let response = batch.response(COMPLETIONS, &body);
    assert_eq!(response["status_code"], 400);
    assert_eq!(response["body"]["error"]["message"], "stream: expected false in a batch file, found true");
    let response = batch.response(COMPLETIONS, &with(body, json!({ "stream": false, "model": "gpt-4o-mini" })));
    assert_eq!((&response["status_code"], &response["body"]["model"]), (&json!(200), &json!("demo-target")));
}

/// A line can be tried again if the machine failed one of its answers, but not if its own fields did.
#[test]
fn a_failure_of_the_machine_in_one_answer_is_one_of_the_line() {
    let mut batch = Batch::open(&ServerSettings::default());
    let body = with(json!({ "prompt": PROMPT, "n": 3, "max_tokens": 2 }), json!({ "seed": 1 }));
    let line = json!({ "method": "POST", "url": COMPLETIONS, "body": body }).to_string();
    let request = BatchRequest::of_line(&line).expect("it is a request");
    let (parsed, requests) = batch.parser.parse(&request, 7).expect("it is valid");
    let answers = batch.generator.run(requests, &mut |_, _| -> Result<bool, Error> { Ok(true) });
    let mut answers = answers.expect("the engine accepts them");
    assert!(matches!(parsed.answered(&answers), Outcome::Answered(_)));
    answers[1].failure = Some("tokens_min: expected at most 1, found 2".to_string());
    assert!(matches!(parsed.answered(&answers), Outcome::Answered(_)), "two of them are answers");
    answers[2].failure = Some("executor: failed: the disk was lost".to_string());
    let outcome = parsed.answered(&answers);
    assert!(outcome.is_failure_of_machine(), "{outcome:?}");
    assert_eq!(outcome.failure(), Some("executor: failed: the disk was lost"));
}

#[test]
fn unknown_fields_are_named() {
    let batch = Batch::open(&ServerSettings::default());
    let line = json!({ "method": "POST", "url": "/completions", "body": { "prompt": "a", "unheard_of": 1 } });
    let request = BatchRequest::of_line(&line.to_string()).expect("it is a request");
    let parsed = batch.parser.parse(&request, 1).map(|(parsed, requests)| (parsed.unknown, requests.len()));
    assert_eq!(parsed, Ok((vec!["unheard_of".to_string()], 1)));
}

#[test]
fn prompts_become_bodies_and_other_lines_errors() {
    let mut batch = Batch::open(&ServerSettings::default());
    let message = |role: &str| foretoken::ChatMessage::new(role, "hi");
    for (prompt, kind) in [
        (Prompt::Text("once".to_string()), "text_completion"),
        (Prompt::Ids(vec![1, 2]), "text_completion"),
        (Prompt::Chat(vec![message("user"), message("assistant"), message("user")]), "chat.completion"),
    ] {
        let Outcome::Answered(body) = batch.outcome(&BatchRequest::of_prompt(&prompt)) else { panic!("{prompt:?}") };
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["object"], kind, "{prompt:?}");
    }
    let outcome = Outcome::NoRequest("line 3: url: expected a string, found 5".to_string());
    let line: Value = serde_json::from_str(&batch.parser.output_line(3, "b", &outcome)).expect("JSON");
    assert_eq!((&line["custom_id"], &line["response"]), (&json!("b"), &Value::Null));
    assert_eq!(line["error"]["message"], "line 3: url: expected a string, found 5");
    assert_eq!(outcome.failure(), line["error"]["message"].as_str());
}
