//! Texts at the limits of the library, with guesses on the way and without: each comes to its limit in the same place.

use std::sync::{Arc, Mutex};

use super::*;
use crate::grammar::{Grammar, GrammarSource, Matcher};
use crate::{GgufVocabulary, Token, Tokenizer};

const WORDS: [&str; 6] = ["a", "b", "ab", "ba", "bb", "aab"];

/// An expression that makes new states of nearly every text.
fn grammar() -> Arc<Grammar> {
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: WORDS.map(String::from).to_vec(),
        scores: vec![0.0; WORDS.len()],
        token_types: vec![1; WORDS.len()],
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf_vocabulary("toy", &vocabulary).expect("a good one");
    Grammar::compile(&tokenizer, &GrammarSource::Regex("(a|b)*a(a|b){14}".into())).expect("a good one")
}

/// The same grammar, with these limits beyond its beginning.
fn with_limits(grammar: &Grammar, fuel: usize, states: usize) -> Arc<Grammar> {
    let before = grammar.limits.before;
    let most = Taken { fuel: before.fuel + fuel, states: before.states + states };
    let (source, tables) = (grammar.source.clone(), Arc::clone(&grammar.tables));
    Arc::new(Grammar { source, first: Mutex::new(grammar.first()), limits: Limits { before, most }, tables })
}

/// Numbers that look like chance.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// What may come next, or why nothing may.
fn said(matcher: &mut Matcher) -> Result<(Vec<bool>, bool), String> {
    let allowed = matcher.allowed()?;
    Ok(((0..WORDS.len() as Token).map(|token| allowed.has(token)).collect(), allowed.may_end()))
}

/// Goes a few tokens further, asks there, and comes back.
fn guess(matcher: &mut Matcher, chance: &mut u64, deepest: usize) {
    let mut walked = 0;
    for _ in 0..next(chance) % deepest {
        walked += usize::from(matcher.accept((next(chance) % WORDS.len()) as Token));
        if next(chance).is_multiple_of(2) {
            let _ = said(matcher);
        }
        matcher.may_end();
        matcher.forced_bytes();
    }
    matcher.roll_back(walked);
}

/// What is said behind each token of a text, up to the first failure.
fn course(grammar: &Arc<Grammar>, text: &[Token], guesses: usize) -> Vec<Result<(Vec<bool>, bool), String>> {
    let (mut matcher, mut chance) = (grammar.matcher(), 7);
    let mut course = Vec::new();
    for token in text {
        for _ in 0..guesses {
            guess(&mut matcher, &mut chance, 12);
        }
        course.push(said(&mut matcher));
        if course.last().is_some_and(Result::is_err) || !matcher.accept(*token) {
            break;
        }
    }
    course
}

#[test]
fn a_text_goes_as_far_whether_it_is_asked_what_may_follow_or_not() {
    let grammar = grammar();
    let mut chance = 3;
    let text: Vec<Token> = (0..40).map(|_| (next(&mut chance) % WORDS.len()) as Token).collect();
    let limits = (0..12).map(|i| (1 << (i + 3), 1 << 20)).chain((0..10).map(|i| (1 << 30, 1 << i)));
    let (mut cut, mut failed) = (0, 0);
    for (fuel, states) in limits {
        let limited = with_limits(&grammar, fuel, states);
        let [mut asked, mut silent] = [limited.matcher(), limited.matcher()];
        for (at, token) in text.iter().enumerate() {
            failed += usize::from(asked.allowed().is_err());
            let going = [&mut asked, &mut silent].map(|matcher| (matcher.accept(*token), matcher.has_given_up()));
            assert_eq!(going[0], going[1], "{fuel} units, {states} states: token {at}");
            if going[0] != (true, false) {
                cut += 1;
                break;
            }
        }
    }
    assert!(cut >= 5 && failed > cut, "{cut} texts were cut, {failed} masks failed");
}

#[test]
fn guesses_bring_no_text_to_a_limit_and_none_past_it() {
    let grammar = grammar();
    let mut chance = 3;
    let text: Vec<Token> = (0..40).map(|_| (next(&mut chance) % WORDS.len()) as Token).collect();
    let (mut failed, mut passed) = (0, 0);
    let limits = (0..12).map(|i| (1 << (i + 3), 1 << 20)).chain((0..10).map(|i| (1 << 30, 1 << i)));
    for (fuel, states) in limits {
        let limited = with_limits(&grammar, fuel, states);
        let plain = course(&limited, &text, 0);
        assert_eq!(course(&limited, &text, 9), plain, "{fuel} units, {states} states");
        let (mut guessing, mut chance) = (with_limits(&grammar, 1 << 30, 1 << 20).matcher(), 7);
        (0..text.len() * 9).for_each(|_| guess(&mut guessing, &mut chance, 12));
        match plain.last() {
            Some(Ok(_)) if plain.len() == text.len() => {
                // Guesses alone take more than is allowed.
                let taken = limited.limits.hold(guessing.parser.taken());
                passed += usize::from(taken.is_err());
            }
            last => {
                assert!(last.is_some_and(Result::is_err), "{plain:?}");
                failed += 1;
            }
        }
    }
    assert!(failed >= 5 && passed >= 2, "{failed} courses ended at a limit, {passed} were spared one");
}

#[test]
fn a_limit_that_a_guess_reached_is_not_the_texts() {
    let grammar = grammar();
    let limited = with_limits(&grammar, 1 << 30, 6);
    let mut matcher = limited.matcher();
    let here = said(&mut matcher);
    let walked = (0..40).take_while(|i| matcher.accept([0, 1, 1, 0, 4][i % 5])).count();
    let failure = matcher.failure().map(str::to_string);
    assert!(failure.as_deref().is_some_and(|failure| failure.contains("states of the lexer")), "{failure:?}");
    assert_eq!(said(&mut matcher), Err(failure.unwrap_or_default()), "it stays so");
    assert!(!matcher.may_end() && !matcher.accept(0));
    matcher.roll_back(walked);
    assert_eq!(said(&mut matcher), here);
}
