//! Grammars of tool calls: text generated under their masks is parsed back as valid calls, in every format.
//!
//! Random texts are drawn from the masks, over a vocabulary of single characters in which the delimiters of a format
//! are special tokens or ordinary ones. They are parsed by the reader of calls, which does not know the grammar.

use std::collections::BTreeSet;
use std::sync::Arc;

use foretoken_text::{
    AnswerPiece, CallsWanted, GgufVocabulary, Grammar, Json, Tokenizer, ToolCall, ToolCallReader, ToolFormat,
    ToolFunction,
};
use serde_json::{Value, json};

/// A vocabulary of characters, some words, and the delimiters of a format.
fn tokenizer(format: ToolFormat, is_special: bool) -> Tokenizer {
    let mut words: Vec<String> = (' '..='~').map(String::from).collect();
    words.extend(
        ["\n", "é", "{\"", "\":", "true", "name", "</", ">\n", "_call", "```", "```tool_code"].map(String::from),
    );
    let plain = words.len();
    words.extend(format.delimiters().iter().map(|delimiter| (*delimiter).to_string()));
    let kind = |at: usize| if at >= plain && is_special { 3 } else { 1 };
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        scores: vec![0.0; words.len()],
        token_types: (0..words.len()).map(kind).collect(),
        tokens: words,
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good vocabulary")
}

fn function(name: &str, parameters: Option<Value>) -> ToolFunction {
    ToolFunction { name: name.into(), parameters, is_strict: true }
}

/// Functions whose arguments every format can express.
fn functions() -> Vec<ToolFunction> {
    let weather = json!({ "type": "object", "properties": {
        "city": { "type": "string", "enum": ["Rome", "a b"] },
        "days": { "type": "integer", "minimum": 0, "maximum": 9 },
        "deep": { "type": "boolean" } }, "required": ["city", "days"], "additionalProperties": false });
    let note = json!({ "type": "object", "properties": {
        "text": { "type": "string" },
        "tags": { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 3 } },
        "inner": { "type": "object", "properties": { "x": { "type": "boolean" }, "y": { "type": "string" } },
            "required": ["x"], "additionalProperties": false } },
        "required": ["tags"], "additionalProperties": false });
    vec![function("weather", Some(weather)), function("weather-now", None), function("note", Some(note))]
}

/// Whether a value is valid for an argument of [`functions`].
fn fits(call: &str, name: &str, value: &Value) -> bool {
    match (call, name) {
        ("weather", "city") => *value == "Rome" || *value == "a b",
        ("weather", "days") => value.as_u64().is_some_and(|days| days <= 9),
        ("weather", "deep") | ("inner", "x") => value.is_boolean(),
        ("note", "text") | ("inner", "y") => value.is_string(),
        ("note", "tags") => {
            let is_tag = |tag: &Value| tag.as_u64().is_some_and(|tag| (1..=3).contains(&tag));
            value.as_array().is_some_and(|tags| tags.iter().all(is_tag))
        }
        ("note", "inner") => value.as_object().is_some_and(|inner| {
            inner.contains_key("x") && inner.iter().all(|(name, value)| fits("inner", name, value))
        }),
        _ => false,
    }
}

#[track_caller]
fn check_arguments(call: &ToolCall, text: &str) {
    let all: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
    let all = all.as_object().expect("arguments are an object");
    assert!(all.iter().all(|(name, value)| fits(&call.name, name, value)), "{call:?} in {text:?}");
    let required: &[&str] = match call.name.as_str() {
        "weather" => &["city", "days"],
        "weather-now" => &[],
        "note" => &["tags"],
        other => panic!("no such function: {other} in {text:?}"),
    };
    assert!(required.iter().all(|name| all.contains_key(*name)), "{call:?} in {text:?}");
}

