//! Third-party chat templates, compared with transformers' output.
//!
//! The vectors are made by `bench/peers/hf_chat_templates.py`; the folder is named by `FORETOKEN_TEMPLATES`.

use std::path::Path;

use foretoken_text::{ChatInput, ChatTemplate, Json, Message};

/// The input of a case. It is parsed from the line's text, since the order of keys matters.
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    given: std::collections::HashMap<String, Json>,
    text: Option<String>,
}

fn list<T: serde::de::DeserializeOwned>(value: &Json) -> Vec<T> {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

fn input(case: &Case) -> ChatInput {
    let flag = |name: &str| case.given.get(name).map(|value| *value == Json::from(true));
    let own = ["messages", "tools", "add_generation_prompt", "continue_final_message"];
    let further = case.given.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    ChatInput {
        messages: list::<Message>(&case.given["messages"]),
        tools: case.given.get("tools").map(list),
        documents: None,
        add_generation_prompt: flag("add_generation_prompt").unwrap_or(true),
        continue_final_message: flag("continue_final_message").unwrap_or(false),
        variables: further.map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

/// Templates with other output here: they have `safe` next to `+`, which in Python escapes the tools for HTML.
const DIFFERENT: [&str; 1] = ["meetkai-functionary-medium-v3.1: "];

#[test]
fn templates_write_what_transformers_writes() {
    let Some(folder) = std::env::var_os("FORETOKEN_TEMPLATES") else {
        return println!("skipped: FORETOKEN_TEMPLATES, which names a folder of templates with vectors, is not set");
    };
    let (mut equal, mut refused, mut lenient, mut differences) = (0, 0, 0, Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "jinja")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(path).unwrap();
        let template = match ChatTemplate::from_source(&name, &source, "<s>", "</s>") {
            Ok(template) => template,
            Err(error) => {
                differences.push(format!("{name}: {error}"));
                continue;
            }
        };
        for line in std::fs::read_to_string(Path::new(path).with_extension("jsonl")).unwrap().lines() {
            let case: Case = serde_json::from_str(line).unwrap();
            match (template.render(&input(&case)), &case.text) {
                (Ok(text), Some(expected)) if text == *expected => equal += 1,
                (Err(_), None) => refused += 1,
                (Ok(text), Some(expected)) => {
                    let at = text.bytes().zip(expected.bytes()).take_while(|(left, right)| left == right).count();
                    let rest = |text: &str| {
                        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(30)..])
                            .chars()
                            .take(90)
                            .collect::<String>()
                    };
                    differences.push(format!(
                        "{name}: {}: {:?}, expected {:?}",
                        case.name,
                        rest(&text),
                        rest(expected)
                    ));
                }
                // Loops over none, and lists of values that are written as JSON later, which Python refuses.
                (Ok(_), None) => lenient += 1,
                (Err(error), Some(_)) => differences.push(format!("{name}: {}: {error}", case.name)),
            }
        }
    }
    println!(
        "{equal} texts equal, {} different, {refused} refused by both, {lenient} only by transformers",
        differences.len()
    );
    let known = |line: &String| DIFFERENT.iter().any(|known| line.starts_with(known));
    let unknown: Vec<_> = differences.into_iter().filter(|line| !known(line)).collect();
    assert!(unknown.is_empty(), "{} different:\n{}", unknown.len(), unknown.join("\n"));
}
