//! Guided generation on the command line: each form by its option, in `generate`, `check` and `chat`; messages about
//! truncated texts and invalid forms.

use serde_json::Value;

use crate::{file, run, run_with};

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
    "old": {"type": "boolean"}}, "required": ["name", "old"], "additionalProperties": false}"#;

fn generate(words: &[&str]) -> String {
    let out = run(&[&["generate", "the little dog", "-s", "7"], words].concat()).ok();
    out.strip_suffix('\n').expect("a line break after the text").to_string()
}

fn is_valid(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    value["name"].as_str().is_some_and(|name| name.chars().count() <= 9) && value["old"].is_boolean()
}

#[test]
fn each_form_has_its_option() {
    let (_folder, schema) = file("schema.json", SCHEMA);
    let text = generate(&["--json-schema", SCHEMA]);
    assert!(is_valid(&text), "{text}");
    assert_eq!(generate(&["-j", &schema]), text);
    assert_eq!(generate(&["-jf", &schema, "--spec-type", "none"]), text);
    assert!(is_valid(&generate(&["--json-schema", SCHEMA, "--json-whitespace"])));
    assert!(["a dog", "a cat"].contains(&generate(&["--choice", "a dog", "--choice", "a cat"]).as_str()));
    assert_eq!(generate(&["--regex", "[x]{3}(y|z)"])[..3], *"xxx");
    let (_gbnf_folder, gbnf) = file("grammar.gbnf", "root ::= \"(\" root \")\" | \"o\"\n");
    let lark = "start: \"(\" start \")\" | \"o\"";
    let (_folder, grammar) = file("grammar.lark", lark);
    let text = generate(&["--grammar-file", &grammar]);
    assert!(text.trim_matches(['(', ')']) == "o", "{text}");
    assert_eq!(generate(&["--grammar", lark]), text);
    assert_eq!(generate(&["--grammar-file", &gbnf]), text);
}

#[test]
fn check_compares_guided_texts() {
    let (_folder, prompts) = file("prompts.txt", "once upon a time\nthe little dog\n");
    let line =
        ["check", "--prompts", &prompts, "-n", "60", "-s", "3", "--json-schema", SCHEMA, "--spec-type", "suffix+draft"];
    let found = run(&line);
    assert!(found.out.contains("2") && found.code == 0, "{} {}", found.out, found.err);
}

#[test]
fn a_truncated_text_is_noted() {
    let found = run(&["generate", "the little dog", "-s", "7", "-n", "2", "--json-schema", SCHEMA]);
    assert!(found.err.contains("note: the text was cut by -n, --n-predict and is not whole"), "{}", found.err);
    let found = run(&["generate", "the little dog", "-s", "7", "-n", "2"]);
    assert!(!found.err.contains("not whole"), "{}", found.err);
}

#[test]
fn invalid_forms_are_refused_by_option() {
    for (words, expected) in [
        (
            &["--json-schema", r#"{"properties": {"a": {"not": {}}}}"#][..],
            "--json-schema: #/properties/a/not: expected what can",
        ),
        (&["--json-schema", "no-such-file"], "no-such-file: "),
        (&["--regex", "("], "--regex: "),
        (&["--regex", "a", "--choice", "b"], "--regex: expected one form of the text, found --choice beside it"),
        (
            &["--json-schema", "{}", "--ignore-eos"],
            "--json-schema: expected tokens that end a text, found none (--ignore-eos",
        ),
        (&["--format", "json"], "--format: expected --json-schema FILE"),
    ] {
        let found = run(&[&["generate", "the little dog"], words].concat());
        assert!(found.code != 0 && found.err.contains(expected), "{words:?}: {}", found.err);
    }
}

#[test]
fn contradictions_of_a_form_and_an_option_are_reported() {
    let line = ["generate", "the little dog", "-s", "7", "--choice", "aa", "--choice", "bb", "--min-tokens", "9"];
    let found = run(&line);
    assert!(["aa\n", "bb\n"].contains(&found.out.as_str()) && found.code == 1, "{:?} {}", found.out, found.err);
    let expected = "error: --min-tokens: expected at most ";
    assert!(found.err.lines().any(|line| line.starts_with(expected)), "{}", found.err);
    let found = run(&["generate", "the little dog", "--grammar", "start: \"a\" <|endoftext|> \"b\""]);
    let expected =
        "--grammar: expected no token that ends a text, for it may end where its form does, found <|endoftext|>";
    assert!(found.err.contains(expected) && found.code != 0, "{}", found.err);
}

#[test]
fn a_chat_answers_in_the_form() {
    let line = ["chat", "-s", "7", "--choice", "yes", "--choice", "no"];
    let out = run_with(&line, &[], "is the dog red?\nis the cat red?\n").ok();
    let answers: Vec<&str> = out.lines().filter(|line| !line.is_empty()).collect();
    assert!(answers.len() == 2 && answers.iter().all(|answer| ["yes", "no"].contains(answer)), "{out}");
}