/// A random text of a grammar, or `None` if it has not ended after many tokens.
fn walk(tokenizer: &Tokenizer, grammar: &Arc<Grammar>, mut seed: u64) -> Option<String> {
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let (mut matcher, mut bytes) = (grammar.matcher(), Vec::new());
    for _ in 0..900 {
        let allowed = matcher.allowed().expect("within the limits");
        let all: Vec<u32> = (0..tokenizer.vocabulary_len() as u32).filter(|token| allowed.has(*token)).collect();
        if allowed.may_end() && (all.is_empty() || next(5) == 0) {
            return Some(String::from_utf8(bytes).expect("text"));
        }
        // Long tokens are preferred, or a quoted text would never end.
        let some: Vec<u32> = (0..24).map(|_| all[next(all.len())]).collect();
        let longest = some.iter().max_by_key(|token| tokenizer.token_bytes(**token).len());
        let token = if next(2) == 0 { *longest? } else { some[0] };
        assert!(matcher.accept(token));
        bytes.extend_from_slice(tokenizer.token_bytes(token));
    }
    None
}

/// The calls of an answer, and the remaining text.
fn read(format: ToolFormat, text: &str) -> (Vec<ToolCall>, String) {
    let tool = |function: ToolFunction| {
        let tool = json!({ "function": { "name": function.name, "parameters": function.parameters } });
        serde_json::from_value(tool).expect("JSON")
    };
    let tools: Vec<Json> = functions().into_iter().map(tool).collect();
    let mut reader = ToolCallReader::new(format, &tools);
    let mut pieces = reader.push(text);
    pieces.extend(reader.finish());
    let (mut calls, mut left) = (Vec::new(), String::new());
    for piece in pieces {
        match piece {
            AnswerPiece::Calls { calls: more, .. } => calls.extend(more),
            AnswerPiece::Text(text) => left.push_str(&(text + "\n")),
        }
    }
    (calls, left)
}

/// Vocabularies in which the delimiters of a format are special tokens, and in which they are not. A SentencePiece
/// vocabulary writes a space for the "▁" in DeepSeek's delimiters unless they are special.
fn vocabularies(format: ToolFormat) -> Vec<Tokenizer> {
    let kinds = if format == ToolFormat::DeepSeek { vec![true] } else { vec![true, false] };
    kinds.into_iter().map(|is_special| tokenizer(format, is_special)).collect()
}

#[track_caller]
fn compiled(format: ToolFormat, tokenizer: &Tokenizer, wanted: CallsWanted, several: bool) -> Arc<Grammar> {
    let source = format.grammar_of_calls(tokenizer, &functions(), wanted, several);
    let source = source.unwrap_or_else(|found| panic!("{format:?}: {found:?}"));
    Grammar::compile(tokenizer, &source).unwrap_or_else(|error| panic!("{format:?}: {error}: {source:?}"))
}

#[test]
fn forced_calls_are_parsed_back_in_every_format() {
    for format in ToolFormat::ALL {
        for tokenizer in vocabularies(format) {
            for several in [false, true] {
                let grammar = compiled(format, &tokenizer, CallsWanted::Forced, several);
                let (mut ended, mut names) = (0, BTreeSet::new());
                for text in (0..24).filter_map(|seed| walk(&tokenizer, &grammar, seed)) {
                    ended += 1;
                    let (calls, left) = read(format, &text);
                    assert_eq!(left.trim(), "", "{format:?}: {text:?}");
                    assert!(!calls.is_empty() && (several || calls.len() == 1), "{format:?}: {text:?}");
                    calls.iter().for_each(|call| check_arguments(call, &text));
                    names.extend(calls.into_iter().map(|call| call.name));
                }
                assert!(ended >= 3 && names.len() >= 2, "{format:?}: {ended} texts ended, with {names:?}");
            }
        }
    }
}

