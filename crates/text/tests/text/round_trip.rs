//! Round trips of text: at once, in pieces, and after rollbacks.

use std::sync::Arc;

use foretoken_text::{TextStream, Token, Tokenizer};
use proptest::prelude::*;

use crate::{OTHER, TARGET, load};

/// The text that decoding can restore: a tokenizer with a dummy prefix cannot distinguish it from a space in the text.
fn restorable(tokenizer: &Tokenizer, text: &str) -> String {
    if tokenizer.drops_first_space() { text.strip_prefix(' ').unwrap_or(text).to_owned() } else { text.to_owned() }
}

fn stream_text(tokenizer: &Arc<Tokenizer>, tokens: &[Token], skip: bool) -> String {
    let mut stream = TextStream::new(Arc::clone(tokenizer), &[]).skip_special(skip);
    let mut text: String = tokens.iter().map(|&token| stream.push(token)).collect();
    text.push_str(stream.finish());
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn text_survives(text in "\\PC*|.{0,40}|[ a-zäß我😁\\n\\t]{0,40}") {
        for tokenizer in [&*TARGET, &*OTHER] {
            let tokens = tokenizer.encode_plain(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens, true), restorable(tokenizer, &text));
        }
    }

    #[test]
    fn pieces_are_the_whole(tokens in prop::collection::vec(0_u32..4100, 0..24), skip in any::<bool>()) {
        for tokenizer in [&*TARGET, &*OTHER] {
            prop_assert_eq!(stream_text(tokenizer, &tokens, skip), tokenizer.decode(&tokens, skip));
        }
    }

    /// The low ids of these vocabularies are single bytes, so characters break in every possible way.
    #[test]
    fn pieces_of_bytes_are_the_whole(tokens in prop::collection::vec(0_u32..300, 0..24)) {
        for tokenizer in [&*TARGET, &*OTHER] {
            prop_assert_eq!(stream_text(tokenizer, &tokens, true), tokenizer.decode(&tokens, true));
        }
    }
}

#[test]
fn no_piece_ends_inside_a_character() {
    let text = "naïve 😶‍🌫️ 工作 ½";
    for tokenizer in [&*TARGET, &*OTHER] {
        let tokens = tokenizer.encode(text, false).unwrap();
        let mut stream = TextStream::new(Arc::clone(tokenizer), &[]);
        let mut seen = String::new();
        for &token in &tokens {
            seen.push_str(&stream.push(token));
            assert!(text.starts_with(&seen), "{seen:?}");
        }
        assert_eq!((seen.as_str(), stream.finish()), (text, ""));
    }
}

#[test]
fn a_continuation_keeps_its_space() {
    let tokenizer = &*OTHER;
    assert!(tokenizer.drops_first_space());
    let word = tokenizer.encode("the", false).unwrap();
    let text = |prompt: &[Token]| {
        let mut stream = TextStream::new(Arc::clone(tokenizer), prompt);
        word.iter().map(|&token| stream.push(token)).collect::<String>()
    };
    assert_eq!(text(&[]), "the");
    // Special tokens do not count as text.
    assert_eq!(text(&[0, 1]), "the");
    assert_eq!(text(&tokenizer.encode("of", false).unwrap()), " the");
}

#[test]
fn special_tokens_are_parsed_only_where_wanted() {
    for tokenizer in [&*TARGET, &*OTHER] {
        let text = "<|user|>hi<|end|>";
        let tokens = tokenizer.encode(text, true).unwrap();
        let specials = tokens.iter().filter(|&&token| tokenizer.is_special(token)).count();
        assert_eq!(specials, 2);
        assert_eq!(tokenizer.decode(&tokens, true), "hi");
        let plain = tokenizer.encode_plain(text).unwrap();
        assert!(plain.iter().all(|&token| !tokenizer.is_special(token)));
        assert_eq!(tokenizer.decode(&plain, true), text);
    }
    assert_eq!(TARGET.decode(&TARGET.encode("<|user|>hi<|end|>", false).unwrap(), false), "<|user|>hi<|end|>");
}

#[test]
fn special_tokens_of_the_demo_models() {
    assert_eq!((TARGET.vocabulary_len(), OTHER.vocabulary_len()), (8192, 4096));
    assert_eq!((TARGET.end_tokens(), TARGET.turn_end_tokens()), (&[0][..], &[6][..]));
    assert_eq!((TARGET.bos(), TARGET.adds_bos()), (None, false));
    assert_eq!(TARGET.token_bytes(0), b"<|endoftext|>");
    assert!(TARGET.token_bytes(Token::MAX).is_empty() && !TARGET.is_special(Token::MAX));
    let json = |file: &str| std::fs::read(crate::model("demo-target").join(file)).unwrap();
    let embedded = Tokenizer::from_json("demo", &json("tokenizer.json"), Some(&json("tokenizer_config.json"))).unwrap();
    assert_eq!((embedded.end_tokens(), embedded.fingerprint()), (TARGET.end_tokens(), TARGET.fingerprint()));
}

#[test]
fn vocabularies_are_compared_by_bytes() {
    let draft = load("demo-draft");
    assert_eq!(TARGET.same_vocabulary(&draft), Ok(()));
    assert_eq!(TARGET.fingerprint(), draft.fingerprint());
    assert_ne!(TARGET.fingerprint(), OTHER.fingerprint());
    let difference = TARGET.same_vocabulary(&OTHER).unwrap_err();
    assert!(difference.starts_with("token 6 is \"<|end|>\" in "), "{difference}");
}

#[test]
fn long_texts_are_encoded_in_pieces() {
    let tokenizer = load("demo-target");
    let text = "fn main() { println!(\"long\"); }\n".repeat(50_000);
    assert!(text.len() > 1 << 20);
    let pieces = tokenizer.encode_in_pieces(&text, true).unwrap();
    assert_eq!(pieces, tokenizer.encode(&text, true).unwrap());
    assert_eq!(tokenizer.encode_in_pieces("ab", true).unwrap(), tokenizer.encode("ab", true).unwrap());
    // Characters are never split.
    let line = "\u{1F60A}".repeat(300_000);
    assert_eq!(tokenizer.decode(&tokenizer.encode_in_pieces(&line, false).unwrap(), true), line);
    let longest = (0..tokenizer.vocabulary_len() as u32).map(|token| tokenizer.token_bytes(token).len()).max();
    assert_eq!(longest, Some(tokenizer.token_bytes_max()));
}
