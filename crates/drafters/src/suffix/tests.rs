//! Tests of suffix matching: matches of any length in the sequence and in histories, tenants, and forgetting.

mod lookup;

use proptest::prelude::*;

use super::*;
use crate::history::END;
use crate::trial::Trial;
use foretoken_speculation::DraftTree;

const ALICE: Tenant = Tenant(7);
const BOB: Tenant = Tenant(8);

/// A drafter that proposes nothing if nothing matches.
fn drafter(capacity_tokens: usize) -> SuffixDrafter {
    SuffixDrafter { window: 0, ..SuffixDrafter::new(capacity_tokens) }
}

/// The tree that it proposes to a tenant after these tokens.
fn shown(drafter: &mut SuffixDrafter, tenant: Tenant, tokens: &[Token]) -> DraftTree {
    let trial = Trial { sequence: SequenceId(99), ..Trial::greedy(20) };
    let [history, prediction, source] = [(); 3].map(|()| History::new(LENGTHS));
    drafter.running.insert(trial.sequence, Running { history, prediction, source, tenant });
    let tree = trial.draft(drafter, tokens);
    drafter.running.remove(&trial.sequence);
    tree
}

#[test]
fn a_long_match_outweighs_later_and_more_frequent_short_ones() {
    let mut text: Vec<Token> = vec![1, 2, 3, 4, 5, 6, 7, 50];
    (0..12).for_each(|i| text.extend([6, 7, 60, 20 + i]));
    text.extend([1, 2, 3, 4, 5, 6, 7]);
    let tree = shown(&mut drafter(100), ALICE, &text);
    let (long, short) = (tree.child(None, 50).expect("seven match"), tree.child(None, 60).expect("two match"));
    // Twelve votes of two tokens outweigh one of seven, and not one of eight: 12 * 2^1.5 = 34, 7^1.5 = 19.
    assert!(tree.acceptance(short) > tree.acceptance(long));
    let tree = shown(&mut drafter(100), ALICE, &[&[9, 8], &text[..16], &[9, 8], &text[..7]].concat());
    assert_eq!(tree.tokens()[0], 50);
}

#[test]
fn a_tenants_texts_are_its_own_and_texts_without_a_tenant_are_public() {
    let mut drafter = drafter(1000);
    let trial = Trial::greedy(20);
    drafter.open(&Opening { tenant: ALICE, ..Opening::new(trial.sequence, &[1, 2]) });
    let tokens = [1, 2, 40, 41];
    let output = StepOutput {
        sequence: trial.sequence,
        tokens: &tokens,
        emitted: &tokens[2..],
        tree: &DraftTree::new(),
        path: &[],
        probes: &[],
        hidden_from: 0,
        hidden: &[],
    };
    drafter.observe(&[output]);
    assert!(shown(&mut drafter, ALICE, &[9, 1, 2]).is_empty(), "a running sequence is not history yet");
    drafter.close(trial.sequence);
    drafter.warm_up(&[5, 6, 7, 8], 1, None);
    drafter.warm_up(&[5, 6, 30], 1, Some(BOB));
    assert_eq!(shown(&mut drafter, ALICE, &[9, 1, 2]).tokens(), [40, 41]);
    assert_eq!(shown(&mut drafter, ALICE, &[9, 5, 6]).tokens(), [7, 8]);
    assert!(shown(&mut drafter, BOB, &[9, 1, 2]).is_empty());
    let mut both = shown(&mut drafter, BOB, &[9, 5, 6]).tokens().to_vec();
    both.sort_unstable();
    assert_eq!(both, [7, 8, 30]);
    assert_eq!(shown(&mut drafter, Tenant(0), &[9, 5, 6]).tokens(), [7, 8]);
}