#[test]
fn calls_in_free_text_are_parsed_back_and_text_has_no_others() {
    for format in ToolFormat::ALL {
        for tokenizer in vocabularies(format) {
            let source = format.grammar_of_calls(&tokenizer, &functions(), CallsWanted::Free, true);
            let is_marked = !matches!(
                format,
                ToolFormat::LlamaJson
                    | ToolFormat::Pythonic
                    | ToolFormat::Functools
                    | ToolFormat::CommandR
                    | ToolFormat::Generic
            );
            assert_eq!(source.is_ok(), is_marked, "{format:?}: {source:?}");
            if source.is_err() {
                continue;
            }
            let grammar = compiled(format, &tokenizer, CallsWanted::Free, true);
            let (mut ended, mut called) = (0, 0);
            for text in (0..24).filter_map(|seed| walk(&tokenizer, &grammar, seed)) {
                ended += 1;
                let (calls, left) = read(format, &text);
                calls.iter().for_each(|call| check_arguments(call, &text));
                called += calls.len();
                // Text with the opening delimiter would be a call.
                assert!(!left.contains(format.delimiters().first().unwrap_or(&"```tool_code")), "{format:?}: {text:?}");
            }
            assert!(ended >= 5 && called >= 2, "{format:?}: {ended} texts ended, with {called} calls");
        }
    }
}

#[test]
fn references_in_schemas_are_enforced() {
    let schema = json!({ "type": "object", "properties": { "at": { "$ref": "#/$defs/point" } }, "required": ["at"],
        "additionalProperties": false, "$defs": { "point": { "type": "array", "items": { "const": 7 },
        "minItems": 2, "maxItems": 2 } } });
    for format in
        [ToolFormat::Hermes, ToolFormat::Nemotron, ToolFormat::Mistral, ToolFormat::Qwen3Coder, ToolFormat::Olmo3]
    {
        let tokenizer = tokenizer(format, true);
        let functions = [function("f", Some(schema.clone()))];
        let source = format.grammar_of_calls(&tokenizer, &functions, CallsWanted::Forced, false).expect("a grammar");
        let grammar = Grammar::compile(&tokenizer, &source).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        let text = walk(&tokenizer, &grammar, 3).expect("it is short");
        let (calls, _) = read(format, &text);
        let arguments: Value = serde_json::from_str(&calls[0].arguments).expect("JSON");
        assert_eq!(arguments, json!({ "at": [7, 7] }), "{format:?}: {text:?}");
    }
}

#[test]
fn references_point_into_their_own_function_and_data_is_not_changed() {
    let schema = |value: Value| {
        json!({ "type": "object", "properties": { "$ref": { "$ref": "#/$defs/x" } }, "required": ["$ref"],
            "additionalProperties": false, "$defs": { "x": { "const": value } } })
    };
    let (one, other) = (json!({ "$ref": "#/$defs/y" }), json!({ "$ref": "#/$defs/z" }));
    let tokenizer = tokenizer(ToolFormat::Hermes, true);
    let functions = [function("a/b", Some(schema(one.clone()))), function("a-b", Some(schema(other.clone())))];
    let source =
        ToolFormat::Hermes.grammar_of_calls(&tokenizer, &functions, CallsWanted::Forced, false).expect("a grammar");
    let grammar = Grammar::compile(&tokenizer, &source).expect("a grammar");
    let mut called = BTreeSet::new();
    for seed in 0..20 {
        let (calls, _) = read(ToolFormat::Hermes, &walk(&tokenizer, &grammar, seed).expect("it is short"));
        let arguments: Value = serde_json::from_str(&calls[0].arguments).expect("JSON");
        assert_eq!(arguments, json!({ "$ref": if calls[0].name == "a/b" { &one } else { &other } }));
        called.insert(calls[0].name.clone());
    }
    assert_eq!(called.len(), 2);
}

