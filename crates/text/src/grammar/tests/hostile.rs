//! Hostile sources are refused before they cost much time or stack.

use super::*;

/// Each source gives an error that begins with the text, or compiles (`""`).
#[track_caller]
fn all_give(all: &[(GrammarSource, &str)]) {
    let tokenizer = letters();
    for (source, expected) in all {
        assert!(source.bytes() <= SOURCE_MAX_BYTES, "its size must not be the reason");
        let found = match Grammar::compile(&tokenizer, source) {
            Ok(grammar) => grammar.matcher().allowed().map_or_else(|error| error, |_| String::new()),
            Err(error) => error.to_string(),
        };
        assert!(!found.contains('\n'), "{found}");
        let begin: String = format!("{source:?}").chars().take(80).collect();
        assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{begin}: {expected}: {found}");
    }
}

fn nested(count: usize) -> String {
    format!("{}a{}", "(".repeat(count), ")".repeat(count))
}

/// The rules r0, r1 and so on, `count` of them, as `rule` writes them, and `last` after them.
fn chain(count: usize, rule: impl Fn(usize) -> String, last: &str) -> String {
    (0..count).map(|i| rule(i) + "\n").chain([last.to_string()]).collect()
}

/// A schema with the definitions a0, a1 and so on, `count` of them, for which `definition` gets the number of the next
/// one, and `last` after them.
fn definitions(count: usize, definition: impl Fn(usize) -> String, last: &str) -> GrammarSource {
    let all = (0..count).map(|i| format!("\"a{i}\":{},", definition(i + 1))).collect::<String>();
    schema(&format!("{{\"$ref\":\"#/$defs/a0\",\"$defs\":{{{all}\"a{count}\":{last}}}}}"))
}

#[test]
fn sources_that_recurse_too_deep_are_refused() {
    let rules = "grammar: expected at most 10000 rules and open brackets, found ";
    let parts = "grammar: expected at most 10000 rules, parentheses and counts, found more";
    let references = "json_schema: #: expected references whose paths have at most 10000 parts together, found ";
    let lark = |count, rule: fn(usize) -> String| {
        GrammarSource::Lark(format!("start: r0\n{}", chain(count, rule, &format!("r{count}: \"b\""))))
    };
    let unnamed = lark(35_000, |i| format!("r{i}: r{}", i + 1));
    all_give(&[
        (lark(35_000, |i| format!("r{i}: r{}", i + 1)), rules),
        (lark(30_000, |i| format!("r{i}: \"a\" r{}", i + 1)), rules),
        (lark(1000, |i| format!("r{i}: {}r{}{}", "(".repeat(25), i + 1, ")".repeat(25))), rules),
        (
            GrammarSource::Lark(format!(
                "start: a::0\na::_: \"x\" %if {}true{}",
                "not(".repeat(90_000),
                ")".repeat(90_000)
            )),
            rules,
        ),
        // A quote in the name of a special token begins no string.
        (
            GrammarSource::Lark(format!(
                "u: <\">\n{}",
                match unnamed {
                    GrammarSource::Lark(text) => text,
                    other => panic!("{other:?}"),
                }
            )),
            rules,
        ),
        (
            GrammarSource::Gbnf(format!(
                "root ::= \"x\" root | r0\n{}",
                chain(
                    9900,
                    |i| { format!("r{i} ::= {}r{}{}", "(".repeat(27), i + 1, ")".repeat(27)) },
                    "r9900 ::= \"b\""
                )
            )),
            parts,
        ),
        (GrammarSource::Gbnf(format!("root ::= \"x\" root | \"a\"{}", "*".repeat(500_000))), parts),
        (
            definitions(15_000, |i| format!("{{\"allOf\":[{{\"$ref\":\"#/$defs/a{i}\"}},{{\"minLength\":1}}]}}"), "{}"),
            references,
        ),
    ]);
    let GrammarSource::JsonSchema { schema: text, .. } =
        definitions(15_000, |i| format!("{{\"allOf\":[{{\"$ref\":\"#/$defs/a{i}\"}},true]}}"), "{}")
    else {
        panic!("it is a schema")
    };
    let place =
        "grammar: %json in line 2: #: expected references whose paths have at most 10000 parts together, found ";
    all_give(&[
        (GrammarSource::Lark(format!("start:\n%json {text}")), place),
        (GrammarSource::ToolCalls(format!("start:\n%json {text}")), &place.replace("grammar", "tools")),
    ]);
}