#[test]
fn the_oldest_texts_are_forgotten_and_a_long_one_keeps_its_end() {
    let mut drafter = drafter(100);
    for text in 0..30_u32 {
        let tokens: Vec<Token> = (0..9).map(|i| 1000 + 10 * text + i).collect();
        drafter.warm_up(&tokens, 1, None);
        assert!(drafter.history_tokens() <= 100);
    }
    assert_eq!(shown(&mut drafter, ALICE, &[1290]).tokens()[0], 1291, "the newest");
    assert_eq!(shown(&mut drafter, ALICE, &[1250]).tokens()[0], 1251, "half of the capacity is kept in any case");
    assert!(shown(&mut drafter, ALICE, &[1100]).is_empty());
    let public = drafter.history_tokens();
    drafter.warm_up(&(0..5000).collect::<Vec<_>>(), 1, Some(ALICE));
    assert!(drafter.history_tokens() <= public + 100, "as many again of tenants' texts");
    assert_eq!(shown(&mut drafter, ALICE, &[4960]).tokens()[0], 4961);
    assert!(shown(&mut drafter, ALICE, &[4900]).is_empty());
    let mut forgetful = SuffixDrafter { window: 0, ..SuffixDrafter::new(0) };
    forgetful.warm_up(&[1, 2, 3], 1, None);
    assert_eq!((forgetful.history_tokens(), forgetful.history_bytes()), (0, 0));
    assert!(shown(&mut forgetful, ALICE, &[1]).is_empty());
}

#[test]
fn a_tenant_that_writes_much_displaces_the_oldest_texts_of_any_tenant() {
    let mut drafter = drafter(60);
    drafter.warm_up(&[1, 2, 3], 1, Some(BOB));
    for i in 0..10 {
        drafter.warm_up(&(100 * i..100 * i + 20).collect::<Vec<_>>(), 1, Some(ALICE));
    }
    assert!(drafter.history_tokens() <= 60);
    assert!(!shown(&mut drafter, ALICE, &[900]).is_empty());
}

#[test]
fn depth_follows_the_match_and_bounds_are_kept() {
    let text: Vec<Token> = [&[1, 2, 3][..], &(10..40).collect::<Vec<_>>(), &[1, 2, 3]].concat();
    let mut drafter = SuffixDrafter { gain_min: 0.0, depth_factor: 2.0, depth_offset: 1.0, ..drafter(10) };
    assert_eq!(shown(&mut drafter, ALICE, &text).tokens(), [10, 11, 12, 13, 14, 15, 16]);
    drafter.depth_max = 5;
    assert_eq!(shown(&mut drafter, ALICE, &text).len(), 5);
    drafter.nodes_max = 3;
    assert_eq!(shown(&mut drafter, ALICE, &text).len(), 3);
    drafter.token_min = 0.8; // A match of three tokens is right with 0.72.
    assert!(shown(&mut drafter, ALICE, &text).is_empty());
    (drafter.token_min, drafter.gain_min) = (0.0, 0.6);
    assert_eq!(shown(&mut drafter, ALICE, &text).tokens(), [10]);
}

#[test]
fn a_repeated_token_has_a_bounded_number_of_votes() {
    let mut drafter = SuffixDrafter::new(100_000);
    drafter.warm_up(&[3; 20_000], 1, None);
    drafter.warm_up(&[3; 20_000], 1, Some(ALICE));
    let tree = shown(&mut drafter, ALICE, &[3; 5000]);
    assert!(tree.is_chain() && tree.len() == drafter.nodes_max);
    let occurrences = drafter.continuations.len();
    assert!(occurrences <= (3 * drafter.candidates + drafter.window) * (tree.len() + 1), "{occurrences} occurrences");
}

#[test]
#[should_panic(expected = "tokens indexed of")]
fn a_sequence_that_became_shorter_is_a_bug() {
    let mut drafter = drafter(10);
    drafter.open(&Opening::new(Trial::greedy(1).sequence, &[1, 2, 3]));
    Trial::greedy(1).draft(&mut drafter, &[1, 2]);
}

fn texts() -> impl Strategy<Value = Vec<(Option<Tenant>, Vec<Token>)>> {
    let owner = prop::sample::select(vec![None, Some(ALICE), Some(BOB)]);
    prop::collection::vec((owner, prop::collection::vec(0..4_u32, 0..20)), 0..12)
}

