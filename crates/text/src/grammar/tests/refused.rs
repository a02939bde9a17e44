//! Sources that are refused, with the location, what was expected and what was found.

use super::*;

/// Each of these is refused with a message that begins with the text and has "expected" once.
#[track_caller]
fn all_are_refused(all: &[(GrammarSource, &str)]) {
    let tokenizer = letters();
    for (source, expected) in all {
        let error = refused(&tokenizer, source);
        assert!(error.starts_with(expected), "{expected}: {error}");
        assert_eq!(error.matches("expected ").count(), 1, "{error}");
    }
}

#[test]
fn schemas_are_refused_with_a_location() {
    let deep = "[".repeat(1000);
    all_are_refused(&[
        (schema("{"), "json_schema: expected a JSON Schema, found: EOF"),
        (schema("3"), "json_schema: expected a JSON Schema (an object), found a number"),
        (schema(&deep), "json_schema: expected a JSON Schema, found: recursion limit exceeded"),
        (
            schema(r#"{"properties": {"a": {"not": {}}}, "required": ["a"]}"#),
            "json_schema: #/properties/a/not: expected",
        ),
        (
            schema(r#"{"type": "object", "properties": {"a": {"type": "string", "format": "x"}}}"#),
            "json_schema: #/properties/a: ",
        ),
        (
            schema(r#"{"type": "array", "prefixItems": [true, {"uniqueItems": true}]}"#),
            "json_schema: #/prefixItems/1: ",
        ),
        (
            schema(
                r##"{"type": "array", "items": {"$ref": "#/$defs/b"}, "$defs": {"a": {"not": {}}, "b": {"if": {}}}}"##,
            ),
            "json_schema: #/$defs/b/if: expected what can be enforced",
        ),
        (schema(r#"{"type": "string", "allOf": [{"type": "number"}]}"#), "json_schema: #: "),
        (schema(r#"{"minimum": 3, "maximum": 2, "type": "integer"}"#), "json_schema: #: "),
        (schema("false"), "json_schema: #: "),
        (
            schema(r#"{"x-guidance": {"lenient": true}, "not": {}}"#),
            "json_schema: #/x-guidance: expected no such keyword",
        ),
        (schema(r#"{"properties": {"a": {"$id": "b"}}}"#), "json_schema: #/properties/a/$id: "),
        (schema(r##"{"$ref": "https://example.org/a.json"}"##), "json_schema: #: "),
        (
            schema(r##"{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}"##),
            "json_schema: #/properties/a: expected a grammar with finite texts, found rules that never end",
        ),
    ]);
}

#[test]
fn library_errors_refer_to_the_user_s_schema() {
    let properties: Vec<String> = (0..5000).map(|i| format!("\"p{i}\": {{}}")).collect();
    all_are_refused(&[
        (
            schema(r#"{"properties": {"a/b": {"properties": {"c~%": {"type": "no"}}}}}"#),
            "json_schema: #/properties/a~1b/properties/c~0%: expected what can be enforced, found: Invalid type: no",
        ),
        (
            schema(r##"{"properties": {"a": {"$ref": "#/nope"}}}"##),
            "json_schema: #/properties/a: expected what can be enforced, found: Reference segment 'nope' not found in \
             '#/nope'.",
        ),
        (
            schema(r#"{"properties": {"a": {"minimum": "x"}}}"#),
            "json_schema: #/properties/a: expected f64 for 'minimum', found \"x\"",
        ),
        (
            schema(r#"{"items": {"type": "string", "pattern": ".("}}"#),
            "json_schema: #/items: expected what can be enforced, found: unclosed group",
        ),
        (
            schema(&format!("{{\"type\": \"object\", \"properties\": {{{}}}}}", properties.join(","))),
            "json_schema: expected at most 2000 items of the parser at a place, found ",
        ),
    ]);
}

#[test]
fn expressions_and_grammars_are_refused_with_a_location() {
    all_are_refused(&[
        (
            GrammarSource::Regex("é/(".into()),
            "regex: expected an expression that can be enforced, found: unclosed group at character 3",
        ),
        (
            GrammarSource::Regex("(?=a)b".into()),
            "regex: expected an expression that can be enforced, found: look-around",
        ),
        (
            GrammarSource::Lark("start: a\na: nothing".into()),
            "grammar: expected a valid grammar, found: at line 2, column 4: unknown name: \"nothing\"",
        ),
        (
            GrammarSource::Lark("start: a // %json\na: \"%json\" /%json/ %json\n {\"items\": {\"not\": {}}} b".into()),
            "grammar: %json in line 2: #/items/not: expected what can be enforced, found not",
        ),
        (
            GrammarSource::Lark("start: %json {\"properties\": {\"a\": {\"$id\": \"b\"}}}".into()),
            "grammar: %json in line 1: #/properties/a/$id: expected it at the root alone",
        ),
        (
            GrammarSource::Lark("start: %json {\"pattern\": \".\",\n\n\"type\": \"string\"}\n| \"a".into()),
            "grammar: expected a valid grammar, found: at line 4, column 5: lexer error",
        ),
        (GrammarSource::Regex("ä".into()), "regex: expected a grammar that the vocabulary of toy can write"),
        (GrammarSource::Lark("start: start \"a\"".into()), "grammar: expected a grammar with finite texts"),
        (
            GrammarSource::Lark("start: a\na[temperature=0.5]: \"a\"".into()),
            "grammar: expected rules without temperature",
        ),
        (
            GrammarSource::Lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: /a/".into()),
            "grammar: expected rules without allow_invalid_utf8",
        ),
        (
            GrammarSource::Lark("%llguidance {\"allow_invalid\\u005futf8\": true}\nstart: /a/".into()),
            "grammar: expected rules without allow_invalid_utf8",
        ),
        (
            GrammarSource::Lark("start: %json {\"x\\u002dguidance\": {\"lenient\": true}, \"not\": {}}".into()),
            "grammar: expected rules without x-guidance",
        ),
        (
            GrammarSource::Lark("u: <\">\nstart: a\na[temperature=0.5]: \"a\"".into()),
            "grammar: expected rules without temperature",
        ),
    ]);
}

#[test]
fn other_sources_are_refused() {
    all_are_refused(&[
        (GrammarSource::Gbnf("root ::= a".into()), "grammar: a: expected a rule of this name, found none"),
        (GrammarSource::Gbnf("root ::= \"a\"\nroot ::= \"b\"".into()), "grammar: root: expected one rule of this name"),
        (GrammarSource::Gbnf("root ::= \"a\"\nb ::= [z-a]".into()), "grammar: line 2: expected a range that ascends"),
        (GrammarSource::Gbnf("root ::= <[17]>".into()), "grammar: line 1: expected no tokens"),
        (GrammarSource::Gbnf("root ::= root \"a\"".into()), "grammar: expected a grammar with finite texts"),
        (GrammarSource::Lark(String::new()), "grammar: "),
        (GrammarSource::Choices(Vec::new()), "choices: expected at least one"),
        (GrammarSource::Regex("a".repeat(SOURCE_MAX_BYTES + 1)), "regex: expected at most 1048576 bytes"),
    ]);
}
