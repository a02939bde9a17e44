//! Tests of the window against examples worked out by hand, and of drafts for a target with a short period.

use super::*;
use crate::trial::Trial;
use foretoken_speculation::DraftTree;

const SEQUENCE: SequenceId = SequenceId(1);

/// A greedy target: the next token, given all tokens of the sequence and of a path after it.
type Target = dyn Fn(&[Token]) -> Token;

/// One pass as the engine makes it; returns the number of tokens written and of probes.
fn pass(
    drafter: &mut JacobiDrafter,
    text: &mut Vec<Token>,
    room: usize,
    nodes_max: usize,
    target: &Target,
) -> (usize, usize) {
    let (mut probes, old_len) = (Probes::default(), text.len());
    probes.clear(room);
    let tree = Trial::greedy(nodes_max).draft_with(drafter, text, &mut probes);
    let mut path: Vec<NodeId> = Vec::new();
    let old = text.clone();
    loop {
        let token = target(text);
        text.push(token);
        match tree.child(path.last().copied(), token) {
            Some(node) => path.push(node),
            None => break,
        }
    }
    let rows: Vec<Vec<f32>> = (0..probes.len()).map(|probe| row(&old, &probes, probe, target)).collect();
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    drafter.observe(&[StepOutput {
        sequence: SEQUENCE,
        tokens: text,
        emitted: &text[old_len..],
        tree: &tree,
        path: &path,
        probes: &rows,
        hidden_from: 0,
        hidden: &[],
    }]);
    (text.len() - old_len, probes.len())
}

/// Logits after a probe: those of the target after the sequence and the probe's ancestors.
fn row(text: &[Token], probes: &Probes, probe: usize, target: &Target) -> Vec<f32> {
    let mut path = Vec::new();
    let mut at = Some(probe);
    while let Some(probe) = at {
        path.push(probes.tokens()[probe]);
        at = probes.parents()[probe].map(|parent| parent as usize);
    }
    let tokens: Vec<Token> = text.iter().copied().chain(path.into_iter().rev()).collect();
    let mut row = vec![0.0; 16];
    row[target(&tokens) as usize] = 1.0;
    row
}

/// The successor modulo 10: a period of ten.
fn successor(tokens: &[Token]) -> Token {
    (tokens[tokens.len() - 1] + 1) % 10
}

fn opened(columns: usize, ngram: usize, guesses_max: usize, prompt: &[Token]) -> JacobiDrafter {
    let mut drafter = JacobiDrafter::new(columns, ngram, guesses_max);
    drafter.open(&Opening::new(SEQUENCE, prompt));
    drafter
}

#[test]
fn the_window_fills_level_by_level_and_is_a_trunk_with_columns() {
    let mut drafter = opened(3, 4, 2, &[5]);
    assert_eq!(drafter.probes(), 8);
    let mut text = vec![5];
    let found: Vec<usize> = (0..4).map(|_| pass(&mut drafter, &mut text, 8, 0, &successor).1).collect();
    // W + N - 3 tokens; one column less and a level more; then W - 1 and two levels of W.
    assert_eq!(found, [4, 3 + 4, 2 + 3 + 3, 8]);
    let mut probes = Probes::default();
    probes.clear(8);
    Trial::greedy(0).draft_with(&mut drafter, &text, &mut probes);
    let parents: Vec<Option<u32>> = probes.parents().to_vec();
    assert_eq!(parents, [None, Some(0), None, Some(2), Some(0), Some(4), Some(1), Some(6)]);
}

#[test]
fn the_window_moves_as_in_the_paper() {
    // Every row predicts the successor of its own token, so each level is one more than the level below it.
    let mut drafter = opened(3, 3, 4, &[5]);
    drafter.pool_from_text = false;
    let mut text = vec![5];
    let levels = |drafter: &JacobiDrafter| drafter.sequences[&SEQUENCE].levels.clone();
    assert_eq!(levels(&drafter), [vec![5, 5, 5]]);
    pass(&mut drafter, &mut text, 9, 0, &successor);
    assert_eq!(levels(&drafter), [vec![5, 5], vec![6, 6, 6]]);
    pass(&mut drafter, &mut text, 9, 0, &successor);
    assert_eq!(levels(&drafter), [vec![6, 6], vec![7, 7, 7]]);
    // The pending token was 6; the n-grams begin with it and with the trunk, which was 5.
    let guesses =
        |first: Token| drafter.sequences[&SEQUENCE].pool.guesses(first).map(<[_]>::to_vec).collect::<Vec<_>>();
    assert_eq!(guesses(6), [[6, 7]]);
    assert_eq!(guesses(5), [[6, 7]]);
    assert!(guesses(7).is_empty());
}

