//! Tests of span copying against its definition.

use proptest::prelude::*;

use super::*;
use crate::trial::Trial;
use foretoken_speculation::Token;

/// The chain that is proposed after an answer, up to 20 tokens.
fn proposed(drafter: &mut LlmaDrafter, prediction: &[Token], prompt: &[Token], answer: &[Token]) -> Vec<Token> {
    let trial = Trial::greedy(20).after(prompt.len());
    drafter.open(&Opening { prediction, ..Opening::new(trial.sequence, prompt) });
    let tree = trial.draft(drafter, &[prompt, answer].concat());
    drafter.close(trial.sequence);
    assert!(tree.is_chain());
    tree.tokens().to_vec()
}

/// Span copying, straight from its definition.
fn naive(references: &[&[Token]], answer: &[Token], run_min: usize, copied_max: usize) -> Vec<Token> {
    for n in (run_min..=run_min.max(RUN_MAX)).rev().filter(|n| *n <= answer.len()) {
        let last = &answer[answer.len() - n..];
        for reference in references {
            if let Some(start) =
                (0..(reference.len() + 1).saturating_sub(n)).find(|at| reference[*at..*at + n] == *last)
            {
                return reference[start + n..].iter().take(copied_max).copied().collect();
            }
        }
    }
    Vec::new()
}

#[test]
fn the_longest_run_wins_and_then_the_earliest() {
    let mut drafter = LlmaDrafter::new(1, 3);
    let prompt = [2, 9, 9, 1, 2, 7, 7, 7, 1, 2, 8, 8];
    assert_eq!(proposed(&mut drafter, &[], &prompt, &[1, 2]), [7, 7, 7]);
    assert_eq!(proposed(&mut drafter, &[], &prompt, &[2]), [9, 9, 1]);
    assert_eq!(proposed(&mut drafter, &[], &prompt, &[3]), []);
    assert_eq!(proposed(&mut drafter, &[], &prompt, &[8, 8]), [], "nothing follows the end of the reference");
    assert_eq!(proposed(&mut LlmaDrafter::new(2, 3), &[], &prompt, &[2]), [], "a run of two is asked for");
}

#[test]
fn the_answer_is_never_copied_from_itself_nor_matched_across_the_prompts_end() {
    let mut drafter = LlmaDrafter::default();
    assert_eq!(proposed(&mut drafter, &[], &[1, 2, 3], &[]), []);
    assert_eq!(proposed(&mut drafter, &[], &[1, 2, 3], &[5, 6, 5]), []);
    let mut of_two = LlmaDrafter::new(2, 7);
    assert_eq!(proposed(&mut of_two, &[], &[1, 2, 3, 1], &[2]), []);
    assert_eq!(proposed(&mut of_two, &[], &[1, 2, 3, 1], &[1, 2]), [3, 1]);
}

#[test]
fn a_prediction_is_a_reference_of_its_own_before_the_prompt() {
    let mut drafter = LlmaDrafter::new(1, 4);
    assert_eq!(proposed(&mut drafter, &[4, 5, 6], &[4, 7, 8, 9, 9], &[4]), [5, 6], "not on into the prompt");
    assert_eq!(proposed(&mut drafter, &[4, 5, 6], &[6, 4, 7, 8], &[6, 4]), [7, 8], "a longer run elsewhere");
}

proptest! {
    #[test]
    fn every_copy_is_that_of_the_definition(
        prediction in prop::collection::vec(0..3_u32, 0..12),
        prompt in prop::collection::vec(0..3_u32, 1..40),
        answer in prop::collection::vec(0..3_u32, 0..12),
        (run_min, copied_max) in (1..8_usize, 1..9_usize),
    ) {
        let found = proposed(&mut LlmaDrafter::new(run_min, copied_max), &prediction, &prompt, &answer);
        prop_assert_eq!(found, naive(&[&prediction, &prompt], &answer, run_min, copied_max));
    }
}