#[test]
fn many_arguments_are_fast_and_too_many_are_refused() {
    for (format, required, held) in [
        (ToolFormat::Qwen3Coder, true, 256),
        (ToolFormat::Qwen3Coder, false, 80), // optional arguments have rules for all that may follow
        (ToolFormat::Glm45, true, 256),
        (ToolFormat::Gemma4, false, 256),
        (ToolFormat::Olmo3, true, 256),
    ] {
        let tokenizer = tokenizer(format, true);
        let grammar_of = |count: usize| {
            let names: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
            let all: serde_json::Map<String, Value> =
                names.iter().map(|name| (name.clone(), json!({ "type": "boolean" }))).collect();
            let required = if required { names } else { Vec::new() };
            let schema = json!({ "type": "object", "properties": all, "required": required });
            format.grammar_of_calls(&tokenizer, &[function("f", Some(schema))], CallsWanted::Forced, false)
        };
        let source = grammar_of(held).expect("a grammar");
        if let Err(error) = Grammar::compile(&tokenizer, &source) {
            panic!("{format:?}, {required}: {error}");
        }
        let (place, words) = grammar_of(257).expect_err("too many");
        assert_eq!(place, "[0].function.parameters");
        assert!(words.starts_with("#/properties: expected at most 256"), "{words}");
    }
}

#[test]
fn functions_that_are_not_strict_may_have_any_object() {
    let loose = ToolFunction { is_strict: false, ..function("f", Some(json!({ "type": "object", "oneOf": 5 }))) };
    let tokenizer = tokenizer(ToolFormat::Hermes, true);
    let source = ToolFormat::Hermes.grammar_of_calls(&tokenizer, &[loose], CallsWanted::Free, true).expect("a grammar");
    let grammar = Grammar::compile(&tokenizer, &source).expect("a grammar");
    let mut matcher = grammar.matcher();
    let bytes = "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[1]}}</tool_call>";
    let mut rest = bytes;
    while !rest.is_empty() {
        let longest = (0..tokenizer.vocabulary_len() as u32)
            .filter(|token| rest.as_bytes().starts_with(tokenizer.token_bytes(*token)))
            .max_by_key(|token| tokenizer.token_bytes(*token).len())
            .expect("all letters are there");
        assert!(matcher.accept(longest), "{rest}");
        rest = &rest[tokenizer.token_bytes(longest).len()..];
    }
    assert!(matcher.may_end());
}

#[test]
fn unsupported_schemas_are_refused_with_their_location() {
    let object = |properties: Value| Some(json!({ "type": "object", "properties": properties }));
    let string = |more: Value| {
        let mut schema = json!({ "type": "string" });
        schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        object(json!({ "a": schema }))
    };
    for (format, parameters, found) in [
        (ToolFormat::Hermes, Some(json!(5)), "#: expected an object, found 5"),
        (ToolFormat::Hermes, Some(json!({ "type": "array" })), "#/type: expected \"object\", found \"array\""),
        (ToolFormat::Hermes, Some(json!({ "x-guidance": {} })), "#/x-guidance: expected no such keyword, found one"),
        (ToolFormat::Qwen3Coder, string(json!({ "pattern": "a" })), "#/properties/a/pattern: expected no such keyword"),
        (ToolFormat::Glm45, object(json!({ "a": {} })), "#/properties/a: expected a type"),
        (ToolFormat::Gemma4, string(json!({ "format": "date" })), "#/properties/a/format: expected no such keyword"),
        (ToolFormat::Gemma4, object(json!({ "a": { "anyOf": [] } })), "#/properties/a: expected a type alone"),
        (ToolFormat::Gemma4, object(json!({ "a": { "type": "array" } })), "#/properties/a: expected items"),
        (ToolFormat::Olmo3, object(json!({ "a b": { "type": "null" } })), "#/properties/a b: expected a name"),
        (ToolFormat::Olmo3, Some(json!({ "required": ["x"] })), "#/required: expected names of properties"),
    ] {
        let tokenizer = tokenizer(format, true);
        let functions = [function("f", None), function("g", parameters)];
        let refused = format.grammar_of_calls(&tokenizer, &functions, CallsWanted::Forced, true);
        let (place, words) = refused.expect_err(found);
        assert!(place == "[1].function.parameters" && words.starts_with(found), "{format:?}: {place}: {words}");
    }
    let tokenizer = tokenizer(ToolFormat::Olmo3, true);
    let named = ToolFormat::Olmo3.grammar_of_calls(&tokenizer, &[function("a(b", None)], CallsWanted::Forced, true);
    assert_eq!(named.expect_err("no name").0, "[0].function.name");
}
