//! Files of prompts and of records with random changes, checked by `probe.rs`; and the seeds of the fuzz target
//! `prompts`, which does the same guided by coverage: `cargo test -p foretoken-console -- --ignored write_the_seeds`.

use foretoken_testkit::fuzzing::{check_committed, try_changes, write};
use foretoken_testkit::rows::Numbers;

use crate::probe::file;

/// The inputs: a file's name, the byte that selects the parser, and a text.
const SEEDS: [(&str, u8, &str); 9] = [
    (
        "objects.bin",
        0,
        "{\"prompt\": \"Once\", \"kind\": \"story\"}\n\n{\"turns\": [\"a\", \"b\"], \"category\": \"x\"}\n",
    ),
    ("ids.bin", 0, r#"{"prompt": [1, 2, 3]}"#),
    ("list.bin", 1, r#"[{"question": "Why?"}, {"text": "\u00e9\ud83d\ude00"}]"#),
    (
        "chat.bin",
        1,
        r#"{"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text",
            "text": "a"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "content": "2",
            "tool_call_id": "1"}]}"#,
    ),
    ("turns.bin", 1, r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#),
    ("lines.bin", 2, "Once upon a time\r\n\n  and then\n"),
    ("records.bin", 3, "{\"prompt\": \"1 + 1 =\", \"output\": \" 2\"}\n{\"prompt_ids\": [1], \"ids\": [2, 3]}\n"),
    (
        "recorded.bin",
        3,
        r#"[{"prompt": ["a", "b"], "response_mistral7b": [{"gen_func": "greedy", "response_text": "c"},
            {"gen_func": "greedy", "response_text": "d"}]}]"#,
    ),
    ("documents.bin", 3, r#"{"query": "Who?", "docs": ["a", "b"], "result": {"text": "c"}}"#),
];

fn seed(kind: u8, text: &str) -> Vec<u8> {
    [&[kind][..], text.as_bytes()].concat()
}

fn seeds() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    SEEDS.into_iter().map(|(name, kind, text)| (name, seed(kind, text)))
}

#[test]
fn the_seeds_are_accepted_and_committed() {
    seeds().for_each(|(name, bytes)| assert!(file(&bytes), "{name}"));
    check_committed("prompts", seeds());
}

/// A seed with one to three pieces removed, doubled or replaced.
fn changed(number: u64) -> Vec<u8> {
    const PIECES: [&str; 12] = ["[", "]", "{", "}", "\"", "null", "7", "-1", "1e999", "\"role\":", "\\ud800", "\u{0}"];
    let mut chance = Numbers::new(number);
    let (_, kind, text) = SEEDS[chance.below(SEEDS.len())];
    let mut data = seed(kind, text);
    for _ in 0..1 + chance.below(3) {
        let at = chance.below(data.len());
        let end = (at + chance.below(9)).min(data.len());
        match chance.below(4) {
            0 => drop(data.drain(at..end)),
            1 => data.extend_from_within(at..end),
            2 => drop(data.splice(at..end, PIECES[chance.below(PIECES.len())].bytes())),
            _ if at < data.len() => data[at] = chance.below(256) as u8,
            _ => {}
        }
    }
    data
}

#[test]
fn damaged_files_of_prompts_never_cause_a_panic() {
    try_changes(changed, file);
}

#[test]
#[ignore = "writes the seed files of the fuzz target"]
fn write_the_seeds() {
    write("prompts", seeds());
}
