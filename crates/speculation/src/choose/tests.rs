//! Merging: what stays, in which order, and what drafters are believed. (That the law stays is proved by enumeration, in
//! the workshop's tests.)

use super::*;
use crate::{Evidence, Law, Token};

/// A chain of points below `parent`, each with this acceptance.
fn chain(tree: &mut DraftTree, parent: Option<NodeId>, tokens: &[Token], source: u8, acceptance: f32) -> Vec<NodeId> {
    let mut path: Vec<NodeId> = Vec::new();
    for token in tokens {
        let above = path.last().copied().or(parent);
        path.push(tree.suggest(above, *token, Proposal::Point, source, Evidence::estimate(acceptance)));
    }
    path
}

fn merged(candidates: &DraftTree, calibration: &Calibration, nodes_max: usize) -> DraftTree {
    let mut tree = DraftTree::new();
    merge(Promise::Rejection, &mut candidates.clone(), calibration, nodes_max, &mut tree);
    tree
}

/// The paths of all nodes, in node order.
fn paths(tree: &DraftTree) -> Vec<Vec<Token>> {
    tree.nodes().map(|node| tree.path(node)).collect()
}

fn count(judged: f32, expected: f32, found: f32) -> Count {
    Count { judged, expected, found, fresh: true }
}

#[test]
fn equal_branches_are_one_node_and_their_evidence_adds_up() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2], 0, 0.4);
    chain(&mut candidates, None, &[3, 4], 1, 0.6);
    chain(&mut candidates, None, &[1, 5], 2, 0.3);
    // 1: 0.7, 3: 0.6, [3, 4]: 0.36, [1, 2]: 0.28, [1, 5]: 0.21
    let tree = merged(&candidates, &Calibration::default(), 9);
    assert_eq!(paths(&tree), [vec![1], vec![3], vec![3, 4], vec![1, 2], vec![1, 5]]);
    let one = tree.child(None, 1).unwrap();
    assert!((tree.acceptance(one) - 0.7).abs() < 1e-6);
    assert_eq!(tree.offers_of(one).map(|offer| offer.source).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(tree.source(one), 0);
}

#[test]
fn little_room_is_for_the_branches_of_the_best_expected_gain() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3, 4], 0, 0.5);
    chain(&mut candidates, None, &[5, 6, 7, 8], 1, 0.9);
    let calibration = Calibration::default();
    assert_eq!(paths(&merged(&candidates, &calibration, 4)), [vec![5], vec![5, 6], vec![5, 6, 7], vec![5, 6, 7, 8]]);
    // 0.9^4 is more than 0.5, and that more than 0.5^2.
    assert_eq!(paths(&merged(&candidates, &calibration, 5))[4], [1]);
    assert!(merged(&candidates, &calibration, 0).is_empty());
    // Whoever was right less often than it thought gets less room.
    let bad = Calibration { counts: vec![count(8.0, 4.0, 4.0), count(50.0, 45.0, 4.0)] };
    assert!(paths(&merged(&candidates, &bad, 2)) == [vec![1], vec![1, 2]], "{:?}", bad.factor(1));
}

#[test]
fn who_contradicts_takes_from_the_others() {
    let mut candidates = DraftTree::new();
    let sure = chain(&mut candidates, None, &[1], 0, 0.9);
    let rival = chain(&mut candidates, None, &[2], 1, 0.6);
    let agreed = chain(&mut candidates, Some(sure[0]), &[3], 0, 0.5);
    chain(&mut candidates, Some(sure[0]), &[3], 1, 0.5);
    let mut gains = vec![0.0; candidates.len()];
    let mut siblings = Siblings::default();
    siblings.judge(&candidates, None, &Calibration::default(), &mut gains);
    siblings.judge(&candidates, Some(sure[0]), &Calibration::default(), &mut gains);
    // 0.9 * 0.4 and 0.6 * 0.1, next to 0.1 * 0.4 for neither; (0.5 + 0.5) next to 0.5 * 0.5.
    let expected = [0.36 / 0.46, 0.06 / 0.46, 1.0 / 1.25];
    for (node, expected) in [sure[0], rival[0], agreed[0]].into_iter().zip(expected) {
        assert!((gains[node.index()] - expected).abs() < 1e-6, "{gains:?}");
    }
}

#[test]
fn a_node_never_stands_without_the_way_to_it() {
    let mut candidates = DraftTree::new();
    let path = chain(&mut candidates, None, &[1, 2, 3], 0, 0.6);
    chain(&mut candidates, Some(path[1]), &[4, 5, 6], 1, 1.0);
    chain(&mut candidates, Some(path[2]), &[7], 1, f32::NAN);
    candidates.suggest(Some(path[0]), 8, Proposal::Point, 0, Evidence { acceptance: 9.0, q: None });
    for nodes_max in 0..9 {
        let tree = merged(&candidates, &Calibration::default(), nodes_max);
        // What is not a number is worth nothing, and neither is what a surer drafter contradicts.
        assert_eq!(tree.len(), nodes_max.min(6), "{:?}", paths(&tree));
        for node in tree.nodes() {
            let mut at = None;
            tree.path(node).iter().for_each(|token| at = Some(tree.child(at, *token).unwrap()));
            assert_eq!(at, Some(node));
        }
    }
}