#[test]
fn sources_at_the_depth_limit_compile_on_threads_with_little_stack() {
    let all = [
        GrammarSource::Lark(format!("start: r0\n{}", chain(9990, |i| format!("r{i}: r{}", i + 1), "r9990: \"b\""))),
        GrammarSource::Lark(format!(
            "start: r0\n{}",
            chain(400, |i| { format!("r{i}: {}r{}{}", "(".repeat(23), i + 1, ")".repeat(23)) }, "r400: \"b\"")
        )),
        GrammarSource::Lark(format!(
            "start: R0\n{}",
            chain(9990, |i| { format!("R{i}: \"a\" R{} \"c\" | \"b\"", i + 1) }, "R9990: \"b\"")
        )),
        GrammarSource::Gbnf(format!(
            "root ::= \"x\" root | r0\n{}",
            chain(360, |i| { format!("r{i} ::= {}r{}{}", "(".repeat(26), i + 1, ")".repeat(26)) }, "r360 ::= \"b\"")
        )),
        definitions(1990, |i| format!("{{\"allOf\":[{{\"$ref\":\"#/$defs/a{i}\"}},true]}}"), "{\"type\":\"string\"}"),
        definitions(
            200,
            |i| {
                format!(
                    "{}{{\"$ref\":\"#/$defs/a{i}\"}}{}",
                    "{\"anyOf\":[{\"type\":\"null\"},".repeat(20),
                    "]}".repeat(20)
                )
            },
            "{\"type\":\"string\"}",
        ),
        definitions(2490, |i| format!("{{\"items\":{{\"$ref\":\"#/$defs/a{i}\"}}}}"), "{\"type\":\"string\"}"),
    ];
    let tokenizer = letters();
    let compile = || all.iter().for_each(|source| drop(compiled(&tokenizer, source).matcher().allowed()));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, compile);
        thread.expect("there is a thread").join().expect("all are grammars");
    });
}

#[test]
fn hostile_grammars_give_an_error_or_compile() {
    let gbnf = |text: String| GrammarSource::Gbnf(text);
    all_give(&[
        (GrammarSource::Regex("((((a{1000}){1000}){1000}){1000}){1000}".into()), ""),
        (
            GrammarSource::Regex(nested(100_000)),
            "regex: expected an expression that can be enforced, found: exceed the maximum number of nested",
        ),
        (GrammarSource::Regex("(a|b)*a(a|b){1000}".into()), ""),
        (
            GrammarSource::Lark(format!("start: {}", nested(9000).replace('a', "\"a\""))),
            "grammar: expected a valid grammar, found: at line 1, column 37: lark grammar too deeply nested",
        ),
        (GrammarSource::Lark("start: start start | \"a\" | \"\"".into()), ""),
        (
            gbnf(format!("root ::= {}", nested(100_000).replace('a', "\"a\""))),
            "grammar: line 1: expected parentheses that nest at most 100 deep",
        ),
        (
            gbnf(format!("root ::= r0\n{}", chain(9000, |i| format!("r{i} ::= r{0} r{0}", i + 1), "r9000 ::= \"b\""))),
            "grammar: expected rules that are at most 1048576 bytes without names",
        ),
        (gbnf("root ::= ((([a-z]{2000}){2000}){2000}){2000}".into()), ""),
        // Thousands of terminals, also such that are expensive to distinguish.
        (gbnf(format!("root ::= \"(\" root \")\"{}", " | \"x\" [a-z]{1,90} \"y\"{40,50} [^a-c]*".repeat(1000))), ""),
        (gbnf(format!("root ::= \"(\" root \")\" | {}", "(\"ab\" | [a-z]{9,99} \"x\") ".repeat(1000))), ""),
        (
            gbnf(format!(
                "root ::= r0 root?\n{}",
                chain(500, |i| { format!("r{i} ::= \"w{i}\" [a-z]* \"x\" | r{}", i + 1) }, "r500 ::= \"b\"")
            )),
            "",
        ),
        (schema(&format!("{}{}", "{\"items\":".repeat(120) + "{}", "}".repeat(120))), ""),
    ]);
}

#[test]
fn the_search_for_the_location_of_an_error_is_limited() {
    let source = definitions(1900, |i| format!("{{\"items\":{{\"$ref\":\"#/$defs/a{i}\"}}}}"), "{\"not\":{}}");
    let error = refused(&letters(), &source);
    assert!(error.starts_with("json_schema: #/$defs/a25/items: expected what can be enforced, found not"), "{error}");
}
