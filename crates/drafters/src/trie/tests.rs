//! Tests of tries against a map from paths to counts, and of each setting.

mod frequency;
mod kept;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::nodes::{Counts, Nodes};
use super::*;
use crate::trial::NoChance;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{DraftSettings, DraftTree, NodeId, Probes, Promise, Sampling};

/// Options that propose matches alone, without the most frequent tokens.
fn matches() -> TrieOptions {
    TrieOptions { prefix_min: 1, ..TrieOptions::default() }
}

const ONE: SequenceId = SequenceId(1);
const TWO: SequenceId = SequenceId(2);

fn propose(drafter: &mut TrieDrafter, sequence: SequenceId, tokens: &[Token], limits: Limits) -> DraftTree {
    let mut tree = DraftTree::new();
    let sampling = Sampling::default();
    let ask = Ask {
        sequence,
        tokens,
        prompt_len: 1,
        written_len: tokens.len(),
        constraint: None,
        sampling: &sampling,
        settings: DraftSettings::default(),
        promise: Promise::Exact,
        seed: 0,
        outlook: None,
        request: 0,
        limits,
        tree: &mut tree,
        probes: &mut Probes::default(),
        source: 2,
    };
    drafter.draft(&mut [ask], &mut NoChance);
    tree
}

/// The draft for a new sequence of the tenant with this prompt.
fn fresh(drafter: &mut TrieDrafter, prompt: &[Token], tenant: u64) -> DraftTree {
    drafter.open(&Opening { tenant: Tenant(tenant), ..Opening::new(TWO, prompt) });
    let tree = propose(drafter, TWO, prompt, Limits::nodes(64));
    // The sequence has no output, so unless prompts are kept, nothing of it is.
    drafter.close(TWO);
    tree
}

/// A whole sequence: a prompt and what is written after it.
fn write(drafter: &mut TrieDrafter, prompt: &[Token], output: &[Token], tenant: u64) {
    drafter.open(&Opening { tenant: Tenant(tenant), ..Opening::new(ONE, prompt) });
    let tokens = [prompt, output].concat();
    let output = StepOutput {
        sequence: ONE,
        tokens: &tokens,
        emitted: output,
        tree: &DraftTree::new(),
        path: &[],
        probes: &[],
        hidden_from: 0,
        hidden: &[],
    };
    drafter.observe(&[output]);
    drafter.close(ONE);
}

fn offers(tree: &DraftTree) -> Vec<(Vec<Token>, f32)> {
    tree.offers().iter().map(|offer| (tree.path(offer.node), offer.evidence.acceptance)).collect()
}

/// Counts by path: a trie, straight from its definition.
type Naive = BTreeMap<Vec<Token>, Counts>;

/// Every window of the text, counted by where its last token is.
fn naive(tokens: &[Token], prompt_len: usize, window: usize) -> Naive {
    let mut counts = Naive::new();
    for start in 0..tokens.len() {
        for end in start + 1..=tokens.len().min(start + window) {
            counts.entry(tokens[start..end].to_vec()).or_default().add(end > prompt_len);
        }
    }
    counts
}

fn paths(nodes: &Nodes, root: u32) -> Naive {
    fn walk(nodes: &Nodes, at: u32, path: &mut Vec<Token>, found: &mut Naive) {
        path.push(nodes.node(at).token);
        let before = found.insert(path.clone(), nodes.node(at).counts);
        assert_eq!(before, None, "{path:?} is there twice");
        nodes.children(at).for_each(|child| walk(nodes, child, path, found));
        path.pop();
    }
    let mut found = Naive::new();
    walk(nodes, root, &mut Vec::new(), &mut found);
    found
}

fn live_paths(live: &Live, vocabulary: Token) -> Naive {
    (0..vocabulary)
        .filter_map(|token| live.tries().find(&[token]))
        .flat_map(|(nodes, root)| paths(nodes, root))
        .collect()
}

