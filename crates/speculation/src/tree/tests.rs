//! Tests of draft trees: parents and depths, and the contracts of offers.

use proptest::prelude::*;

use super::*;

#[test]
fn a_merged_node_keeps_both_offers_in_order() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::from_pairs([(5, 0.5), (6, 0.5)]));
    let six = tree.offer(None, 6, Proposal::Drawn(law), 0);
    let five = tree.offer(None, 5, Proposal::Point, 1);
    assert_eq!(tree.offer(None, 5, Proposal::Drawn(law), 0), five);
    let under = tree.offer(Some(five), 6, Proposal::Point, 1);
    assert_eq!(tree.len(), 3);
    assert_eq!((tree.source(five), tree.depth(five), tree.depth(under)), (1, 1, 2));
    let made: Vec<_> = tree.offers_under(None).map(|offer| (offer.index, offer.node, offer.proposal)).collect();
    let expected = [(0, six, Proposal::Drawn(law)), (1, five, Proposal::Point), (2, five, Proposal::Drawn(law))];
    assert_eq!(made, expected);
    assert!(!tree.is_chain());
    tree.clear();
    assert!(tree.is_empty() && tree.is_chain() && tree.offers().is_empty());
}

#[test]
fn laws_that_are_only_compared_have_no_ids() {
    let mut tree = DraftTree::new();
    tree.keep_law(None, Law::point(5), 3);
    let five = tree.offer(None, 5, Proposal::Point, 3);
    let law = tree.add_law(Law::from_pairs([(5, 0.5), (6, 0.5)]));
    assert_eq!(law.index(), 0, "the id is part of the address of a draw");
    tree.offer(Some(five), 6, Proposal::Drawn(law), 3);
    tree.keep_law(Some(five), Law::point(7), 4);
    let laws =
        |parent| tree.laws_under(parent).map(|(source, law)| (source, law.tokens().to_vec())).collect::<Vec<_>>();
    assert_eq!(laws(None), [(3, vec![5])]);
    assert_eq!(laws(Some(five)), [(3, vec![5, 6]), (4, vec![7])]);
    tree.clear();
    assert_eq!(tree.laws_under(None).count(), 0);
}

#[test]
#[should_panic(expected = "gives it zero")]
fn a_token_cannot_be_drawn_where_its_law_has_zero() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::point(1));
    tree.offer(None, 2, Proposal::Drawn(law), 0);
}

#[test]
#[should_panic(expected = "drawn twice")]
fn a_law_draws_without_replacement() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::from_pairs([(1, 0.5), (2, 0.5)]));
    tree.offer(None, 1, Proposal::Drawn(law), 0);
    tree.offer(None, 1, Proposal::Drawn(law), 0);
}

#[test]
#[should_panic(expected = "belongs under")]
fn a_law_belongs_to_one_parent() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::from_pairs([(1, 0.5), (2, 0.5)]));
    let node = tree.offer(None, 1, Proposal::Drawn(law), 0);
    tree.offer(Some(node), 2, Proposal::Drawn(law), 0);
}

#[test]
#[should_panic(expected = "parent 3 of 1 nodes")]
fn a_parent_is_in_the_tree() {
    let mut tree = DraftTree::new();
    tree.offer(None, 1, Proposal::Point, 0);
    tree.offer(Some(NodeId::new(3)), 1, Proposal::Point, 0);
}

proptest! {
    /// The tree that is made by offering paths is their trie.
    #[test]
    fn offered_paths_are_found_again(paths in prop::collection::vec(prop::collection::vec(0..3_u32, 1..5), 1..8)) {
        let mut tree = DraftTree::new();
        let mut prefixes = std::collections::BTreeSet::new();
        for path in &paths {
            let mut parent = None;
            for (i, &token) in path.iter().enumerate() {
                parent = Some(tree.offer(parent, token, Proposal::Point, 0));
                prefixes.insert(path[..=i].to_vec());
            }
            prop_assert_eq!(&tree.path(parent.unwrap()), path);
        }
        prop_assert_eq!(tree.len(), prefixes.len());
        for node in tree.nodes() {
            let path = tree.path(node);
            prop_assert!(prefixes.contains(&path));
            prop_assert_eq!(tree.depth(node), path.len());
            prop_assert_eq!(tree.child(tree.parent(node), tree.token(node)), Some(node));
            prop_assert!(tree.parent(node).is_none_or(|parent| parent < node));
        }
        let forks = tree.nodes().map(Some).chain([None]);
        let widest = forks.map(|at| tree.nodes().filter(|&node| tree.parent(node) == at).count()).max();
        prop_assert_eq!(tree.is_chain(), widest == Some(1));
    }
}

#[test]
fn follow_finds_the_branch_of_given_tokens() {
    let mut tree = DraftTree::new();
    let one = tree.offer(None, 1, Proposal::Point, 0);
    tree.offer(Some(one), 9, Proposal::Point, 0);
    let two = tree.offer(Some(one), 2, Proposal::Point, 0);
    assert_eq!(tree.follow(&[1, 2, 3]), [one, two]);
    assert_eq!(tree.follow(&[1]), [one]);
    assert!(tree.follow(&[7, 1]).is_empty() && tree.follow(&[]).is_empty());
}
