//! The fast masks equal the library's own at every position.

use super::*;
use crate::grammar::tests::{compiled, schema};
use crate::{GgufVocabulary, GrammarSource, Tokenizer};

/// Characters of one byte and of several, single bytes of these, and tokens that mix them.
fn tokenizer() -> Tokenizer {
    let mut words: Vec<String> = (' '..='~').map(String::from).collect();
    words.extend(
        [
            "<0xE2>",
            "<0x82>",
            "<0xAC>",
            "<0xC3>",
            "<0xA9>",
            "<0xF0>",
            "<0x9F>",
            "\n",
            "\u{7f}",
            "é",
            "€",
            "😀",
            "ab",
            "aé",
            "é\"",
            "é\",",
            "\",\"",
            "\":\"",
            "a\"",
            "ab\"]",
            "€€€",
            "€\"a",
            "b\n",
            "c\\n",
            "😀a",
            "1.5",
            "true",
            "{\"ab\"",
            "abab",
            "aaaaa",
            "é\\",
            "\u{7f}a",
        ]
        .map(String::from),
    );
    words.extend([31, 32, 33, 34, 40].map(|len| "a".repeat(len)));
    words.extend([31, 32, 33].map(|len| format!("{}\"", "é".repeat(len))));
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        scores: vec![0.0; words.len()],
        token_types: words.iter().map(|word| if word.starts_with("<0x") { 6 } else { 1 }).collect(),
        tokens: words,
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good one")
}

/// Grammars with strings of many kinds, and with similar expressions.
fn grammars() -> Vec<GrammarSource> {
    let mut sources: Vec<GrammarSource> = [
        r#"{"type": "string"}"#,
        r#"{"type": "string", "maxLength": 5}"#,
        r#"{"type": "string", "minLength": 2, "maxLength": 40}"#,
        r#"{"type": "string", "pattern": "^[a-c]+b.{2,4}$"}"#,
        r#"{"type": "array", "items": {"type": "string", "maxLength": 2}}"#,
        r#"{"type": "object", "properties": {"ab": {"enum": ["a", "aa", "b"]}, "b": true}}"#,
        r#"{"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}}"#,
        "{}",
    ]
    .map(schema)
    .into();
    // Expressions that distinguish characters of several bytes, or lengths, or neither.
    let expressions = [
        "(a.{0,3}b)*",
        r#"[^"\\\n]*"#,
        ".{3}",
        "(?s).*",
        "[^é]*",
        "[^€]{0,4}!",
        "[\\x00-\\x7f]{1,6}",
        "[a-zé-ü]{2}",
        "[ -~\u{7f}-\u{10fff0}]*",
        r#"[^"\\]{31,33}"#,
    ];
    sources.extend(expressions.map(|expression| GrammarSource::Regex(expression.into())));
    let larks =
        ["start: A B\nA: /[a-z]{1,4}/\nB: /[^a]*/", "start: (A B)+\nA: /[^0-9\"\\\\\\x00-\\x1f]{1,4}/\nB: /[^a]/"];
    sources.extend(larks.map(|text| GrammarSource::Lark(text.into())));
    sources
}

#[test]
fn fast_masks_equal_the_library_s() {
    let tokenizer = tokenizer();
    let (mut fast, mut random) = (0, 1u64);
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for grammar in grammars() {
        let compiled_grammar = compiled(&tokenizer, &grammar);
        for _ in 0..60 {
            let mut matcher = compiled_grammar.matcher();
            for position in 0..30 {
                let (expected, is_fast) = matcher.parser.library_mask();
                let allowed = matcher.allowed().expect("within the limits");
                fast += usize::from(is_fast);
                let tokens: Vec<Token> = (0..tokenizer.vocabulary_len() as Token).filter(|t| allowed.has(*t)).collect();
                let all: Vec<Token> = expected.iter().filter(|t| (*t as usize) < tokenizer.vocabulary_len()).collect();
                assert_eq!(tokens, all, "{grammar:?}, position {position} after {:?}", matcher.accepted());
                if tokens.is_empty() {
                    break;
                }
                assert!(matcher.accept(tokens[next(tokens.len())]), "a token of the mask");
            }
        }
    }
    assert!(fast > 5000, "{fast} masks took the fast path");
}

#[test]
fn tokens_are_split_after_their_leading_plain_characters() {
    for (word, expected) in
        [("ab\"]", (2, "\"]")), ("é€", (2, "")), ("\"a", (0, "\"a")), ("a\nb", (1, "\nb")), ("\u{7f}", (0, "\u{7f}"))]
    {
        assert_eq!(leading(word.as_bytes()), (expected.0, expected.1.as_bytes()), "{word:?}");
    }
    assert_eq!(leading(b"a\xe2\x82"), (1, &b"\xe2\x82"[..]), "a part of a character");
    assert_eq!(leading(&[b'a'; 40]), (LEADING_MAX, &[b'a'; 40 - LEADING_MAX][..]));
}