/// Shares of all continuations of `path` after `tokens`, from maps alone, by the formula of `retrieve`.
fn naive_shares(maps: &[&Naive], options: &TrieOptions, tokens: &[Token], path: &[Token]) -> BTreeMap<Token, f32> {
    let backoff = options.backoff * if path.is_empty() { 1.0 } else { 0.5 };
    let (mut shares, mut left) = (BTreeMap::new(), 1.0);
    for prefix_len in (options.prefix_min..=options.prefix_max.min(tokens.len())).rev() {
        let run = [&tokens[tokens.len() - prefix_len..], path].concat();
        let mut weights: BTreeMap<Token, f32> = BTreeMap::new();
        let continuations = |map: &Naive| -> Vec<(Token, Counts)> {
            let matched = map.iter().filter(|(key, _)| key.len() == run.len() + 1 && key.starts_with(&run));
            matched.map(|(key, counts)| (key[run.len()], *counts)).collect()
        };
        // The first map is the sequence's own.
        for (token, counts) in continuations(maps[0]) {
            let (prompt, output) = (counts.prompt as f32, counts.output as f32);
            *weights.entry(token).or_default() += prompt * options.prompt_weight + output * options.own_weight;
        }
        let shared: Vec<_> = maps[1..].iter().flat_map(|map| continuations(map)).collect();
        let total: u32 = shared.iter().map(|(_, counts)| counts.output).sum();
        let scale = (options.shared_max / total as f32).min(1.0);
        shared.iter().for_each(|(token, counts)| *weights.entry(*token).or_default() += scale * counts.output as f32);
        let seen: f32 = weights.values().sum();
        if seen > 0.0 {
            weights.iter().for_each(|(token, weight)| {
                *shares.entry(*token).or_default() += left * weight / (seen + backoff);
            });
            left *= backoff / (seen + backoff);
        }
    }
    shares
}

