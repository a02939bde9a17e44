//! Tests of retrieval by frequency: against a map from paths to counts, and by hand.

use super::*;

fn options() -> TrieOptions {
    TrieOptions::of_rule(RetrievalRule::Frequency)
}

/// All that follows the run in the maps, by path, down to a depth.
fn below(maps: &[&Naive], run: &[Token], depth: usize) -> Naive {
    let mut found = Naive::new();
    for (path, counts) in maps.iter().flat_map(|map| map.iter()) {
        if path.len() > run.len() && path.len() <= run.len() + depth && path.starts_with(run) {
            let sum = found.entry(path[run.len()..].to_vec()).or_default();
            *sum = Counts { prompt: sum.prompt + counts.prompt, output: sum.output + counts.output };
        }
    }
    found
}

proptest! {
    #[test]
    fn a_draft_has_the_most_frequent_branches_of_the_longest_prefix_with_enough(
        tokens in prop::collection::vec(0u32..4, 1..50), warm in prop::collection::vec(0u32..5, 0..50),
        prompt_len in 1usize..30, branch_length in 2usize..6, nodes_max in 1usize..40,
    ) {
        let prompt_len = prompt_len.min(tokens.len());
        let options = TrieOptions { branch_length, nodes_max, prune: false, ..options() };
        let mut drafter = TrieDrafter::new(options);
        drafter.warm_up(&warm, 0, Some(Tenant(7)));
        drafter.warm_up(&warm[warm.len() / 2..], 0, None);
        drafter.open(&Opening { tenant: Tenant(7), ..Opening::new(ONE, &tokens[..prompt_len]) });
        let tree = propose(&mut drafter, ONE, &tokens, Limits::nodes(64));
        let window = branch_length + 2;
        let maps = [
            naive(&tokens, prompt_len, window), naive(&warm, 0, window), naive(&warm[warm.len() / 2..], 0, window),
        ];
        let runs = (1..=tokens.len().min(2)).rev().map(|len| &tokens[tokens.len() - len..]);
        let all: Vec<Naive> = runs.map(|run| below(&maps.each_ref(), run, branch_length)).collect();
        let found = all.iter().find(|found| found.len() + 1 >= branch_length).or(all.last()).unwrap();
        prop_assert_eq!(tree.len(), found.len().min(nodes_max));

        let weight = |path: &[Token]| found[path].prompt as f32 * 1e4 + found[path].output as f32;
        let offered: Vec<Vec<Token>> = offers(&tree).into_iter().map(|(path, _)| path).collect();
        for path in &offered {
            // No sibling that was seen more often comes later or is left out, unless it is one of the prompt that
            // gave way to outputs.
            let before = offered.iter().position(|other| other == path).unwrap();
            let parent = &path[..path.len() - 1];
            let same_parent = |other: &&Vec<Token>| other.len() == path.len() && other.starts_with(parent);
            for other in found.keys().filter(same_parent).filter(|other| weight(other) > weight(path)) {
                let gave_way = found[other].output < found[path].output;
                prop_assert!(gave_way || offered[..before].contains(other), "{:?} before {:?}", other, path);
            }
        }
    }
}

/// The example of the paper's Figure 2: after "sits" (1) "on my knee", "on a table" and "on a chair".
#[test]
fn six_rows_hold_three_merged_branches_or_two_side_by_side() {
    let draft = |layout| {
        let mut drafter = TrieDrafter::new(TrieOptions { layout, nodes_max: 6, ..options() });
        for text in [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 5, 6], [1, 2, 5, 7]] {
            drafter.warm_up(&text, 0, None);
        }
        drafter.open(&Opening::new(ONE, &[1]));
        propose(&mut drafter, ONE, &[1], Limits::nodes(64)).tokens().to_vec()
    };
    assert_eq!(draft(Layout::Hier), [2, 5, 6, 7, 3, 4]);
    assert_eq!(draft(Layout::Par), [2, 5, 6, 7], "the second branch repeats two tokens");
    assert_eq!(draft(Layout::One), [2, 5, 6]);
}

#[test]
fn the_prompt_comes_first_and_half_of_the_rows_are_for_outputs() {
    let draft = |nodes_max, source| {
        let mut drafter = TrieDrafter::new(TrieOptions { nodes_max, source, branch_length: 3, ..options() });
        (0..5).for_each(|_| drafter.warm_up(&[9, 50, 51, 52], 0, None));
        drafter.open(&Opening::new(ONE, &[9, 10, 11, 12, 13, 9]));
        propose(&mut drafter, ONE, &[9, 10, 11, 12, 13, 9], Limits::nodes(64)).tokens().to_vec()
    };
    assert_eq!(draft(6, BranchSource::Mix), [10, 11, 12, 50, 51, 52]);
    assert_eq!(draft(4, BranchSource::Mix), [10, 11, 50, 51]);
    assert_eq!(draft(4, BranchSource::Input), [10, 11, 12], "no rows for others");
    assert_eq!(draft(4, BranchSource::Output), [50, 51, 52]);
}

/// The prompt's last token is no output, and what follows it is: it must not be chosen without what it follows.
#[test]
fn whole_paths_are_chosen_where_a_prompt_ends() {
    let tokens = [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 2, 0, 0, 0, 1, 0, 1];
    let mut drafter = TrieDrafter::new(TrieOptions { branch_length: 5, nodes_max: 2, ..options() });
    drafter.open(&Opening::new(ONE, &tokens[..17]));
    assert_eq!(propose(&mut drafter, ONE, &tokens, Limits::nodes(64)).len(), 2);
}

#[test]
fn a_long_prefix_with_few_branches_gives_way_to_a_shorter_one() {
    let draft = |branch_length| {
        let mut drafter = TrieDrafter::new(TrieOptions { branch_length, ..options() });
        drafter.warm_up(&[1, 2, 3, 4], 0, None);
        drafter.warm_up(&[8, 2, 7, 7, 7], 0, None);
        drafter.open(&Opening::new(ONE, &[1, 2]));
        let mut tokens = propose(&mut drafter, ONE, &[1, 2], Limits::nodes(64)).tokens().to_vec();
        tokens.sort_unstable();
        tokens
    };
    // Two tokens and the one that they follow.
    assert_eq!(draft(3), [3, 4]);
    assert_eq!(draft(4), [3, 4, 7, 7, 7]);
}

#[test]
fn a_full_trie_halves_its_counts_and_forgets_what_was_seen_once() {
    let mut tries = Tries::default();
    let insert = |tries: &mut Tries, text: &[Token], capacity| tries.insert_all(text, 3, true, (Some(capacity), true));
    (0..4).for_each(|_| insert(&mut tries, &[1, 2, 3], 9));
    insert(&mut tries, &[1, 5, 6], 9);
    let counts = |tries: &Tries, run: &[Token]| tries.find(run).map(|(nodes, at)| nodes.node(at).counts.output);
    assert_eq!((counts(&tries, &[1]), counts(&tries, &[1, 2]), counts(&tries, &[1, 5])), (Some(5), Some(4), Some(1)));
    // Of twenty words one begins a trie of more than four nodes; its own text is counted before it is halved, once.
    insert(&mut tries, &[1, 2, 7, 1, 2], 4);
    assert_eq!((counts(&tries, &[1]), counts(&tries, &[1, 2, 3]), counts(&tries, &[1, 5])), (Some(3), Some(2), None));
    assert_eq!(counts(&tries, &[1, 2]), Some(3));
    assert_eq!(counts(&tries, &[2, 3]), Some(4), "no trie but the full one");
}