#[test]
fn draws_come_first_whatever_they_are_and_points_behind_them() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2], 0, 0.9);
    let law = candidates.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    let three = candidates.suggest(None, 3, Proposal::Drawn(law), 1, Evidence::of_law(0.01, 0.5));
    let one = candidates.suggest(None, 1, Proposal::Drawn(law), 1, Evidence::of_law(0.01, 0.5));
    chain(&mut candidates, Some(three), &[4], 0, 0.01);
    let tree = merged(&candidates, &Calibration::default(), 3);
    assert_eq!(paths(&tree), [vec![3], vec![1], vec![1, 2]]);
    let proposals: Vec<_> = tree.offers().iter().map(|offer| offer.proposal).collect();
    assert_eq!(proposals, [Proposal::Drawn(law), Proposal::Drawn(law), Proposal::Point]);
    assert!(candidates.parent(one).is_none());
    assert_eq!(tree.law(law).probability(3), 0.5);
    assert_eq!(paths(&merged(&candidates, &Calibration::default(), 2)), [vec![3], vec![1]]);
}

/// Whether anything is drawn under a point may depend on draws made in between, so the point comes behind these.
#[test]
fn under_exact_a_draw_is_no_more_than_a_point() {
    let mut candidates = DraftTree::new();
    let law = candidates.add_law(Law::from_pairs([(1, 0.5), (2, 0.5)]));
    candidates.suggest(None, 1, Proposal::Drawn(law), 0, Evidence::estimate(0.2));
    candidates.suggest(None, 2, Proposal::Drawn(law), 0, Evidence::estimate(0.4));
    let mut tree = DraftTree::new();
    merge(Promise::Exact, &mut candidates, &Calibration::default(), 1, &mut tree);
    assert_eq!(paths(&tree), [vec![2]]);
}

#[test]
fn a_point_that_a_draw_hangs_on_comes_right_before_that_draw() {
    let mut candidates = DraftTree::new();
    let way = chain(&mut candidates, None, &[1, 2], 0, 0.1);
    let [first, second, third] = [0.3, 0.4, 0.5].map(|p| candidates.add_law(Law::from_pairs([(1, p), (3, 1.0 - p)])));
    candidates.offer(None, 3, Proposal::Drawn(first), 1);
    candidates.offer(Some(way[1]), 3, Proposal::Drawn(second), 1);
    // Drawn last, and equal to the point that is needed before.
    candidates.offer(None, 1, Proposal::Drawn(third), 2);
    let tree = merged(&candidates, &Calibration::default(), 4);
    let made: Vec<_> = tree.offers().iter().map(|offer| (tree.path(offer.node), offer.proposal)).collect();
    let expected = [
        (vec![3], Proposal::Drawn(first)),
        (vec![1], Proposal::Point),
        (vec![1, 2], Proposal::Point),
        (vec![1, 2, 3], Proposal::Drawn(second)),
        (vec![1], Proposal::Drawn(third)),
    ];
    assert_eq!(made, expected);
}

#[test]
fn kept_laws_go_where_their_nodes_go() {
    let mut candidates = DraftTree::new();
    let low = chain(&mut candidates, None, &[1, 2], 0, 0.1);
    let high = chain(&mut candidates, None, &[3, 4], 1, 0.9);
    candidates.keep_law(None, Law::point(1), 0);
    candidates.keep_law(Some(low[0]), Law::point(2), 0);
    candidates.keep_law(Some(high[0]), Law::point(4), 1);
    let tree = merged(&candidates, &Calibration::default(), 2);
    let laws = |parent| tree.laws_under(parent).map(|(source, law)| (source, law.tokens()[0])).collect::<Vec<_>>();
    assert_eq!(laws(None), [(0, 1)]);
    assert_eq!(laws(tree.child(None, 3)), [(1, 4)]);
    assert_eq!(laws(tree.child(tree.child(None, 3), 4)), []);
}

#[test]
fn what_is_retained_keeps_its_order_and_its_laws() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    let three = tree.offer(None, 3, Proposal::Drawn(law), 1);
    let one = tree.offer(None, 1, Proposal::Drawn(law), 1);
    chain(&mut tree, Some(one), &[5, 6], 0, 0.5);
    chain(&mut tree, Some(three), &[7], 0, 0.5);
    let mut branch = tree.clone();
    retain(&mut branch, |offer| offer.node != three);
    assert_eq!(paths(&branch), [vec![1], vec![1, 5], vec![1, 5, 6]]);
    assert_eq!(branch.offers()[0].proposal, Proposal::Drawn(law));
    let mut first = tree.clone();
    retain(&mut first, |offer| offer.index < 2);
    assert_eq!(paths(&first), [vec![3], vec![1]]);
    retain(&mut tree, |_| false);
    assert!(tree.is_empty() && tree.offers().is_empty());
}