#[test]
fn windows_never_ask_for_more_probes_than_declared() {
    for columns in 1..6 {
        for ngram in 3..7 {
            let mut drafter = opened(columns, ngram, 2, &[1, 2]);
            let (mut text, room) = (vec![1, 2], drafter.probes());
            let widest = (0..8).map(|_| pass(&mut drafter, &mut text, room, 4, &successor).1).max();
            assert_eq!(widest, Some(room), "W {columns}, N {ngram}");
        }
    }
    assert_eq!(JacobiDrafter::default().probes(), 8);
    assert_eq!(JacobiDrafter::new(15, 5, 15).probes(), 59);
}

#[test]
fn a_text_of_a_short_period_is_written_several_tokens_a_pass() {
    for (columns, ngram, guesses_max) in [(3, 4, 2), (5, 3, 3), (4, 5, 1), (2, 3, 1)] {
        for pool_from_text in [false, true] {
            for keeps_pace in [false, true] {
                let mut drafter = opened(columns, ngram, guesses_max, &[0, 1, 2, 3]);
                (drafter.pool_from_text, drafter.keeps_pace) = (pool_from_text, keeps_pace);
                let mut text = vec![0, 1, 2, 3];
                let passes = 60;
                for _ in 0..passes {
                    pass(&mut drafter, &mut text, 99, 16, &successor);
                }
                let each = (text.len() - 4) as f64 / f64::from(passes);
                assert!(each > 1.5, "W {columns}, N {ngram}, G {guesses_max}: {each} tokens a pass");
                assert!(text.windows(2).all(|two| two[1] == (two[0] + 1) % 10));
            }
        }
    }
}

#[test]
fn without_room_the_window_stays_and_the_pool_is_still_offered() {
    let mut drafter = opened(3, 4, 2, &[1, 2, 3, 4, 1]);
    let mut text = vec![1, 2, 3, 4, 1];
    let levels = drafter.sequences[&SEQUENCE].levels.clone();
    let (written, probes) = pass(&mut drafter, &mut text, 3, 6, &successor);
    assert_eq!((written, probes), (4, 0), "2 3 4 of the prompt, and one of the target's own");
    assert_eq!(drafter.sequences[&SEQUENCE].levels, levels);
}

#[test]
fn end_tokens_are_replaced_in_the_window_and_equal_beginnings_share_their_nodes() {
    let mut drafter = opened(4, 3, 3, &[1, 2, 3, 1, 2, 4, 1, 5, 6, 1]);
    let mut trial = Trial::greedy(9);
    trial.sampling.end_tokens = vec![7];
    let mut probes = Probes::default();
    probes.clear(99);
    let text = vec![1, 2, 3, 1, 2, 4, 1, 5, 6, 1];
    let tree = trial.draft_with(&mut drafter, &text, &mut probes);
    let found: Vec<(Vec<Token>, f32)> =
        tree.offers().iter().map(|offer| (tree.path(offer.node), offer.evidence.acceptance)).collect();
    let expected: [(Vec<Token>, f32); 5] =
        [(vec![5], 0.2), (vec![5, 6], 0.6), (vec![2], 0.4), (vec![2, 4], 0.3), (vec![2, 3], 0.3)];
    for ((path, acceptance), (wanted, odds)) in found.iter().zip(&expected) {
        assert!(path == wanted && (acceptance - odds).abs() < 1e-6, "{found:?}");
    }
    assert_eq!(found.len(), 5);
    let mut row = [0.0; 8];
    row[7] = 1.0;
    let rows = vec![&row[..]; probes.len()];
    let longer = [&text[..], &[2]].concat();
    drafter.observe(&[StepOutput {
        sequence: SEQUENCE,
        tokens: &longer,
        emitted: &[2],
        tree: &DraftTree::new(),
        path: &[],
        probes: &rows,
        hidden_from: 0,
        hidden: &[],
    }]);
    assert!(drafter.sequences[&SEQUENCE].levels.iter().flatten().all(|token| *token != 7));
}
