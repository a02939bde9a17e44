//! Sources that mean harm: what each is refused with, and that it is refused before it costs much.

use super::*;

/// Each comes to this: a message that begins so, or a grammar (`""`).
#[track_caller]
fn come_to(all: &[(GrammarSource, &str)]) {
    let tokenizer = letters();
    for (source, expected) in all {
        assert!(source.bytes() <= SOURCE_MAX_BYTES, "it is not refused for its size");
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

/// Rules r0 to this one, each as it is written with the number behind it, and a last one.
fn chain(count: usize, rule: impl Fn(usize) -> String, last: &str) -> String {
    (0..count).map(|i| rule(i) + "\n").chain([last.to_string()]).collect()
}

/// A schema of so many definitions, each as it is written with the number behind it.
fn definitions(count: usize, definition: impl Fn(usize) -> String, last: &str) -> GrammarSource {
    let all = (0..count).map(|i| format!("\"a{i}\":{},", definition(i + 1))).collect::<String>();
    schema(&format!("{{\"$ref\":\"#/$defs/a0\",\"$defs\":{{{all}\"a{count}\":{last}}}}}"))
}

#[test]
fn what_leads_too_deep_is_refused_before_it_is_followed() {
    let rules = "grammar: expected at most 10000 rules and open brackets, found ";
    let parts = "grammar: expected at most 10000 rules, parentheses and counts, found more";
    let references = "json_schema: #: expected references whose paths have at most 10000 parts together, found ";
    let lark = |count, rule: fn(usize) -> String| {
        GrammarSource::Lark(format!("start: r0\n{}", chain(count, rule, &format!("r{count}: \"b\""))))
    };
    let unnamed = lark(35_000, |i| format!("r{i}: r{}", i + 1));
    come_to(&[
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
        // What stands in the name of a token begins no string.
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
    come_to(&[
        (GrammarSource::Lark(format!("start:\n%json {text}")), place),
        (GrammarSource::ToolCalls(format!("start:\n%json {text}")), &place.replace("grammar", "tools")),
    ]);
}

#[test]
fn what_is_just_not_too_deep_is_followed_by_threads_with_little_stack() {
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
fn hostile_grammars_come_to_an_error_or_a_grammar() {
    let gbnf = |text: String| GrammarSource::Gbnf(text);
    come_to(&[
        (GrammarSource::Regex("((((a{1000}){1000}){1000}){1000}){1000}".into()), ""),
        (
            GrammarSource::Regex(nested(100_000)),
            "regex: expected an expression that can be kept to, found: exceed the maximum number of nested",
        ),
        (GrammarSource::Regex("(a|b)*a(a|b){1000}".into()), ""),
        (
            GrammarSource::Lark(format!("start: {}", nested(9000).replace('a', "\"a\""))),
            "grammar: expected what can be understood, found: at line 1, column 37: lark grammar too deeply nested",
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
        // Words by the thousand, and those that are hard to tell from each other.
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
fn the_place_of_a_complaint_is_looked_for_in_so_many_bytes_of_documents() {
    let source = definitions(1900, |i| format!("{{\"items\":{{\"$ref\":\"#/$defs/a{i}\"}}}}"), "{\"not\":{}}");
    let error = refused(&letters(), &source);
    assert!(error.starts_with("json_schema: #/$defs/a25/items: expected what can be enforced, found not"), "{error}");
}
