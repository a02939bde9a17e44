//! Tests of choosing: which candidates are kept, in which order, and which are worth their rows. (`foretoken_testkit`
//! tests by enumeration that the law is kept.)

use super::*;
use crate::costs::Curve;
use crate::{Evidence, Law};

/// A chain of points below `parent`, each with this acceptance.
fn chain(tree: &mut DraftTree, parent: Option<NodeId>, tokens: &[Token], source: u8, acceptance: f32) -> Vec<NodeId> {
    let mut path: Vec<NodeId> = Vec::new();
    for token in tokens {
        let above = path.last().copied().or(parent);
        path.push(tree.suggest(above, *token, Proposal::Point, source, Evidence::estimate(acceptance)));
    }
    path
}

/// Costs by which each further row costs a tenth of a pass of one row.
fn costs() -> Costs {
    Costs { curves: vec![Curve::new(0, vec![(1, 1.0), (2, 1.1), (3, 1.2)])], drafters: Vec::new() }
}

const PASS: PassSoFar = PassSoFar { rows: 1, context: 9, rate: 1.0 };

/// The tree that is chosen from the candidates of one sequence.
fn chosen(promise: Promise, policy: Policy<'_>, candidates: &DraftTree, nodes_max: usize) -> DraftTree {
    let (experience, mut candidates, mut tree) = (Experience::default(), candidates.clone(), DraftTree::new());
    let (candidates, tree_of) = (&mut candidates, &mut tree);
    let choice =
        Choice { promise, policy, nodes_max, constraint: None, experience: &experience, candidates, tree: tree_of };
    choose(&mut [choice], &costs(), PASS);
    tree
}

/// The candidates with the highest gains, whatever they cost.
fn most_of(candidates: &DraftTree, nodes_max: usize) -> DraftTree {
    chosen(Promise::Rejection, Policy::Most, candidates, nodes_max)
}

/// The paths of all nodes, in node order.
fn paths(tree: &DraftTree) -> Vec<Vec<Token>> {
    tree.nodes().map(|node| tree.path(node)).collect()
}

#[test]
fn equal_tokens_share_a_node_and_their_estimates_add_up() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2], 0, 0.4);
    chain(&mut candidates, None, &[3, 4], 1, 0.6);
    chain(&mut candidates, None, &[1, 5], 2, 0.3);
    // The gains are: 1: 0.7, 3: 0.6, [3, 4]: 0.36, [1, 2]: 0.28, [1, 5]: 0.21.
    let tree = most_of(&candidates, 9);
    assert_eq!(paths(&tree), [vec![1], vec![3], vec![3, 4], vec![1, 2], vec![1, 5]]);
    let one = tree.child(None, 1).unwrap();
    assert!((tree.acceptance(one) - 0.7).abs() < 1e-6);
    assert_eq!(tree.offers_of(one).map(|offer| offer.source).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(tree.source(one), 0);
}

#[test]
fn a_small_limit_keeps_the_branches_of_the_greatest_gain() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3, 4], 0, 0.5);
    chain(&mut candidates, None, &[5, 6, 7, 8], 1, 0.9);
    assert_eq!(paths(&most_of(&candidates, 4)), [vec![5], vec![5, 6], vec![5, 6, 7], vec![5, 6, 7, 8]]);
    // The gain 0.9^4 is more than 0.5, and 0.5 is more than 0.5^2.
    assert_eq!(paths(&most_of(&candidates, 5))[4], [1]);
    assert!(most_of(&candidates, 0).is_empty());
}

#[test]
fn a_node_is_never_kept_without_its_ancestors() {
    let mut candidates = DraftTree::new();
    let path = chain(&mut candidates, None, &[1, 2, 3], 0, 0.6);
    chain(&mut candidates, Some(path[1]), &[4, 5, 6], 1, 1.0);
    chain(&mut candidates, Some(path[2]), &[7], 1, f32::NAN);
    candidates.suggest(Some(path[0]), 8, Proposal::Point, 0, Evidence { acceptance: 9.0, q: None });
    for nodes_max in 0..9 {
        let tree = most_of(&candidates, nodes_max);
        assert_eq!(tree.len(), nodes_max.min(8), "{:?}", paths(&tree));
        for node in tree.nodes() {
            let mut at = None;
            tree.path(node).iter().for_each(|token| at = Some(tree.child(at, *token).unwrap()));
            assert_eq!(at, Some(node));
        }
    }
}

#[test]
fn draws_come_first_whatever_they_are_and_points_after_them() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2], 0, 0.9);
    let law = candidates.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    let three = candidates.suggest(None, 3, Proposal::Drawn(law), 1, Evidence::of_law(0.01, 0.5));
    let one = candidates.suggest(None, 1, Proposal::Drawn(law), 1, Evidence::of_law(0.01, 0.5));
    chain(&mut candidates, Some(three), &[4], 0, 0.01);
    let tree = most_of(&candidates, 3);
    assert_eq!(paths(&tree), [vec![3], vec![1], vec![1, 2]]);
    let proposals: Vec<_> = tree.offers().iter().map(|offer| offer.proposal).collect();
    assert_eq!(proposals, [Proposal::Drawn(law), Proposal::Drawn(law), Proposal::Point]);
    assert!(candidates.parent(one).is_none());
    assert_eq!(tree.law(law).probability(3), 0.5);
    assert_eq!(paths(&most_of(&candidates, 2)), [vec![3], vec![1]]);
}

