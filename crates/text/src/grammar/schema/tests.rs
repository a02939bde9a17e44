//! Keywords that the library would ignore or take loosely are enforced, or refused with their location.

use super::super::tests::{compiled, letters, matches, refused, schema};

#[test]
fn formats_and_patterns_follow_their_standards() {
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
        // Patterns are ECMA-262's: a hyphen after a class, brackets in brackets, a control character, a named group.
        (
            schema(r#"{"type": "string", "pattern": "^[\\w-.][[&&~~]\\cJ\\x41(?<stop>.)\\/]$"}"#),
            &[r#""-[\nAb/]""#, r#""a&\nA./]""#],
            &[r#""-a\nAb/]""#, r#"",[\nAb/]""#, r#""-[\nA\n/]""#, r#""-[\nA\r/]""#],
        ),
    ];
    for (source, texts, others) in cases {
        let grammar = compiled(&tokenizer, source);
        texts.iter().for_each(|text| assert!(matches(&tokenizer, &grammar, text), "{source:?} matches {text:?}"));
        others
            .iter()
            .for_each(|text| assert!(!matches(&tokenizer, &grammar, text), "{source:?} does not match {text:?}"));
    }
}

#[test]
fn ignored_keywords_are_refused_with_their_location() {
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
    // Nothing refers to the definition that cannot be enforced, and the other keywords assert nothing.
    let source =
        schema(r#"{"$defs": {"a": {"not": {}}}, "uniqueItems": false, "properties": {"if": {"type": "null"}}}"#);
    assert!(matches(&tokenizer, &compiled(&tokenizer, &source), r#"{"if":null}"#));
}