/// Checks a draft against the maps: the shares of its nodes, and that no better node is left out.
fn check_draft(
    tree: &DraftTree,
    maps: &[&Naive],
    options: &TrieOptions,
    tokens: &[Token],
) -> Result<(), TestCaseError> {
    let mut gains: BTreeMap<Vec<Token>, f32> = BTreeMap::from([(Vec::new(), 1.0)]);
    for (path, share) in offers(tree) {
        let (parent, token) = (&path[..path.len() - 1], path[path.len() - 1]);
        let expected = naive_shares(maps, options, tokens, parent).get(&token).copied().unwrap_or(0.0);
        prop_assert!((share - expected).abs() < 1e-4, "{:?}: expected {}, found {}", path, expected, share);
        gains.insert(path.clone(), gains[parent] * share);
    }
    let full = tree.len() == options.nodes_max;
    let least = gains.values().copied().fold(1.0, f32::min);
    for (parent, gain) in &gains {
        for (token, share) in naive_shares(maps, options, tokens, parent) {
            let path = [parent.as_slice(), &[token]].concat();
            let left_out = !gains.contains_key(&path);
            prop_assert!(!left_out || (full && gain * share < least + 1e-4), "{:?} of {} left out", path, gain * share);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_tries_of_a_running_sequence_count_its_windows(
        tokens in prop::collection::vec(0u32..4, 1..60), prompt_len in 1usize..30, branch_length in 1usize..7,
    ) {
        let mut live = Live::new(prompt_len, branch_length + 1, true, true);
        live.extend(&tokens);
        let expected = naive(&tokens, prompt_len, branch_length + 1);
        prop_assert_eq!(live.tries().nodes(), expected.len());
        prop_assert_eq!(live_paths(&live, 4), expected);
    }

    #[test]
    fn a_draft_has_the_shares_of_the_maps(
        tokens in prop::collection::vec(0u32..4, 1..50), warm in prop::collection::vec(0u32..5, 0..50),
        prompt_len in 1usize..30, branch_length in 2usize..7, prefix_min in 0usize..2, prefix_max in 1usize..5,
        nodes_max in 1usize..12, own_weight in 0.5f32..6.0, shared_max in 1f32..30.0,
    ) {
        let prompt_len = prompt_len.min(tokens.len());
        let prefix_max = prefix_max.min(branch_length);
        let options = TrieOptions {
            nodes_max, branch_length, prefix_min, prefix_max, own_weight, shared_max,
            share_min: 0.0, gain_min: 0.0, prune: false, ..TrieOptions::default()
        };
        let mut drafter = TrieDrafter::new(options);
        drafter.warm_up(&warm, 0, Some(Tenant(7)));
        drafter.warm_up(&warm[warm.len() / 2..], 0, None);
        drafter.open(&Opening { tenant: Tenant(7), ..Opening::new(ONE, &tokens[..prompt_len]) });
        let tree = propose(&mut drafter, ONE, &tokens, Limits::nodes(64));
        let maps = [
            naive(&tokens, prompt_len, branch_length + 1),
            naive(&warm, 0, branch_length + 1),
            naive(&warm[warm.len() / 2..], 0, branch_length + 1),
        ];
        check_draft(&tree, &maps.each_ref(), &options, &tokens)?;
    }

    #[test]
    fn pruning_keeps_the_most_frequent(texts in prop::collection::vec(0u32..5, 2..200), len in 1usize..30) {
        let mut tries = Tries::default();
        tries.insert_all(&texts, 5, true, (None, false));
        for token in 0..5 {
            let Some((nodes, root)) = tries.find(&[token]) else { continue };
            let before = paths(nodes, root);
            let mut pruned = nodes.clone();
            pruned.prune(len);
            let after = paths(&pruned, 0);
            prop_assert_eq!(after.len(), before.len().min(len));
            prop_assert!(after.iter().all(|(path, counts)| before[path] == *counts), "counts stay");
            let most = |map: &Naive| {
                let mut counts: Vec<u32> = map.values().map(|counts| counts.total()).collect();
                counts.sort_unstable_by(|a, b| b.cmp(a));
                counts.truncate(len);
                counts
            };
            prop_assert_eq!(most(&after), most(&before));
        }
    }

    #[test]
    fn the_most_frequent_first_tokens_are_listed(tokens in prop::collection::vec((0u32..60, any::<bool>()), 0..400)) {
        let mut tries = Tries::default();
        let mut counts: BTreeMap<Token, Counts> = BTreeMap::new();
        for (token, is_output) in tokens {
            counts.entry(token).or_default().add(is_output);
            tries.begin(token, is_output);
        }
        let mut expected: Vec<(Token, Counts)> = counts.into_iter().collect();
        let sum = |of: fn(&Counts) -> u32| expected.iter().map(|(_, counts)| of(counts)).sum();
        let total = Counts { prompt: sum(|counts| counts.prompt), output: sum(|counts| counts.output) };
        expected.sort_by_key(|(token, counts)| (std::cmp::Reverse(counts.total()), *token));
        expected.truncate(32);
        prop_assert_eq!(tries.common(), (&expected[..], total));
    }

    #[test]
    fn no_trie_grows_beyond_its_capacity(texts in prop::collection::vec(0u32..6, 2..300), capacity in 1usize..40) {
        let mut tries = Tries::default();
        for text in texts.chunks(50) {
            tries.insert_all(text, 6, true, (Some(capacity), false));
            for token in 0..6 {
                let len = tries.find(&[token]).map_or(0, |(nodes, _)| nodes.len());
                prop_assert!(len <= capacity, "{} nodes of {}", len, capacity);
            }
        }
    }
}

#[test]
fn tenants_see_their_own_branches_and_public_ones() {
    let mut drafter = TrieDrafter::new(matches());
    drafter.warm_up(&[50, 51, 52], 0, None);
    drafter.warm_up(&[60, 61, 62], 0, Some(Tenant(1)));
    write(&mut drafter, &[10, 11], &[20, 21, 22], 1);
    let first = |drafter: &mut TrieDrafter, token, tenant| fresh(drafter, &[token], tenant).tokens().first().copied();
    for (token, own, others) in [(50, Some(51), Some(51)), (60, Some(61), None), (20, Some(21), None)] {
        assert_eq!(first(&mut drafter, token, 1), own, "after {token}");
        assert_eq!(first(&mut drafter, token, 2), others, "after {token}");
    }
}

#[test]
fn a_prompt_is_seen_by_its_sequence_alone_and_dropped_with_it() {
    let prompt = [1, 2, 3, 4, 5, 1, 2];
    let mut drafter = TrieDrafter::new(matches());
    let before = drafter.nodes();
    drafter.open(&Opening { tenant: Tenant(1), ..Opening::new(ONE, &prompt) });
    assert_eq!(propose(&mut drafter, ONE, &prompt, Limits::nodes(3)).tokens(), [3, 4, 5]);
    assert!(fresh(&mut drafter, &[3], 1).is_empty(), "another sequence of the same tenant");
    drafter.close(ONE);
    assert!(fresh(&mut drafter, &[3], 1).is_empty());
    assert_eq!(drafter.nodes(), before);
    // The output is kept, after the prompt's last token.
    write(&mut drafter, &prompt, &[8, 9], 1);
    assert_eq!(fresh(&mut drafter, &[2], 1).tokens(), [8, 9]);
    assert!(fresh(&mut drafter, &[1], 1).is_empty());

    let mut stays = TrieDrafter::new(TrieOptions { eliminate: false, ..matches() });
    write(&mut stays, &prompt, &[8, 9], 1);
    assert_eq!(fresh(&mut stays, &[3], 1).tokens()[..2], [4, 5]);
    assert!(fresh(&mut stays, &[3], 2).is_empty());
}

#[test]
fn where_nothing_matches_the_most_frequent_tokens_are_proposed() {
    let mut drafter = TrieDrafter::new(TrieOptions { backoff: 0.0, ..TrieOptions::default() });
    drafter.warm_up(&[30, 31, 30, 31], 0, Some(Tenant(1)));
    let prompt = [5, 6, 7, 5, 6, 8, 5, 9];
    // 5 is three of eight tokens; of its three followers two are 6.
    drafter.open(&Opening { tenant: Tenant(2), ..Opening::new(ONE, &prompt) });
    let tree = propose(&mut drafter, ONE, &prompt, Limits::nodes(3));
    assert_eq!(offers(&tree), [(vec![5], 0.375), (vec![6], 0.25), (vec![5, 6], 2.0 / 3.0)]);
    let tokens = propose(&mut drafter, ONE, &prompt, Limits::nodes(64)).tokens().to_vec();
    assert!(!tokens.contains(&30), "another tenant's");
    drafter.close(ONE);
    let tree = fresh(&mut drafter, &[4], 1);
    assert!(tree.tokens().contains(&30));
}

#[test]
fn each_procedure_can_be_turned_off() {
    let tokens = [1, 2, 3, 1, 2, 9, 4, 9];
    let draft = |options: TrieOptions, sequence: &[Token]| {
        let mut drafter = TrieDrafter::new(options);
        drafter.warm_up(&[9, 7], 0, None);
        drafter.open(&Opening::new(ONE, &tokens[..4]));
        propose(&mut drafter, ONE, sequence, Limits::nodes(8)).tokens().to_vec()
    };
    let all = matches();
    assert_eq!(draft(all, &tokens[..4])[0], 2);
    assert_eq!(draft(TrieOptions { insert_prompt: false, ..all }, &tokens[..4]), []);
    assert_eq!(draft(all, &tokens), [4, 9, 7]);
    assert_eq!(draft(TrieOptions { insert_output: false, ..all }, &tokens), []);

    let mut text: Vec<Token> = (0..2000).map(|i| 5 + i % 7 * (i % 11) + i % 13).collect();
    text.iter_mut().step_by(3).for_each(|token| *token = 1);
    let nodes = |prune| {
        let mut drafter = TrieDrafter::new(TrieOptions { prune, capacity: Some(32), ..all });
        drafter.warm_up(&text, 0, None);
        drafter.nodes()
    };
    assert!(nodes(true) < nodes(false) / 4, "{} of {}", nodes(true), nodes(false));
}

#[test]
fn sources_choose_whose_branches_are_retrieved() {
    let draft = |source| {
        let mut drafter = TrieDrafter::new(TrieOptions { source, ..matches() });
        drafter.warm_up(&[2, 7, 7], 0, None);
        drafter.open(&Opening::new(ONE, &[1, 2, 3, 4, 1, 2]));
        let tree = propose(&mut drafter, ONE, &[1, 2, 3, 4, 1, 2], Limits::nodes(20));
        let mut tokens = tree.tokens().to_vec();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(draft(BranchSource::Input), [1, 2, 3, 4]);
    assert_eq!(draft(BranchSource::Output), [7, 7]);
    assert_eq!(draft(BranchSource::Mix), [1, 2, 3, 4, 7, 7]);
    let weighed = |prompt_weight| {
        let mut drafter = TrieDrafter::new(TrieOptions { prompt_weight, ..matches() });
        (0..3).for_each(|_| drafter.warm_up(&[2, 7], 0, None));
        drafter.open(&Opening::new(ONE, &[2, 3, 2]));
        propose(&mut drafter, ONE, &[2, 3, 2], Limits::nodes(1)).tokens()[0]
    };
    assert_eq!((weighed(1.0), weighed(4.0)), (7, 3));
}

#[test]
fn layouts_differ_in_the_rows_of_a_branch() {
    let draft = |layout, nodes_max| {
        let mut drafter = TrieDrafter::new(TrieOptions { layout, nodes_max, ..matches() });
        for text in [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 7]] {
            drafter.warm_up(&text, 0, None);
        }
        drafter.open(&Opening::new(ONE, &[1]));
        propose(&mut drafter, ONE, &[1], Limits::nodes(64))
    };
    // 2, 3 and 6, 4 and 5 and 7: six shared nodes, or three branches of three tokens side by side.
    assert_eq!(draft(Layout::Hier, 6).len(), 6);
    assert_eq!(draft(Layout::Par, 9).len(), 6);
    let side_by_side = |tree: &DraftTree| -> usize {
        let is_leaf = |node: &NodeId| !tree.parents().contains(&Some(*node));
        tree.nodes().filter(is_leaf).map(|node| tree.depth(node)).sum()
    };
    for rows in 1..10 {
        let tree = draft(Layout::Par, rows);
        assert!(side_by_side(&tree) <= rows, "{} of {rows}", side_by_side(&tree));
        assert!(draft(Layout::Hier, rows).len() >= tree.len());
    }
    let one = draft(Layout::One, 9);
    assert!(one.is_chain());
    assert_eq!(one.tokens()[..2], [2, 3]);
    assert_eq!(one.len(), 3);
}

#[test]
fn limits_are_kept() {
    let mut drafter = TrieDrafter::new(matches());
    let text: Vec<Token> = (0..9).cycle().take(40).collect();
    drafter.open(&Opening::new(ONE, &text));
    assert_eq!(propose(&mut drafter, ONE, &text, Limits::nodes(5)).len(), 5);
    assert_eq!(propose(&mut drafter, ONE, &text, Limits::nodes(0)).len(), 0);
    assert_eq!(propose(&mut drafter, ONE, &text, Limits::nodes(64)).len(), 12, "no longer than a branch");
    // A branch ends after the token that fell below the limit.
    let low = Limits { token_min: 1.0, ..Limits::nodes(64) };
    assert_eq!(propose(&mut drafter, ONE, &text, low).len(), 1);
    let whole = propose(&mut drafter, ONE, &text, Limits::nodes(64));
    let gains = offers(&whole).into_iter().scan(1.0, |gain, (_, share)| {
        *gain *= share;
        Some(*gain)
    });
    let fifth = gains.take(5).last().unwrap();
    assert!(0.1 < fifth && fifth < 1.0, "{fifth}");
    let path = Limits { path_min: fifth * 1.0001, ..Limits::nodes(64) };
    assert_eq!(propose(&mut drafter, ONE, &text, path).len(), 5);
}

#[test]
fn a_node_has_a_bounded_number_of_children() {
    let text: Vec<Token> = (0..800).map(|i| if i % 2 == 0 { 0 } else { i }).collect();
    let mut live = Live::new(1, 4, true, true);
    live.extend(&text);
    let (nodes, root) = live.tries().find(&[0]).unwrap();
    assert_eq!(nodes.children(root).count(), nodes::FAN_MAX);
}

#[test]
fn names_are_parsed_and_problems_name_their_field() {
    for layout in Layout::ALL {
        assert_eq!(Layout::from_name(layout.name()), Some(layout));
    }
    for source in BranchSource::ALL {
        assert_eq!(BranchSource::from_name(source.name()), Some(source));
    }
    assert_eq!(TrieOptions::of_rule(RetrievalRule::Frequency).problem(), None);
    assert_eq!((Layout::from_name("tree"), BranchSource::from_name("")), (None, None));
    let all = matches();
    assert_eq!(all.problem(), None);
    for (options, start) in [
        (TrieOptions { branch_length: 0, ..all }, "branch_length: expected 1 to 256, found 0"),
        (TrieOptions { prefix_max: 13, ..all }, "prefix_max: expected 1 to branch_length, which is 12, found 13"),
        (TrieOptions { prefix_min: 5, ..all }, "prefix_min: expected 0 to prefix_max, which is 4, found 5"),
        (TrieOptions { capacity: Some(0), ..all }, "capacity: expected at least 1 node, found 0"),
        (TrieOptions { backoff: f32::NAN, ..all }, "backoff: expected a number from 0, found NaN"),
    ] {
        let problem = options.problem().unwrap();
        assert!(problem.starts_with(start), "{problem}");
    }
}