#[test]
fn under_exact_a_draw_counts_as_a_point() {
    let mut candidates = DraftTree::new();
    let law = candidates.add_law(Law::from_pairs([(1, 0.5), (2, 0.5)]));
    candidates.suggest(None, 1, Proposal::Drawn(law), 0, Evidence::estimate(0.2));
    candidates.suggest(None, 2, Proposal::Drawn(law), 0, Evidence::estimate(0.4));
    assert_eq!(paths(&chosen(Promise::Exact, Policy::Most, &candidates, 1)), [vec![2]]);
}

#[test]
fn a_point_above_a_draw_comes_right_before_that_draw() {
    let mut candidates = DraftTree::new();
    let points = chain(&mut candidates, None, &[1, 2], 0, 0.1);
    let [first, second, third] = [0.3, 0.4, 0.5].map(|p| candidates.add_law(Law::from_pairs([(1, p), (3, 1.0 - p)])));
    candidates.offer(None, 3, Proposal::Drawn(first), 1);
    candidates.offer(Some(points[1]), 3, Proposal::Drawn(second), 1);
    // This token is drawn last, and equals the point that is needed above the second draw.
    candidates.offer(None, 1, Proposal::Drawn(third), 2);
    let tree = most_of(&candidates, 4);
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
fn kept_laws_move_with_their_nodes() {
    let mut candidates = DraftTree::new();
    let low = chain(&mut candidates, None, &[1, 2], 0, 0.1);
    let high = chain(&mut candidates, None, &[3, 4], 1, 0.9);
    candidates.keep_law(None, Law::point(1), 0);
    candidates.keep_law(Some(low[0]), Law::point(2), 0);
    candidates.keep_law(Some(high[0]), Law::point(4), 1);
    let tree = most_of(&candidates, 2);
    let laws = |parent| tree.laws_under(parent).map(|(source, law)| (source, law.tokens()[0])).collect::<Vec<_>>();
    assert_eq!(laws(None), [(0, 1)]);
    assert_eq!(laws(tree.child(None, 3)), [(1, 4)]);
    assert_eq!(laws(tree.child(tree.child(None, 3), 4)), []);
}

#[test]
fn retained_offers_keep_their_order_and_their_laws() {
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
fn offers_beyond_the_limit_are_cut_where_the_tree_was_full() {
    let mut tree = DraftTree::new();
    chain(&mut tree, None, &[1], 0, 0.5);
    let asked_at = tree.offers().len();
    chain(&mut tree, None, &[1, 2, 3], 1, 0.5);
    assert_eq!(lawful_offers(&tree, asked_at, 3), None);
    // The first of its offers is a node that exists already; the third does not fit.
    assert_eq!(lawful_offers(&tree, asked_at, 2), Some(3));
    assert_eq!(lawful_offers(&tree, asked_at, 1), Some(2));
    // A draw that is offered to a full tree is cut although it fits, since another value of the draw would not have
    // fitted.
    let law = tree.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    let drawn_at = tree.offers().len();
    tree.offer(None, 1, Proposal::Drawn(law), 1);
    assert_eq!(lawful_offers(&tree, drawn_at, 3), Some(4));
    assert_eq!(lawful_offers(&tree, drawn_at, 4), None);
}

#[test]
fn drafters_share_the_pass_unless_the_promise_is_exact() {
    assert_eq!(share(Promise::Exact, 8, 8, 1), 16);
    assert_eq!(share(Promise::Rejection, 8, 0, 2), 6);
    assert_eq!(share(Promise::Rejection, 8, 6, 1), 8);
    assert_eq!(share(Promise::Block, 8, 0, 1), 6);
    assert_eq!(share(Promise::Block, 8, 3, 0), 8);
    assert_eq!(share(Promise::Rejection, 1, 0, 3), 1);
    assert_eq!(share(Promise::Rejection, 0, 0, 3), 0);
}

#[test]
fn a_candidate_is_verified_if_it_is_worth_its_row() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3, 4], 0, 0.5);
    chain(&mut candidates, None, &[7], 0, 0.09);
    // A row costs a tenth of a pass, which is worth a tenth of a token: 0.5, 0.25 and 0.125 are more, 0.0625 and 0.09
    // less.
    let tree = chosen(Promise::Exact, Policy::ByCost, &candidates, 9);
    assert_eq!(paths(&tree), [vec![1], vec![1, 2], vec![1, 2, 3]]);
    assert_eq!(chosen(Promise::Exact, Policy::ByCost, &candidates, 2).len(), 2);
    assert!(chosen(Promise::Exact, Policy::ByCost, &candidates, 0).is_empty());
}

/// Forbids one token everywhere.
struct Never(Token);

