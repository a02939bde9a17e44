//! Grammars over small vocabularies: which texts match, which sources are refused and where, hostile sources, and masks
//! compared with an independent matcher that tries every derivation.

mod hostile;
mod refused;

use proptest::prelude::*;

use super::*;
use crate::{GgufVocabulary, Token};

/// A tokenizer of these tokens; those in angle brackets are special.
fn tokenizer(words: &[&str]) -> Tokenizer {
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: words.iter().map(|word| (*word).to_string()).collect(),
        scores: vec![0.0; words.len()],
        token_types: words.iter().map(|word| if word.starts_with('<') { 3 } else { 1 }).collect(),
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a toy vocabulary is a good one")
}

/// A tokenizer of all printable characters of ASCII, the line feed, and some words.
pub(super) fn letters() -> Tokenizer {
    let mut words: Vec<String> = (' '..='~').map(String::from).collect();
    words.push("\n".into());
    words.extend(["<end>", "{\"", "\":", "\",\"", "name", "ab", "ba", "1.5", "é", "true", "\"}"].map(String::from));
    tokenizer(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(super) fn schema(text: &str) -> GrammarSource {
    GrammarSource::JsonSchema { schema: text.into(), flexible: false }
}

/// Whether a grammar matches this text, character by character.
pub(super) fn matches(tokenizer: &Tokenizer, grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    let mut buffer = [0; 4];
    text.chars().all(|character| {
        let bytes = character.encode_utf8(&mut buffer).as_bytes();
        let token = (0..tokenizer.vocabulary_len() as Token).find(|token| tokenizer.token_bytes(*token) == bytes);
        matcher.accept(token.unwrap_or_else(|| panic!("no token for {character:?}")))
    }) && matcher.may_end()
}

pub(super) fn compiled(tokenizer: &Tokenizer, source: &GrammarSource) -> Arc<Grammar> {
    Grammar::compile(tokenizer, source).unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

pub(super) fn refused(tokenizer: &Tokenizer, source: &GrammarSource) -> String {
    let error = Grammar::compile(tokenizer, source).expect_err("it is refused").to_string();
    assert!(!error.contains('\n') && error.starts_with(source.name()), "{error}");
    error
}

#[test]
fn each_grammar_matches_its_texts_and_no_others() {
    let tokenizer = letters();
    let person = r#"{"type": "object", "properties": {"name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0}}, "required": ["name", "age"], "additionalProperties": false}"#;
    let cases: &[(GrammarSource, &[&str], &[&str])] = &[
        (
            schema(person),
            &[r#"{"name":"ab","age":7}"#, r#"{"name":"","age":0}"#],
            &[
                r#"{"age":7,"name":"ab"}"#,
                r#"{"name": "ab","age":7}"#,
                r#"{"name":"ab"}"#,
                r#"{"name":"a","age":-1}"#,
                "",
            ],
        ),
        (
            GrammarSource::JsonSchema { schema: person.into(), flexible: true },
            &[r#"{"name":"ab","age":7}"#, "{ \"name\" : \"ab\",\n \"age\": 7 }"],
            &[r#"{"age":7,"name":"ab"}"#, r#"{  "name":"ab","age":7}"#],
        ),
        (schema(r#"{"enum": ["a", 1, null]}"#), &["\"a\"", "1", "null"], &["a", "2", "nul"]),
        (schema("true"), &["[]", "{\"a\":[1,true]}"], &["[ ]", "", "a"]),
        (
            schema(r##"{"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}"##),
            &["[]", "[[],[[]]]"],
            &["[", "[1]"],
        ),
        (GrammarSource::Regex("a+(b|/)?".into()), &["a", "aaab", "a/"], &["", "b", "ab/"]),
        (GrammarSource::Regex("(ab)*".into()), &["", "ab", "abab"], &["a", "aba"]),
        (GrammarSource::Lark("start: \"a\" start \"b\" | \"c\"".into()), &["c", "acb", "aacbb"], &["acbb", "ac"]),
        (
            GrammarSource::Choices(vec!["a".into(), "ab".into(), "a.c|(".into(), "é".into()]),
            &["a", "ab", "a.c|(", "é"],
            &["abc", "", "axc|("],
        ),
        (
            GrammarSource::of_grammar("root ::= \"tr\" [a-z]+ \"x\"{2} # as long as one likes\n".into()),
            &["trxxx", "truexx"],
            &["trxx", "trux", "xx"],
        ),
        // Line ends within rules, and overlapping terminals that a longest-match lexer would confuse.
        (
            GrammarSource::of_grammar(
                "root ::= value\nvalue ::= \"[\" ( value\n (\",\" value)* )? \"]\" |\n word | \"true\"\n\
                 word ::= [a-z]+ \"e\" | \"\\x41\"\n"
                    .into(),
            ),
            &["[]", "true", "[true,abe,[A]]", "tre", "trueee"],
            &["tru", "[,]", "[true", "e"],
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
fn terminals_of_a_recursive_grammar_have_no_prefixes() {
    let words = |text: &str| {
        let lark = gbnf::grammar(text).expect("a good grammar").lark_grammar.expect("it is recursive");
        let root = lark.lines().next().expect("a line a rule");
        let words = root.split_whitespace().filter(|word| word.starts_with('/') && word.contains("(?:"));
        words.map(str::to_string).collect::<Vec<_>>()
    };
    let string = r#"s ::= "'" ([^'\\] | "\\" [a-z])* "'""#;
    assert_eq!(words(&format!("root ::= \"[\" (root (\",\" root)*)? \"]\" | s\n{string}")).len(), 1, "the string");
    assert_eq!(words("root ::= \"(\" root \")\" | n\nn ::= [0-9]+ (\".\" [0-9]+)?"), [""; 0], "numbers go on");
    assert_eq!(
        words("root ::= \"(\" root \")\" | [a-b]? \"c\" | d\nd ::= \"ac\" \"e\"*").len(),
        1,
        "the same text in two words"
    );
    assert_eq!(words("root ::= \"(\" root \")\" | [a-b]? \"c\" | \"xy\" | \"x\"").len(), 1, "x begins xy");
}

/// The tokens that a mask allows, each of which is accepted, and no others.
fn allowed_tokens(matcher: &mut Matcher, tokenizer: &Tokenizer) -> Vec<Token> {
    let allowed = matcher.allowed().expect("within the limits");
    assert_eq!(allowed.may_end(), matcher.may_end());
    let all = 0..tokenizer.vocabulary_len() as Token + 3;
    all.filter(|&token| {
        let is_allowed = allowed.has(token);
        let accepted = matcher.accept(token);
        assert_eq!(accepted, is_allowed, "token {token}: mask {is_allowed}, accepted {accepted}");
        matcher.roll_back(usize::from(accepted));
        accepted
    })
    .collect()
}

#[test]
fn every_tokenization_of_forced_bytes_is_allowed() {
    let tokenizer = letters();
    let grammar = compiled(&tokenizer, &schema(r#"{"const": {"name": true}}"#));
    let mut matcher = grammar.matcher();
    let words = |tokens: Vec<Token>| -> Vec<String> {
        tokens.iter().map(|token| String::from_utf8_lossy(tokenizer.token_bytes(*token)).into_owned()).collect()
    };
    assert_eq!(words(allowed_tokens(&mut matcher, &tokenizer)), ["{", "{\""]);
    assert!(matcher.accept(tokenizer.encode("{", false).unwrap()[0]));
    assert_eq!(words(allowed_tokens(&mut matcher, &tokenizer)), ["\""]);
}

#[test]
fn tokens_of_equal_bytes_are_all_allowed_and_special_tokens_only_by_name() {
    let tokenizer = tokenizer(&["a", "b", "<tool>", "a", "<end>", "ab"]);
    let grammar = compiled(&tokenizer, &GrammarSource::Lark("start: \"a\" <tool> \"b\"".into()));
    let mut matcher = grammar.matcher();
    assert_eq!(allowed_tokens(&mut matcher, &tokenizer), [0, 3]);
    assert!(matcher.accept(3));
    assert_eq!(allowed_tokens(&mut matcher, &tokenizer), [2]);
    let grammar = compiled(&tokenizer, &GrammarSource::Regex("(?s:.*)".into()));
    assert_eq!(allowed_tokens(&mut grammar.matcher(), &tokenizer), [0, 1, 3, 5]);
}

#[test]
fn rolling_back_leaves_a_dead_end() {
    // The expression continues with c, which no token has.
    let tokenizer = tokenizer(&["a", "b"]);
    let grammar = compiled(&tokenizer, &GrammarSource::Regex("ab|bc".into()));
    let mut matcher = grammar.matcher();
    assert!(matcher.accept(1));
    let allowed = matcher.allowed().expect("no limit is reached");
    assert!(allowed.is_empty() && !allowed.may_end() && !matcher.accept(0));
    matcher.roll_back(1);
    assert_eq!(allowed_tokens(&mut matcher, &tokenizer), [0, 1]);
    assert!(matcher.accept(0) && matcher.accept(1) && matcher.may_end());
    let allowed = matcher.allowed().expect("no limit is reached");
    assert!(allowed.is_empty() && allowed.may_end());
}

#[test]
fn rolling_back_invalidates_the_cached_mask() {
    // After both beginnings the same lexemes may come next, but other lexemes after those.
    let tokenizer = tokenizer(&["x", "y", "(", ")", ")1", ")2", "1", "2"]);
    let expression = "start: \"x\" p | \"y\" q\np: \"(\" p? \")\" \"1\"\nq: \"(\" q? \")\" \"2\"\n";
    let grammar = compiled(&tokenizer, &GrammarSource::Lark(expression.into()));
    let mut matcher = grammar.matcher();
    assert!(matcher.accept(0) && matcher.accept(2));
    assert_eq!(allowed_tokens(&mut matcher, &tokenizer), [2, 3, 4]);
    matcher.roll_back(2);
    assert!(matcher.accept(1) && matcher.accept(2));
    assert_eq!(allowed_tokens(&mut matcher, &tokenizer), [2, 3, 5]);
}

/// A small regular expression over a, b and c.
#[derive(Clone, Debug)]
enum Expression {
    Word(&'static str),
    Both(Box<Expression>, Box<Expression>),
    Either(Box<Expression>, Box<Expression>),
    Many(Box<Expression>),
}

impl Expression {
    fn expression(&self) -> String {
        match self {
            Expression::Word(word) => (*word).to_string(),
            Expression::Both(first, second) => format!("{}{}", first.expression(), second.expression()),
            Expression::Either(first, second) => format!("({}|{})", first.expression(), second.expression()),
            Expression::Many(expression) => format!("({})*", expression.expression()),
        }
    }

    /// The expression in llama.cpp's notation; repetitions become recursive rules.
    fn gbnf(&self, rules: &mut Vec<String>) -> String {
        match self {
            Expression::Word(word) => format!("\"{word}\""),
            Expression::Both(first, second) => format!("{} {}", first.gbnf(rules), second.gbnf(rules)),
            Expression::Either(first, second) => format!("({} | {})", first.gbnf(rules), second.gbnf(rules)),
            Expression::Many(expression) => {
                let (inner, name) = (expression.gbnf(rules), format!("many-{}", rules.len()));
                rules.push(format!("{name} ::= {inner} {name} | \"\""));
                name
            }
        }
    }

    /// The unmatched rest of a text for each derivation; `None` if the text ends within the expression.
    fn rests<'a>(&self, text: &'a str) -> Vec<Option<&'a str>> {
        let mut rests = match self {
            Expression::Word(word) if word.starts_with(text) && word.len() > text.len() => vec![None],
            Expression::Word(word) => text.strip_prefix(word).map(Some).into_iter().collect(),
            Expression::Both(first, second) => Self::behind(first.rests(text), second),
            Expression::Either(first, second) => [first.rests(text), second.rests(text)].concat(),
            Expression::Many(expression) => {
                let (mut all, mut last) = (vec![Some(text)], vec![Some(text)]);
                while !last.is_empty() {
                    last = Self::behind(last, expression);
                    last.retain(|rest| !all.contains(rest));
                    all.extend(&last);
                }
                all
            }
        };
        rests.sort_unstable();
        rests.dedup();
        rests
    }

    fn behind<'a>(rests: Vec<Option<&'a str>>, expression: &Expression) -> Vec<Option<&'a str>> {
        rests.into_iter().flat_map(|rest| rest.map_or(vec![None], |rest| expression.rests(rest))).collect()
    }

    /// Whether a text is a prefix of a match; and whether it is a match.
    fn judge(&self, text: &str) -> (bool, bool) {
        let rests = self.rests(text);
        let is_one = rests.contains(&Some(""));
        (is_one || rests.contains(&None), is_one)
    }
}

fn expressions() -> impl Strategy<Value = Expression> {
    let word = proptest::sample::select(vec!["a", "b", "c", "ab", "ca", "bbc", "cab"]);
    word.prop_map(Expression::Word).prop_recursive(4, 12, 2, |inner| {
        let pair = (inner.clone(), inner.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            pair.clone().prop_map(|(a, b)| Expression::Both(a, b)),
            pair.prop_map(|(a, b)| Expression::Either(a, b)),
            inner.prop_map(|expression| Expression::Many(Box::new(expression))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn masks_equal_those_of_an_independent_matcher(
        expression in expressions(),
        is_expression: bool,
        steps in prop::collection::vec((0usize..8, 0usize..4), 1..10),
    ) {
        let words = ["a", "b", "ab", "c", "<end>", "bb", "ca", "abc", "aa", "d", "cab"];
        let tokenizer = tokenizer(&words);
        let mut rules = Vec::new();
        let root = format!("root ::= {}", expression.gbnf(&mut rules));
        let source = match is_expression {
            true => GrammarSource::Regex(expression.expression()),
            false => GrammarSource::of_grammar([vec![root], rules].concat().join("\n")),
        };
        let grammar = compiled(&tokenizer, &source);
        let mut matcher = grammar.matcher();
        let mut written: Vec<Token> = Vec::new();
        let text = |written: &[Token]| -> String { written.iter().map(|token| words[*token as usize]).collect() };
        for (pick, back) in steps {
            let expected: Vec<Token> = (0..words.len() as Token)
                .filter(|&token| token != 4 && expression.judge(&text(&[&written[..], &[token]].concat())).0)
                .collect();
            let allowed = allowed_tokens(&mut matcher, &tokenizer);
            prop_assert_eq!(&allowed, &expected, "{:?} {}", &expression, text(&written));
            let may_end = expression.judge(&text(&written)).1;
            prop_assert_eq!(matcher.may_end(), may_end, "{:?} {}", &expression, text(&written));
            let copy = matcher.duplicate();
            if let Some(&token) = expected.get(pick % expected.len().max(1)) {
                prop_assert!(matcher.accept(token));
                written.push(token);
            }
            // Rolling back restores the earlier state, and a duplicate is not affected.
            let back = back.min(written.len());
            matcher.roll_back(back);
            written.truncate(written.len() - back);
            let mut fresh = grammar.matcher();
            prop_assert!(written.iter().all(|token| fresh.accept(*token)));
            prop_assert_eq!(allowed_tokens(&mut fresh, &tokenizer), allowed_tokens(&mut matcher, &tokenizer));
            prop_assert_eq!(allowed_tokens(&mut copy.duplicate(), &tokenizer), expected);
        }
    }

    /// Mutated sources: each compiles or gives an error of one line.
    #[test]
    fn mutated_sources_compile_or_give_one_line(
        which in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<prop::sample::Index>()), 1..5),
    ) {
        let sources = [
            r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/b"},"c":{"enum":["x",1]}},"$defs":{"b":
                {"type":"array",
                "items":{"type":"string","pattern":"^a+$","format":"date"},"maxItems":3}},"required":["a"]}"##,
            r"(?i:a[b-d]{2,3}|\d+(x|\x{41})?)*y",
            "start: a (\",\" a){2,5} B?\na[capture]: /[a-z]+/ | \"(\" start \")\"\nB: \"b\"+\n\
             c: %json {\"type\": \"null\"}\n%ignore / /\n",
            "root ::= \"[\" (item (\",\" item){0,3})? \"]\" # list\nitem ::= [^\\\"a-c] | root | \"\\u0041\"*\n",
            "root ::= a | b\na ::= \"x\"{2,} [0-9]\nb ::= .\n",
        ];
        let mut text: Vec<char> = sources[which].chars().collect();
        for (at, change, from) in changes {
            let (at, from) = (at.index(text.len()), from.index(text.len()));
            match change {
                0 => drop(text.remove(at)),
                1 => text.insert(at, text[from]),
                2 => text.swap(at, from),
                _ => text.splice(at..at, text.clone()).for_each(drop),
            }
            text.push(' ');
        }
        let text: String = text.into_iter().collect();
        let source = match which {
            0 => GrammarSource::JsonSchema { schema: text, flexible: true },
            1 => GrammarSource::Regex(text),
            2 => GrammarSource::Lark(text),
            _ => GrammarSource::Gbnf(text),
        };
        let tokenizer = tokenizer(&["a", "b", "x", "1", "\"", "{", "[", "{\"", ",", "]", "}", "ab", "<end>", "("]);
        match Grammar::compile(&tokenizer, &source) {
            Ok(grammar) => drop(allowed_tokens(&mut grammar.matcher(), &tokenizer)),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}

#[test]
fn schemas_in_grammars_are_as_strict_as_alone() {
    let tokenizer = letters();
    let date = r#"{"type": "string", "format": "date"}"#;
    let (alone, within) = (schema(date), GrammarSource::Lark(format!("start: \"a\" %json {date} \"b\"")));
    let (alone, within) = (compiled(&tokenizer, &alone), compiled(&tokenizer, &within));
    for (text, is_date) in [("2024-02-29", true), ("2023-02-29", false)] {
        assert_eq!(matches(&tokenizer, &alone, &format!("\"{text}\"")), is_date);
        assert_eq!(matches(&tokenizer, &within, &format!("a\"{text}\"b")), is_date);
    }
}

#[test]
fn named_tokens_are_found() {
    let tokenizer = tokenizer(&["a", "b", "<end>", "<stop>"]);
    let named =
        |text: &str, tokens: &[Token]| compiled(&tokenizer, &GrammarSource::Lark(text.into())).named_token(tokens);
    assert_eq!(named("start: \"a\" <end> \"b\"", &[2, 3]), Some(2));
    assert_eq!(named("start: \"a\" <end> \"b\"", &[3]), None);
    assert_eq!(named("start: \"a\" <[2-3]> \"b\"", &[2, 3]), Some(2));
    assert_eq!(named("start: \"a\" <[2-3]> \"b\"", &[3]), None, "another may stand there");
    assert_eq!(named("start: \"a\" \"b\"", &[2, 3]), None);
}
