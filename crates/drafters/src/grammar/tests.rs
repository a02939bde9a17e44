//! Tests of the grammar drafter with a toy constraint: preferred tokens, ends of values, and bounded work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Constraint, DraftTree, Probes, Sampling, TokenSet};

use super::*;
use crate::trial::Likeliest;

const SEQUENCE: SequenceId = SequenceId(3);
/// A usual token of two letters.
const PAIR: Token = 7;
/// One letter.
const LETTER: Token = 8;
/// Letters of the text.
const LEN: usize = 8000;

/// A constraint of [`LEN`] letters, usually in tokens of two; then the text is free, and a value may end by token 1 or
/// 2.
#[derive(Clone, Default)]
struct Letters {
    written: Vec<Token>,
    asked: Arc<AtomicUsize>,
}

impl Letters {
    fn letters(&self) -> usize {
        self.written.iter().map(|token| if *token == PAIR { 2 } else { 1 }).sum()
    }
}

impl Constraint for Letters {
    fn allowed(&mut self) -> TokenSet {
        TokenSet::all()
    }

    fn accept(&mut self, token: Token) -> bool {
        self.written.push(token);
        true
    }

    fn roll_back(&mut self, tokens: usize) {
        self.written.truncate(self.written.len() - tokens);
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }

    fn foreseen(&mut self) -> Vec<Token> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        vec![PAIR; LEN.saturating_sub(self.letters()) / 2]
    }

    fn endings(&mut self) -> Vec<Ending> {
        vec![Ending { tokens: vec![1, 5], others: vec![2] }]
    }
}

fn draft(drafter: &mut GrammarDrafter, constraint: &Constrained, tokens: &[Token]) -> DraftTree {
    let (mut tree, mut probes) = (DraftTree::new(), Probes::default());
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let ask = Ask {
        constraint: Some(constraint),
        ..Ask::new(SEQUENCE, tokens, &sampling, Limits::nodes(9), &mut tree, &mut probes)
    };
    drafter.draft(&mut [ask], &mut Likeliest::default());
    tree
}

fn observe(drafter: &mut GrammarDrafter, constraint: &Constrained, tokens: &mut Vec<Token>, emitted: &[Token]) {
    tokens.extend_from_slice(emitted);
    assert!(constraint.advance(emitted));
    let (tree, path, probes, hidden_from, hidden) = (&DraftTree::new(), &[][..], &[][..], 0, &[][..]);
    drafter.observe(&[StepOutput { sequence: SEQUENCE, tokens, emitted, tree, path, probes, hidden_from, hidden }]);
}

#[test]
fn preferred_tokens_are_learned_and_a_long_string_is_split_again_a_few_times_only() {
    let letters = Letters::default();
    let asked = Arc::clone(&letters.asked);
    let constraint = Constrained::new(Box::new(letters));
    let (mut drafter, mut tokens) = (GrammarDrafter::default(), vec![0]);
    drafter.open(&Opening::new(SEQUENCE, &tokens));
    assert_eq!(draft(&mut drafter, &constraint, &tokens).tokens(), [PAIR; 9]);
    observe(&mut drafter, &constraint, &mut tokens, &[PAIR, LETTER]);
    asked.store(0, Ordering::Relaxed);
    let drafted = draft(&mut drafter, &constraint, &tokens);
    assert_eq!(drafted.tokens()[..5], [LETTER, LETTER, LETTER, LETTER, PAIR]);
    assert_eq!(asked.load(Ordering::Relaxed), 1 + PREFERRED_IN_STRING_MAX);
    // The usual token was written after all.
    observe(&mut drafter, &constraint, &mut tokens, &[PAIR]);
    assert_eq!(draft(&mut drafter, &constraint, &tokens).tokens(), [PAIR; 9]);
}

#[test]
fn where_the_text_is_free_the_end_of_a_value_is_proposed() {
    let free = Letters { written: vec![LETTER; LEN], ..Letters::default() };
    let constraint = Constrained::new(Box::new(free));
    let (mut drafter, mut tokens) = (GrammarDrafter::default(), vec![0]);
    drafter.open(&Opening::new(SEQUENCE, &tokens));
    assert_eq!(draft(&mut drafter, &constraint, &tokens).tokens(), [1, 5]);
    observe(&mut drafter, &constraint, &mut tokens, &[2]);
    assert_eq!(draft(&mut drafter, &constraint, &tokens).tokens(), [2]);
    observe(&mut drafter, &constraint, &mut tokens, &[1]);
    assert_eq!(draft(&mut drafter, &constraint, &tokens).tokens(), [1, 5]);
    drafter.close(SEQUENCE);
    assert!(draft(&mut drafter, &constraint, &tokens).is_empty());
}