/// Any tokens of a small vocabulary.
fn text(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Token>> {
    prop::collection::vec(0..3_u32, len)
}

proptest! {
    /// A sequence grows at random, and the drafter is asked after drafted tokens, which it must not learn: its
    /// proposals and its history are those of a drafter that was never asked after drafted tokens.
    #[test]
    fn drafted_tokens_are_not_learned(
        more in prop::collection::vec((text(1..40), text(0..9)), 1..8),
        history in prop::collection::vec(0..3_u32, 0..30),
    ) {
        let trial = Trial::greedy(12);
        let fresh = || {
            let mut drafter = SuffixDrafter::new(1000);
            drafter.warm_up(&history, 1, Some(ALICE));
            drafter
        };
        let mut drafter = fresh();
        let mut text: Vec<Token> = vec![0];
        drafter.open(&Opening { tenant: ALICE, ..Opening::new(trial.sequence, &text) });
        for (new, drafted) in more {
            text.extend(new);
            Trial { drafted: drafted.len(), ..trial.clone() }.draft(&mut drafter, &[&text[..], &drafted].concat());
            let mut shadow = fresh();
            shadow.open(&Opening { tenant: ALICE, ..Opening::new(trial.sequence, &text) });
            let (found, expected) = (trial.draft(&mut drafter, &text), trial.draft(&mut shadow, &text));
            prop_assert_eq!(found.offers(), expected.offers());
            prop_assert_eq!(&drafter.running[&trial.sequence].history, &shadow.running[&trial.sequence].history);
        }
        let len = drafter.history_tokens();
        drafter.close(trial.sequence);
        prop_assert_eq!(drafter.history_tokens(), len + if text.len() < 2 { 0 } else { text.len() + 1 });
    }

    /// A prediction is matched as if it had been written before, and only for its own sequence.
    #[test]
    fn a_prediction_is_matched(len in 2..30_u32, after in 50..90_u32) {
        let before: Vec<Token> = (0..len).collect();
        let (trial, mut drafter) = (Trial::greedy(1), SuffixDrafter::new(1000));
        let prediction = [&before[..], &[after]].concat();
        drafter.open(&Opening { prediction: &prediction, ..Opening::new(trial.sequence, &before) });
        let tree = trial.draft(&mut drafter, &before);
        prop_assert_eq!(tree.tokens(), &[after]);
        drafter.close(trial.sequence);
        drafter.open(&Opening::new(trial.sequence, &before));
        prop_assert!(trial.draft(&mut drafter, &before).tokens() != [after]);
    }

    /// Proposals do not depend on other tenants' texts, as long as nothing has to be forgotten.
    #[test]
    fn no_tenant_is_shown_anothers_texts(taught in texts(), asked in prop::collection::vec(0..4_u32, 1..10)) {
        let (mut all, mut without) = (SuffixDrafter::new(2000), SuffixDrafter::new(2000));
        for (owner, tokens) in &taught {
            all.warm_up(tokens, 1, *owner);
            if *owner != Some(BOB) {
                without.warm_up(tokens, 1, *owner);
            }
        }
        let (found, expected) = (shown(&mut all, ALICE, &asked), shown(&mut without, ALICE, &asked));
        prop_assert_eq!(found.offers(), expected.offers());
    }

    /// Histories never exceed the capacity, and a tenant's is the last of what it taught.
    #[test]
    fn histories_hold_the_last_texts_and_no_more_than_the_capacity(taught in texts(), capacity in 0..80_usize) {
        let mut drafter = SuffixDrafter::new(capacity);
        for (owner, tokens) in &taught {
            drafter.warm_up(tokens, 1, *owner);
            let public: usize = drafter.texts.seen_by(Tenant(1)).map(Texts::len).sum();
            prop_assert!(public <= capacity && drafter.history_tokens() - public <= capacity);
        }
        for owner in [ALICE, BOB] {
            let all: Vec<Token> = taught.iter().filter(|(of, tokens)| *of == Some(owner) && tokens.len() > 1)
                .flat_map(|(_, tokens)| {
                    let kept = &tokens[(tokens.len() + 1).saturating_sub(capacity / 2).min(tokens.len())..];
                    if kept.len() > 1 { [kept, &[END]].concat() } else { Vec::new() }
                })
                .collect();
            let seen: Vec<&Texts> = drafter.texts.seen_by(owner).collect();
            let held: Vec<Token> = match seen[..] {
                [own, _] => {
                    let mut newest_first: Vec<&History> = own.newest_first().collect();
                    newest_first.reverse();
                    newest_first.into_iter().flat_map(History::tokens).copied().collect()
                }
                _ => Vec::new(),
            };
            prop_assert!(all.ends_with(&held), "{held:?} of {all:?}");
        }
    }
}
