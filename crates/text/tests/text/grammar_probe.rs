//! Properties of any grammar: it is refused in one line, or its masks agree with the tokens that it accepts at every
//! position of a short text. Shared by the fuzz target and the tests.

use std::sync::OnceLock;

use foretoken_text::{GgufVocabulary, Grammar, GrammarSource, Token, Tokenizer};

/// The vocabulary: parts of JSON, letters, a character of two bytes, and a special token.
const WORDS: [&str; 16] = ["a", "b", "x", "1", "\"", "{", "[", "{\"", ",", "]", "}", "ab", "<end>", "(", ":", "é"];

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let vocabulary = GgufVocabulary {
            model: "llama".into(),
            tokens: WORDS.map(String::from).to_vec(),
            scores: vec![0.0; WORDS.len()],
            token_types: WORDS.iter().map(|word| if word.starts_with('<') { 3 } else { 1 }).collect(),
            ..GgufVocabulary::default()
        };
        Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good vocabulary")
    })
}

/// Any bytes as a grammar; the first byte selects the notation, and the token to continue with.
pub fn grammars(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest).into_owned();
    let source = match first % 6 {
        0 => GrammarSource::JsonSchema { schema: text, flexible: false },
        1 => GrammarSource::JsonSchema { schema: text, flexible: true },
        2 => GrammarSource::Regex(text),
        3 => GrammarSource::Lark(text),
        4 => GrammarSource::Gbnf(text),
        _ => GrammarSource::Choices(text.split('\n').map(str::to_string).collect()),
    };
    let grammar = match Grammar::compile(tokenizer(), &source) {
        Ok(grammar) => grammar,
        Err(error) => {
            let error = error.to_string();
            assert!(error.lines().count() == 1 && error.len() < 1100, "{error}");
            assert!(error.starts_with(&format!("{}: ", source.name())), "{error}");
            return;
        }
    };
    let mut matcher = grammar.matcher();
    let (mut written, mut other) = (0, Vec::new());
    for step in 0..6 {
        // At a limit the request ends.
        let Ok(allowed) = matcher.allowed() else { return };
        assert_eq!(allowed.may_end(), matcher.may_end(), "{source:?}");
        let mut next: Vec<Token> = Vec::new();
        for token in 0..WORDS.len() as Token {
            let accepted = matcher.accept(token);
            assert_eq!(accepted, allowed.has(token), "{source:?}: {:?}", WORDS[token as usize]);
            matcher.roll_back(usize::from(accepted));
            next.extend(accepted.then_some(token));
        }
        let Some(token) = next.get((usize::from(first) + step) % next.len().max(1)) else { break };
        assert!(matcher.accept(*token), "{source:?}");
        written += 1;
        other.push(next[(usize::from(first) + step + 1) % next.len()]);
    }
    // Another text at the same positions, compared with a fresh matcher.
    matcher.roll_back(written);
    let mut fresh = grammar.matcher();
    for token in other {
        let accepted = matcher.accept(token);
        assert_eq!(accepted, fresh.accept(token), "{source:?}");
        let (Ok(allowed), Ok(of_fresh)) = (matcher.allowed(), fresh.allowed()) else { return };
        for token in 0..WORDS.len() as Token {
            assert_eq!(allowed.has(token), of_fresh.has(token), "{source:?}: {:?}", WORDS[token as usize]);
        }
    }
}
