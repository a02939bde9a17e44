//! Texts at the library's limits, with and without drafts: each reaches its limit at the same position.

use std::sync::{Arc, Mutex};

use super::*;
use crate::grammar::{Grammar, GrammarSource, Matcher};
use crate::{GgufVocabulary, Token, Tokenizer};

const WORDS: [&str; 6] = ["a", "b", "ab", "ba", "bb", "aab"];

/// An expression that needs new states for nearly every text.
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

/// The same grammar with other limits.
fn with_limits(grammar: &Grammar, fuel: usize, states: usize) -> Arc<Grammar> {
    let baseline = grammar.limits.baseline;
    let max = LexerUsage { fuel: baseline.fuel + fuel, states: baseline.states + states };
    let (source, tables) = (grammar.source.clone(), Arc::clone(&grammar.tables));
    Arc::new(Grammar { source, initial: Mutex::new(grammar.initial()), limits: Limits { baseline, max }, tables })
}

/// Pseudo-random numbers.
fn next_random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// The allowed tokens and whether the text may end, or the error.
fn allowed_or_error(matcher: &mut Matcher) -> Result<(Vec<bool>, bool), String> {
    let allowed = matcher.allowed()?;
    Ok(((0..WORDS.len() as Token).map(|token| allowed.has(token)).collect(), allowed.may_end()))
}

/// Accepts a few tokens, queries the matcher, and rolls back.
fn try_draft(matcher: &mut Matcher, random: &mut u64, deepest: usize) {
    let mut accepted = 0;
    for _ in 0..next_random(random) % deepest {
        accepted += usize::from(matcher.accept((next_random(random) % WORDS.len()) as Token));
        if next_random(random).is_multiple_of(2) {
            let _ = allowed_or_error(matcher);
        }
        matcher.may_end();
        matcher.forced_bytes();
    }
    matcher.roll_back(accepted);
}

/// The answers after each token of a text, up to the first failure.
fn answers(grammar: &Arc<Grammar>, text: &[Token], drafts: usize) -> Vec<Result<(Vec<bool>, bool), String>> {
    let (mut matcher, mut random) = (grammar.matcher(), 7);
    let mut answers = Vec::new();
    for token in text {
        for _ in 0..drafts {
            try_draft(&mut matcher, &mut random, 12);
        }
        answers.push(allowed_or_error(&mut matcher));
        if answers.last().is_some_and(Result::is_err) || !matcher.accept(*token) {
            break;
        }
    }
    answers
}

#[test]
fn computing_masks_does_not_change_how_far_a_text_gets() {
    let grammar = grammar();
    let mut random = 3;
    let text: Vec<Token> = (0..40).map(|_| (next_random(&mut random) % WORDS.len()) as Token).collect();
    let limits = (0..12).map(|i| (1 << (i + 3), 1 << 20)).chain((0..10).map(|i| (1 << 30, 1 << i)));
    let (mut stopped, mut failed) = (0, 0);
    for (fuel, states) in limits {
        let limited = with_limits(&grammar, fuel, states);
        let [mut asked, mut not_asked] = [limited.matcher(), limited.matcher()];
        for (at, token) in text.iter().enumerate() {
            failed += usize::from(asked.allowed().is_err());
            let outcomes = [&mut asked, &mut not_asked].map(|matcher| (matcher.accept(*token), matcher.has_given_up()));
            assert_eq!(outcomes[0], outcomes[1], "{fuel} units, {states} states: token {at}");
            if outcomes[0] != (true, false) {
                stopped += 1;
                break;
            }
        }
    }
    assert!(stopped >= 5 && failed > stopped, "{stopped} texts stopped, {failed} masks failed");
}

#[test]
fn drafts_do_not_change_where_a_limit_is_reached() {
    let grammar = grammar();
    let mut random = 3;
    let text: Vec<Token> = (0..40).map(|_| (next_random(&mut random) % WORDS.len()) as Token).collect();
    let (mut failed, mut passed) = (0, 0);
    let limits = (0..12).map(|i| (1 << (i + 3), 1 << 20)).chain((0..10).map(|i| (1 << 30, 1 << i)));
    for (fuel, states) in limits {
        let limited = with_limits(&grammar, fuel, states);
        let plain = answers(&limited, &text, 0);
        assert_eq!(answers(&limited, &text, 9), plain, "{fuel} units, {states} states");
        let (mut drafted, mut random) = (with_limits(&grammar, 1 << 30, 1 << 20).matcher(), 7);
        (0..text.len() * 9).for_each(|_| try_draft(&mut drafted, &mut random, 12));
        match plain.last() {
            Some(Ok(_)) if plain.len() == text.len() => {
                // The drafts alone use more than is allowed.
                let usage = limited.limits.check(drafted.parser.usage());
                passed += usize::from(usage.is_err());
            }
            last => {
                assert!(last.is_some_and(Result::is_err), "{plain:?}");
                failed += 1;
            }
        }
    }
    assert!(failed >= 5 && passed >= 2, "{failed} texts reached a limit, {passed} had drafts beyond one");
}

#[test]
fn a_limit_that_only_a_draft_reached_does_not_fail_the_text() {
    let grammar = grammar();
    let limited = with_limits(&grammar, 1 << 30, 6);
    let mut matcher = limited.matcher();
    let here = allowed_or_error(&mut matcher);
    let accepted = (0..40).take_while(|i| matcher.accept([0, 1, 1, 0, 4][i % 5])).count();
    let failure = matcher.failure().map(str::to_string);
    assert!(failure.as_deref().is_some_and(|failure| failure.contains("states of the lexer")), "{failure:?}");
    assert_eq!(allowed_or_error(&mut matcher), Err(failure.unwrap_or_default()), "the failure persists");
    assert!(!matcher.may_end() && !matcher.accept(0));
    matcher.roll_back(accepted);
    assert_eq!(allowed_or_error(&mut matcher), here);
}
