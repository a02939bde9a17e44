//! Checks that hold for any text as a file of prompts or of records: reading it does not panic, an error names the file
//! and says what was expected, and accepted prompts are in the text.
//!
//! The first byte of an input selects the extension of the file's name, and whether the rest is read as prompts or as
//! records. The fuzz target calls the same function.

use std::sync::LazyLock;

use foretoken::{Prompt, Tokenizer};
use foretoken_console::failure::Failure;
use foretoken_console::prompts::listed::{self, ListedPrompt};
use foretoken_console::records;

/// The name of the file in messages.
const NAME: &str = "probe";

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_bytes!("../../../../models/demo-target/tokenizer.json");
    Tokenizer::from_json("demo", json, None).expect("the demo model's tokenizer")
});

/// Reads bytes as a file. True if it is accepted.
pub fn file(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    let Ok(text) = records::utf8(NAME, bytes.to_vec()).map_err(|failure| refuse(&failure)) else { return false };
    match kind % 4 {
        0 => prompts(&text, Some("jsonl")),
        1 => prompts(&text, Some("json")),
        2 => prompts(&text, None),
        _ => recorded(&text),
    }
}

fn prompts(text: &str, kind: Option<&str>) -> bool {
    let all = match listed::of_text(NAME, text, kind) {
        Ok(all) => all,
        Err(failure) => return refuse(&failure),
    };
    assert!(!all.is_empty(), "no prompts");
    for ListedPrompt { prompt, .. } in &all {
        match prompt {
            Prompt::Chat(messages) => {
                let last = messages.last().unwrap_or_else(|| panic!("a conversation of nobody"));
                assert!(last.role().is_some_and(|role| role != "assistant"), "nothing to answer");
            }
            Prompt::Text(line) if kind.is_none() => assert!(text.contains(line.as_str()), "another text: {line:?}"),
            Prompt::Text(_) | Prompt::Ids(_) => {}
        }
    }
    true
}

fn recorded(text: &str) -> bool {
    let objects = match records::objects(NAME, text) {
        Ok(objects) => objects,
        Err(failure) => return refuse(&failure),
    };
    let mut accepted = !objects.is_empty();
    for object in objects {
        let records = records::parsed(NAME, object).and_then(|object| records::of_object(NAME, &object, &TOKENIZER));
        match records {
            Ok(records) => {
                assert!(!records.is_empty() && !records[0].continues_conversation);
                for record in &records {
                    assert!((1..record.tokens.len()).contains(&record.prompt_len), "{record:?}");
                    assert!(record.tokens.iter().all(|token| (*token as usize) < TOKENIZER.vocabulary_len()));
                }
            }
            Err(failure) => accepted = refuse(&failure),
        }
    }
    accepted
}

fn refuse(failure: &Failure) -> bool {
    let message = failure.message().unwrap_or_else(|| panic!("a refusal without words"));
    assert!(message.starts_with(NAME), "does not name the file: {message}");
    assert!(message.contains("expected") && message.contains("found"), "does not say what was expected: {message}");
    assert!(!message.contains('\n'), "not one line: {message:?}");
    false
}