#[test]
fn who_goes_on_without_room_is_cut_where_the_room_ended() {
    let mut tree = DraftTree::new();
    chain(&mut tree, None, &[1], 0, 0.5);
    let asked_at = tree.offers().len();
    chain(&mut tree, None, &[1, 2, 3], 1, 0.5);
    assert_eq!(lawful_offers(&tree, asked_at, 3), None);
    // The first of its offers says what was there; the third does not fit.
    assert_eq!(lawful_offers(&tree, asked_at, 2), Some(3));
    assert_eq!(lawful_offers(&tree, asked_at, 1), Some(2));
    // A draw from a full tree is cut although it fits: had it been another, it would not have.
    let law = tree.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    let drawn_at = tree.offers().len();
    tree.offer(None, 1, Proposal::Drawn(law), 1);
    assert_eq!(lawful_offers(&tree, drawn_at, 3), Some(4));
    assert_eq!(lawful_offers(&tree, drawn_at, 4), None);
}

#[test]
fn rooms_are_whole_under_exact_and_shared_under_the_others() {
    assert_eq!(share(Promise::Exact, 8, 8, 1), 16);
    assert_eq!(share(Promise::Rejection, 8, 0, 2), 6);
    assert_eq!(share(Promise::Rejection, 8, 6, 1), 8);
    assert_eq!(share(Promise::Block, 8, 0, 1), 6);
    assert_eq!(share(Promise::Block, 8, 3, 0), 8);
    assert_eq!(share(Promise::Rejection, 1, 0, 3), 1);
    assert_eq!(share(Promise::Rejection, 0, 0, 3), 0);
}

/// Lets a calibration learn from one guess of drafter 0.
fn judge(calibration: &mut Calibration, acceptance: f32, right: bool) {
    let mut tree = DraftTree::new();
    let path = chain(&mut tree, None, &[1], 0, acceptance);
    calibration.learn(&tree, if right { &path } else { &[] });
}

#[test]
fn a_drafter_is_believed_as_far_as_it_was_right() {
    for (acceptance, period) in [(0.5, 1), (0.2, 1), (0.9, 2), (0.5, 4), (0.8, 0), (0.01, 1), (0.1, 0)] {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.factor(0), 1.0);
        for i in 0..1000 {
            judge(&mut calibration, acceptance, period > 0 && i % period == 0);
        }
        // Of judged guesses 1 / (1 - 0.98) = 50 count, next to the 4 that are taken for granted.
        let found = if period > 0 { 1.0 / period as f32 } else { 0.0 };
        let expected = (50.0 * found + 4.0 * acceptance) / 54.0;
        let corrected = acceptance * calibration.factor(0);
        assert!((corrected - expected).abs() < 0.03, "{acceptance} {period}: {corrected} for {expected}");
        assert!((corrected - found).abs() < 0.2 * (acceptance - found).abs() + 0.03, "{corrected} for {found}");
        assert_eq!(calibration.factor(1), 1.0);
    }
}

#[test]
fn a_drafter_that_becomes_good_recovers() {
    let mut calibration = Calibration::default();
    (0..500).for_each(|_| judge(&mut calibration, 0.5, false));
    assert!(calibration.factor(0) < 0.2);
    (0..100).for_each(|_| judge(&mut calibration, 0.5, true));
    assert!(calibration.factor(0) > 1.5);
    // A bad one that is no longer judged, because others' guesses take its room, is given another chance.
    (0..500).for_each(|_| judge(&mut calibration, 0.9, false));
    let bad = calibration.factor(0);
    let mut others = DraftTree::new();
    let path = chain(&mut others, None, &[1], 3, 0.9);
    (0..60).for_each(|_| calibration.learn(&others, &path));
    assert!(bad < 0.1 && calibration.factor(0) > 0.2, "{bad}, then {}", calibration.factor(0));
    (0..200).for_each(|_| calibration.learn(&others, &path));
    assert!(calibration.factor(0) > 0.9);
}

#[test]
fn only_what_was_judged_is_learned() {
    let mut tree = DraftTree::new();
    let path = chain(&mut tree, None, &[1, 2, 3, 4], 0, 0.5);
    chain(&mut tree, None, &[5], 1, 0.5);
    chain(&mut tree, Some(path[2]), &[6], 2, 0.5);
    let mut calibration = Calibration::default();
    calibration.learn(&tree, &path[..1]);
    // 1 was right and 2 was wrong; 5 was wrong; nobody came to 3, 4 and 6.
    let by_hand = [count(DECAY + 1.0, 0.5 * DECAY + 0.5, DECAY), count(1.0, 0.5, 0.0)];
    assert_eq!(calibration.counts, by_hand);
}
