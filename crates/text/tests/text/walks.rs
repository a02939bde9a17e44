//! Helpers for tests of many schemas: matching a text, random texts drawn from masks, and an independent validator.

use std::sync::Arc;

use foretoken_text::{Grammar, GrammarSource, Token, Tokenizer};
use serde_json::Value;

use crate::TARGET;

/// Compiles a schema for the demo model's vocabulary, which has every byte.
pub fn compile(schema: &Value) -> Result<Arc<Grammar>, String> {
    let source = GrammarSource::JsonSchema { schema: schema.to_string(), flexible: false };
    Grammar::compile(&TARGET, &source).map_err(|error| error.to_string())
}

/// The tokens of one byte, by their bytes.
fn of_bytes(tokenizer: &Tokenizer) -> [Token; 256] {
    let mut tokens = [Token::MAX; 256];
    for token in (0..tokenizer.vocabulary_len() as Token).filter(|token| !tokenizer.is_special(*token)) {
        if let [byte] = tokenizer.token_bytes(token) {
            tokens[usize::from(*byte)] = token;
        }
    }
    tokens
}

/// Whether a grammar matches this text, byte by byte and in the tokenizer's tokens.
pub fn matches(grammar: &Arc<Grammar>, text: &str) -> bool {
    static BYTES: std::sync::OnceLock<[Token; 256]> = std::sync::OnceLock::new();
    let bytes = BYTES.get_or_init(|| of_bytes(&TARGET));
    let walk = |tokens: &[Token]| {
        let mut matcher = grammar.matcher();
        tokens.iter().all(|token| matcher.accept(*token)) && matcher.may_end()
    };
    let of_bytes: Vec<Token> = text.bytes().map(|byte| bytes[usize::from(byte)]).collect();
    let matches = walk(&of_bytes);
    let tokens = TARGET.encode_plain(text).expect("the vocabulary has every byte");
    assert_eq!(walk(&tokens), matches, "{text:?}: bytes and tokens differ");
    matches
}

/// A deterministic pseudo-random number generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((number ^ (number >> 31)) % bound as u64) as usize
    }
}

/// A random text of a grammar, each token drawn from its mask; `None` if it did not end within `bound` tokens, or the
/// library gave up. The first `free` tokens are any, later ones prefer closing brackets.
pub fn random_text(grammar: &Arc<Grammar>, random: &mut Random, free: usize, bound: usize) -> Option<String> {
    let mut matcher = grammar.matcher();
    let mut bytes = Vec::new();
    let len = TARGET.vocabulary_len();
    for step in 0..bound {
        let allowed = matcher.allowed().ok()?;
        let tokens: Vec<Token> = (0..len as Token).filter(|token| allowed.has(*token)).collect();
        if allowed.may_end() && (tokens.is_empty() || step >= free || random.below(4) == 0) {
            return Some(String::from_utf8(bytes).expect("texts of grammars are UTF-8"));
        }
        let closing = |text: &[u8]| matches!(text, b"}" | b"]" | b"\"" | b"\"}" | b"\"]" | b"0" | b":");
        let closes: Vec<Token> = tokens.iter().copied().filter(|token| closing(TARGET.token_bytes(*token))).collect();
        let from = if !closes.is_empty() && (step >= free || random.below(3) == 0) { &closes } else { &tokens };
        let token = *from.get(random.below(from.len().max(1)))?;
        assert!(matcher.accept(token), "{:?} is allowed", TARGET.token_bytes(token));
        bytes.extend_from_slice(TARGET.token_bytes(token));
    }
    None
}

/// An independent validator; `None` for a schema that it refuses.
pub fn judge(schema: &Value) -> Option<jsonschema::Validator> {
    jsonschema::options().should_validate_formats(true).build(schema).ok()
}

/// The validator's error for a text. Numbers with more digits than a float are not checked.
pub fn fault(judge: &jsonschema::Validator, text: &str) -> Option<String> {
    if text.as_bytes().windows(16).any(|digits| digits.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    match serde_json::from_str(text) {
        Ok(value) => judge.validate(&value).err().map(|error| error.to_string()),
        // It is JSON, but this parser cannot represent the number.
        Err(error) if error.to_string().starts_with("number out of range") => None,
        Err(error) => Some(error.to_string()),
    }
}
