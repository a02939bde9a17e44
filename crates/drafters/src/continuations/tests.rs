//! Tests of the trees against the definition in the module's documentation, computed naively.

use proptest::prelude::*;

use super::*;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{DraftTree, Probes, Sampling, SequenceId};

/// Occurrences by scanning: source, position after the match, tokens that match (at least 1).
fn scan(texts: &[&[Token]]) -> Vec<(usize, usize, f32)> {
    let context = texts[0];
    let mut found = Vec::new();
    for (source, text) in texts.iter().enumerate() {
        for after in 1..text.len() + usize::from(source > 0) {
            if text[after - 1] == context[context.len() - 1] {
                found.push((source, after, matched(text, after, context)));
            }
        }
    }
    found
}

/// Acceptance of the last token of `path` once the tokens before it are written, by the definition.
fn acceptance(texts: &[&[Token]], shares: &[f32], window: usize, path: &[Token]) -> f32 {
    let mut extended = texts[0].to_vec();
    extended.extend(path);
    let (before, last) = (&path[..path.len() - 1], path[path.len() - 1]);
    let (mut right, mut all) = (0.0, PRIOR_WEIGHT);
    let empty = (texts[0].len().saturating_sub(window).max(1)..texts[0].len()).map(|next| (0, next, 0.0));
    for (source, after, matched) in scan(texts).into_iter().chain(empty) {
        let text: &[Token] = if source == 0 { &extended } else { texts[source] };
        let votes = text.get(after..after + path.len()).filter(|votes| !votes.contains(&END));
        // An occurrence at the end of its text has no vote, and one that voted for another token is not continued.
        let Some(votes) = votes else { continue };
        if votes[..before.len()] == *before {
            let weight = shares[source] * weight(matched + before.len() as f32, window);
            all += weight;
            if votes[before.len()] == last {
                right += weight;
            }
        }
    }
    right / all
}

fn tree_of(texts: &[&[Token]], shares: &[f32], window: usize, nodes_max: usize) -> DraftTree {
    let mut continuations = Continuations::default();
    let depth = (0.0, 99.0);
    for (source, text) in texts.iter().enumerate() {
        let mut history = History::new([1, 2, 4]);
        text.iter().for_each(|&token| history.push(token));
        continuations.gather(source, &history, texts[0], depth, 1000, false);
    }
    continuations.gather_empty(texts[0], window, depth);
    let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
    let mut ask = Ask::new(SequenceId(0), texts[0], &sampling, Limits::nodes(nodes_max), &mut tree, &mut probes);
    let sources: Vec<Source<'_>> =
        texts.iter().zip(shares).map(|(tokens, share)| Source { tokens, share: *share }).collect();
    let bounds = Bounds { nodes_max, depth_max: 99, token_min: 0.0, gain_min: 0.0 };
    continuations.offer(&mut ask, &sources, window, bounds);
    tree
}

#[test]
fn a_match_continues_beyond_a_gap() {
    let context = [1, 2, 3, 4, 5];
    assert_eq!(matched(&[9, 9, 4, 5, 6], 4, &context), 2.0);
    assert_eq!(matched(&[1, 2, 8, 4, 5, 6], 5, &context), 3.0, "one replaced");
    assert_eq!(matched(&[2, 3, 8, 4, 5, 6], 5, &context), 3.0, "one more in the text");
    assert_eq!(matched(&[1, 2, 4, 5, 6], 4, &context), 3.0, "one more in the context");
    assert_eq!(matched(&[1, 2, 8, 7, 5, 6], 5, &[1, 2, 3, 5]), 2.0, "two for one");
    assert_eq!(matched(&[9, 2, 8, 4, 5, 6], 5, &context), 2.0, "a single token before the gap does not count");
    assert_eq!(matched(&[7; 99], 50, &[7; 99]), MATCH_MAX as f32);
}

proptest! {
    #[test]
    fn trees_hold_the_nodes_of_the_highest_gain(
        own in prop::collection::vec(0..4_u32, 1..30),
        other in prop::collection::vec(0..5_u32, 0..24),
        share in prop::sample::select(vec![1.0_f32, 0.15]),
        window in prop::sample::select(vec![0_usize, 3, 10]),
        nodes_max in 0..14_usize,
    ) {
        // Token 4 is the end of a text.
        let other: Vec<Token> = other.into_iter().map(|token| if token == 4 { END } else { token }).collect();
        let (texts, shares) = ([&own[..], &other[..]], [1.0, share]);
        let tree = tree_of(&texts, &shares, window, nodes_max);
        let gain = |path: &[Token]| -> f32 {
            (1..=path.len()).map(|len| acceptance(&texts, &shares, window, &path[..len])).product()
        };
        let mut least = f32::INFINITY;
        for node in tree.nodes() {
            let expected = acceptance(&texts, &shares, window, &tree.path(node));
            prop_assert!((tree.acceptance(node) - expected).abs() < 1e-4, "{} for {expected}", tree.acceptance(node));
            let gain = gain(&tree.path(node));
            prop_assert!(gain <= least * 1.001, "{gain} after {least}");
            least = gain;
        }
        for parent in tree.nodes().map(Some).chain([None]) {
            for token in (0..4).filter(|token| tree.child(parent, *token).is_none()) {
                let mut path = parent.map_or(Vec::new(), |parent| tree.path(parent));
                path.push(token);
                let gain = gain(&path);
                let full = tree.len() == nodes_max;
                prop_assert!(if full { gain <= least * 1.001 } else { gain == 0.0 }, "{path:?} of {gain} is left out");
            }
        }
    }
}
