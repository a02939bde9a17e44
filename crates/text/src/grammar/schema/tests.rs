//! What schemas ask for and the library would take loosely or pass over: enforced, or refused by its place.

use super::super::tests::{compiled, has, letters, refused, schema};

#[test]
fn formats_and_patterns_are_those_of_their_standards() {
    let tokenizer = letters();
    let cases: &[(_, &[&str], &[&str])] = &[
        (
            schema(r#"{"type": "string", "format": "date"}"#),
            &["\"2024-02-29\"", "\"2000-02-29\""],
            &["\"2024-02-30\"", "\"x\"", "\"2023-02-29\"", "\"1900-02-29\""],
        ),
        (
            schema(r#"{"type": ["string", "null"], "format": "time", "pattern": "0Z$"}"#),
            &["\"23:59:60Z\"", "\"08:00:00Z\"", "null"],
            &["\"08:00:60Z\"", "\"08:00:00+01:00\"", "\"08:00:01Z\""],
        ),
        (
            schema(r#"{"type": "string", "format": "hostname"}"#),
            &["\"a\"", "\"ab.c-d\"", "\"a--b\"", "\"abc--d\""],
            &["\"ab--c\"", "\"xn--X\"", "\"-a\"", "\"a-\"", "\"a..b\""],
        ),
        // Patterns are ECMA-262's: a hyphen behind a class, brackets in brackets, a control character, a named group.
        (
            schema(r#"{"type": "string", "pattern": "^[\\w-.][[&&~~]\\cJ\\x41(?<stop>.)\\/]$"}"#),
            &[r#""-[\nAb/]""#, r#""a&\nA./]""#],
            &[r#""-a\nAb/]""#, r#"",[\nAb/]""#, r#""-[\nA\n/]""#, r#""-[\nA\r/]""#],
        ),
    ];
    for (source, texts, others) in cases {
        let grammar = compiled(&tokenizer, source);
        texts.iter().for_each(|text| assert!(has(&tokenizer, &grammar, text), "{source:?} has {text:?}"));
        others.iter().for_each(|text| assert!(!has(&tokenizer, &grammar, text), "{source:?} has not {text:?}"));
    }
}

#[test]
fn words_that_would_be_passed_over_are_refused_where_they_are_asked_for() {
    let tokenizer = letters();
    for (source, expected) in [
        (
            schema(r#"{"type": "string", "format": "unknown"}"#),
            "json_schema: #/format: expected one that can be enforced",
        ),
        (
            schema(r#"{"$schema": "http://json-schema.org/draft-04/schema#", "items": {"if": {}}}"#),
            "json_schema: #/items/if: ",
        ),
        (schema(r#"{"items": [{}], "prefixItems": [{}]}"#), "json_schema: #/prefixItems: expected it in draft 2020-12"),
        (
            schema(r#"{"properties": {"const": {"const": 9007199254740993}}}"#),
            "json_schema: #/properties/const/const: ",
        ),
        (schema(r#"{"minProperties": 2}"#), "json_schema: #/minProperties: expected at most one more"),
        (schema(r#"{"pattern": "a(?=b)"}"#), "json_schema: #/pattern: expected groups that do not look around"),
        (schema(r#"{"pattern": "\\bx"}"#), "json_schema: #/pattern: expected an escape of ECMA-262"),
        (
            schema(r#"{"patternProperties": {"\\d(\\1)": {}}}"#),
            "json_schema: #/patternProperties/\\d(\\1): expected an escape",
        ),
    ] {
        let error = refused(&tokenizer, &source);
        assert!(error.starts_with(expected), "{source:?}: {error}");
    }
    // Nobody refers to what cannot be enforced, and these words ask for nothing.
    let source =
        schema(r#"{"$defs": {"a": {"not": {}}}, "uniqueItems": false, "properties": {"if": {"type": "null"}}}"#);
    assert!(has(&tokenizer, &compiled(&tokenizer, &source), r#"{"if":null}"#));
}