impl crate::Constraint for Never {
    fn allowed(&mut self) -> crate::TokenSet {
        let mut allowed = crate::TokenSet::all();
        allowed.remove(self.0);
        allowed
    }

    fn accept(&mut self, token: Token) -> bool {
        token != self.0
    }

    fn roll_back(&mut self, _: usize) {}

    fn duplicate(&self) -> Box<dyn crate::Constraint> {
        Box::new(Never(self.0))
    }
}

#[test]
fn a_forbidden_token_gets_no_row_unless_it_was_drawn() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3], 0, 0.9);
    chain(&mut candidates, None, &[2, 1], 1, 0.9);
    let law = candidates.add_law(Law::point(2));
    candidates.offer(None, 2, Proposal::Drawn(law), 2);
    let (constraint, experience) = (Constrained::new(Box::new(Never(2))), Experience::default());
    let chosen = |promise, policy, constraint| {
        let (mut candidates, mut tree) = (candidates.clone(), DraftTree::new());
        let (candidates, tree_of) = (&mut candidates, &mut tree);
        let choice =
            Choice { promise, policy, nodes_max: 9, constraint, experience: &experience, candidates, tree: tree_of };
        choose(&mut [choice], &costs(), PASS);
        paths(&tree)
    };
    for policy in [Policy::Most, Policy::ByCost] {
        assert_eq!(chosen(Promise::Exact, policy, None).len(), 5);
        assert_eq!(chosen(Promise::Exact, policy, Some(&constraint)), [[1]]);
        assert_eq!(chosen(Promise::Rejection, policy, Some(&constraint)), [[2], [1]]);
    }
}

#[test]
fn an_expensive_row_is_taken_for_the_cheap_rows_after_it() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3, 4, 5, 6], 0, 0.95);
    // The third row begins a strip: it costs more than it is worth, and the rows after it are free.
    let points = vec![(1, 1.0), (2, 1.1), (3, 2.3), (9, 2.3)];
    let costs = Costs { curves: vec![Curve::new(0, points)], drafters: Vec::new() };
    let (experience, mut tree) = (Experience::default(), DraftTree::new());
    for (nodes_max, expected) in [(2, 1), (6, 6)] {
        let (candidates, tree) = (&mut candidates.clone(), &mut tree);
        let (promise, policy) = (Promise::Exact, Policy::ByCost);
        let choice = Choice { promise, policy, nodes_max, constraint: None, experience: &experience, candidates, tree };
        choose(&mut [choice], &costs, PASS);
        assert_eq!(tree.len(), expected);
    }
}

#[test]
fn sequences_of_a_pass_compete_for_its_rows() {
    let (mut good, mut poor) = (DraftTree::new(), DraftTree::new());
    chain(&mut good, None, &[1, 2], 0, 0.9);
    chain(&mut poor, None, &[1, 2], 0, 0.3);
    let (experience, mut trees) = (Experience::default(), [DraftTree::new(), DraftTree::new()]);
    let mut nodes_at = |rate: f64| {
        let (mut good, mut poor) = (good.clone(), poor.clone());
        let [first, second] = &mut trees;
        let choice = |candidates, tree| {
            let (promise, policy) = (Promise::Exact, Policy::ByCost);
            Choice { promise, policy, nodes_max: 9, constraint: None, experience: &experience, candidates, tree }
        };
        let mut choices = [choice(&mut good, first), choice(&mut poor, second)];
        choose(&mut choices, &costs(), PassSoFar { rows: 2, rate, ..PASS });
        [trees[0].len(), trees[1].len()]
    };
    assert_eq!([0.5, 2.0, 8.5, 20.0].map(&mut nodes_at), [[2, 2], [2, 1], [1, 0], [0, 0]]);
}

#[test]
fn draws_are_kept_whatever_they_cost_and_leave_less_room_for_points() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[5], 0, 0.12);
    let law = candidates.add_law(Law::from_pairs([(1, 0.5), (3, 0.5)]));
    candidates.suggest(None, 3, Proposal::Drawn(law), 1, Evidence::of_law(0.001, 0.5));
    for promise in [Promise::Rejection, Promise::Block] {
        assert_eq!(paths(&chosen(promise, Policy::ByCost, &candidates, 9)), [vec![3], vec![5]]);
        assert_eq!(paths(&chosen(promise, Policy::ByCost, &candidates, 1)), [vec![3]]);
    }
    assert_eq!(paths(&chosen(Promise::Exact, Policy::ByCost, &candidates, 9)), [vec![5]]);
}

#[test]
fn the_oracle_keeps_what_is_accepted() {
    let mut candidates = DraftTree::new();
    chain(&mut candidates, None, &[1, 2, 3], 0, 0.01);
    chain(&mut candidates, None, &[4, 5], 1, 0.9);
    let foreseen =
        |text: &[Token], nodes_max| paths(&chosen(Promise::Exact, Policy::Foreseen(text), &candidates, nodes_max));
    assert_eq!(foreseen(&[1, 2, 9], 9), [vec![1], vec![1, 2]]);
    assert_eq!(foreseen(&[1, 2, 9], 1), [vec![1]]);
    assert!(foreseen(&[9], 9).is_empty());
}
